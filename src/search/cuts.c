#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * cuts: work and bytes that no schedule can do without, from minimal cuts
 *
 * Take any schedule whose live bytes never exceed M, and an instant: the backward of some rank. Let
 * r(u) be 1 where unit u runs again behind it. Whatever a later backward, a fetch or a later run
 * reads is either in the arena at the instant or made by such a run. So with n(u) = 1 where a
 * backward from this rank on, or a run j with r(j) = 1, reads the value of u, all values with
 * n(u) = 1 and r(u) = 0 lie in the arena, and aux likewise, beside the gradients and the workspace
 * of that backward, which are the same in every schedule; what it reads itself lies there whatever
 * r is. Each u that has surely run before costs its work again. Hence no schedule within M repeats
 * less work than, for any instant,
 *     min sum work(u) r(u)  where  sum out(u) n(u) (1 - r(u)) + aux(u) (1 - r(u)) <= M - gradients.
 * A value or aux that a reload brings back behind the instant takes no bytes then, but the work of
 * its offload and its reload: a third choice beside those of r. What slower memory holds is not
 * limited here, which only lowers the bound.
 * This is a cut (project selection, Picard 1976) with a knapsack. A programme over the units from
 * last to first solves it for all M at once: its states are the sets of values that only repeated
 * forwards would read, few at a time (beyond GCKPTI_OPEN the others are free, which only lowers the
 * bound), and each has a list of cuts, (bytes, work) pairs of which none is better than another
 * (Nemhauser and Ullmann 1969). Such lists may be long. Their lower convex hulls are short, and as
 * pairs are only moved and united, the hull of the last list comes from the hulls of those before:
 * all prices of a byte together (Gallo, Grigoriadis and Tarjan 1989). Lines between its corners are
 * a bound too. So each instant has its hull, and where one decides, and the graph is small enough,
 * all its cuts.
 *
 * Instants that matter are those at which more lies in the arena whatever a schedule does than at
 * any before: behind another they have less to give up and no less room. Where gradients of
 * parameters pile up these are many: some are taken.
 *
 * It holds for all schedules of the model, that is, for its order of backwards and its forms of
 * ops. Of two values that share bytes (in place) only one is read later, so that both never count.
 * It is optimistic, never wrong, about gckpt_recompute, what a loop keeps from the prologue,
 * updates in the backward, and ops that may run for the first time behind the instant (free).
 *
 * Bytes that no schedule can do without: the most of any instant, with the closure that keeps
 * least, of any backward, and of any forward that has its inputs and its result in the arena.
 * ============================================================================================== */
/* OPEN: as above; then cuts behind a unit, at the most, on hulls and in all. */
enum { GCKPTI_OPEN = 6, GCKPTI_HULL_CUTS = 1024, GCKPTI_ALL_CUTS = 16384 };

/* Marks what an instant knows. */
GCKPTI_FN void gckpti_instant_marks(const gckpti_planner *p, gckpti_instant *t)
{
    for (int i = 0; i < p->units; i++) {
        const gckpti_unit *u = &p->unit[i];
        int then = u->rank == t->rank, later = u->rank >= t->rank;
        int sooner = u->rank >= 0 && u->rank <= t->rank;
        unsigned char *flags = &t->unit[i].flags;
        *flags |= u->fetched ? GCKPTI_READ : 0;
        *flags |= i < p->prologue || (sooner && u->reads_aux) ? GCKPTI_RAN : 0;
        *flags |= later && u->reads_aux ? GCKPTI_READ_AUX : 0;
        *flags |= then && u->reads_aux ? GCKPTI_HELD_AUX : 0;
        for (int k = u->read; k < u->read + u->reads && u->rank >= 0; k++) {
            flags = &t->unit[p->links[k]].flags;
            *flags |= later ? GCKPTI_READ : 0;
            *flags |= then ? GCKPTI_HELD : 0;
            *flags |= sooner ? GCKPTI_RAN : 0;
        }
    }
    for (int i = p->units; i-- > 0;) {
        const gckpti_unit *u = &p->unit[i];
        unsigned char *flags = &t->unit[i].flags;
        for (int k = u->in; k < u->in + u->inputs && *flags & GCKPTI_RAN; k++)
            t->unit[p->links[k]].flags |= GCKPTI_RAN;
        *flags |= u->fixed && *flags & GCKPTI_RAN ? GCKPTI_STAYS : 0;
    }
}

/* Gives bits to values that only repeated forwards read, from their last reader back to their unit;
 * without one such a value is free. */
GCKPTI_FN void gckpti_instant_bits(const gckpti_planner *p, gckpti_instant *t)
{
    unsigned taken = 0;
    for (int i = p->units; i-- > 0;) {
        const gckpti_unit *u = &p->unit[i];
        gckpti_cut_unit *c = &t->unit[i];
        for (int k = u->in; k < u->in + u->inputs && !(c->flags & GCKPTI_STAYS); k++) {
            gckpti_cut_unit *q = &t->unit[p->links[k]];
            unsigned bit = ~taken & (taken + 1);
            if (q->flags & GCKPTI_READ || (!q->own && bit >> GCKPTI_OPEN))
                continue;
            q->own = q->own ? q->own : (unsigned char)bit;
            taken |= q->own;
            c->opens |= q->own;
        }
        taken &= ~(unsigned)c->own;
    }
}

/* Whether a * b <= c * d, in 128 bits. */
static int gckpti_product_within(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t high[2], low[2];
    for (int i = 0; i < 2; i++, a = c, b = d) {
        uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
        uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffffu);
        high[i] = a1 * b1 + (middle >> 32) + (other >> 32);
        low[i] = a * b;
    }
    return high[0] < high[1] || (high[0] == high[1] && low[0] <= low[1]);
}

/* Appends a cut with more bytes to a list if it has less work than all there; with hull, corners
 * that are none any more go. */
static int gckpti_cut_append(gckpti_kept *v, int n, const gckpti_kept *q, int hull)
{
    if (n > 0 && q->work >= v[n - 1].work)
        return n;
    while (hull && n > 1 &&
           gckpti_product_within(v[n - 2].work - v[n - 1].work,
                                 (uint64_t)(q->bytes - v[n - 1].bytes), v[n - 1].work - q->work,
                                 (uint64_t)(v[n - 1].bytes - v[n - 2].bytes)))
        n--;
    v[n] = *q;
    return n + 1;
}

/* Adds `more`, continued by a unit with such bytes and work, to a list; its cuts are numbered from
 * `first`. */
static void gckpti_cut_merge(gckpti_bound *b, gckpti_kept_list *to, const gckpti_kept_list *more,
                             int64_t bytes, uint64_t work, uint32_t first)
{
    gckpti_kept *out = b->pool[2], *at = to->cut, *end = at + to->n;
    int n = 0;
    b->items += to->n + more->n;
    for (int k = 0; k < more->n; k++) {
        gckpti_kept q = { more->cut[k].bytes + bytes, more->cut[k].work + work,
                          first + (uint32_t)k };
        while (at < end && (at->bytes < q.bytes || (at->bytes == q.bytes && at->work < q.work)))
            n = gckpti_cut_append(out, n, at++, b->hulls);
        n = gckpti_cut_append(out, n, &q, b->hulls);
    }
    while (at < end)
        n = gckpti_cut_append(out, n, at++, b->hulls);
    to->n = n;
    memcpy(to->cut, out, (size_t)n * sizeof *out);
}

/* The lists behind unit i, by state, from those in front of it. */
static void gckpti_cut_step(gckpti_bound *b, gckpti_instant *t, int i, unsigned open,
                            const gckpti_kept_list *now, gckpti_kept_list *next)
{
    const gckpti_unit *u = &b->p->unit[i];
    const gckpti_cut_unit *c = &t->unit[i];
    unsigned x = 0;
    const int aux_far = c->flags & GCKPTI_READ_AUX && !(c->flags & GCKPTI_HELD_AUX) && u->aux;
    int64_t aux = c->flags & GCKPTI_READ_AUX ? u->aux : 0;
    int64_t held = (c->flags & GCKPTI_HELD ? u->out : 0) + (c->flags & GCKPTI_HELD_AUX ? aux : 0);
    uint64_t work = c->flags & GCKPTI_RAN ? u->cost : 0;
    if (!b->hulls)
        work += (work >> GCKPTI_SLANT) * (uint64_t)i / (uint64_t)b->p->units;
    do {
        int needed = c->flags & GCKPTI_READ || x & c->own;
        int64_t bytes = (needed ? u->out : 0) + aux;
        uint32_t first = (uint32_t)(now[x].cut - now[0].cut);
        gckpti_cut_merge(b, &next[x & ~(unsigned)c->own], &now[x], bytes, 0, first);
        int far = needed && u->out && !(c->flags & GCKPTI_HELD) ? GCKPTI_VALUE : 0;
        far |= aux_far ? GCKPTI_AUX : 0;
        for (int part = far; part > 0 && u->offloads; part = (part - 1) & far)
            gckpti_cut_merge(
                b, &next[x & ~(unsigned)c->own], &now[x], bytes - gckpti_parts_bytes(u, part),
                2 * gckpti_parts_work(b->p, i, part) >> b->cheap, first | UINT32_C(1) << 30);
        if (bytes > 0 && !(c->flags & GCKPTI_STAYS))
            gckpti_cut_merge(b, &next[(x | c->opens) & ~(unsigned)c->own], &now[x], held, work,
                             first | UINT32_C(1) << 31);
        x = (x - open) & open;
    } while (x);
}

/* Readies lists of hulls, or of all cuts. 0: out of memory. */
GCKPTI_FN int gckpti_bound_lists(gckpti_bound *b, int hulls)
{
    size_t before = b->room, most = hulls ? GCKPTI_HULL_CUTS : GCKPTI_ALL_CUTS;
    most *= b->p->offloads ? 4 : 1;
    size_t units = (size_t)b->p->units; /* small graphs are planned in small blocks */
    b->hulls = hulls;
    b->room = units < 40 ? 64 + (hulls ? 32 : 64) * units : most;
    b->room = b->room < most ? b->room : most;
    for (int k = 0; k < 3 && b->room != before; k++)
        b->pool[k] = (gckpti_kept *)gckpti_scratch_take(b->scratch, b->room, sizeof **b->pool);
    return !b->p->failed;
}

/* Finds all cuts of an instant, or those of the hull. 0: there are too many. */
GCKPTI_FN int gckpti_find_cuts(gckpti_bound *b, gckpti_instant *t, gckpti_cut_table *table)
{
    gckpti_kept_list lists[2][1 << GCKPTI_OPEN], *now = lists[0], *next = lists[1];
    gckpti_kept *front = b->pool[0], *behind = b->pool[1];
    unsigned open = 0, x = 0;
    size_t used = 0, n = 1, ways = b->p->offloads ? 5 : 2;
    table->first = (size_t *)gckpti_scratch_take(b->scratch, (size_t)b->p->units, sizeof(size_t));
    memset(front, 0, sizeof *front);
    now[0].cut = front;
    now[0].n = 1;
    for (int i = b->p->units; i-- > 0 && !b->p->failed;) {
        const gckpti_cut_unit *c = &t->unit[i];
        const unsigned own = c->own, after = (open | c->opens) & ~own;
        int room[1 << GCKPTI_OPEN] = { 0 };
        if (ways * n > b->room ||
            !gckpti_want(b->scratch, &table->from, used + ways * n, sizeof(uint32_t)))
            return 0;
        do { /* room for as many as there may be */
            room[x & ~own] += ((int)ways - 1) * now[x].n;
            room[(x | c->opens) & ~own] += now[x].n;
            x = (x - open) & open;
        } while (x);
        n = 0;
        do {
            next[x].cut = behind + n;
            next[x].n = 0;
            n += (size_t)room[x];
            x = (x - after) & after;
        } while (x);
        gckpti_cut_step(b, t, i, open, now, next);
        n = 0;
        do { /* side by side, so that they are numbered through */
            memmove(behind + n, next[x].cut, (size_t)next[x].n * sizeof *behind);
            next[x].cut = behind + n;
            n += (size_t)next[x].n;
            x = (x - after) & after;
        } while (x);
        table->first[i] = used;
        for (size_t k = 0; k < n; k++)
            table->from[used++] = behind[k].from;
        gckpti_kept_list *lists_in_front = now;
        gckpti_kept *kept_in_front = front;
        now = next, next = lists_in_front;
        front = behind, behind = kept_in_front;
        open = after;
    }
    table->last.cut = (gckpti_kept *)gckpti_scratch_copy(b->scratch, front, n, sizeof *front);
    table->last.n = b->p->failed ? 0 : (int)n;
    return table->last.n;
}

/* The last cut that keeps no more than `room` bytes; -1: there is none. */
GCKPTI_FN int gckpti_cut_within(const gckpti_kept_list *v, int64_t room)
{
    int low = -1, high = v->n - 1;
    while (low < high) {
        int middle = high - (high - low) / 2;
        if (v->cut[middle].bytes <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The work of one of an instant's cuts, without what its lateness added. */
GCKPTI_FN uint64_t gckpti_cut_work(const gckpti_instant *t, int cut)
{
    uint64_t work = t->all.last.cut[cut].work;
    return work - (work >> GCKPTI_SLANT);
}

/* Notes in b->again what a cut computes again. */
GCKPTI_FN void gckpti_cut_mark(gckpti_bound *b, const gckpti_cut_table *table, int cut)
{
    uint32_t k = (uint32_t)cut;
    for (int i = 0; i < b->p->units; i++) {
        uint32_t from = table->from[table->first[i] + k];
        b->again[i] = from >> 31 ? GCKPTI_AGAIN : from >> 30 ? GCKPTI_FAR : 0;
        k = from & 0x3fffffff;
    }
}
#endif
