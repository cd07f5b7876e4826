#include "plan/own.h"

/* ---- place: offsets ----
 * Seen over the instructions, what is placed has a skyline. A level of it (a run of instructions of
 * one height) that is lower than both neighbours gets, of the blocks that live within it, the one
 * whose turn is first; when there is none, it rises to its lower neighbour and joins it: best fit
 * on a skyline (Burke, Kendall and Whitwell 2004; for tensors Sekiyama and others 2018,
 * "Profile-guided memory optimization for deep neural networks"). The first turns go by size x
 * lifetime. So values whose backwards go in reverse, which nest, are stacked without a gap, the
 * last to die at the bottom. While something sticks out above the greatest sum of live bytes, what
 * does moves half way to the front and all is placed again (squeaky wheel: Joslin and Clements
 * 1999); at last from two other orders. What lives all the time lies below and takes no part.
 *
 * What happens in one valley changes no other, so they are filled as they come, always downhill.
 * Near-linear: a block divides a level into at most three and every rise ends one, so there are at
 * most 3 n of each. Where few blocks begin, these are looked at; else the block comes from a tree
 * whose leaves are in Z-order of (start, end) (Morton 1966), so that lifetimes below a node are
 * near each other: only nodes are looked into where one may fit and come before the best found.
 * All that is looked at is counted, never timed, so that a layout is the same on every machine.
 *
 * Invariants: levels cover all instructions; what is placed lies below the levels of its lifetime.
 */
enum { GCKPTI_FEW = 128 }; /* blocks that are looked at one by one, at the most */

static void gckpti_put_level(gckpti_skyline *s, int begin, int end, size_t height)
{
    s->level[begin].end = end;
    s->level[end].begin = begin;
    s->level[begin].height = height;
}

/* What is below node i; 0: the same as before. */
static int gckpti_join_branches(gckpti_skyline *s, size_t i)
{
    const gckpti_branch *a = &s->tree[2 * i], *b = a + 1, before = s->tree[i];
    gckpti_branch *to = &s->tree[i];
    to->start = a->start > b->start ? a->start : b->start;
    to->end = a->end < b->end ? a->end : b->end;
    to->turn = a->turn < b->turn ? a->turn : b->turn;
    s->work++;
    return to->start != before.start || to->end != before.end || to->turn != before.turn;
}

/* The block whose turn is first of those that live within begin..end, taken out of the tree; NULL:
 * there is none. Where few begin, they are looked at one by one. */
static gckpti_candidate *gckpti_take_first(gckpti_skyline *s, int begin, int end)
{
    size_t stack[8 * sizeof(size_t)], count = 0, found = 0; /* the tree's depth and one */
    uint32_t turn = UINT32_MAX;
    int k = s->first[begin], last = s->first[end + 1];
    if (last - k > GCKPTI_FEW) {
        stack[count++] = 1;
        last = k;
    }
    while (count > 0 || k < last) {
        size_t i = count > 0 ? stack[--count] : s->n + (size_t)s->begins[k++];
        const gckpti_branch *b = &s->tree[i];
        s->work++;
        if (b->start < begin || b->end > end || b->turn >= turn)
            continue;
        if (i < s->n) { /* the child with the first turn is looked into first */
            int right = s->tree[2 * i + 1].turn < s->tree[2 * i].turn;
            stack[count++] = 2 * i + !right;
            stack[count++] = 2 * i + (size_t)right;
        } else {
            found = i;
            turn = b->turn;
        }
    }
    if (!found)
        return NULL;
    const gckpti_branch none = { -1, INT32_MAX, UINT32_MAX };
    s->tree[found] = none;
    for (size_t i = found / 2; i > 0 && gckpti_join_branches(s, i);)
        i /= 2;
    return &s->candidates[found - s->n];
}

/* From the level at `begin` to one that is lower than both neighbours: where it begins. Joins those
 * of the same height on the way. *above: the lower of its neighbours, SIZE_MAX when it has none. */
static int gckpti_walk_down(gckpti_skyline *s, int begin, size_t *above)
{
    for (;; s->work++) {
        int end = s->level[begin].end, before = begin > 0 ? s->level[begin - 1].begin : -1;
        int behind = (size_t)end + 1 < s->length ? end + 1 : -1;
        size_t height = s->level[begin].height;
        size_t left = before < 0 ? SIZE_MAX : s->level[before].height;
        size_t right = behind < 0 ? SIZE_MAX : s->level[behind].height;
        *above = left < right ? left : right;
        if (*above > height)
            return begin;
        if (left == height)
            gckpti_put_level(s, before, end, height);
        else if (left > height && right == height)
            gckpti_put_level(s, begin, s->level[behind].end, height);
        begin = left <= height ? before : right < height ? behind : begin;
    }
}

/* Places all by their turns. Returns the arena; SIZE_MAX: more than can be addressed. */
GCKPTI_FN size_t gckpti_place_all(gckpti_skyline *s)
{
    size_t arena = 0, above;
    int begin = 0;
    for (size_t i = 0; i < s->n; i++) {
        gckpti_branch b = { s->candidates[i].buffer->start, s->candidates[i].buffer->end,
                            s->candidates[i].turn };
        s->tree[s->n + i] = b;
    }
    for (size_t i = s->n; i-- > 1;)
        gckpti_join_branches(s, i);
    gckpti_put_level(s, 0, (int)s->length - 1, 0);
    for (size_t left = s->n; left > 0;) {
        begin = gckpti_walk_down(s, begin, &above);
        int end = s->level[begin].end;
        size_t height = s->level[begin].height;
        gckpti_candidate *next = gckpti_take_first(s, begin, end);
        if (!next) {
            s->level[begin].height = above;
            continue;
        }
        const gckpt_buffer *b = next->buffer;
        size_t top = height + b->size;
        if (top > PTRDIFF_MAX / 2 - s->under)
            return SIZE_MAX;
        next->offset = height;
        arena = top > arena ? top : arena;
        if (b->start > begin)
            gckpti_put_level(s, begin, b->start - 1, height);
        if (b->end < end)
            gckpti_put_level(s, b->end + 1, end, height);
        gckpti_put_level(s, b->start, b->end, gckpti_round_up(top, s->alignment));
        left--;
    }
    return arena;
}

/* Turns in an order, the greatest first; ties: as before, in the first order the last to die. */
GCKPTI_FN void gckpti_first_turns(gckpti_skyline *s, int order)
{
    for (size_t i = 0; i < s->n; i++) {
        const gckpt_buffer *b = s->candidates[s->keys[i].item].buffer;
        uint64_t life = (uint64_t)(b->end - b->start) + 1, size = b->size;
        uint64_t area = size > UINT64_MAX / life ? UINT64_MAX : size * life;
        s->keys[i].key = UINT64_MAX - (order == GCKPTI_BY_AREA   ? area
                                       : order == GCKPTI_BY_LIFE ? life
                                                                 : size);
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) /* far apart: moves to the front differ */
        s->candidates[s->keys[i].item].turn =
            (uint32_t)(i + 1) * (uint32_t)(UINT32_MAX / (s->n + 1));
}

/* The bits of both in turn. */
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

/* Readies a skyline, its memory from the scratch: candidates, the greatest live sum. What lives all
 * the time gets its offset. 0: out of memory, or more than can be addressed. */
GCKPTI_FN int gckpti_skyline_new(gckpti_scratch *scratch, gckpti_skyline *s, gckpt_buffer *buffers,
                                 size_t n, size_t alignment)
{
    memset(s, 0, sizeof *s);
    s->alignment = alignment;
    s->length = 1;
    for (size_t i = 0; i < n; i++)
        s->length = (size_t)buffers[i].end >= s->length ? (size_t)buffers[i].end + 1 : s->length;
    s->level = (gckpti_level *)gckpti_scratch_take(scratch, s->length, sizeof *s->level);
    s->tree = (gckpti_branch *)gckpti_scratch_take(scratch, 2 * n, sizeof *s->tree);
    s->candidates = (gckpti_candidate *)gckpti_scratch_take(scratch, n, sizeof *s->candidates);
    s->keys = (gckpti_keyed *)gckpti_scratch_take(scratch, 2 * n, sizeof *s->keys);
    s->first = (int *)gckpti_scratch_take(scratch, s->length + 2, sizeof *s->first);
    s->begins = (int *)gckpti_scratch_take(scratch, n, sizeof *s->begins);
    size_t *live = (size_t *)gckpti_scratch_take(scratch, s->length + 1, sizeof *live);
    if (*scratch->failed)
        return 0;
    for (size_t i = 0; i < n; i++) {
        gckpt_buffer *b = &buffers[i];
        size_t size = gckpti_round_up(b->size, alignment);
        if (b->start == 0 && (size_t)b->end + 1 == s->length) {
            b->offset = gckpti_round_up(s->under, alignment);
            s->under = b->offset + b->size;
            if (s->under > PTRDIFF_MAX / 2)
                return 0;
            continue;
        }
        live[b->start] += size;
        live[b->end + 1] -= size; /* wraps, and back when summed */
        s->first[b->start + 2]++;
        s->keys[s->n].item = (int)i;
        s->keys[s->n++].key = gckpti_interleave(b->start, b->end);
    }
    for (size_t x = 0; x < s->length; x++) {
        live[x + 1] += live[x];
        s->first[x + 2] += s->first[x + 1];
        s->goal = live[x] > s->goal ? live[x] : s->goal;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) {
        s->candidates[i].buffer = &buffers[s->keys[i].item];
        s->begins[s->first[s->candidates[i].buffer->start + 1]++] = (int)i;
        s->keys[i].item = (int)i;
        s->keys[i].key = s->length - (size_t)s->candidates[i].buffer->end;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    return 1;
}

/* Gives each buffer an offset, so that no two that live at the same time overlap. Returns the
 * arena; SIZE_MAX: out of memory, or more bytes than can be addressed. */
GCKPTI_FN size_t gckpti_place(gckpti_scratch *scratch, gckpt_buffer *buffers, size_t n,
                              size_t alignment)
{
    gckpti_skyline s;
    if (!gckpti_skyline_new(scratch, &s, buffers, n, alignment))
        return SIZE_MAX;
    size_t best = s.n > 0 ? SIZE_MAX : 0, base = gckpti_round_up(s.under, alignment);
    for (int order = 0; order < GCKPTI_PLACINGS && best > s.goal; order++) {
        size_t most = order == GCKPTI_BY_AREA ? 1 << 22 : 1 << 20; /* nodes; and rounds: */
        int rounds = order == GCKPTI_BY_AREA ? 40 : 200;
        gckpti_first_turns(&s, order);
        s.work = 0;
        while (best > s.goal && s.work < most && rounds-- > 0) {
            size_t arena = gckpti_place_all(&s);
            if (arena == SIZE_MAX)
                break;
            for (size_t i = 0; i < s.n; i++) {
                gckpti_candidate *c = &s.candidates[i];
                if (arena < best)
                    c->buffer->offset = base + c->offset;
                if (c->offset + c->buffer->size > s.goal)
                    c->turn /= 2;
            }
            best = arena < best ? arena : best;
        }
    }
    return best == SIZE_MAX ? SIZE_MAX : s.n > 0 ? base + best : s.under;
}

GCKPTI_FN gckpt_result gckpti_place_draft(gckpti_planner *p)
{
    gckpti_draft *d = &p->draft;
    gckpti_scratch_clear(&p->pass);
    d->arena = gckpti_place(&p->pass, d->buffers, d->buffer_count, p->alignment);
    if (p->failed || d->arena < SIZE_MAX)
        return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: found no layout of %z live bytes that this machine can address",
                        d->bound);
}
