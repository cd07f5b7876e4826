#include "base/base.h"

/* all heap memory is allocated here */

GCKPTI_FN gckpti_allocator gckpti_allocator_of(const gckpt_memory *memory)
{
    gckpti_allocator a = { { NULL, NULL, NULL, 0 }, 0, 0, 0 };
    if (memory)
        a.desc = *memory;
    return a;
}

GCKPTI_FN size_t gckpti_round_up(size_t n, size_t alignment)
{
    return (n + (alignment - 1)) / alignment * alignment;
}

#ifdef GCKPT_REALLOC
/* Calls GCKPT_REALLOC, except that on Linux a large new block is aligned to a cache line (a vector
 * that crosses two takes twice as long to read) and requests huge pages if it holds whole ones. */
static void *gckpti_heap_resize(void *ptr, size_t size)
{
#if GCKPTI_HUGE_PAGES
    const size_t page = (size_t)2 << 20;
    void *fresh = NULL;
    if (!ptr && size >= 16384) {
        if (posix_memalign(&fresh, 64, size))
            return NULL;
        size_t skip = (page - (uintptr_t)fresh % page) % page;
        if (size >= 2 * page)
            (void)madvise((char *)fresh + skip, (size - skip) / page * page,
                          14); /* 14 is MADV_HUGEPAGE */
        return fresh;
    }
#endif
    return GCKPT_REALLOC(ptr, size);
}
#endif

/* Returns 1 if ptr is a block's last allocation, or NULL (then the next allocation follows it). */
static int gckpti_is_last(const gckpti_allocator *a, const void *ptr, size_t size)
{
    const unsigned char *base = (const unsigned char *)a->desc.memory;
    size_t skew = (size_t)((uintptr_t)base % GCKPTI_ALIGN); /* a block may begin at any address */
    size_t offset = base && ptr ? (size_t)((const unsigned char *)ptr - base) : 0;
    return base && (!ptr || gckpti_round_up(offset + skew + size, GCKPTI_ALIGN) - skew >= a->used);
}

GCKPTI_FN void *gckpti_resize(gckpti_allocator *a, void *ptr, size_t old_size, size_t new_size)
{
    if (new_size > PTRDIFF_MAX - 64)
        return NULL;
    if (a->desc.memory) {
        unsigned char *base = (unsigned char *)a->desc.memory;
        size_t skew = (size_t)((uintptr_t)base % GCKPTI_ALIGN);
        size_t next = gckpti_round_up(a->used + skew, GCKPTI_ALIGN) - skew;
        size_t offset = ptr ? (size_t)((unsigned char *)ptr - base) : next;
        if (ptr && !gckpti_is_last(a, ptr, old_size)) {
            if (new_size <= old_size)
                return new_size ? ptr : NULL;
            void *fresh = gckpti_resize(a, NULL, 0, new_size);
            if (fresh)
                memcpy(fresh, ptr, old_size);
            return fresh;
        }
        size_t total = offset + new_size + a->name_bytes;
        if (total > a->desc.size || total < new_size) {
            a->needed = total;
            return NULL;
        }
        a->used = offset + new_size;
        return new_size ? base + offset : NULL;
    }
    if (a->desc.resize)
        return ptr || new_size ? a->desc.resize(a->desc.user, ptr, old_size, new_size) : NULL;
#ifdef GCKPT_REALLOC
    if (new_size)
        return gckpti_heap_resize(ptr, new_size);
    if (ptr)
        GCKPT_FREE(ptr);
#endif
    return NULL;
}

GCKPTI_FN void *gckpti_new(gckpti_allocator *a, size_t n, size_t size)
{
    if (size && n > (size_t)PTRDIFF_MAX / size)
        return NULL;
    size_t bytes = n * size;
    void *p = gckpti_resize(a, NULL, 0, bytes > 0 ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    return p;
}

GCKPTI_FN void gckpti_delete(gckpti_allocator *a, void *ptr, size_t n, size_t size)
{
    size_t bytes = n * size;
    if (ptr)
        gckpti_resize(a, ptr, bytes > 0 ? bytes : 1, 0);
}

GCKPTI_FN void gckpti_count_alloc(size_t *used, size_t n, size_t size)
{
    const size_t limit = (size_t)PTRDIFF_MAX / 2, start = gckpti_round_up(*used, GCKPTI_ALIGN);
    if (n && size)
        *used = n < limit / size && n * size < limit - start ? start + n * size : limit;
}

GCKPTI_FN size_t gckpti_count_block(size_t used)
{
    return used < (size_t)PTRDIFF_MAX / 2 ? used + GCKPTI_ALIGN - 1 : SIZE_MAX;
}

GCKPTI_FN size_t gckpti_strlen(const char *text)
{
    const char *end = text;
    while (*end)
        end++;
    return (size_t)(end - text);
}

GCKPTI_FN char *gckpti_name_new(gckpti_allocator *a, const char *name)
{
    size_t n = gckpti_strlen(name) + 1;
    char *copy = NULL;
    if (!a->desc.memory) {
        copy = (char *)gckpti_resize(a, NULL, 0, n);
    } else {
        size_t total = a->used + a->name_bytes + n;
        if (total <= a->desc.size)
            copy = (char *)a->desc.memory + (a->desc.size - (a->name_bytes += n));
        else
            a->needed = total;
    }
    return copy ? (char *)memcpy(copy, name, n) : NULL;
}

GCKPTI_FN void gckpti_name_delete(gckpti_allocator *a, char *name)
{
    if (name && a->desc.memory)
        a->name_bytes -= gckpti_strlen(name) + 1;
    else
        gckpti_delete(a, name, name ? gckpti_strlen(name) + 1 : 0, 1);
}

#ifndef GCKPT_NO_TEXT
GCKPTI_FN void gckpti_hint_block(void *object, const char *owner, const gckpti_allocator *a,
                                 size_t enough)
{
    gckpti_text t = gckpti_append_text((gckpti_object *)object);
    if (a->desc.memory && a->needed > a->desc.size)
        gckpti_text_add(&t,
                        enough ? "; the %s's block has %z bytes, %z would do"
                               : "; the %s's block has %z bytes, so far it takes %z",
                        owner, a->desc.size, enough ? enough : a->needed);
}
#endif

GCKPTI_FN size_t gckpti_next_capacity(size_t capacity, int in_place)
{
    return in_place ? capacity + capacity / 8 + 1 : capacity ? capacity * 2 : 16;
}

GCKPTI_FN int gckpti_grow(gckpti_allocator *a, void *array, size_t *capacity, size_t count,
                          size_t size)
{
    void *items;
    if (count < *capacity)
        return 1;
    memcpy(&items, array, sizeof items); /* `array` is the address of a pointer of some type */
    size_t larger = gckpti_next_capacity(*capacity, gckpti_is_last(a, items, *capacity * size));
    if (larger > (size_t)PTRDIFF_MAX / size)
        return 0;
    items = gckpti_resize(a, items, *capacity * size, larger * size);
    if (!items)
        return 0;
    memcpy(array, &items, sizeof items);
    *capacity = larger;
    return 1;
}

/* ---- scratch ---- */
GCKPTI_FN gckpti_scratch gckpti_scratch_new(gckpti_allocator *memory, int *failed)
{
    const size_t step = memory->desc.memory ? 2048 : 65536;
    gckpti_scratch s = { memory, failed, NULL, NULL, 2048, step };
    return s;
}

GCKPTI_FN void gckpti_scratch_free(gckpti_scratch *s)
{
    for (gckpti_chunk *chunk; (chunk = s->first) != NULL;) {
        s->first = chunk->next;
        gckpti_resize(s->memory, chunk, chunk->size, 0);
    }
    s->current = NULL;
}

enum {
    GCKPTI_CHUNK_HEADER = (sizeof(gckpti_chunk) + GCKPTI_ALIGN - 1) / GCKPTI_ALIGN * GCKPTI_ALIGN
};

/* Empties the scratch and merges its chunks into one (except in a block, which cannot free). */
GCKPTI_FN void gckpti_scratch_clear(gckpti_scratch *s)
{
    const int several = s->first && s->first->next && !s->memory->desc.memory;
    for (gckpti_chunk *chunk = s->first; chunk; chunk = chunk->next) {
        s->next_size += several ? chunk->used - GCKPTI_CHUNK_HEADER : 0;
        chunk->used = GCKPTI_CHUNK_HEADER;
    }
    if (several)
        gckpti_scratch_free(s);
    s->current = s->first;
}

/* Allocates n elements of `size` bytes with any contents. Returns NULL without memory. */
static void *gckpti_scratch_take(gckpti_scratch *s, size_t n, size_t size)
{
    size_t bytes = n < PTRDIFF_MAX / 4 / size ? gckpti_round_up(n * size, GCKPTI_ALIGN) : SIZE_MAX;
    while (s->current && s->current->size - s->current->used < bytes && s->current->next)
        s->current = s->current->next;
    if (!s->current || s->current->size - s->current->used < bytes) {
        gckpti_chunk chunk = { NULL, s->next_size > bytes ? s->next_size : bytes,
                               GCKPTI_CHUNK_HEADER };
        chunk.size += bytes < SIZE_MAX ? GCKPTI_CHUNK_HEADER : 0;
        void *block = gckpti_resize(s->memory, NULL, 0, chunk.size);
        if (!block) {
            *s->failed = 1;
            return NULL;
        }
        memcpy(block, &chunk, sizeof chunk);
        *(s->current ? &s->current->next : &s->first) = (gckpti_chunk *)block;
        s->current = (gckpti_chunk *)block;
        s->next_size = s->min_size;
    }
    void *block = (unsigned char *)s->current + s->current->used;
    s->current->used += bytes;
    return block;
}

GCKPTI_FN void *(gckpti_scratch_alloc)(gckpti_scratch *s, size_t n, size_t size)
{
    void *block = gckpti_scratch_take(s, n, size);
    return block ? memset(block, 0, gckpti_round_up(n * size, GCKPTI_ALIGN)) : NULL;
}

GCKPTI_FN void *gckpti_scratch_copy(gckpti_scratch *s, const void *from, size_t n, size_t size)
{
    void *to = gckpti_scratch_alloc(s, n, size);
    return to && n > 0 ? memcpy(to, from, n * size) : to;
}

GCKPTI_FN int(gckpti_reserve)(gckpti_scratch *s, void *array, size_t n, size_t size)
{
    size_t need = n + 1 > PTRDIFF_MAX / 8 / size ? SIZE_MAX / 4 : (n + 1) * size, bytes = 0;
    unsigned char *old, *fresh;
    memcpy(&old, array, sizeof old);
    if (old)
        memcpy(&bytes, old - GCKPTI_ALIGN, sizeof bytes);
    if (need <= bytes)
        return 1;
    need = need > 2 * bytes ? need : 2 * bytes;
    fresh = (unsigned char *)gckpti_scratch_take(s, need + GCKPTI_ALIGN, 1);
    if (!fresh)
        return 0;
    memcpy(fresh, &need, sizeof need);
    fresh += GCKPTI_ALIGN;
    if (old)
        memcpy(fresh, old, bytes);
    memcpy(array, &fresh, sizeof fresh);
    return 1;
}
