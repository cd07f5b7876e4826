#ifndef GCKPT_SMALL
#include "plan/internal.h"

/* ---- place: offsets ----
 * The tops of the buffers placed so far, over all instructions, form a skyline. A level is a range
 * of instructions of one height. A level that is lower than both neighbours gets the buffer of
 * first priority among those that live within its range; without such a buffer it rises to its
 * lower neighbour and joins it: best fit on a skyline (Burke, Kendall and Whitwell 2004; for
 * tensors Sekiyama and others 2018, "Profile-guided memory optimization for deep neural networks").
 * The first priority is size x lifetime, so nested lifetimes (forwards and their backwards) are
 * stacked without holes. While buffers end above the greatest sum of live bytes, their priority
 * value is halved and all are placed again (squeaky wheel: Joslin and Clements 1999), until that
 * no longer helps; then the same from two other orders. Buffers that are live all the time are
 * placed first and take no part.
 *
 * A valley is a level below both neighbours. Filling it changes no other valley, so the search goes
 * downhill and fills the first one it reaches. The effort is near-linear: a buffer divides a level
 * into at most three, every rise removes one, so there are at most 3 n of each. If few buffers
 * begin in a range, those that are not placed are scanned; else a tree finds the buffer. Its leaves
 * are in Z-order of (start, end) (Morton 1966), so lifetimes below a node are similar, and nodes
 * without a better buffer that fits are skipped. Effort is counted, not timed: all machines get one
 * result.
 *
 * Invariants: 1. Levels cover all instructions. 2. Placed buffers are below the levels of their
 * live ranges. */
enum {
    GCKPTI_LINEAR_SCAN = 128,    /* the most buffers that are scanned one by one */
    GCKPTI_MAX_VISITED = 1 << 20 /* the most nodes that an order visits */
};

static void gckpti_set_level(gckpti_skyline *s, int begin, int end, size_t height)
{
    s->level[begin].end = end;
    s->level[end].begin = begin;
    s->level[begin].height = height;
}

/* Updates tree node i from its children. Returns 0 if that did not change it. */
static int gckpti_update_branch(gckpti_skyline *s, size_t i)
{
    const gckpti_branch *a = &s->tree[2 * i], *b = a + 1;
    const gckpti_branch now = { a->start > b->start ? a->start : b->start,
                                a->end < b->end ? a->end : b->end,
                                a->priority < b->priority ? a->priority : b->priority };
    const int changed = memcmp(&s->tree[i], &now, sizeof now) != 0;
    s->tree[i] = now;
    s->visited++;
    return changed;
}

/* Returns the first placement from k on that has no offset yet, or n; shortens the path there. */
static int gckpti_next_unplaced(gckpti_skyline *s, int k)
{
    while (s->next[k] != k)
        k = s->next[k] = s->next[s->next[k]];
    return k;
}

/* Removes from the tree the buffer of the first priority among those that live within begin..end.
 * Returns NULL if no buffer does. Scans the buffers if few begin there. */
static gckpti_placement *gckpti_pop_first(gckpti_skyline *s, int begin, int end)
{
    size_t stack[8 * sizeof(size_t)], count = 0; /* the tree's depth and one */
    uint32_t priority = UINT32_MAX;
    gckpti_placement *found = NULL, *c = s->placements;
    const int first = s->first[begin], last = s->first[end + 1];
    const int scans = last - first <= GCKPTI_LINEAR_SCAN;
    int k = first;
    for (; scans && (k = gckpti_next_unplaced(s, k)) < last; k++)
        if (c[k].end <= end && c[k].priority < priority) {
            found = &c[k];
            priority = found->priority;
        }
    s->visited += scans ? (size_t)(last - first) : 0;
    stack[count] = 1;
    count += !scans;
    while (count > 0) {
        const size_t i = stack[--count];
        const gckpti_branch *b = &s->tree[i];
        s->visited++;
        if (b->start < begin || b->end > end || b->priority >= priority)
            continue;
        if (i < s->n) { /* visits the child with the first priority first */
            const int right = s->tree[2 * i + 1].priority < s->tree[2 * i].priority;
            stack[count++] = 2 * i + !right;
            stack[count++] = 2 * i + (size_t)right;
        } else {
            found = &c[s->leaf[i - s->n]];
            priority = b->priority;
        }
    }
    if (!found)
        return NULL;
    const gckpti_branch none = { -1, INT32_MAX, UINT32_MAX };
    s->tree[found->leaf] = none;
    s->next[found - c] = (int)(found - c) + 1;
    for (size_t i = found->leaf / 2; i > 0 && gckpti_update_branch(s, i);)
        i /= 2;
    return found;
}

/* Goes downhill from the level at `begin` to one lower than both neighbours, joining levels of the
 * same height. Returns where it begins. *above: its lower neighbour, SIZE_MAX if it has none. */
static int gckpti_find_valley(gckpti_skyline *s, int begin, size_t *above)
{
    for (;; s->visited++) {
        int end = s->level[begin].end, prev = begin > 0 ? s->level[begin - 1].begin : -1;
        int next = (size_t)end + 1 < s->length ? end + 1 : -1;
        size_t height = s->level[begin].height;
        size_t left = prev < 0 ? SIZE_MAX : s->level[prev].height;
        size_t right = next < 0 ? SIZE_MAX : s->level[next].height;
        *above = left < right ? left : right;
        if (*above > height)
            return begin;
        if (left == height)
            gckpti_set_level(s, prev, end, height);
        else if (left > height && right == height)
            gckpti_set_level(s, begin, s->level[next].end, height);
        begin = left <= height ? prev : right < height ? next : begin;
    }
}

/* Places all buffers by priority. Returns the arena, or SIZE_MAX if it cannot be addressed. */
GCKPTI_FN size_t gckpti_place_by_priority(gckpti_skyline *s)
{
    size_t arena = 0, above;
    int begin = 0;
    for (size_t i = 0; i < s->n; i++) {
        gckpti_placement *c = &s->placements[i];
        const gckpti_branch b = { c->buffer->start, c->end, c->priority };
        s->tree[c->leaf] = b;
        s->next[i] = (int)i;
    }
    s->next[s->n] = (int)s->n;
    for (size_t i = s->n; i-- > 1;)
        gckpti_update_branch(s, i);
    gckpti_set_level(s, 0, (int)s->length - 1, 0);
    for (size_t left = s->n; left > 0;) {
        begin = gckpti_find_valley(s, begin, &above);
        int end = s->level[begin].end;
        size_t height = s->level[begin].height;
        gckpti_placement *next = gckpti_pop_first(s, begin, end);
        if (!next) {
            s->level[begin].height = above;
            continue;
        }
        const gckpt_buffer *b = next->buffer;
        size_t top = height + b->size;
        if (top > PTRDIFF_MAX / 2 - s->resident)
            return SIZE_MAX;
        next->offset = height;
        arena = top > arena ? top : arena;
        if (b->start > begin)
            gckpti_set_level(s, begin, b->start - 1, height);
        if (b->end < end)
            gckpti_set_level(s, b->end + 1, end, height);
        gckpti_set_level(s, b->start, b->end, gckpti_round_up(top, s->alignment));
        left--;
    }
    return arena;
}

/* Sets priorities, greatest first. Ties keep their order; at first that is by end, latest first. */
GCKPTI_FN void gckpti_set_priorities(gckpti_skyline *s, int order)
{
    for (size_t i = 0; i < s->n; i++) {
        const gckpt_buffer *b = s->placements[s->keys[i].value].buffer;
        uint64_t lifetime = (uint64_t)(b->end - b->start) + 1, size = b->size;
        uint64_t area = size > UINT64_MAX / lifetime ? UINT64_MAX : size * lifetime;
        s->keys[i].key = UINT64_MAX - (order == GCKPTI_BY_AREA       ? area
                                       : order == GCKPTI_BY_LIFETIME ? lifetime
                                                                     : size);
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) /* spread widely, so that halved values differ */
        s->placements[s->keys[i].value].priority =
            (uint32_t)(i + 1) * (uint32_t)(UINT32_MAX / (s->n + 1));
}

/* Returns the bits of `first` and `second`, interleaved (Z-order). */
static uint64_t gckpti_interleave(int first, int second)
{
    static const uint64_t mask[5] = { UINT64_C(0x0000ffff0000ffff), UINT64_C(0x00ff00ff00ff00ff),
                                      UINT64_C(0x0f0f0f0f0f0f0f0f), UINT64_C(0x3333333333333333),
                                      UINT64_C(0x5555555555555555) };
    uint64_t a = (uint64_t)first, b = (uint64_t)second;
    for (int i = 0; i < 5; i++) {
        a = (a | a << (16 >> i)) & mask[i];
        b = (b | b << (16 >> i)) & mask[i];
    }
    return a << 1 | b;
}

/* Initialises a skyline with memory from the scratch, and places buffers that are always live.
 * Returns 0 if it is out of memory or the bytes cannot be addressed. */
GCKPTI_FN int gckpti_skyline_new(gckpti_scratch *scratch, gckpti_skyline *s, gckpt_buffer *buffers,
                                 size_t n, size_t alignment)
{
    memset(s, 0, sizeof *s);
    s->alignment = alignment;
    s->length = 1;
    for (size_t i = 0; i < n; i++)
        s->length = (size_t)buffers[i].end >= s->length ? (size_t)buffers[i].end + 1 : s->length;
    s->level = (gckpti_skyline_level *)gckpti_scratch_alloc(scratch, s->length, sizeof *s->level);
    s->tree = (gckpti_branch *)gckpti_scratch_alloc(scratch, 2 * n, sizeof *s->tree);
    s->placements = (gckpti_placement *)gckpti_scratch_alloc(scratch, n, sizeof *s->placements);
    s->keys = (gckpti_keyed *)gckpti_scratch_alloc(scratch, 2 * n, sizeof *s->keys);
    s->first = (int *)gckpti_scratch_alloc(scratch, s->length + 2, sizeof *s->first);
    s->leaf = (int *)gckpti_scratch_alloc(scratch, n, sizeof *s->leaf);
    s->next = (int *)gckpti_scratch_alloc(scratch, n + 1, sizeof *s->next);
    size_t *live = (size_t *)gckpti_scratch_alloc(scratch, s->length + 1, sizeof *live);
    if (*scratch->failed)
        return 0;
    for (size_t i = 0; i < n; i++) {
        gckpt_buffer *b = &buffers[i];
        size_t size = gckpti_round_up(b->size, alignment);
        if (b->start == 0 && (size_t)b->end + 1 == s->length) {
            b->offset = gckpti_round_up(s->resident, alignment);
            s->resident = b->offset + b->size;
            if (s->resident > PTRDIFF_MAX / 2)
                return 0;
            continue;
        }
        live[b->start] += size;
        live[b->end + 1] -= size; /* wraps, and back when summed */
        s->first[b->start + 2]++;
        s->keys[s->n].value = (int)i;
        s->keys[s->n++].key = gckpti_interleave(b->start, b->end);
    }
    for (size_t x = 0; x < s->length; x++) {
        live[x + 1] += live[x];
        s->first[x + 2] += s->first[x + 1];
        s->goal = live[x] > s->goal ? live[x] : s->goal;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) {
        gckpt_buffer *b = &buffers[s->keys[i].value];
        const int k = s->first[b->start + 1]++;
        const gckpti_placement c = { b, 0, s->n + i, b->end, 0 };
        s->placements[k] = c;
        s->leaf[i] = s->keys[i].value = k;
        s->keys[i].key = s->length - (size_t)b->end;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    return 1;
}

/* Assigns an offset to each buffer, so that no two that live at the same time overlap. Stops once
 * the arena has at most `enough` bytes. Returns the arena, or SIZE_MAX if it is out of memory or
 * the bytes cannot be addressed. */
GCKPTI_FN size_t gckpti_assign_offsets(gckpti_scratch *scratch, gckpt_buffer *buffers, size_t n,
                                       size_t alignment, size_t enough)
{
    gckpti_skyline s;
    if (!gckpti_skyline_new(scratch, &s, buffers, n, alignment))
        return SIZE_MAX;
    size_t best = s.n > 0 ? SIZE_MAX : 0, base = gckpti_round_up(s.resident, alignment);
    const size_t goal = enough > base && enough - base > s.goal ? enough - base : s.goal;
    /* placements in a row without improvement; small cases are worth more */
    const int patience = 4 + (s.n < 500 ? (1 << 18) / (int)(s.n * s.n + 1) : 0);
    for (int order = 0; order < GCKPTI_PLACE_ORDERS && best > goal; order++) {
        int failed = 0;
        s.visited = 0;
        gckpti_set_priorities(&s, order);
        while (best > goal && failed < patience && s.visited < GCKPTI_MAX_VISITED) {
            size_t arena = gckpti_place_by_priority(&s);
            if (arena == SIZE_MAX)
                break;
            for (size_t i = 0; i < s.n; i++) {
                gckpti_placement *c = &s.placements[i];
                if (arena < best)
                    c->buffer->offset = base + c->offset;
                if (c->offset + c->buffer->size > s.goal)
                    c->priority /= 2;
            }
            failed = arena < best ? 0 : failed + 1;
            best = arena < best ? arena : best;
        }
    }
    return best == SIZE_MAX ? SIZE_MAX : s.n > 0 ? base + best : s.resident;
}
#endif
