#include "plan/own.h"

/* ---- memory for planning: taken piece by piece, given back all at once; cleared, it is used again
 * from its beginning ---- */
GCKPTI_FN gckpti_scratch gckpti_scratch_new(gckpti_allocator *memory, int *failed)
{
    gckpti_scratch s = { memory, failed, NULL, NULL, 2048 };
    return s;
}

GCKPTI_FN void gckpti_scratch_free(gckpti_scratch *s)
{
    const size_t head = gckpti_round_up(sizeof(gckpti_piece), GCKPTI_ALIGN);
    while (s->first) {
        gckpti_piece *piece = s->first;
        s->first = piece->next;
        gckpti_resize(s->memory, piece, head + piece->size, 0);
    }
    s->now = NULL;
}

/* Begins again, in one piece instead of several (a block of memory takes nothing back). */
GCKPTI_FN void gckpti_scratch_clear(gckpti_scratch *s)
{
    int several = s->first && s->first->next && !s->memory->desc.memory;
    for (gckpti_piece *piece = s->first; piece; piece = piece->next) {
        s->ahead += several ? piece->used : 0;
        piece->used = 0;
    }
    if (several)
        gckpti_scratch_free(s);
    s->now = s->first;
}

GCKPTI_FN void *gckpti_scratch_take(gckpti_scratch *s, size_t n, size_t size)
{
    const size_t head = gckpti_round_up(sizeof(gckpti_piece), GCKPTI_ALIGN);
    size_t bytes = n < PTRDIFF_MAX / 4 / size ? gckpti_round_up(n * size, GCKPTI_ALIGN) : SIZE_MAX;
    while (s->now && s->now->size - s->now->used < bytes && s->now->next)
        s->now = s->now->next;
    if (!s->now || s->now->size - s->now->used < bytes) {
        gckpti_piece piece = { NULL, s->ahead > bytes ? s->ahead : bytes, 0 };
        void *at = bytes < SIZE_MAX ? gckpti_resize(s->memory, NULL, 0, head + piece.size) : NULL;
        if (!at) {
            *s->failed = 1;
            return NULL;
        }
        memcpy(at, &piece, sizeof piece);
        *(s->now ? &s->now->next : &s->first) = (gckpti_piece *)at;
        s->now = (gckpti_piece *)at;
        s->ahead = s->memory->desc.memory ? 2048 : 65536;
    }
    void *at = (unsigned char *)s->now + head + s->now->used;
    s->now->used += bytes;
    return memset(at, 0, bytes);
}

GCKPTI_FN void *gckpti_scratch_copy(gckpti_scratch *s, const void *from, size_t n, size_t size)
{
    void *to = gckpti_scratch_take(s, n, size);
    return to && n > 0 ? memcpy(to, from, n * size) : to;
}

GCKPTI_FN int gckpti_want(gckpti_scratch *s, void *array, size_t n, size_t size)
{
    size_t need = n + 1 > PTRDIFF_MAX / 8 / size ? SIZE_MAX / 4 : (n + 1) * size, bytes = 0;
    unsigned char *at, *more;
    memcpy(&at, array, sizeof at);
    if (at)
        memcpy(&bytes, at - GCKPTI_ALIGN, sizeof bytes);
    if (need <= bytes)
        return 1;
    need = need > 2 * bytes ? need : 2 * bytes;
    more = (unsigned char *)gckpti_scratch_take(s, need + GCKPTI_ALIGN, 1);
    if (!more)
        return 0;
    memcpy(more, &need, sizeof need);
    more += GCKPTI_ALIGN;
    if (at)
        memcpy(more, at, bytes);
    memcpy(array, &more, sizeof more);
    return 1;
}
