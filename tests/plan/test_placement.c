/* test_placement.c - placing buffers with given live ranges. Buffers that are live at the same time do not overlap;
 * the arena ends with the last buffer; the arena is never below the largest sum of live bytes and seldom above it;
 * and where an exhaustive search is possible, the arena is the smallest one. The effort grows little faster than the
 * number of buffers, and failing allocations are handled. */
#include "base/base.h"
#include "plan/internal.h"

#include "check.h"
#include <stdlib.h>

/* plan/place.c */
GCKPTI_FN size_t gckpti_place_by_priority(gckpti_skyline *s);
GCKPTI_FN void gckpti_set_priorities(gckpti_skyline *s, int order);
GCKPTI_FN int gckpti_skyline_new(gckpti_scratch *scratch, gckpti_skyline *s, gckpt_buffer *buffers,
                                 size_t n, size_t alignment);
GCKPTI_FN size_t gckpti_assign_offsets(gckpti_scratch *scratch, gckpt_buffer *buffers, size_t n,
                                       size_t alignment, size_t enough);

enum { MOST = 40000, ALIGN = 64 };
static gckpt_buffer blocks[MOST];
static uint64_t state = 1;

static int random_below(int below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((state >> 33) % (uint64_t)below);
}

static void put(size_t i, int start, int end, size_t size)
{
    gckpt_buffer b = { start, end, (size_t)-1, size, (int)i, GCKPT_BUFFER_VALUE };
    blocks[i] = b;
}

/* ---- live ranges ---- */
enum { NESTED, STORE_ALL, SKIPS, SEGMENTS, ANY, KINDS };
static const char *const kinds[KINDS] = { "nested", "store-all", "skips", "segments", "any" };

/* Returns a random size that is a multiple of the offsets' alignment, so that sums of sizes are exact bounds. */
static size_t some_bytes(void) { return (size_t)(1 + random_below(200)) * ALIGN; }

static void make_case(int kind, int n)
{
    for (int i = 0; i < n; i++) {
        size_t size = some_bytes();
        int half = n / 3 + 1, op = i / 3, backward = 2 * half - 1 - op;
        if (kind == NESTED)
            put((size_t)i, i, 2 * n - 1 - i, size);
        else if (kind == STORE_ALL && i % 3 == 0) /* a value */
            put((size_t)i, op, backward, size);
        /* the gradient of a parameter of the op that computes the value; it lives to the end of the step */
        else if (kind == STORE_ALL && i % 3 == 1)
            put((size_t)i, backward, 2 * half, size);
        else if (kind == STORE_ALL) /* the value's gradient */
            put((size_t)i, backward - 1, backward, ALIGN);
        else if (kind == SKIPS)
            put((size_t)i, i, i + 1 + (i % 7 == 0 ? random_below(12) : random_below(2)), size);
        else if (kind == SEGMENTS) /* every tenth value is kept, the values between are recomputed */
            put((size_t)i, i % 10 ? 2 * n - i : i, i % 10 ? 2 * n - i + 1 + random_below(2) : 2 * n - i,
                size);
        else
            put((size_t)i, random_below(n), 0, size);
        if (kind == ANY)
            blocks[i].end = blocks[i].start + random_below(2 * n - blocks[i].start);
    }
}

/* ---- one placement ---- */
static int by_start(const void *a, const void *b)
{
    const gckpt_buffer *x = (const gckpt_buffer *)a, *y = (const gckpt_buffer *)b;
    return x->start != y->start ? (x->start > y->start) - (x->start < y->start) : x->id - y->id;
}

static size_t bound(int n)
{
    static size_t live[2 * MOST + 4];
    size_t most = 0;
    memset(live, 0, sizeof live);
    for (int i = 0; i < n; i++) {
        live[blocks[i].start] += blocks[i].size;
        live[blocks[i].end + 1] -= blocks[i].size;
    }
    for (size_t x = 0; x <= 2 * MOST; x++) {
        live[x + 1] += live[x];
        most = live[x] > most ? live[x] : most;
    }
    return most;
}

/* Returns 1 if all offsets are aligned, the last buffer ends where the arena ends, and buffers that are live at the
 * same time do not overlap. Reorders live[]. */
static int is_sound(int n, size_t arena, size_t alignment)
{
    static int live[MOST]; /* sorted by offset */
    int count = 0, good = 1;
    size_t top = 0;
    qsort(blocks, (size_t)n, sizeof *blocks, by_start);
    for (int i = 0; i < n; i++) {
        const gckpt_buffer *b = &blocks[i];
        int kept = 0, at = 0;
        for (int k = 0; k < count; k++)
            if (blocks[live[k]].end >= b->start)
                live[kept++] = live[k];
        while (at < kept && blocks[live[at]].offset < b->offset)
            at++;
        if (at > 0)
            good &= blocks[live[at - 1]].offset + blocks[live[at - 1]].size <= b->offset;
        if (at < kept)
            good &= b->offset + b->size <= blocks[live[at]].offset;
        memmove(live + at + 1, live + at, (size_t)(kept - at) * sizeof *live);
        live[at] = i;
        count = kept + 1;
        good &= b->offset % alignment == 0;
        top = b->offset + b->size > top ? b->offset + b->size : top;
    }
    return good && top == arena;
}

static size_t place(int n, size_t alignment)
{
    static gckpti_allocator memory;
    int failed = 0;
    gckpti_scratch scratch = gckpti_scratch_new(&memory, &failed);
    size_t arena = gckpti_assign_offsets(&scratch, blocks, (size_t)n, alignment, 0);
    CHECK(!failed);
    gckpti_scratch_free(&scratch);
    return arena;
}

/* Tests many placements of each kind: all are sound; the arena equals the largest sum of live bytes if live ranges
 * nest, and is close to it if not. */
static void test_kinds(void)
{
    static const double worst[KINDS] = { 1, 1.001, 1.06, 1.02, 1.07 };
    for (int kind = 0; kind < KINDS; kind++)
        for (int round = 0; round < 60; round++) {
            int n = 1 + random_below(round < 50 ? 120 : 1500);
            make_case(kind, n);
            size_t least = bound(n), arena = place(n, ALIGN);
            CHECK_MSG(is_sound(n, arena, ALIGN), "%s: %d blocks overlap", kinds[kind], n);
            CHECK_MSG(arena >= least && (double)arena <= worst[kind] * (double)least,
                      "%s: %d blocks in %.3f of the bound", kinds[kind], n,
                      (double)arena / (double)least);
        }
}

/* Tests sizes that are no multiples of the alignment, all alignments, and no buffers at all. */
static void test_alignments(void)
{
    CHECK(place(0, ALIGN) == 0);
    for (size_t alignment = 4; alignment <= 4096; alignment *= 2)
        for (int round = 0; round < 20; round++) {
            int n = 1 + random_below(60);
            make_case(round % KINDS, n);
            for (int i = 0; i < n; i++)
                blocks[i].size = (size_t)(1 + random_below(9)) * (size_t)(1 + random_below(40));
            size_t least = bound(n), arena = place(n, alignment);
            CHECK_MSG(arena >= least && is_sound(n, arena, alignment), "alignment %d",
                      (int)alignment);
        }
}

/* ---- the smallest arena, by searching all orders ---- */
/* Returns the smallest arena, found by trying all orders in which buffers can be placed at the lowest free offset.
 * One of these orders gives the smallest arena of all placements: the order of the offsets in that placement. */
static size_t search(int n, int placed, unsigned left, size_t *at, size_t arena, size_t best)
{
    if (arena >= best || placed == n)
        return arena < best ? arena : best;
    for (int i = 0; i < n; i++) {
        if (!(left >> i & 1))
            continue;
        size_t offset = 0;
        for (int again = 1; again;) {
            again = 0;
            for (int k = 0; k < n; k++)
                if (!(left >> k & 1) && blocks[k].start <= blocks[i].end &&
                    blocks[i].start <= blocks[k].end && at[k] < offset + blocks[i].size &&
                    offset < at[k] + blocks[k].size) {
                    offset = at[k] + blocks[k].size;
                    again = 1;
                }
        }
        at[i] = offset;
        size_t top = offset + blocks[i].size;
        best = search(n, placed + 1, left & ~(1u << i), at, top > arena ? top : arena, best);
    }
    return best;
}

static void test_least(void)
{
    const int rounds = check_iterations(2000);
    int above = 0;
    for (int round = 0; round < rounds; round++) {
        size_t at[8];
        int n = 2 + random_below(6), length = 2 + random_below(6);
        for (int i = 0; i < n; i++) {
            int start = random_below(length);
            put((size_t)i, start, start + random_below(length - start), (size_t)(1 + random_below(6)) * ALIGN);
        }
        size_t least = search(n, 0, (1u << n) - 1, at, 0, SIZE_MAX), arena = place(n, ALIGN);
        CHECK_MSG(arena >= least && is_sound(n, arena, ALIGN), "round %d: %d blocks", round, n);
        above += arena > least;
    }
    CHECK_MSG(above == 0, "%d of %d are above the least arena", above, rounds);
}

/* ---- effort ---- */
static size_t effort(int kind, int n)
{
    static gckpti_allocator memory;
    int failed = 0;
    gckpti_scratch scratch = gckpti_scratch_new(&memory, &failed);
    gckpti_skyline s;
    make_case(kind, n);
    CHECK(gckpti_skyline_new(&scratch, &s, blocks, (size_t)n, ALIGN));
    gckpti_set_priorities(&s, GCKPTI_BY_AREA);
    CHECK(gckpti_place_by_priority(&s) >= s.goal);
    gckpti_scratch_free(&scratch);
    return s.visited;
}

static void test_effort(void)
{
    make_case(NESTED, 20000);
    size_t least = bound(20000), arena = place(20000, ALIGN);
    CHECK(arena == least && is_sound(20000, arena, ALIGN));
    state = 1; /* resets the random numbers, so that the buffers do not depend on the tests before */
    for (int kind = 0; kind < KINDS; kind++) {
        double few = (double)effort(kind, MOST / 4), many = (double)effort(kind, MOST);
        CHECK_MSG(many < 5.5 * few && many < 150.0 * MOST,
                  "%s: %.0f steps for %d blocks, %.0f for %d", kinds[kind], few, MOST / 4, many,
                  MOST);
    }
}

/* ---- memory ---- */
typedef struct {
    long left, blocks;
} heap;

static void *resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    heap *h = (heap *)user;
    (void)old_size;
    if (new_size == 0) {
        h->blocks -= ptr != NULL;
        free(ptr);
        return NULL;
    }
    if (h->left-- <= 0)
        return NULL;
    h->blocks += ptr == NULL;
    return realloc(ptr, new_size);
}

static void test_memory(void)
{
    long failures = 0;
    for (int n = 0;; n++) {
        heap h = { n, 0 };
        gckpti_allocator memory;
        int failed = 0;
        memset(&memory, 0, sizeof memory);
        memory.desc.resize = resize;
        memory.desc.user = &h;
        gckpti_scratch scratch = gckpti_scratch_new(&memory, &failed);
        make_case(ANY, 3000);
        size_t arena = gckpti_assign_offsets(&scratch, blocks, 3000, ALIGN, 0);
        CHECK((arena == SIZE_MAX) == (failed != 0));
        gckpti_scratch_free(&scratch);
        CHECK(h.blocks == 0);
        if (!failed)
            break;
        failures++;
    }
    CHECK_MSG(failures > 2, "only %ld requests for memory", failures);
}

/* Tests that buffers which exceed the address space are reported as having no placement (SIZE_MAX), not as a lack of
 * memory. */
static void test_large(void)
{
    const size_t third = (size_t)PTRDIFF_MAX / 6;
    for (int n = 3; n <= 4; n++) {
        for (int i = 0; i < n; i++)
            put((size_t)i, 0, 1, third / ALIGN * ALIGN);
        size_t arena = place(n, ALIGN);
        CHECK(arena == (n == 3 ? 3 * (third / ALIGN * ALIGN) : SIZE_MAX));
    }
    for (int n = 3; n <= 4; n++) { /* buffers with longer live ranges: their bytes times steps exceed 64 bits */
        for (int i = 0; i < n; i++)
            put((size_t)i, i % 2, 20 + i % 2, third / ALIGN * ALIGN);
        CHECK((place(n, ALIGN) == SIZE_MAX) == (n == 4));
    }
    gckpti_allocator memory;
    gckpti_planner p;
    memset(&memory, 0, sizeof memory);
    memset(&p, 0, sizeof p);
    gckpt_store *store = gckpt_store_new(NULL);
    p.g = gckpt_graph_new(store, NULL);
    p.alignment = ALIGN;
    p.temp = gckpti_scratch_new(&memory, &p.failed);
    p.lowered.buffers = blocks;
    p.lowered.buffer_count = 4;
    CHECK(gckpti_place_buffers(&p, 0) == GCKPT_E_MEMORY && !p.failed);
    CHECK(strstr(gckpt_error_text(p.g), "no layout of") != NULL);
    gckpti_scratch_free(&p.temp);
    gckpt_graph_free(p.g);
    gckpt_store_free(store);
}

int main(void)
{
    test_kinds();
    test_alignments();
    test_least();
    test_effort();
    test_memory();
    test_large();
    return check_report("test_placement");
}
