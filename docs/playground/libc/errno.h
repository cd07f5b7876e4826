#ifndef PLAYGROUND_ERRNO_H
#define PLAYGROUND_ERRNO_H
extern int errno;
enum { ENOENT = 2, EINTR = 4, EIO = 5, EEXIST = 17, ENOTDIR = 20, ERANGE = 34 };
#endif
