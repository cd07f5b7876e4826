#include "files/files.h"
#include "base/test_hooks.h"

#ifndef GCKPT_NO_STDIO
/* ---- files by path ---- */
typedef struct {
    FILE *f;
    int error;           /* errno of the first failure, or 0 if there was none */
    const char *action;  /* of a save: the failed action and a hint, for its error text */
    const char *outcome; /* of a save: state of the files, for its error text */
} gckpti_file;

#if GCKPTI_POSIX && !defined(__cplusplus)
int(fileno)(FILE *file); /* -std=c99 hides these in the system's headers */
FILE *(fdopen)(int fd, const char *mode);
int(fsync)(int fd);
int(fchmod)(int fd, mode_t mode);
char *(realpath)(const char *path, char *resolved);
#elif defined(_WIN32) /* declared as in <windows.h>; rename() cannot replace files there */
__declspec(dllimport) int __stdcall MoveFileExA(const char *, const char *, unsigned long);
#endif
enum { GCKPTI_PATH_MAX = 4096 }; /* bytes that realpath may write: no PATH_MAX is greater */

static void gckpti_record_errno(gckpti_file *file, int is_error)
{
    if (is_error && !file->error)
        file->error = errno ? errno : EIO;
}

static size_t gckpti_file_read(void *user, void *bytes, size_t size)
{
    gckpti_file *file = (gckpti_file *)user;
    size_t done = fread(bytes, 1, size, file->f);
    gckpti_record_errno(file, ferror(file->f));
    return done;
}

static size_t gckpti_file_write(void *user, const void *bytes, size_t size)
{
    gckpti_file *file = (gckpti_file *)user;
    size_t done = fwrite(bytes, 1, size, file->f);
    gckpti_record_errno(file, done != size);
    return done;
}

#if GCKPTI_POSIX
#ifndef LOCK_EX /* _POSIX_C_SOURCE hides flock on some systems that have it */
int flock(int fd, int operation);
#endif

/* Locks the file fd, if the file system has locks. Returns 0 and sets errno: to EEXIST if another
 * save has locked the file or if `name` is no longer its name. */
static int gckpti_lock(int fd, const char *name)
{
    struct stat a, b;
    if (flock(fd, 2 | 4) && errno == EWOULDBLOCK) { /* LOCK_EX | LOCK_NB */
        errno = EEXIST;
        return 0;
    }
    if (fstat(fd, &a) || stat(name, &b))
        return 0;
    errno = EEXIST;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Calls fsync; returns nonzero on errors, except where the file system cannot sync (folders). */
static int gckpti_sync(int fd)
{
#ifdef F_FULLFSYNC /* macOS: fsync leaves bytes in the drive's cache */
    if (fcntl(fd, F_FULLFSYNC) != -1)
        return 0;
#endif
    return fsync(fd) && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP && errno != EBADF;
}

/* Syncs the folder of `path`, so that its new name is on disk; cuts `path` to that folder. */
static void gckpti_sync_folder(gckpti_file *file, char *path)
{
    char *slash = strrchr(path, '/');
    memcpy(slash ? slash + 1 : path, ".", 2);
    int folder = open(path, O_RDONLY);
    gckpti_record_errno(file, folder < 0 ? errno != EACCES : gckpti_sync(folder));
    if (folder >= 0)
        close(folder);
}
#endif

/* Copies `path` to `target` with its links followed. Returns the permissions of the file there; -1
 * if there is none or the system has no permissions. */
static int gckpti_resolve_target(gckpti_file *file, const char *path, char *target)
{
    memcpy(target, path, strlen(path) + 1);
#if GCKPTI_POSIX
    struct stat old;
    const int exists = !stat(path, &old);
    gckpti_record_errno(file, exists ? !realpath(path, target) : errno != ENOENT);
    if (exists && !S_ISREG(old.st_mode)) {
        file->error = EEXIST;
        file->action = "replace a folder, device or pipe; is the path right";
    }
    return exists ? (int)(old.st_mode & 0777) : -1;
#else
    return (void)file, -1;
#endif
}

/* Creates and locks a temporary file (mode -1 means umask's permissions). The system releases the
 * lock of a killed process, so a file that can be locked is left over from a killed save and is
 * removed. Returns NULL and sets errno on errors; EEXIST means that another save has the file. */
static FILE *gckpti_open_temporary(const char *name, int mode)
{
#if GCKPTI_POSIX
    const int old = open(name, O_WRONLY | O_NONBLOCK);
    if (old >= 0 && gckpti_lock(old, name))
        remove(name);
    if (old >= 0)
        close(old);
    const unsigned permissions = mode < 0 ? 0666u : (unsigned)mode | 0200u;
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, permissions);
    FILE *f = fd >= 0 && gckpti_lock(fd, name) ? fdopen(fd, "wb") : NULL;
    if (fd >= 0 && !f) {
        const int error = errno;
        close(fd);
        if (error != EEXIST)
            remove(name);
        errno = error;
    }
    return f;
#elif defined(_WIN32)
    const int fd = _sopen(name, _O_WRONLY | _O_CREAT | _O_TRUNC | _O_BINARY, 0x10 /* _SH_DENYRW */,
                          _S_IREAD | _S_IWRITE);
    return (void)mode, fd < 0 ? NULL : _fdopen(fd, "wb");
#else
    return (void)mode, fopen(name, "wb");
#endif
}

/* Renames the flushed file so that it survives a power cut; cuts the string `target` to its folder.
 * Returns 0 if the rename failed. FAT needs two things more than other file systems: the replaced
 * file stays open, or its clusters would be freed before its entry; the new file is synced after
 * the folder, or it could have two names. */
static int gckpti_put_in_place(gckpti_file *file, const char *temporary, char *target)
{
    file->action = "put it in place; is that in use";
#if GCKPTI_POSIX
    const int replaced = open(target, O_RDONLY);
    gckpti_record_errno(file, replaced < 0 && errno != ENOENT && errno != EACCES);
    const int placed = !file->error && !rename(temporary, target);
    gckpti_record_errno(file, !placed);
    if (placed) {
        file->action = "see to it that the new file outlasts a power cut";
        file->outcome = ", but it is in place";
        gckpti_sync_folder(file, target);
        gckpti_record_errno(file, gckpti_sync(fileno(file->f)));
    }
    if (replaced >= 0)
        close(replaced);
#else
#ifdef _WIN32
    const int placed = MoveFileExA(temporary, target, 1 | 8) != 0; /* replace, write through */
#else
    const int placed = !rename(temporary, target);
#endif
    gckpti_record_errno(file, !placed);
#endif
    return placed;
}

/* Writes the store to the temporary file, open as file->f; then renames or removes the file. */
static gckpt_result gckpti_save_file(gckpti_file *file, const gckpti_save_spec *spec,
                                     const char *temporary, char *target, int mode)
{
    file->action = "write; is the disk full";
    errno = 0;
    const gckpt_result result = gckpti_write(spec, gckpti_file_write, file);
    gckpti_record_errno(file, fflush(file->f));
#if GCKPTI_POSIX
    if (mode >= 0) /* undo the umask */
        (void)fchmod(fileno(file->f), (mode_t)mode);
    gckpti_record_errno(file, gckpti_sync(fileno(file->f)));
#else
    (void)mode;
#ifdef _WIN32
    gckpti_record_errno(file, _commit(_fileno(file->f)));
#endif
    gckpti_record_errno(file, fclose(file->f));
    file->f = NULL;
#endif
    if (result != GCKPT_OK || file->error || !gckpti_put_in_place(file, temporary, target))
        remove(temporary);
    if (file->f) /* releases the lock */
        gckpti_record_errno(file, fclose(file->f));
    return result;
}

static gckpt_result gckpti_save(const gckpti_save_spec *spec, const char *path)
{
    gckpt_store *s = spec->store;
    const size_t size = strlen(path) + GCKPTI_PATH_MAX + 16; /* with the suffix below */
    char *target = (char *)gckpti_new(&s->memory, 2 * size, 1);
    gckpt_result result = GCKPT_E_FILE;
    gckpti_file file = { NULL, 0,
                         "create a file next to it (.gckpt-tmp); is the folder writable, or does "
                         "another save of it go on",
                         "? Nothing was changed" };
    if (!target)
        return gckpti_error(s, GCKPT_E_MEMORY, "save: no memory for file names of %z bytes",
                            2 * size);
    errno = 0;
    const int mode = gckpti_resolve_target(&file, path, target);
    char *temporary = (char *)memcpy(target + size, target, strlen(target));
    memcpy(temporary + strlen(target), ".gckpt-tmp", 11);
    if (!file.error) {
        file.f = gckpti_open_temporary(temporary, mode);
        gckpti_record_errno(&file, !file.f);
    }
    if (file.f)
        result = gckpti_save_file(&file, spec, temporary, target, mode);
    gckpti_delete(&s->memory, target, 2 * size, 1);
    if (!file.error)
        return result;
    return gckpti_error(s, GCKPT_E_FILE, "save: %s: could not %s%s: \"%s\"", strerror(file.error),
                        file.action, file.outcome, path);
}

GCKPT_API gckpt_result gckpt_store_save(gckpt_store *store, const char *path,
                                        const gckpt_file_desc *desc)
{
    const gckpti_save_spec spec = { store, desc ? desc : &gckpti_file_plain, NULL };
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "save: a store and a path are needed");
    return gckpti_save(&spec, path);
}

GCKPT_API gckpt_result gckpt_store_load(gckpt_store *store, const char *path,
                                        const gckpt_file_desc *desc)
{
    gckpti_file file = { NULL, 0, NULL, NULL };
    gckpt_result result = GCKPT_OK;
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a path are needed");
    errno = 0;
    file.f = fopen(path, "rb");
#ifdef _WIN32 /* ftell's long has 32 bits there */
    const int64_t size = file.f && !_fseeki64(file.f, 0, SEEK_END) ? _ftelli64(file.f) : -1;
#else
    const int64_t size = file.f && !fseek(file.f, 0, SEEK_END) ? (int64_t)ftell(file.f) : -1;
#endif
    gckpti_record_errno(&file, size < 0 || fseek(file.f, 0, SEEK_SET));
    if (!file.error)
        result = gckpti_load(store, gckpti_file_read, &file, NULL, (size_t)size, desc);
    if (file.f)
        fclose(file.f);
    if (file.error)
        return gckpti_error(store, GCKPT_E_FILE, "load: %s: could not read \"%s\"",
                            strerror(file.error), path);
    if (result != GCKPT_OK && store->object.sticky == GCKPT_OK) {
        gckpti_text t = gckpti_append_text(&store->object);
        gckpti_text_add(&t, " (\"%s\")", path);
    }
    return result;
}
#endif
