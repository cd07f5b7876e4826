#include "search/own.h"
#include "base/base.h"

#ifndef GCKPT_NO_SEARCH
/* ---- moves, of squeeze and of polish: their list, what they cost ---- */
/* cost / gain as an integer that orders like a floating-point number: 6 bits of exponent and more
 * above 32 bits of mantissa, so that adding GCKPTI_TWICE doubles it. */
GCKPTI_FN uint64_t gckpti_score(uint64_t cost, int64_t gain)
{
    uint64_t a = cost + 1, b = (uint64_t)gain, exponent = 128 - 33;
    for (int k = 32; k > 0; k /= 2) { /* to 2^62 .. 2^63 */
        if (a >> (63 - k) == 0) {
            a <<= k;
            exponent -= (uint64_t)k;
        }
        if (b >> (63 - k) == 0) {
            b <<= k;
            exponent += (uint64_t)k;
        }
    }
    a /= b >> 33; /* 2^32 .. 2^34 */
    while (a >= UINT64_C(1) << 33) {
        a >>= 1;
        exponent++;
    }
    return exponent * GCKPTI_TWICE + (a - GCKPTI_TWICE);
}

GCKPTI_FN void gckpti_add_move(gckpti_search *s, const gckpti_move *m)
{
    if (gckpti_want(&s->scratch, &s->move, (size_t)s->moves + 1, sizeof *m))
        s->move[s->moves++] = *m;
}

/* Sorts s->move by key; of those with the same, what is later in the schedule comes first. All of
 * them may be chosen. */
GCKPTI_FN void gckpti_sort_moves(gckpti_search *s)
{
    size_t n = (size_t)s->moves;
    if (!gckpti_want(&s->scratch, &s->key, 2 * n, sizeof *s->key) ||
        !gckpti_want(&s->scratch, &s->sorted, n, sizeof *s->sorted) ||
        !gckpti_want(&s->scratch, &s->chosen, n, sizeof *s->chosen))
        return;
    for (size_t i = 0; i < n; i++) {
        s->key[i].key = s->move[n - 1 - i].key;
        s->key[i].item = (int)(n - 1 - i);
    }
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = s->move[s->key[i].item];
    gckpti_move *swap = s->move;
    s->move = s->sorted;
    s->sorted = swap;
}

/* ---- what moves do to the present schedule: s->next; the better one is kept ---- */
/* s->next = s->now with what n moves compute. 0: no memory. */
static int gckpti_insert_sets(gckpti_search *s, const int *move, int n)
{
    const gckpti_schedule *t = &s->now;
    size_t most = 0, k = 0, length = 0;
    for (int i = 0; i < n; i++)
        most += (size_t)s->move[move[i]].units;
    if (!gckpti_want(&s->scratch, &s->insert, 2 * most, sizeof *s->insert) ||
        !gckpti_schedule_room(&s->scratch, &s->next, t->length + (int)most))
        return 0;
    for (int i = 0; i < n; i++) {
        const gckpti_move *m = &s->move[move[i]];
        for (int j = m->set; j < m->set + m->units; j++, k++) {
            s->insert[k].key = (uint64_t)m->to << 32 | (uint64_t)gckpti_unit_of(s->p, s->set[j]);
            s->insert[k].item = s->set[j];
        }
        s->incomplete = s->incomplete || m->truncated;
    }
    gckpti_sort_keys(s->insert, s->insert + most, most);
    int *out = s->next.item, x = 0;
    for (k = 0; k < most; k++) {
        int to = (int)(s->insert[k].key >> 32);
        memcpy(out + length, t->item + x, (size_t)(to - x) * sizeof *out);
        length += (size_t)(to - x);
        x = to;
        if (k == 0 || s->insert[k].key != s->insert[k - 1].key)
            out[length++] = s->insert[k].item;
    }
    memcpy(out + length, t->item + x, (size_t)(t->length - x) * sizeof *out);
    s->next.length = (int)length + t->length - x;
    return 1;
}

/* s->next = s->now without the forwards of n moves, or with reloads there. 0: no memory. */
static int gckpti_replace_items(gckpti_search *s, int how, const int *move, int n)
{
    const gckpti_schedule *t = &s->now;
    if (!gckpti_schedule_room(&s->scratch, &s->next, t->length))
        return 0;
    int *out = s->next.item, length = 0;
    memcpy(out, t->item, (size_t)t->length * sizeof *out);
    for (int i = 0; i < n; i++) {
        int x = s->move[move[i]].to;
        out[x] = how == GCKPTI_TO_RELOAD ? out[x] + s->p->units : INT32_MAX;
    }
    for (int x = 0; x < t->length; x++)
        if (out[x] != INT32_MAX)
            out[length++] = out[x];
    s->next.length = length;
    return 1;
}

/* s->next = s->now changed by n moves, without what nobody reads; evaluated. */
static void gckpti_try(gckpti_search *s, int how, const int *move, int n)
{
    if (how == GCKPTI_CLOSE ? gckpti_insert_sets(s, move, n)
                            : gckpti_replace_items(s, how, move, n))
        gckpti_evaluate(s, &s->next);
}

/* s->next becomes the present schedule. */
GCKPTI_FN void gckpti_accept(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
}

/* Makes one move, whether it is of use or not. */
GCKPTI_FN void gckpti_make_move(gckpti_search *s, int how, int move)
{
    gckpti_try(s, how, &move, 1);
    gckpti_accept(s);
}

/* How good s->next is, the least best: where s->now exceeds the limit by `excess`, the work of each
 * byte less; else its work. UINT64_MAX: it is no better. */
static uint64_t gckpti_rate(const gckpti_search *s, int64_t limit, int64_t excess)
{
    int64_t gain = excess - gckpti_excess(&s->next, limit);
    uint64_t work = s->next.extra, before = s->now.extra;
    if (excess > 0 && gain > 0)
        return gckpti_score(work > before ? work - before : 0, gain);
    return excess == 0 && gain == 0 && work < before ? work : UINT64_MAX;
}

/* Makes n moves, s->chosen; half of them until it helps. Returns 0 when none does. */
GCKPTI_FN int gckpti_make_moves(gckpti_search *s, int how, int64_t limit, int n)
{
    int64_t excess = gckpti_excess(&s->now, limit);
    for (; n > 0 && !s->p->failed; n /= 2) {
        gckpti_try(s, how, s->chosen, n);
        if (gckpti_rate(s, limit, excess) < UINT64_MAX && !s->p->failed) {
            gckpti_accept(s);
            return 1;
        }
    }
    return 0;
}

/* Tries moves one at a time, in order, and makes the best; if not exact, of 8 that help, among the
 * first 200. Returns 0 when none helps. */
GCKPTI_FN int gckpti_make_best(gckpti_search *s, int how, int64_t limit, int exact)
{
    const int tries = exact ? s->moves : 200, most = exact ? s->moves : 8;
    int64_t excess = gckpti_excess(&s->now, limit);
    uint64_t least = UINT64_MAX;
    int best = -1, helped = 0;
    for (int m = 0; m < s->moves && m < tries && helped < most && !s->p->failed; m++) {
        gckpti_try(s, how, &m, 1);
        uint64_t rate = gckpti_rate(s, limit, excess);
        helped += rate < UINT64_MAX;
        best = rate < least ? m : best;
        least = rate < least ? rate : least;
    }
    if (best < 0 || s->p->failed)
        return 0;
    gckpti_make_move(s, how, best);
    return !s->p->failed;
}

/* ---- squeeze: takes the present schedule below a limit, by closing gaps (search/search) ---- */
enum { GCKPTI_CLOSURE = 400 }; /* most forwards that one gap may cost */

/* Whether the present schedule may offload some bytes of a unit more. */
static int gckpti_may_offload(const gckpti_search *s, int unit, int64_t bytes)
{
    return s->p->unit[unit].offloads && s->now.far <= s->p->far - bytes;
}

/* How a closure is made. CHEAPEST: an input that is not live is kept where that exceeds nothing,
 * else computed (or reloaded, if that is cheaper); COMPUTED: always that; KEPT: always kept;
 * RELOADED: the unit itself is reloaded, and no input needed. */
enum { GCKPTI_CHEAPEST, GCKPTI_COMPUTED, GCKPTI_KEPT_INPUTS, GCKPTI_RELOADED, GCKPTI_POLICIES };

/* The items that give m's unit anew at the position of the pass, into s->set behind `first`;
 * m->cost. m->penalty: excess that keeping inputs adds. Returns 1 where one is kept, 2 where one is
 * computed, 0: but for RELOADED, policies do not differ. */
static int gckpti_closure(gckpti_search *s, gckpti_move *m, int first, int policy)
{
    int choice = 0, h = first, end = first, x = m->to;
    m->cost = 0;
    m->penalty = 0;
    if (!gckpti_want(&s->scratch, &s->set, (size_t)first + GCKPTI_CLOSURE + GCKPT_MAX_INPUTS,
                     sizeof(int)))
        return 0;
    s->note[m->unit].seen = ++s->stamp;
    s->set[end++] = policy == GCKPTI_RELOADED ? m->unit + s->p->units : m->unit;
    if (policy == GCKPTI_RELOADED)
        m->cost = gckpti_copies_work(s, m->value + m->aux);
    for (h += policy == GCKPTI_RELOADED; h < end && end - first < GCKPTI_CLOSURE; h++) {
        if (gckpti_reloads(s->p, s->set[h])) {
            m->cost += gckpti_copies_work(s, s->p->unit[s->set[h] - s->p->units].out);
            continue;
        }
        const gckpti_unit *u = &s->p->unit[s->set[h]];
        m->cost += u->cost;
        s->looked += u->inputs;
        for (int k = u->in; k < u->in + u->inputs; k++) {
            int q = s->p->links[k];
            gckpti_note *v = &s->note[q];
            if (v->value_end >= x || v->seen == s->stamp ||
                (s->p->unit[q].fixed && !gckpti_may_offload(s, q, v->out)))
                continue;
            int reload =
                gckpti_may_offload(s, q, v->out) &&
                (s->p->unit[q].fixed || gckpti_copies_work(s, v->out) < s->p->unit[q].cost);
            int from = (v->value_end > v->start ? v->value_end : v->start) + 1;
            int64_t excess = from < x ? s->excess_count[x] - s->excess_count[from] : 0;
            int stale = gckpti_is_stale(s, q, x - 1);
            int kept = !stale &&
                       (policy == GCKPTI_KEPT_INPUTS || (excess == 0 && policy != GCKPTI_COMPUTED));
            v->seen = s->stamp;
            choice |= kept ? 1 : stale ? 0 : 2;
            if (kept)
                m->penalty += excess * v->out;
            else
                s->set[end++] = reload ? q + s->p->units : q;
        }
    }
    m->set = first;
    m->units = end - first;
    m->truncated = h < end;
    return choice;
}

/* Excess over positions low to x - 1 that `size` bytes less remove. */
static int64_t gckpti_gain(const gckpti_search *s, int low, int x, int64_t size)
{
    if (low >= x)
        return 0;
    int64_t sum = s->excess_sum[x] - s->excess_sum[low];
    int64_t most = size * (s->excess_count[x] - s->excess_count[low]);
    return sum < most ? sum : most;
}

/* What gaps are looked for: with their best policy, or (all) with each that is of use; wide: all of
 * them, not just those within twice the best, `worst`. */
typedef struct {
    int wide, all;
    uint64_t worst;
} gckpti_wish;

/* The gap of `unit` before position x, where the pass is, if closing it lowers the excess. */
static void gckpti_try_gap(gckpti_search *s, int unit, int x, gckpti_wish *wish)
{
    const gckpti_note *v = &s->note[unit];
    const int all = wish->all, fixed = s->p->unit[unit].fixed;
    gckpti_move best, m;
    int reload, choice = 3;
    if ((fixed && !s->p->unit[unit].offloads) || unit == s->barred)
        return;
    memset(&m, 0, sizeof m);
    m.unit = unit;
    m.start = v->start;
    m.from = v->from;
    m.to = x;
    m.value = v->value_end >= x ? v->out : 0;
    m.aux = v->aux_end >= x ? v->aux : 0;
    int64_t gain = gckpti_gain(s, v->from + 1, x, m.value) + gckpti_gain(s, v->start + 1, x, m.aux);
    reload = gckpti_may_offload(s, unit, m.value + m.aux);
    if (gain <= 0 || (!reload && gckpti_score(s->p->unit[unit].cost, gain) > wish->worst))
        return;
    best.key = UINT64_MAX;
    for (int policy = fixed ? GCKPTI_RELOADED : 0; policy < GCKPTI_POLICIES && !s->p->failed;
         policy++) {
        /* alone COMPUTED costs no less than CHEAPEST; and KEPT is that if nothing is computed */
        if (policy == GCKPTI_RELOADED
                ? !reload
                : !(choice & (all ? 3 : 2)) || (policy == GCKPTI_COMPUTED && !all))
            continue;
        choice = gckpti_closure(s, &m, s->sets, policy);
        m.key = gain > m.penalty ? gckpti_score(m.cost, gain - m.penalty) : UINT64_MAX;
        if (m.key >= best.key && !(all && m.key < UINT64_MAX))
            continue;
        best = m;
        s->sets += m.units;
        if (all)
            gckpti_add_move(s, &m);
    }
    if (all || best.key == UINT64_MAX || best.key > wish->worst)
        return; /* a pinned value may have no way: slower memory is full */
    if (!wish->wide && best.key < wish->worst - GCKPTI_TWICE)
        wish->worst = best.key + GCKPTI_TWICE;
    gckpti_add_move(s, &best);
}

/* The gaps of the present schedule that would lower the excess, best first: those within twice the
 * best; wide: all of them. */
GCKPTI_FN void gckpti_find_gaps(gckpti_search *s, int64_t limit, int wide, int all)
{
    gckpti_wish wish = { wide, all, UINT64_MAX };
    int last = 0;
    if (!gckpti_index(s, limit))
        return;
    for (int x = 0; x < s->now.length; x++)
        last = s->now.live[x] > limit ? x : last;
    for (int x = 0; x < s->now.length && !s->p->failed; x++) {
        int i = s->now.item[x], self = i < 0 && s->p->unit[~i].reads_aux ? ~i : -1, count;
        const int *links = gckpti_reads(s->p, i, &count);
        for (int k = 0; k < count && s->excess_count[x] > 0; k++) {
            const gckpti_note *v = &s->note[links[k]];
            self = links[k] == self ? -1 : self;
            if (v->from < last || (v->start < last && v->aux_end >= x))
                gckpti_try_gap(s, links[k], x, &wish);
        }
        if (self >= 0 && s->excess_count[x] > 0)
            gckpti_try_gap(s, self, x, &wish);
        gckpti_step(s, x);
    }
    gckpti_sort_moves(s);
}

/* Excess that `size` bytes less take off, of what moves have left over, at those positions above
 * the limit that are number a to b - 1; in chunks of them, one each up to some hundreds. */
static int64_t gckpti_relief(gckpti_search *s, int a, int b, int64_t size, int take)
{
    gckpti_leftover *left = &s->left;
    int64_t gain = 0;
    for (int end; a < b; a = end) {
        int c = a >> left->shift;
        int64_t sum = left->chunk[c], most;
        end = (c + 1) << left->shift;
        end = end < b ? end : b;
        most = size * (end - a);
        if (end - a < 1 << left->shift) /* its share of the chunk */
            sum = sum * (end - a) >> left->shift;
        sum = sum < most ? sum : most;
        gain += sum;
        left->chunk[c] -= take ? sum : 0;
        s->looked++;
    }
    left->all -= take ? gain : 0;
    return gain;
}

/* The same for all that a move takes off. */
static int64_t gckpti_move_relief(gckpti_search *s, const gckpti_move *m, int take)
{
    const int *count = s->excess_count;
    int from = m->from + 1 < m->to ? m->from + 1 : m->to;
    return (m->aux ? gckpti_relief(s, count[m->start + 1], count[from], m->aux, take) : 0) +
           gckpti_relief(s, count[from], count[m->to], m->value + m->aux, take);
}

/* Whether an item's unit or one of those it reads was touched; then notes that they all are. */
static int gckpti_touch(gckpti_search *s, int item, int note)
{
    int unit = gckpti_unit_of(s->p, item), touched = s->note[unit].touched, count;
    const int *links = gckpti_reads(s->p, item, &count);
    s->note[unit].touched = touched || note;
    for (int k = 0; k < count; k++) {
        touched = touched || s->note[links[k]].touched;
        s->note[links[k]].touched |= note;
    }
    return touched;
}

/* Cuts the positions above the limit into chunks and sums the excess of each, for gckpti_relief. */
static int gckpti_cut_chunks(gckpti_search *s)
{
    gckpti_leftover *left = &s->left;
    int over = s->excess_count[s->now.length];
    for (left->shift = 0; over >> left->shift > 512;)
        left->shift++;
    size_t chunks = (size_t)(over >> left->shift) + 1;
    if (!gckpti_want(&s->scratch, &left->chunk, chunks, sizeof *left->chunk))
        return 0;
    memset(left->chunk, 0, chunks * sizeof *left->chunk);
    for (int x = 0; x < s->now.length; x++)
        left->chunk[s->excess_count[x] >> left->shift] += s->excess_sum[x + 1] - s->excess_sum[x];
    left->all = s->excess_sum[s->now.length];
    return 1;
}

/* Chooses gaps to close from s->move, in order, that score within twice the best and touch no unit
 * of another, until nothing is left over. Returns how many. */
static int gckpti_choose_gaps(gckpti_search *s)
{
    int n = 0;
    if (s->moves == 0 || !gckpti_cut_chunks(s))
        return 0;
    uint64_t worst = s->move[0].key + GCKPTI_TWICE;
    for (int u = 0; u < s->p->units; u++)
        s->note[u].touched = 0;
    for (int i = 0; i < s->moves && s->move[i].key <= worst && s->left.all > 0; i++) {
        const gckpti_move *m = &s->move[i];
        int clash = s->note[m->unit].touched;
        for (int j = m->set; j < m->set + m->units && !clash; j++)
            clash = gckpti_touch(s, s->set[j], 0);
        int64_t gain = clash ? 0 : gckpti_move_relief(s, m, 0);
        if (gain <= m->penalty || gckpti_score(m->cost, gain - m->penalty) > worst)
            continue;
        for (int j = m->set; j < m->set + m->units; j++)
            gckpti_touch(s, s->set[j], 1);
        gckpti_move_relief(s, m, 1);
        s->chosen[n++] = i;
    }
    return n;
}

/* Takes the present schedule below the limit. Returns 0 when it cannot. */
GCKPTI_FN int gckpti_squeeze(gckpti_search *s, int64_t limit, int exact)
{
    int64_t first = 0;
    for (int round = 0; s->now.peak > limit && !s->p->failed; round++) {
        s->incomplete = s->incomplete || round > 300;
        if (round > 300 || gckpti_spent(s))
            return 0;
        gckpti_find_gaps(s, limit, exact, exact);
        if (s->p->failed)
            return 0;
        const int64_t excess = s->excess_sum[s->now.length];
        first = round ? first : excess;
        if (gckpti_ends(s, first, excess))
            return 0;
        if (!exact && gckpti_make_moves(s, GCKPTI_CLOSE, limit, gckpti_choose_gaps(s)))
            continue;
        if (!exact)
            gckpti_find_gaps(s, limit, 1, 0);
        if (!gckpti_make_best(s, GCKPTI_CLOSE, limit, exact))
            return 0;
    }
    return !s->p->failed;
}
#endif
