/* The functions of libc that gradckpt.h needs in the page; engine.c defines them. */
#ifndef PLAYGROUND_STRING_H
#define PLAYGROUND_STRING_H
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t n);
char *strchr(const char *s, int c);
char *strrchr(const char *s, int c);
char *strstr(const char *s, const char *what);
size_t strspn(const char *s, const char *of);
size_t strcspn(const char *s, const char *of);
char *strpbrk(const char *s, const char *of);
char *strerror(int error);
#endif
