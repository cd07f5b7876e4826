#include "search/own.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* =================================================================================================
 * cuts: work and bytes that no schedule can do without, from minimal cuts
 *
 * Take any schedule whose live bytes never exceed M, and an instant: some backward. Let
 * r(u) be 1 where unit u runs again behind it. Whatever a later backward, a fetch or a later run
 * reads is either in the arena at the instant or made by such a run. So with n(u) = 1 where a
 * backward from this one on, or a run j with r(j) = 1, reads the value of u, all values with
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
 * any before; where gradients of parameters pile up these are many, and some are taken. All holds
 * for the model's order of backwards and forms of ops. Of two values that share bytes (in place)
 * only one is read later. It is optimistic, never wrong, about gckpt_recompute, what a loop keeps
 * from the prologue, updates in the backward, and ops that may first run behind the instant (free).
 *
 * Bytes that no schedule can do without: the most of any instant, with the closure that keeps
 * least, of any backward, and of any forward that has its inputs and its result in the arena.
 * ============================================================================================== */
/* OPEN: as above; cuts behind a unit, at the most, on hulls and in all; units, for all of them. */
enum { GCKPTI_OPEN = 6, GCKPTI_HULL_CUTS = 1024, GCKPTI_ALL_CUTS = 16384, GCKPTI_COUNTED = 256 };

/* Marks what an instant knows. */
static void gckpti_instant_marks(const gckpti_planner *p, gckpti_instant *t)
{
    for (int i = 0; i < p->units; i++) {
        const gckpti_unit *u = &p->unit[i];
        int then = u->nth == t->nth, later = u->nth >= t->nth;
        int sooner = u->nth >= 0 && u->nth <= t->nth;
        unsigned char *flags = &t->unit[i].flags;
        *flags |= u->fetched ? GCKPTI_READ : 0;
        *flags |= i < p->prologue || (sooner && u->reads_aux) ? GCKPTI_RAN : 0;
        *flags |= later && u->reads_aux ? GCKPTI_READ_AUX : 0;
        *flags |= then && u->reads_aux ? GCKPTI_HELD_AUX : 0;
        for (int k = u->read; k < u->read + u->reads && u->nth >= 0; k++) {
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
static void gckpti_instant_bits(const gckpti_planner *p, gckpti_instant *t)
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

/* The lists of some unit's border, by state: sets of bits of `open`. */
typedef struct {
    gckpti_kept_list list[1 << GCKPTI_OPEN];
    unsigned open;
} gckpti_states;

/* The list behind unit i of state y, from those in front of it: of all states x that the unit may
 * turn into y, as its value is needed no more, and its inputs are where it runs again. */
static void gckpti_cut_step(gckpti_bound *b, const gckpti_instant *t, int i,
                            const gckpti_states *front, unsigned y, gckpti_kept_list *to)
{
    const gckpti_unit *u = &b->p->unit[i];
    const gckpti_cut_unit *c = &t->unit[i];
    const unsigned own = c->own, some = (c->opens | own) & front->open;
    const int64_t aux = c->flags & GCKPTI_READ_AUX ? u->aux : 0;
    const int64_t held =
        (c->flags & GCKPTI_HELD ? u->out : 0) + (c->flags & GCKPTI_HELD_AUX ? aux : 0);
    const int aux_far = aux && !(c->flags & GCKPTI_HELD_AUX) ? GCKPTI_AUX : 0;
    uint64_t work = c->flags & GCKPTI_RAN ? u->cost : 0;
    unsigned part = 0;
    if (!b->hulls)
        work += (work >> GCKPTI_SLANT) * (uint64_t)i / (uint64_t)b->p->units;
    do {
        const unsigned x = (y & front->open & ~some) | part;
        const int needed = c->flags & GCKPTI_READ || x & own;
        const int64_t bytes = (needed ? u->out : 0) + aux;
        const gckpti_kept_list *from = &front->list[x];
        const uint32_t first = (uint32_t)(from->cut - front->list[0].cut);
        int far = aux_far | (needed && u->out && !(c->flags & GCKPTI_HELD) ? GCKPTI_VALUE : 0);
        if ((x & ~own) == y)
            gckpti_cut_merge(b, to, from, bytes, 0, first);
        for (int q = (x & ~own) == y && u->offloads ? far : 0; q > 0; q = (q - 1) & far)
            gckpti_cut_merge(b, to, from, bytes - gckpti_parts_bytes(u, q),
                             gckpti_priced(b->price, 2 * gckpti_parts_work(b->p, i, q)) >> b->cheap,
                             first | UINT32_C(1) << 30);
        if (((x | c->opens) & ~own) == y && bytes > 0 && !(c->flags & GCKPTI_STAYS))
            gckpti_cut_merge(b, to, from, held, work, first | UINT32_C(1) << 31);
        part = (part - some) & some;
    } while (part);
}

/* Readies lists of hulls, or of all cuts. 0: out of memory. */
static int gckpti_bound_lists(gckpti_bound *b, int hulls)
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

/* Finds cuts of an instant; none, when there are too many. */
static void gckpti_find_cuts(gckpti_bound *b, const gckpti_instant *t, gckpti_cut_table *table)
{
    gckpti_states states[2], *front = &states[0], *behind = &states[1];
    size_t used = 0, n = 1, ways = b->p->offloads ? 5 : 2;
    table->first = (size_t *)gckpti_scratch_take(b->scratch, (size_t)b->p->units, sizeof(size_t));
    front->open = 0;
    front->list[0].cut = b->pool[0];
    front->list[0].n = 1;
    memset(b->pool[0], 0, sizeof **b->pool);
    for (int i = b->p->units; i-- > 0 && !b->p->failed;) {
        const gckpti_cut_unit *c = &t->unit[i];
        const unsigned after = (front->open | c->opens) & ~(unsigned)c->own;
        unsigned y = 0;
        gckpti_kept *cut = front->list[0].cut == b->pool[0] ? b->pool[1] : b->pool[0];
        if (ways * n > b->room ||
            !gckpti_want(b->scratch, &table->from, used + ways * n, sizeof(uint32_t)))
            return;
        n = 0;
        do { /* side by side, so that they are numbered through */
            behind->list[y].cut = cut + n;
            behind->list[y].n = 0;
            gckpti_cut_step(b, t, i, front, y, &behind->list[y]);
            n += (size_t)behind->list[y].n;
            y = (y - after) & after;
        } while (y);
        table->first[i] = used;
        for (size_t k = 0; k < n; k++)
            table->from[used++] = cut[k].from;
        gckpti_states *swap = front;
        front = behind, behind = swap;
        front->open = after;
    }
    table->last.cut =
        (gckpti_kept *)gckpti_scratch_copy(b->scratch, front->list[0].cut, n, sizeof **b->pool);
    table->last.n = b->p->failed ? 0 : (int)n;
}

/* One of an instant's tables. Why cheap ones: where several values would have to be computed again
 * one after the other, a cut, which counts each once, offloads too few. */
GCKPTI_FN const gckpti_cut_table *gckpti_cuts(gckpti_bound *b, gckpti_instant *t, int which)
{
    int found = t->tried >> which & 1, all = which == GCKPTI_ALL;
    t->tried |= 1u << which;
    if (!found && (!all || b->p->units <= GCKPTI_COUNTED) && gckpti_bound_lists(b, !all)) {
        b->cheap = all ? 0 : which < GCKPTI_ALL - 1 ? which : 63;
        gckpti_find_cuts(b, t, &t->table[which]);
    }
    return &t->table[which];
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
    uint64_t work = t->table[GCKPTI_ALL].last.cut[cut].work;
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
/* ---- bounds: what is proven, by the cuts of all instants ---- */

/* The least work on an instant's hull for so many bytes, rounded down a little. */
GCKPTI_FN uint64_t gckpti_hull_work(const gckpti_kept_list *hull, int64_t room)
{
    int i = gckpti_cut_within(hull, room), shift = 0;
    if (hull->n == 0)
        return 0; /* it had too many corners: nothing is known */
    if (i < 0 || i == hull->n - 1)
        return i < 0 ? UINT64_MAX : hull->cut[i].work;
    const gckpti_kept *a = &hull->cut[i], *z = a + 1;
    uint64_t work = a->work - z->work, bytes = (uint64_t)(room - a->bytes), off;
    while ((work >> shift) + 1 > (UINT64_C(1) << 62) / (bytes + 1))
        shift++;
    off = (((work >> shift) + 1) * bytes / (uint64_t)(z->bytes - a->bytes) + 1) << shift;
    return off < work ? a->work - off : z->work;
}

/* The work that no schedule within `limit` live bytes can do without repeating, by hulls;
 * UINT64_MAX: there is no such schedule. *at: the instant that decides. */
GCKPTI_FN uint64_t gckpti_hulls_work(const gckpti_bound *b, int64_t limit, int *at)
{
    uint64_t most = 0;
    *at = 0;
    if (limit < b->least)
        return UINT64_MAX;
    for (int k = 0; k < b->instants; k++) {
        const gckpti_instant *t = &b->instant[k];
        uint64_t work = gckpti_hull_work(&t->table[GCKPTI_HULL].last, limit - t->gradients);
        if (work >= most) {
            most = work;
            *at = k;
        }
    }
    return most;
}

GCKPTI_FN uint64_t gckpti_bound_work(gckpti_bound *b, int64_t limit, int *at)
{
    uint64_t most = gckpti_hulls_work(b, limit, at), work = 0;
    if (most == UINT64_MAX || b->instants == 0)
        return most;
    gckpti_instant *t = &b->instant[*at];
    int cut = gckpti_cut_within(&gckpti_cuts(b, t, GCKPTI_ALL)->last, limit - t->gradients);
    if (cut >= 0)
        work = gckpti_cut_work(t, cut);
    return work > most ? work : most;
}

/* Bytes that are live in every schedule at a backward, or at some forward of a unit; read: units
 * whose values somebody reads. */
static int64_t gckpti_bytes_at(const gckpti_planner *p, int item, const unsigned char *read)
{
    const gckpti_unit *u = &p->unit[item < 0 ? ~item : item];
    int count;
    const int *links = gckpti_reads(p, item, &count);
    int64_t bytes = u->reads_aux ? u->aux : 0;
    if (item >= 0 && !u->in_place && read[item] && u->out > bytes)
        bytes = u->out; /* versions may differ: one is read, the other leaves aux */
    bytes += item < 0 ? p->gradient_at[u->nth] : p->gradient_between[0] + u->work;
    while (count-- > 0)
        bytes += p->unit[links[count]].out;
    return bytes;
}

/* Sums over the model, and what is live at its items. */
static void gckpti_bound_sums(gckpti_bound *b)
{
    const gckpti_planner *p = b->p;
    unsigned char *read = (unsigned char *)gckpti_scratch_take(b->scratch, (size_t)p->units, 1);
    size_t sizes = p->alignment; /* all of them: they are multiples of its lowest bit */
    for (int i = 0; i < p->link_count && read; i++)
        read[p->links[i]] = 1;
    for (int i = 0; i < p->gradients; i++)
        sizes |= p->gradient[i].size;
    for (int i = 0; i < p->units && read; i++) {
        const gckpti_unit *u = &p->unit[i];
        const gckpt_tensor *t = p->tensors[u->id];
        read[i] |= u->fetched;
        b->work = gckpti_add_work(b->work, u->cost);
        sizes |= (u->out ? gckpti_value_bytes(p, t) : 0) | (u->reads_aux ? t->aux_bytes : 0) |
                 p->work_forward[u->id];
        for (int k = 0; k < 1 + (u->nth >= 0); k++) {
            int64_t bytes = gckpti_bytes_at(p, k ? ~i : i, read);
            b->least = bytes > b->least ? bytes : b->least;
        }
        if (u->nth >= 0) {
            b->work = gckpti_add_work(b->work, p->cost[u->id].backward);
            sizes |= p->work_backward[u->id];
        }
    }
    b->spare = (int64_t)(p->alignment - (sizes & (~sizes + 1)));
}

/* Readies the bound of a model. */
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, int price,
                                 gckpti_scratch *scratch)
{
    size_t n = (size_t)p->units;
    int64_t most = -1;
    memset(b, 0, sizeof *b);
    b->p = p;
    b->price = price;
    b->scratch = scratch;
    gckpti_bound_sums(b);
    b->again = (unsigned char *)gckpti_scratch_take(scratch, n, 1);
    int *record = (int *)gckpti_scratch_take(scratch, (size_t)p->body_backwards, sizeof(int));
    int count = 0;
    for (int r = 0; r < p->body_backwards && record; r++) {
        int64_t held = gckpti_bytes_at(p, ~p->backward[r], NULL);
        if (held > most)
            record[count++] = r;
        most = held > most ? held : most;
    }
    b->instants = count < GCKPTI_INSTANTS ? count : GCKPTI_INSTANTS;
    for (int k = 0; k < b->instants; k++) { /* the first ones, then evenly to the last */
        const int first = GCKPTI_INSTANTS / 2 - 1;
        int far = (int)((int64_t)(k - first) * (count - 1 - first) / (GCKPTI_INSTANTS - 1 - first));
        gckpti_instant *t = &b->instant[k];
        t->nth = record[k <= first || count <= GCKPTI_INSTANTS ? k : first + far];
        t->gradients = p->gradient_at[t->nth];
        t->unit = (gckpti_cut_unit *)gckpti_scratch_take(scratch, n, sizeof *t->unit);
        if (!t->unit)
            return;
        gckpti_instant_marks(p, t);
        gckpti_instant_bits(p, t);
        const gckpti_kept_list *hull = &gckpti_cuts(b, t, GCKPTI_HULL)->last;
        if (hull->n && t->gradients + hull->cut[0].bytes > b->least)
            b->least = t->gradients + hull->cut[0].bytes;
    }
}
#endif
