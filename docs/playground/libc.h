/* libc.c - memory, and the functions of libc that the page's programs need: engine.c includes it, and fits.c
 * with FITS, for more of them. Compiled natively, only `resize` and EXPORT. */
#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name))) name

void *memcpy(void *to, const void *from, size_t n) { return __builtin_memcpy(to, from, n); }
void *memmove(void *to, const void *from, size_t n) { return __builtin_memmove(to, from, n); }
void *memset(void *to, int byte, size_t n) { return __builtin_memset(to, byte, n); }

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = (const unsigned char *)a, *y = (const unsigned char *)b;
    for (; n > 0; n--, x++, y++)
        if (*x != *y)
            return *x - *y;
    return 0;
}

size_t strlen(const char *s)
{
    size_t n = 0;
    while (s[n] != 0)
        n++;
    return n;
}

int strncmp(const char *a, const char *b, size_t n)
{
    for (; n > 0 && *a == *b && *a != 0; n--)
        a++, b++;
    return n > 0 ? (unsigned char)*a - (unsigned char)*b : 0;
}

int strcmp(const char *a, const char *b) { return strncmp(a, b, SIZE_MAX); }

char *strchr(const char *s, int c)
{
    while (*s != (char)c && *s != 0)
        s++;
    return *s == (char)c ? (char *)(uintptr_t)s : NULL;
}

/* The compiler calls this for products of 128 bits. */
__int128 __multi3(__int128 a, __int128 b);
__int128 __multi3(__int128 a, __int128 b)
{
    const uint64_t x = (uint64_t)a, y = (uint64_t)b, low = UINT32_MAX;
    const uint64_t ll = (x & low) * (y & low), hl = (x >> 32) * (y & low) + (ll >> 32);
    const uint64_t lh = (x & low) * (y >> 32) + (hl & low);
    const uint64_t high = (x >> 32) * (y >> 32) + (hl >> 32) + (lh >> 32) +
                          x * (uint64_t)(b >> 64) + (uint64_t)(a >> 64) * y;
    return (__int128)((unsigned __int128)high << 64 | lh << 32 | (ll & low));
}

/* Allocates blocks of powers of two; a list for each size has its free blocks. Memory only grows. */
enum { PAGE = 65536, SMALLEST = 6, SIZES = 31 };
typedef struct free_block {
    struct free_block *next;
} free_block;
extern unsigned char __heap_base;
static free_block *free_blocks[SIZES];
static uintptr_t top;

static int size_of_block(size_t size)
{
    int k = SMALLEST;
    while (k < SIZES && (size_t)1 << k < size)
        k++;
    return k;
}

static void *block_of(int k)
{
    const size_t size = (size_t)1 << k;
    free_block *b = free_blocks[k];
    if (b != NULL) {
        free_blocks[k] = b->next;
        return b;
    }
    if (top == 0)
        top = ((uintptr_t)&__heap_base + 63) / 64 * 64;
    const size_t have = __builtin_wasm_memory_size(0) * (size_t)PAGE;
    if (top + size > have &&
        __builtin_wasm_memory_grow(0, (top + size - have + PAGE - 1) / PAGE) == SIZE_MAX)
        return NULL;
    top += size;
    return (void *)(top - size);
}

static void *resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    const int was = size_of_block(old_size), k = size_of_block(new_size);
    (void)user;
    if (ptr != NULL && new_size > 0 && was == k)
        return ptr;
    void *to = new_size > 0 && k < SIZES ? block_of(k) : NULL;
    if (new_size > 0 && to == NULL)
        return NULL;
    if (ptr != NULL) {
        memcpy(to == NULL ? ptr : to, ptr,
               to == NULL            ? 0
               : old_size < new_size ? old_size
                                     : new_size);
        free_block *b = (free_block *)ptr;
        b->next = free_blocks[was];
        free_blocks[was] = b;
    }
    return to;
}
#else
#define EXPORT(name) name
#include "heap.h"
#endif
