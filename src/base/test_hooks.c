#define GCKPTI_NO_HOOKS
#include "base/test_hooks.h"
#include <stdio.h>
#include <stdlib.h>

static void print_assertion(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
    abort();
}

static int never_fail(const char *file, int line)
{
    (void)file;
    return line < 0;
}

#if GCKPTI_POSIX
FILE *(fdopen)(int fd, const char *mode); /* -std=c99 hides these in the system's headers */
int(fsync)(int fd);
int(flock)(int fd, int how);

static int open_file(const char *path, int flags, unsigned mode) { return open(path, flags, mode); }
static int stat_of(const char *path, struct stat *s) { return stat(path, s); }
static int fstat_of(int fd, struct stat *s) { return fstat(fd, s); }

gckpti_test_hooks gckpti_hooks = {
    print_assertion, never_fail, fopen, fdopen, fread, fwrite, fflush, fseek, fclose, fsync,
    rename, remove, open_file, stat_of, fstat_of, flock, close
};
#else
gckpti_test_hooks gckpti_hooks = { print_assertion, never_fail };
#endif

GCKPTI_FN void gckpti_assert_failed(const char *text, const char *file, int line)
{
    gckpti_hooks.assert_failed(text, file, line);
}

GCKPTI_FN void *gckpti_hook_alloc(gckpti_scratch *s, size_t n, size_t size, const char *file,
                                  int line)
{
    const int fails = gckpti_hooks.fail_scratch(file, line);
    *s->failed = *s->failed || fails;
    return fails ? NULL : (gckpti_scratch_alloc)(s, n, size);
}

GCKPTI_FN int gckpti_hook_reserve(gckpti_scratch *s, void *array, size_t n, size_t size,
                                  const char *file, int line)
{
    const int fails = gckpti_hooks.fail_scratch(file, line);
    *s->failed = *s->failed || fails;
    return !fails && (gckpti_reserve)(s, array, n, size);
}
