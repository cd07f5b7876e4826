#define GCKPTI_SYSTEM
#include "base/host.h"
#include <stdio.h>
#include <stdlib.h>

static void say(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
    abort();
}

#if GCKPTI_POSIX
FILE *(fdopen)(int fd, const char *mode); /* with -std=c99 the system's headers do not show these */
int(fsync)(int fd);
int(flock)(int fd, int how);

static int open_file(const char *path, int flags, unsigned mode) { return open(path, flags, mode); }
static int stat_of(const char *path, struct stat *s) { return stat(path, s); }
static int fstat_of(int fd, struct stat *s) { return fstat(fd, s); }

gckpti_host gckpti_here = { say,   fopen,  fdopen, fread,     fwrite,  fflush,   fseek, fclose,
                            fsync, rename, remove, open_file, stat_of, fstat_of, flock, close,
                            opendir, readdir,
#ifdef __linux__
                            statfs
#endif
};
#else
gckpti_host gckpti_here = { say };
#endif

GCKPTI_FN void gckpti_host_failed(const char *text, const char *file, int line)
{
    gckpti_here.failed(text, file, line);
}
