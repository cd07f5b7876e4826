/* The functions of stdlib.h that fits.c needs in the page; libc.c defines them. */
#ifndef PLAYGROUND_STDLIB_H
#define PLAYGROUND_STDLIB_H
#include <stddef.h>
void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *ptr, size_t size);
void free(void *ptr);
void qsort(void *of, size_t n, size_t size, int (*compare)(const void *, const void *));
void *bsearch(const void *key, const void *of, size_t n, size_t size,
              int (*compare)(const void *, const void *));
double strtod(const char *s, char **end);
long long strtoll(const char *s, char **end, int base);
unsigned long long strtoull(const char *s, char **end, int base);
#endif
