/* Functions that tests can replace: system calls of files, the handler of failed assertions, and
 * the check that lets an allocation fail. Included after all other headers; not in gradckpt.h. */
#pragma once
#include "base/base.h"

typedef struct {
    void (*assert_failed)(const char *text, const char *file, int line);
    int (*fail_scratch)(const char *file, int line); /* returns 1 to fail the call at this line */
#if GCKPTI_POSIX
    FILE *(*fopen)(const char *path, const char *mode);
    FILE *(*fdopen)(int fd, const char *mode);
    size_t (*fread)(void *to, size_t size, size_t n, FILE *f);
    size_t (*fwrite)(const void *from, size_t size, size_t n, FILE *f);
    int (*fflush)(FILE *f);
    int (*fseek)(FILE *f, long at, int whence);
    int (*fclose)(FILE *f);
    int (*fsync)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*remove)(const char *path);
    int (*open)(const char *path, int flags, unsigned mode);
    int (*stat)(const char *path, struct stat *s);
    int (*fstat)(int fd, struct stat *s);
    int (*flock)(int fd, int how);
    int (*close)(int fd);
#endif
} gckpti_test_hooks;
extern gckpti_test_hooks gckpti_hooks;

#if GCKPTI_POSIX && !defined(GCKPTI_NO_HOOKS)
#define fopen(path, mode)                   gckpti_hooks.fopen(path, mode)
#define fdopen(fd, mode)                    gckpti_hooks.fdopen(fd, mode)
#define fread(to, size, n, f)               gckpti_hooks.fread(to, size, n, f)
#define fwrite(from, size, n, f)            gckpti_hooks.fwrite(from, size, n, f)
#define fflush(f)                           gckpti_hooks.fflush(f)
#define fseek(f, at, whence)                gckpti_hooks.fseek(f, at, whence)
#define fclose(f)                           gckpti_hooks.fclose(f)
#define fsync(fd)                           gckpti_hooks.fsync(fd)
#define rename(from, to)                    gckpti_hooks.rename(from, to)
#define remove(path)                        gckpti_hooks.remove(path)
#define stat(path, s)                       gckpti_hooks.stat(path, s)
#define fstat(fd, s)                        gckpti_hooks.fstat(fd, s)
#define flock(fd, how)                      gckpti_hooks.flock(fd, how)
#define close(fd)                           gckpti_hooks.close(fd)
#define GCKPTI_OPEN(path, flags, mode, ...) gckpti_hooks.open(path, flags, mode)
#define open(...)                           GCKPTI_OPEN(__VA_ARGS__, 0, 0)
#endif
