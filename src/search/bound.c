#include "search/own.h"
#include "base/base.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_SEARCH
/* ---- bounds: what is proven, by the cuts of all instants ---- */
enum { GCKPTI_COUNTED = 256 }; /* most units for lists of all cuts */

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

/* All cuts of an instant; none when there are too many. */
GCKPTI_FN const gckpti_kept_list *gckpti_all_cuts(gckpti_bound *b, int at)
{
    gckpti_instant *t = &b->instant[at];
    if (!t->tried++ && b->p->units <= GCKPTI_COUNTED && gckpti_bound_lists(b, 0))
        gckpti_find_cuts(b, t, &t->all);
    return &t->all.last;
}

/* The hull of an instant if copies had less work. Where several values would have to be computed
 * again one after the other, a cut, which counts each once, offloads too few. */
GCKPTI_FN const gckpti_cut_table *gckpti_cheap_cuts(gckpti_bound *b, gckpti_instant *t, int cheap)
{
    if (!(t->tried_cheap >> cheap & 1) && gckpti_bound_lists(b, 1)) {
        b->cheap = cheap < GCKPTI_CHEAP ? cheap : 63;
        gckpti_find_cuts(b, t, &t->cheap[cheap - 1]);
        b->cheap = 0;
    }
    t->tried_cheap |= 1 << cheap;
    return &t->cheap[cheap - 1];
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
        uint64_t work = gckpti_hull_work(&b->instant[k].hull.last, limit - b->instant[k].gradients);
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
    int cut = gckpti_cut_within(gckpti_all_cuts(b, *at), limit - b->instant[*at].gradients);
    if (cut >= 0)
        work = gckpti_cut_work(&b->instant[*at], cut);
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
    bytes += item < 0 ? p->gradient_at[u->rank] : p->gradient_between[0] + u->work;
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
        for (int k = 0; k < 1 + (u->rank >= 0); k++) {
            int64_t bytes = gckpti_bytes_at(p, k ? ~i : i, read);
            b->least = bytes > b->least ? bytes : b->least;
        }
        if (u->rank >= 0) {
            b->work = gckpti_add_work(b->work, p->cost[u->id].backward);
            sizes |= p->work_backward[u->id];
        }
    }
    b->spare = (int64_t)(p->alignment - (sizes & (~sizes + 1)));
}

/* Readies the bound of a model. */
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, gckpti_scratch *scratch)
{
    size_t n = (size_t)p->units;
    int64_t most = -1;
    memset(b, 0, sizeof *b);
    b->p = p;
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
        b->instant[k].rank = record[k <= first || count <= GCKPTI_INSTANTS ? k : first + far];
    }
    for (int k = 0; k < b->instants; k++) {
        gckpti_instant *t = &b->instant[k];
        t->gradients = p->gradient_at[t->rank];
        t->unit = (gckpti_cut_unit *)gckpti_scratch_take(scratch, n, sizeof *t->unit);
        if (!t->unit)
            return;
        gckpti_instant_marks(p, t);
        gckpti_instant_bits(p, t);
    }
    gckpti_bound_lists(b, 1);
    for (int k = 0; k < b->instants && !p->failed; k++) {
        gckpti_instant *t = &b->instant[k];
        if (gckpti_find_cuts(b, t, &t->hull) && t->gradients + t->hull.last.cut[0].bytes > b->least)
            b->least = t->gradients + t->hull.last.cut[0].bytes;
    }
}

GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p)
{
    for (; p; p = p->next) {
        if (p->bound)
            continue;
        p->bound = (gckpti_bound *)gckpti_scratch_take(&p->scratch, 1, sizeof *p->bound);
        if (p->bound)
            gckpti_bound_open(p->bound, p, &p->scratch);
    }
}

GCKPTI_FN uint64_t gckpti_prove_work(gckpti_bound *b, size_t arena)
{
    int at;
    int64_t most = (int64_t)(arena < PTRDIFF_MAX / 2 ? arena : PTRDIFF_MAX / 2);
    return gckpti_add_work(gckpti_bound_work(b, most + b->spare, &at), b->work);
}

GCKPTI_FN size_t gckpti_prove_bytes(const gckpti_bound *b)
{
    int64_t least = b->least - b->spare;
    return least < 0 ? 0 : (uint64_t)least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}
#endif
