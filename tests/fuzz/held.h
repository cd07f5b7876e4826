/* held.h - files that are held in memory: what is opened, asked for or listed below HELD is of a table
 * here, and no call of the system is made, which took half the time of readers of small files. fuzz.sh
 * links a target that includes this so that the functions at the end are called for libc's, by the
 * library's files of src/ too. One input in 64 has true files, in a folder of this process.
 *
 *     held_put("a/b.txt", bytes, size);
 *     snprintf(path, sizeof path, "%s/a/b.txt", held_folder(chosen));
 *     ...
 *     held_end(); // no file is there now; none may still be open */
#ifndef TESTS_FUZZ_HELD_H
#define TESTS_FUZZ_HELD_H
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

#define HELD "/held"
#define held_must(holds)                                                                           \
    ((holds) ? (void)0                                                                             \
             : (fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #holds), abort()))
enum {
    HELD_FILES = 32,
    HELD_OPEN = 16, /* at once */
    HELD_NAME = 64,
    HELD_BUFFER = 1024,
    HELD_FIRST = 1 << 20, /* of descriptors: no true one is so great */
    HELD_TRUE = 64        /* of so many inputs one */
};

typedef struct {
    char name[HELD_NAME];
    uint8_t *bytes;
    size_t size, room;
} held_file;

typedef struct {
    held_file *file; /* NULL: this place is free */
    FILE *stream;
    size_t at;
    char buffer[HELD_BUFFER];
} held_stream;

typedef struct {
    char name[HELD_NAME]; /* ends with /; of the top: empty */
    int next, open;
    struct dirent entry;
} held_list;

static held_file held[HELD_FILES];
static int held_count;
static held_stream held_open[HELD_OPEN];
static held_list held_listing;
static char held_home[64]; /* of true files; empty: there was none yet */
static int held_are_true;

/* ---- the table ---- */
static held_file *held_find(const char *name)
{
    for (int i = 0; i < held_count; i++)
        if (strcmp(held[i].name, name) == 0)
            return &held[i];
    return NULL;
}

static void held_write(held_file *f, const void *bytes, size_t size)
{
    if (f->size + size > f->room) {
        f->room = 2 * (f->size + size);
        f->bytes = (uint8_t *)realloc(f->bytes, f->room);
        held_must(f->bytes != NULL);
    }
    if (size > 0)
        memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
}

/* An empty file of this name. */
static held_file *held_new(const char *name)
{
    held_file *f = held_find(name);
    if (f == NULL) {
        held_must(held_count < HELD_FILES && strlen(name) < HELD_NAME);
        f = &held[held_count++];
        strcpy(f->name, name);
    }
    f->size = 0;
    return f;
}

static inline void held_put(const char *name, const void *bytes, size_t size)
{
    held_write(held_new(name), bytes, size);
}

static inline void held_remove(held_file *f)
{
    const held_file last = held[--held_count], gone = *f;
    *f = last;
    held[held_count] = gone; /* with its room */
}

/* ---- true files ---- */
static void held_leave(void) { held_must(rmdir(held_home) == 0 || errno == ENOTEMPTY); }

/* Every folder above a file, made, or those that are empty then removed. */
static void held_above(const char *name, int made)
{
    char path[256];
    const int n = snprintf(path, sizeof path, "%s/%s", held_home, name);
    for (int i = made ? (int)strlen(held_home) + 1 : n; made ? i < n : i > (int)strlen(held_home);
         i += made ? 1 : -1)
        if (path[i] == '/') {
            path[i] = 0;
            if (made)
                held_must(mkdir(path, 0777) == 0 || errno == EEXIST);
            else
                held_must(rmdir(path) == 0 || errno == ENOTEMPTY || errno == ENOENT);
            path[i] = '/';
        }
}

/* The folder that the files are in: HELD, or that of true files. */
static const char *held_folder(uint64_t chosen)
{
    held_are_true = chosen % HELD_TRUE == 0;
    if (!held_are_true)
        return HELD;
    if (held_home[0] == 0) {
        snprintf(held_home, sizeof held_home, "%s/fuzz.XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        held_must(mkdtemp(held_home) != NULL && atexit(held_leave) == 0);
    }
    for (int i = 0; i < held_count; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", held_home, held[i].name);
        held_above(held[i].name, 1);
        FILE *f = fopen(path, "wb");
        held_must(f != NULL);
        held_must(held[i].size == 0 || fwrite(held[i].bytes, 1, held[i].size, f) == held[i].size);
        held_must(fclose(f) == 0);
    }
    return held_home;
}

static void held_end(void)
{
    for (int i = 0; i < HELD_OPEN; i++)
        held_must(held_open[i].file == NULL);
    held_must(!held_listing.open);
    for (int i = 0; i < held_count && held_are_true; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", held_home, held[i].name);
        held_must(remove(path) == 0);
        if (strchr(held[i].name, '/') != NULL)
            held_above(held[i].name, 0);
    }
    held_count = held_are_true = 0;
}

/* ---- instead of libc's ---- */
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

/* What a path is called here, without "." and empty steps; 0: it is not below HELD. */
static int held_name(char name[HELD_NAME], const char *path)
{
    size_t n = 0;
    if (strncmp(path, HELD, sizeof HELD - 1) != 0 ||
        (path[sizeof HELD - 1] != '/' && path[sizeof HELD - 1] != 0))
        return 0;
    for (path += sizeof HELD - 1; *path != 0;) {
        const size_t step = strcspn(path += strspn(path, "/"), "/");
        if (step == 0 || (step == 1 && path[0] == '.')) {
            path += step;
            continue;
        }
        if (n + 1 + step + 1 > HELD_NAME) { /* no file has such a name */
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

static int held_is_folder(const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < held_count; i++)
        if (strncmp(held[i].name, name, n) == 0 && held[i].name[n] == '/')
            return 1;
    return n == 0;
}

static ssize_t held_stream_read(void *user, char *to, size_t n)
{
    held_stream *s = (held_stream *)user;
    const size_t left = s->at < s->file->size ? s->file->size - s->at : 0;
    n = n < left ? n : left;
    if (n > 0)
        memcpy(to, s->file->bytes + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

static ssize_t held_stream_write(void *user, const char *from, size_t n)
{
    held_stream *s = (held_stream *)user;
    held_must(s->at == s->file->size); /* nobody writes anywhere else */
    held_write(s->file, from, n);
    s->at += n;
    return (ssize_t)n;
}

static int held_stream_seek(void *user, off64_t *to, int from)
{
    held_stream *s = (held_stream *)user;
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

static int held_stream_close(void *user)
{
    ((held_stream *)user)->file = NULL;
    return 0;
}

static FILE *held_stream_of(held_file *file, const char *mode)
{
    const cookie_io_functions_t calls = { held_stream_read, held_stream_write, held_stream_seek,
                                          held_stream_close };
    int i = 0;
    while (i < HELD_OPEN && held_open[i].file != NULL)
        i++;
    held_must(i < HELD_OPEN);
    held_stream *s = &held_open[i];
    s->file = file;
    s->at = 0;
    s->stream = fopencookie(s, mode, calls);
    held_must(s->stream != NULL && setvbuf(s->stream, s->buffer, _IOFBF, HELD_BUFFER) == 0);
    return s->stream;
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    char name[HELD_NAME];
    if (!held_name(name, path))
        return __real_fopen(path, mode);
    held_file *f = mode[0] == 'w' ? held_new(name) : held_find(name);
    errno = f == NULL ? held_is_folder(name) ? EISDIR : ENOENT : errno;
    return f != NULL ? held_stream_of(f, mode) : NULL;
}

int __wrap_open(const char *path, int flags, ...)
{
    char name[HELD_NAME];
    va_list more;
    va_start(more, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(more, unsigned) : 0;
    va_end(more);
    if (!held_name(name, path))
        return __real_open(path, flags, mode);
    const held_file *f = held_find(name);
    held_must((flags & O_ACCMODE) == O_RDONLY);
    errno = f == NULL ? held_is_folder(name) ? EISDIR : ENOENT : errno;
    return f != NULL ? HELD_FIRST + (int)(f - held) : -1;
}

int __wrap_close(int fd) { return fd < HELD_FIRST ? __real_close(fd) : 0; }

FILE *__wrap_fdopen(int fd, const char *mode)
{
    return fd < HELD_FIRST ? __real_fdopen(fd, mode) : held_stream_of(&held[fd - HELD_FIRST], mode);
}

static int held_stat(const held_file *f, struct stat *is)
{
    memset(is, 0, sizeof *is);
    is->st_mode = f != NULL ? S_IFREG | 0666 : S_IFDIR | 0777;
    is->st_size = f != NULL ? (off_t)f->size : 0;
    return 0;
}

int __wrap_stat(const char *path, struct stat *is)
{
    char name[HELD_NAME];
    if (!held_name(name, path))
        return __real_stat(path, is);
    const held_file *f = held_find(name);
    if (f != NULL || held_is_folder(name))
        return held_stat(f, is);
    errno = ENOENT;
    return -1;
}

int __wrap_fstat(int fd, struct stat *is)
{
    return fd < HELD_FIRST ? __real_fstat(fd, is) : held_stat(&held[fd - HELD_FIRST], is);
}

DIR *__wrap_opendir(const char *path)
{
    char name[HELD_NAME];
    if (!held_name(name, path))
        return __real_opendir(path);
    if (held_find(name) != NULL || !held_is_folder(name)) {
        errno = held_find(name) != NULL ? ENOTDIR : ENOENT;
        return NULL;
    }
    held_must(!held_listing.open);
    snprintf(held_listing.name, HELD_NAME, "%s%s", name, name[0] != 0 ? "/" : "");
    held_listing.next = 0;
    held_listing.open = 1;
    return (DIR *)(void *)&held_listing;
}

/* A file, or a folder where the first of its files stands. */
struct dirent *__wrap_readdir(DIR *folder)
{
    held_list *list = &held_listing;
    const size_t n = strlen(list->name);
    if (folder != (DIR *)(void *)list)
        return __real_readdir(folder);
    while (list->next < held_count) {
        const int i = list->next++;
        const char *name = held[i].name + n;
        size_t step = strcspn(name, "/");
        int first = strncmp(held[i].name, list->name, n) == 0;
        for (int k = 0; k < i && first; k++)
            first = strncmp(held[k].name, held[i].name, n + step) != 0 ||
                    (held[k].name[n + step] != 0 && held[k].name[n + step] != '/');
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
    if (folder != (DIR *)(void *)&held_listing)
        return __real_closedir(folder);
    held_listing.open = 0;
    return 0;
}
#endif
