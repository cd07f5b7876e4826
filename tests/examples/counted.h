/* counted.h - lets malloc fail. Include it before files that call malloc by name. Allocation number `fail_at` returns
 * NULL (if 0, no allocation fails), and `live_blocks` counts blocks that are not freed. */
#ifndef TESTS_COUNTED_H
#define TESTS_COUNTED_H
#include <stdlib.h>
#include <string.h>

static long allocations, fail_at, live_blocks;

static inline void *counted(void *old, size_t size)
{
    if (++allocations == fail_at)
        return NULL;
    void *p = realloc(old, size);
    live_blocks += p != NULL && old == NULL;
    return p;
}
static inline void *counted_zeros(size_t n, size_t size)
{
    void *p = counted(NULL, n * size);
    return p != NULL ? memset(p, 0, n * size) : NULL;
}
static inline void counted_free(void *p)
{
    live_blocks -= p != NULL;
    free(p);
}
#define malloc(size)     counted(NULL, size)
#define calloc(n, size)  counted_zeros(n, size)
#define realloc(p, size) counted(p, size)
#define free(p)          counted_free(p)
#endif
