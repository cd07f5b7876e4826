/* opening.h - opens a CUDA device and returns what that prints. */
#ifndef TESTS_CUDA_OPENING_H
#define TESTS_CUDA_OPENING_H
#include <stdio.h>
#include <unistd.h>
#include "check.h"

/* Returns the text that opening a device prints to stderr. Sets *backend. */
static const char *open_printing(int device, const gckpt_backend **backend, char text[256])
{
    const char *why;
    FILE *f = tmpfile();
    const int old = dup(STDERR_FILENO);
    fflush(stderr);
    CHECK(f != NULL && dup2(fileno(f), STDERR_FILENO) >= 0);
    *backend = gckpt_cuda_backend(device, &why);
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    CHECK_MSG(*backend != NULL, "%s", why);
    rewind(f);
    text[fread(text, 1, 255, f)] = 0;
    fclose(f);
    return text;
}
#endif
