/* memfs.h - a file system in memory: files below MEMFS are opened, examined and listed in a table here, without system
 * calls, which took half of the time of readers of small files. fuzz.sh links a target that includes this file so that
 * the functions at the end replace libc's, also in the library's files of src/. One input in 64 uses real files, in a
 * folder of this process.
 *
 *     memfs_put("a/b.txt", bytes, size);
 *     snprintf(path, sizeof path, "%s/a/b.txt", memfs_folder(chosen));
 *     ...
 *     memfs_end(); // removes all files; none may be open */
#ifndef TESTS_FUZZ_MEMFS_H
#define TESTS_FUZZ_MEMFS_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMFS "/held"
#define memfs_must(holds)                                                                           \
    ((holds) ? (void)0                                                                             \
             : (fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #holds), abort()))
enum {
    MEMFS_FILES = 32,
    MEMFS_OPEN = 16, /* open at the same time */
    MEMFS_NAME = 64,
    MEMFS_BUFFER = 1024,
    MEMFS_FIRST_FD = 1 << 20, /* the first file descriptor of a file in memory, which is larger than any real one */
    MEMFS_DISK_EVERY = 64        /* one input in this many uses real files */
};

typedef struct {
    char name[MEMFS_NAME];
    uint8_t *bytes;
    size_t size, capacity;
} memfs_file;

typedef struct {
    memfs_file *file; /* NULL if this entry is free */
    FILE *stream;
    size_t at;
    char buffer[MEMFS_BUFFER];
} memfs_stream;

typedef struct {
    char name[MEMFS_NAME]; /* ends with /; empty for the top folder */
    int next, open;
    struct dirent entry;
} memfs_list;

static memfs_file memfs[MEMFS_FILES];
static int memfs_count;
static memfs_stream memfs_open[MEMFS_OPEN];
static memfs_list memfs_listing;
static char memfs_home[64]; /* folder of real files; empty before the first one */
static int memfs_on_disk;

/* ---- the table ---- */
static memfs_file *memfs_find(const char *name)
{
    for (int i = 0; i < memfs_count; i++)
        if (strcmp(memfs[i].name, name) == 0)
            return &memfs[i];
    return NULL;
}

static void memfs_write(memfs_file *f, const void *bytes, size_t size)
{
    if (f->size + size > f->capacity) {
        f->capacity = 2 * (f->size + size);
        f->bytes = (uint8_t *)realloc(f->bytes, f->capacity);
        memfs_must(f->bytes != NULL);
    }
    if (size > 0)
        memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
}

/* Adds an empty file of this name. */
static memfs_file *memfs_new(const char *name)
{
    memfs_file *f = memfs_find(name);
    if (f == NULL) {
        memfs_must(memfs_count < MEMFS_FILES && strlen(name) < MEMFS_NAME);
        f = &memfs[memfs_count++];
        strcpy(f->name, name);
    }
    f->size = 0;
    return f;
}

static inline void memfs_put(const char *name, const void *bytes, size_t size)
{
    memfs_write(memfs_new(name), bytes, size);
}

static inline void memfs_remove(memfs_file *f)
{
    const memfs_file last = memfs[--memfs_count], gone = *f;
    *f = last;
    memfs[memfs_count] = gone; /* the freed entry keeps its memory, which is reused */
}

/* ---- real files ---- */
static void memfs_rmdir(void) { memfs_must(rmdir(memfs_home) == 0 || errno == ENOTEMPTY); }

/* Creates every folder above the file `name`, or if `made` is 0, removes those that are empty. */
static void memfs_parents(const char *name, int made)
{
    char path[256];
    const int n = snprintf(path, sizeof path, "%s/%s", memfs_home, name);
    for (int i = made ? (int)strlen(memfs_home) + 1 : n; made ? i < n : i > (int)strlen(memfs_home);
         i += made ? 1 : -1)
        if (path[i] == '/') {
            path[i] = 0;
            if (made)
                memfs_must(mkdir(path, 0777) == 0 || errno == EEXIST);
            else
                memfs_must(rmdir(path) == 0 || errno == ENOTEMPTY || errno == ENOENT);
            path[i] = '/';
        }
}

/* Returns the folder in which an input's files are: MEMFS, or for one input in 64 the folder of real files. */
static const char *memfs_folder(uint64_t chosen)
{
    memfs_on_disk = chosen % MEMFS_DISK_EVERY == 0;
    if (!memfs_on_disk)
        return MEMFS;
    if (memfs_home[0] == 0) {
        snprintf(memfs_home, sizeof memfs_home, "%s/fuzz.XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        memfs_must(mkdtemp(memfs_home) != NULL && atexit(memfs_rmdir) == 0);
    }
    for (int i = 0; i < memfs_count; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", memfs_home, memfs[i].name);
        memfs_parents(memfs[i].name, 1);
        FILE *f = fopen(path, "wb");
        memfs_must(f != NULL);
        memfs_must(memfs[i].size == 0 || fwrite(memfs[i].bytes, 1, memfs[i].size, f) == memfs[i].size);
        memfs_must(fclose(f) == 0);
    }
    return memfs_home;
}

static void memfs_end(void)
{
    for (int i = 0; i < MEMFS_OPEN; i++)
        memfs_must(memfs_open[i].file == NULL);
    memfs_must(!memfs_listing.open);
    for (int i = 0; i < memfs_count && memfs_on_disk; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", memfs_home, memfs[i].name);
        memfs_must(remove(path) == 0);
        if (strchr(memfs[i].name, '/') != NULL)
            memfs_parents(memfs[i].name, 0);
    }
    memfs_count = memfs_on_disk = 0;
}

/* ---- replacements of libc's functions ---- */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_close(int fd);
int __wrap_close(int fd);
int __real_stat(const char *path, struct stat *is);
int __wrap_stat(const char *path, struct stat *is);
int __real_fstat(int fd, struct stat *is);
int __wrap_fstat(int fd, struct stat *is);
DIR *__real_opendir(const char *path);
DIR *__wrap_opendir(const char *path);
struct dirent *__real_readdir(DIR *folder);
struct dirent *__wrap_readdir(DIR *folder);
int __real_closedir(DIR *folder);
int __wrap_closedir(DIR *folder);

/* Writes the part of the path below MEMFS to `name`, without "." and empty components. Returns 0 if the path is not
 * below MEMFS. */
static int memfs_name(char name[MEMFS_NAME], const char *path)
{
    size_t n = 0;
    if (strncmp(path, MEMFS, sizeof MEMFS - 1) != 0 ||
        (path[sizeof MEMFS - 1] != '/' && path[sizeof MEMFS - 1] != 0))
        return 0;
    for (path += sizeof MEMFS - 1; *path != 0;) {
        const size_t step = strcspn(path += strspn(path, "/"), "/");
        if (step == 0 || (step == 1 && path[0] == '.')) {
            path += step;
            continue;
        }
        if (n + 1 + step + 1 > MEMFS_NAME) { /* no file has a name this long */
            strcpy(name, "/");
            return 1;
        }
        if (n > 0)
            name[n++] = '/';
        memcpy(name + n, path, step);
        n += step;
        path += step;
    }
    name[n] = 0;
    return 1;
}

static int memfs_is_folder(const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < memfs_count; i++)
        if (strncmp(memfs[i].name, name, n) == 0 && memfs[i].name[n] == '/')
            return 1;
    return n == 0;
}

static ssize_t memfs_stream_read(void *user, char *to, size_t n)
{
    memfs_stream *s = (memfs_stream *)user;
    const size_t left = s->at < s->file->size ? s->file->size - s->at : 0;
    n = n < left ? n : left;
    if (n > 0)
        memcpy(to, s->file->bytes + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

static ssize_t memfs_stream_write(void *user, const char *from, size_t n)
{
    memfs_stream *s = (memfs_stream *)user;
    memfs_must(s->at == s->file->size); /* writing is only supported at the end of a file */
    memfs_write(s->file, from, n);
    s->at += n;
    return (ssize_t)n;
}

static int memfs_stream_seek(void *user, off64_t *to, int from)
{
    memfs_stream *s = (memfs_stream *)user;
    const off64_t at = *to + (off64_t)(from == SEEK_CUR   ? s->at
                                       : from == SEEK_END ? s->file->size
                                                          : 0);
    if (at < 0) {
        errno = EINVAL;
        return -1;
    }
    s->at = (size_t)(*to = at);
    return 0;
}

static int memfs_stream_close(void *user)
{
    ((memfs_stream *)user)->file = NULL;
    return 0;
}

static FILE *memfs_stream_of(memfs_file *file, const char *mode)
{
    const cookie_io_functions_t calls = { memfs_stream_read, memfs_stream_write, memfs_stream_seek,
                                          memfs_stream_close };
    int i = 0;
    while (i < MEMFS_OPEN && memfs_open[i].file != NULL)
        i++;
    memfs_must(i < MEMFS_OPEN);
    memfs_stream *s = &memfs_open[i];
    s->file = file;
    s->at = 0;
    s->stream = fopencookie(s, mode, calls);
    memfs_must(s->stream != NULL && setvbuf(s->stream, s->buffer, _IOFBF, MEMFS_BUFFER) == 0);
    return s->stream;
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    char name[MEMFS_NAME];
    if (!memfs_name(name, path))
        return __real_fopen(path, mode);
    memfs_file *f = mode[0] == 'w' ? memfs_new(name) : memfs_find(name);
    errno = f == NULL ? memfs_is_folder(name) ? EISDIR : ENOENT : errno;
    return f != NULL ? memfs_stream_of(f, mode) : NULL;
}

int __wrap_open(const char *path, int flags, ...)
{
    char name[MEMFS_NAME];
    va_list more;
    va_start(more, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(more, unsigned) : 0;
    va_end(more);
    if (!memfs_name(name, path))
        return __real_open(path, flags, mode);
    const memfs_file *f = memfs_find(name);
    memfs_must((flags & O_ACCMODE) == O_RDONLY);
    errno = f == NULL ? memfs_is_folder(name) ? EISDIR : ENOENT : errno;
    return f != NULL ? MEMFS_FIRST_FD + (int)(f - memfs) : -1;
}

int __wrap_close(int fd) { return fd < MEMFS_FIRST_FD ? __real_close(fd) : 0; }

FILE *__wrap_fdopen(int fd, const char *mode)
{
    return fd < MEMFS_FIRST_FD ? __real_fdopen(fd, mode) : memfs_stream_of(&memfs[fd - MEMFS_FIRST_FD], mode);
}

static int memfs_stat(const memfs_file *f, struct stat *is)
{
    memset(is, 0, sizeof *is);
    is->st_mode = f != NULL ? S_IFREG | 0666 : S_IFDIR | 0777;
    is->st_size = f != NULL ? (off_t)f->size : 0;
    return 0;
}

int __wrap_stat(const char *path, struct stat *is)
{
    char name[MEMFS_NAME];
    if (!memfs_name(name, path))
        return __real_stat(path, is);
    const memfs_file *f = memfs_find(name);
    if (f != NULL || memfs_is_folder(name))
        return memfs_stat(f, is);
    errno = ENOENT;
    return -1;
}

int __wrap_fstat(int fd, struct stat *is)
{
    return fd < MEMFS_FIRST_FD ? __real_fstat(fd, is) : memfs_stat(&memfs[fd - MEMFS_FIRST_FD], is);
}

DIR *__wrap_opendir(const char *path)
{
    char name[MEMFS_NAME];
    if (!memfs_name(name, path))
        return __real_opendir(path);
    if (memfs_find(name) != NULL || !memfs_is_folder(name)) {
        errno = memfs_find(name) != NULL ? ENOTDIR : ENOENT;
        return NULL;
    }
    memfs_must(!memfs_listing.open);
    snprintf(memfs_listing.name, MEMFS_NAME, "%s%s", name, name[0] != 0 ? "/" : "");
    memfs_listing.next = 0;
    memfs_listing.open = 1;
    return (DIR *)(void *)&memfs_listing;
}

/* Returns the next entry of a folder: a file, or the name of a folder for the first file in it. */
struct dirent *__wrap_readdir(DIR *folder)
{
    memfs_list *list = &memfs_listing;
    const size_t n = strlen(list->name);
    if (folder != (DIR *)(void *)list)
        return __real_readdir(folder);
    while (list->next < memfs_count) {
        const int i = list->next++;
        const char *name = memfs[i].name + n;
        size_t step = strcspn(name, "/");
        int first = strncmp(memfs[i].name, list->name, n) == 0;
        for (int k = 0; k < i && first; k++)
            first = strncmp(memfs[k].name, memfs[i].name, n + step) != 0 ||
                    (memfs[k].name[n + step] != 0 && memfs[k].name[n + step] != '/');
        if (!first)
            continue;
        memcpy(list->entry.d_name, name, step);
        list->entry.d_name[step] = 0;
        return &list->entry;
    }
    return NULL;
}

int __wrap_closedir(DIR *folder)
{
    if (folder != (DIR *)(void *)&memfs_listing)
        return __real_closedir(folder);
    memfs_listing.open = 0;
    return 0;
}
#endif
