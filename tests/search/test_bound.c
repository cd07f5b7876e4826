/* test_bound.c - tests the proven bounds of plans: no schedule of any origin costs less than the proven cost for its
 * bytes, or takes fewer bytes than the proven bytes. The dynamic programme that computes the bound agrees with a
 * search over all closures.
 *
 *     build/test_bound [first seed] [scale in percent] */
#include "base/base.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "search/search.h"
#include "planner/internal.h"

#include "lowered_cost.h"
#include "synthetic.h"
#include "net.h"

/* search/bound.c */
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, int k, gckpti_scratch *scratch);
GCKPTI_FN const gckpti_cut_table *gckpti_cuts(gckpti_bound *b, gckpti_cut_point *point, int which);
GCKPTI_FN int gckpti_cut_within(const gckpti_cut_list *v, int64_t space);
GCKPTI_FN void gckpti_mark_cut(const gckpti_bound *b, const gckpti_cut_table *table, int cut, unsigned char *action);
GCKPTI_FN uint64_t gckpti_hull_cost(const gckpti_cut_list *hull, int64_t space);

enum { LIST = 4096, FETCHES = 4, TRIED = 12 };

/* ---- a request, its model and its bound ---- */
static struct {
    gckpt_graph *g;
    const gckpt_term *term;
    int terms;
    gckpt_plan_desc d;
    gckpt_fetch_spec fetch[FETCHES];
    gckpti_planner p;
    gckpti_allocator memory;
    gckpti_scratch scratch;
    gckpti_bound b;
} request;

/* Properties of requests (each a bit of `cases`), and then counters: of schedules that were tried, and of those that
 * meet the bound exactly. */
enum {
    PLAIN,
    BF16,
    LOSSES,
    VALUES_FETCHED,
    GRADIENTS_FETCHED,
    PROLOGUE,
    ACCUMULATES,
    KEPT,
    RECOMPUTED,
    IN_BACKWARD,
    DROPOUT,
    STAGED,
    FINE,
    COARSE,
    EFFECTS,
    IN_PLACE,
    VIRTUAL_RANKS,
    OFFLOADED,
    PACKED,
    CASES
};
static const char *const names[CASES] = { "plain",
                                          "bf16",
                                          "several losses",
                                          "values fetched",
                                          "gradients fetched",
                                          "functions of parameters",
                                          "accumulating",
                                          "gckpt_keep",
                                          "gckpt_recompute",
                                          "updates in the backward",
                                          "dropout",
                                          "staged parameters",
                                          "alignment 4",
                                          "alignment 256 up",
                                          "side effects",
                                          "in place",
                                          "virtual ranks",
                                          "slower memory",
                                          "packed parameters" };
static struct {
    long tried, extra, tight;
} score[CASES];
static unsigned cases; /* of the current request */

static int open_bound(void)
{
    const gckpt_instruction loss = { GCKPT_FORWARD, request.term[0].loss->id };
    gckpt_plan_desc *d = &request.d;
    memset(&request.memory, 0, sizeof request.memory);
    memset(&request.p, 0, sizeof request.p);
    d->mode = GCKPT_SCHEDULE;
    d->schedule.instructions = &loss;
    d->schedule.count = 1;
    gckpt_result result = gckpti_planner_open(&request.p, &request.memory, request.g, request.term, request.terms, d);
    request.scratch = gckpti_scratch_new(&request.memory, &request.p.failed);
    if (result == GCKPT_OK)
        gckpti_bound_open(&request.b, &request.p, 0, &request.scratch);
    return result == GCKPT_OK;
}
static void close_bound(void)
{
    gckpti_scratch_free(&request.scratch);
    gckpti_planner_free(&request.p);
}

/* Returns the largest sum over the instructions of the sizes of live buffers, each rounded up. */
static int64_t live_peak(const gckpt_buffer *buffers, size_t count, size_t length)
{
    static int64_t change[4 * LIST];
    int64_t sum = 0, peak = 0;
    memset(change, 0, (length + 2) * sizeof *change);
    for (size_t i = 0; i < count; i++) {
        int64_t size = (int64_t)gckpti_round_up(buffers[i].size, request.p.alignment);
        change[buffers[i].start] += size;
        change[buffers[i].end + 1] -= size;
    }
    for (size_t x = 0; x <= length; x++) {
        sum += change[x];
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

/* Returns whether a list has the kinds of instructions that a user may give, and backwards in the order of the planner,
 * which checked another list. */
static int is_legal(const gckpt_instruction *list, int n)
{
    const gckpti_planner *p = &request.p;
    int index = 0;
    for (int i = 0; i < n; i++) {
        const int u = p->node_of[list[i].id];
        if (list[i].kind == GCKPT_UPDATE || list[i].kind == GCKPT_REDUCE ||
            (list[i].kind >= GCKPT_OFFLOAD && u >= 0 && !p->node[u].can_copy))
            return 0;
        if (list[i].kind == GCKPT_BACKWARD && u >= p->prologue && p->node[u].backward_index >= 0 &&
            p->node[u].backward_index != index++)
            return 0;
    }
    return 1;
}

/* Checks that a schedule costs no less and takes no fewer bytes than the proven bounds; ignores it if it is not
 * legal. */
static void try_list(const gckpt_instruction *list, int n, unsigned seed)
{
    gckpti_lowered *d = &request.p.lowered;
    int at;
    request.d.schedule.instructions = list;
    request.d.schedule.count = n;
    if (!is_legal(list, n) || gckpti_lower_mode(&request.p, GCKPT_SCHEDULE) != GCKPT_OK)
        return;
    int64_t peak = live_peak(d->buffers, d->buffer_count, d->length);
    uint64_t least, work = lowered_cost(&request.p, d, &least);
    uint64_t extra = work - least, proven = gckpti_bound_cost(&request.b, peak, &at);
    CHECK_MSG(least == request.b.p->base_cost && work == d->cost + d->hidden, "seed %u: least work %lu, %lu", seed,
              (unsigned long)least, (unsigned long)request.b.p->base_cost);
    CHECK_MSG(peak >= request.b.min_bytes && proven <= extra,
              "seed %u, cases %x: %lu repeated in %ld bytes; proven %ld, %ld bytes", seed, cases,
              (unsigned long)extra, (long)peak, (long)proven, (long)request.b.min_bytes);
    for (int i = 0; i < CASES; i++)
        if (cases >> i & 1) {
            score[i].tried++;
            score[i].extra += extra > 0;
            score[i].tight += extra > 0 && proven == extra;
        }
}

/* Removes, inserts or moves some forwards of a list at random, and returns its new length. */
static int mutate(gckpt_instruction *list, int n)
{
    for (int k = between(1, 3); k > 0 && n > 1 && n < LIST - 4; k--) {
        int from = (int)below(n), to = (int)below(n), kind = (int)below(3);
        gckpt_instruction in = list[from];
        if (in.kind != GCKPT_FORWARD)
            continue;
        if (kind != 0) { /* remove */
            memmove(list + from, list + from + 1, (size_t)(n - from - 1) * sizeof *list);
            n--;
        }
        if (kind != 1) { /* insert */
            to = to < n ? to : n;
            memmove(list + to + 1, list + to, (size_t)(n - to) * sizeof *list);
            list[to] = in;
            n++;
        }
    }
    return n;
}

/* Lists the instructions of a plan's body, without updates, and returns their number. If `wild` is nonzero, inserts
 * runs of consecutive forwards at random places among the backwards. */
static int list_of(const gckpt_plan *p, int wild, gckpt_instruction *list)
{
    gckpt_instruction in;
    int n = 0, forwards = 0;
    for (int x = p->body; x < p->epilogue && n < LIST / 2; x++) {
        gckpt_plan_get(p, x, &in);
        for (int i = (int)below(forwards + 1), to = (int)below(forwards + 1);
             wild && in.kind == GCKPT_BACKWARD && i < to && n < LIST / 2; i++)
            list[n++] = list[i];
        if (in.kind <= GCKPT_BACKWARD || in.kind == GCKPT_RELOAD)
            list[n++] = in;
        forwards += in.kind == GCKPT_FORWARD && forwards == n - 1;
    }
    return n;
}

static gckpt_plan *plan_mode(gckpt_mode mode, size_t budget)
{
    gckpt_plan_desc d = request.d;
    d.mode = mode;
    d.budget = budget;
    return gckpt_plan_new(request.g, request.term, request.terms, &d);
}

static void check_plan(const gckpt_plan *p, const char *what, unsigned seed)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    CHECK_MSG(p && info.proven_cost <= info.cost &&
                  info.proven_bytes <= gckpt_plan_bytes(p) &&
                  info.proven_cost >= p->least_cost && info.gap >= 0 &&
                  info.gap <= info.overhead,
              "%s, seed %u, cases %x: work %lu, proven %lu; %lu bytes, proven %lu: %s", what, seed,
              cases, (unsigned long)info.cost, (unsigned long)info.proven_cost,
              (unsigned long)gckpt_plan_bytes(p), (unsigned long)info.proven_bytes,
              p ? "" : gckpt_error_text(request.g));
}

/* Checks the bounds of the frontier's points and of their plans: the proven cost does not rise as bytes grow. Returns
 * the frontier. */
static gckpt_frontier *check_frontier(unsigned seed)
{
    gckpt_frontier *f = gckpt_frontier_new(request.g, request.term, request.terms, &request.d);
    gckpt_point now = { 0, 0, 0, 0, 0 };
    uint64_t last = UINT64_MAX;
    int n = gckpt_frontier_describe(f).points;
    CHECK_MSG(n > 0, "seed %u: %s", seed, gckpt_error_text(request.g));
    for (int i = 0; i < n; i++) {
        gckpt_frontier_get(f, i, &now);
        CHECK_MSG(now.proven_cost <= now.cost && now.proven_cost <= last &&
                      now.bytes >= gckpt_frontier_describe(f).proven_bytes,
                  "seed %u, cases %x: point %d of %d: work %lu, proven %lu", seed, cases, i, n,
                  (unsigned long)now.cost, (unsigned long)now.proven_cost);
        last = now.proven_cost;
        gckpt_plan *p = gckpt_frontier_plan(f, now.bytes);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        CHECK(p && info.proven_cost == now.proven_cost &&
              info.proven_bytes == gckpt_frontier_describe(f).proven_bytes);
        gckpt_plan_free(p);
    }
    CHECK_MSG(cases >> RECOMPUTED & 1 || now.proven_cost == now.cost,
              "seed %u: store-all is not proven", seed);
    return f;
}

/* Checks the current request: plans of every mode, points of the frontier, and random schedules. */
static void check_request(unsigned seed)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_SQRT,
                                        GCKPT_MEMORY_POOR };
    static gckpt_instruction list[LIST + 8], changed[LIST + 8];
    gckpt_point least, most;
    for (int i = 0; i < 4; i++) {
        gckpt_plan *p = plan_mode(modes[i], 0);
        check_plan(p, "mode", seed);
        gckpt_plan_free(p);
    }
    gckpt_frontier *f = check_frontier(seed);
    int points = gckpt_frontier_describe(f).points;
    if (points == 0 || !CHECK_MSG(open_bound(), "seed %u: %s", seed, gckpt_error_text(request.g)))
        return;
    gckpt_frontier_get(f, 0, &least);
    gckpt_frontier_get(f, points - 1, &most);
    for (int i = 0; i < TRIED; i++) {
        size_t budget =
            i == 0 ? least.bytes : least.bytes + below((int64_t)(most.bytes - least.bytes) + 1);
        gckpt_plan *p = gckpt_frontier_plan(f, budget);
        check_plan(p, "budget", seed);
        CHECK(live_peak(p->buffers, p->buffer_count, p->length) <=
              (int64_t)gckpt_plan_describe(p).arena + request.b.padding);
        int n = list_of(p, 0, list);
        for (int k = 0; k < TRIED; k++) {
            memcpy(changed, list, (size_t)n * sizeof *list);
            try_list(changed, k ? mutate(changed, n) : n, seed);
        }
        for (int k = 0; k < TRIED / 2; k++)
            try_list(list, list_of(p, 1, list), seed);
        gckpt_plan_free(p);
    }
    gckpt_frontier_free(f);
    close_bound();
}

/* ---- the library's ops ---- */
static int random_fetches(int gradients)
{
    int n = 0;
    gckpt_plan_desc saved = request.d;
    for (int tried = 0; tried < 20 && n < FETCHES; tried++) {
        request.fetch[n] = (gckpt_fetch_spec){ request.g->tensors[below((int64_t)request.g->count)], gradients };
        request.d.fetch.specs = &request.fetch[n];
        request.d.fetch.count = 1;
        gckpt_plan *p = plan_mode(GCKPT_STORE_ALL, 0);
        n += p != NULL;
        gckpt_plan_free(p);
    }
    request.d = saved;
    return n;
}

static void set_policies(int percent)
{
    for (size_t i = 0; i < request.g->count; i++)
        if (request.g->tensors[i]->kind == GCKPTI_OP && chance((unsigned)percent)) {
            int keep = chance(50);
            if (keep)
                gckpt_keep(request.g->tensors[i]);
            else
                gckpt_recompute(request.g->tensors[i]);
            cases |= keep ? 1u << KEPT : 1u << RECOMPUTED;
        }
}

/* Copies the current net's request to `request`, and sets `cases` to its properties (PLAIN, BF16, ACCUMULATES, ..). */
static void take_request(void)
{
    const gckpt_plan_desc *d = &net.d;
    memset(&request.d, 0, sizeof request.d);
    request.g = net.g;
    request.term = net.term;
    request.terms = net.terms;
    request.d = *d;
    cases = 1u << PLAIN;
    cases |= d->bf16.precision == GCKPT_BF16 ? 1u << BF16 : 0;
    cases |= d->batch > net.rows ? 1u << ACCUMULATES : 0;
    cases |= d->update_in_backward ? 1u << IN_BACKWARD : 0;
    cases |= d->kernels.stage_parameters ? 1u << STAGED : 0;
    cases |= d->kernels.alignment == 4 ? 1u << FINE : d->kernels.alignment >= 256 ? 1u << COARSE : 0;
    cases |= d->ranks.virtual_ranks > 1 ? 1u << VIRTUAL_RANKS : 0;
    cases |= d->offload.bytes ? 1u << OFFLOADED : 0;
    cases |= net.packed ? 1u << PACKED : 0;
    cases |= request.terms > 1 ? 1u << LOSSES : 0;
    cases |= net.dropout ? 1u << DROPOUT : 0;
    for (int i = 0; i < d->fetch.count; i++)
        cases |= 1u << (net.fetch[i].gradient ? GRADIENTS_FETCHED : VALUES_FETCHED);
    for (int i = 0; i < net.count; i++)
        cases |= net.kept[i] ? 1u << KEPT : net.recomputed[i] ? 1u << RECOMPUTED : 0;
    for (size_t k = 0; k < request.g->count; k++) {
        const gckpt_tensor *t = request.g->tensors[k];
        cases |= t->kind == GCKPTI_OP && t->batch_invariant ? 1u << PROLOGUE : 0;
        cases |= t->kind == GCKPTI_OP && t->op->flags & 0xff ? 1u << IN_PLACE : 0;
    }
}

/* Takes the current synthetic graph as the request. */
static void take_synthetic(void)
{
    memset(&request.d, 0, sizeof request.d);
    request.g = m.g;
    request.term = m.term;
    request.terms = m.terms;
    request.d = m.d;
    request.d.schedule.as_built = 0;
    cases = 1u << PLAIN;
    cases |= m.prologue ? 1u << PROLOGUE : 0;
    cases |= m.terms > 1 ? 1u << LOSSES : 0;
    for (int i = 0; i < m.o.n; i++) {
        cases |= m.row[i].flags & GCKPT_SIDE_EFFECT ? 1u << EFFECTS : 0;
        cases |= m.row[i].flags & GCKPT_INPLACE(0) ? 1u << IN_PLACE : 0;
    }
}

static void test_real(unsigned first, long count)
{
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        net_seed(seed, 2);
        net_open(seed, 1, NET_ROWS);
        take_request();
        check_request(seed);
        for (int k = 0; k < request.d.fetch.count; k++)
            if (net.fetch[k].gradient)
                net.fetch[k--] = net.fetch[--request.d.fetch.count];
        request.d.batch = request.d.update_in_backward = 0;
        gckpt_plan *p = plan_mode(GCKPT_INFERENCE, 0);
        const gckpt_plan_info info = gckpt_plan_describe(p);
        check_plan(p, "inference", seed);
        CHECK(info.gap <= 0 && info.proven_cost == info.cost);
        gckpt_plan_free(p);
        destroy();
    }
}

/* ---- synthetic ops ---- */
static void test_synthetic(unsigned first, long count)
{
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        net_seed(seed, 3);
        flagged_graph(between(3, 14), 6, 1, 1);
        take_synthetic();
        if (chance(40))
            set_policies(20);
        request.d.batch = chance(30) ? 3 : 0;
        request.d.update_in_backward = !request.d.batch && chance(30);
        cases |= request.d.batch ? 1u << ACCUMULATES : 0;
        cases |= request.d.update_in_backward ? 1u << IN_BACKWARD : 0;
        if (chance(30)) {
            int gradients = chance(50);
            request.d.fetch.specs = request.fetch;
            request.d.fetch.count = random_fetches(gradients);
            cases |= request.d.fetch.count ? 1u << (gradients ? GRADIENTS_FETCHED : VALUES_FETCHED) : 0;
        }
        check_request(seed);
        synth_free();
    }
}

/* ---- the dynamic programme of src/search/bound.c, compared with a search over all closures ---- */
/* Computes bytes and cost of the set of nodes `r` at a point, as the head of src/search/bound.c defines them. Returns
 * 0 if the set is not a closure. */
static int closure(int rank, unsigned r, int64_t *bytes, uint64_t *work)
{
    const gckpti_planner *p = &request.p;
    unsigned later = 0, then = 0, ran = (1u << p->prologue) - 1;
    *bytes = 0;
    *work = 0;
    for (int u = 0; u < p->nodes; u++) {
        const gckpti_node *q = &p->node[u];
        later |= q->fetched ? 1u << u : 0;
        ran |= q->backward_index >= 0 && q->backward_index <= rank && q->reads_saved ? 1u << u : 0;
        for (int k = q->read; k < q->read + q->reads; k++) {
            unsigned bit = 1u << p->edges[k];
            later |= q->backward_index >= rank ? bit : 0;
            then |= q->backward_index == rank ? bit : 0;
            ran |= q->backward_index >= 0 && q->backward_index <= rank ? bit : 0;
        }
        for (int k = q->in; k < q->in + q->inputs; k++)
            later |= r >> u & 1 ? 1u << p->edges[k] : 0;
    }
    for (int u = p->nodes; u-- > 0;)
        for (int k = p->node[u].in; k < p->node[u].in + p->node[u].inputs; k++)
            ran |= ran >> u & 1 ? 1u << p->edges[k] : 0;
    for (int u = 0; u < p->nodes; u++) {
        const gckpti_node *q = &p->node[u];
        int rerun = r >> u & 1, saved = q->reads_saved && q->backward_index >= rank;
        if (rerun && q->runs_once && ran >> u & 1)
            return 0;
        *bytes += (then >> u & 1) || (!rerun && later >> u & 1) ? q->out : 0;
        *bytes += saved && (!rerun || q->backward_index == rank) ? q->saved : 0;
        *work += rerun && ran >> u & 1 ? q->cost : 0;
    }
    return 1;
}

/* least_cost[b]: least cost of all closures at a point with b * grain bytes, or UINT64_MAX if no closure has them */
enum { MOST_BYTES = 512 };
static uint64_t least_cost[MOST_BYTES];
static void all_closures(int rank, int64_t grain)
{
    memset(least_cost, 0xff, sizeof least_cost);
    for (unsigned r = 0; r < 1u << request.p.nodes; r++) {
        int64_t bytes;
        uint64_t work;
        if (!closure(rank, r, &bytes, &work))
            continue;
        if (!CHECK(bytes / grain < MOST_BYTES))
            return;
        if (work < least_cost[bytes / grain])
            least_cost[bytes / grain] = work;
    }
}

/* Returns the value at `capacity` of the lower convex hull of least_cost, rounded up; all costs are multiples of
 * `cost`. */
static uint64_t hull(int capacity, uint64_t cost)
{
    uint64_t best = UINT64_MAX;
    for (int a = 0; a <= capacity; a++)
        for (int b = capacity; b < MOST_BYTES; b++) {
            uint64_t n = (uint64_t)(b - a), wa = least_cost[a], wb = least_cost[b], sum;
            if (wa == UINT64_MAX || wb == UINT64_MAX)
                continue;
            /* computes in multiples of cost / n, so that nothing overflows */
            sum = a == b ? wa / cost
                         : (wa / cost) * (uint64_t)(b - capacity) + (wb / cost) * (uint64_t)(capacity - a);
            n = a == b ? 1 : n;
            sum = sum / n * cost + (sum % n * (cost / n) + (sum % n * (cost % n) + n - 1) / n);
            best = sum < best ? sum : best;
        }
    for (int a = 0; a <= capacity; a++)
        best = least_cost[a] < best ? least_cost[a] : best;
    return best;
}

/* Returns whether each value that only recomputation reads has a separate bit, so that the bound counts every
 * value. */
static int all_have_bits(const gckpti_cut_point *t)
{
    int good = 1;
    for (int i = 0; i < request.p.nodes; i++) {
        const gckpti_node *u = &request.p.node[i];
        for (int k = u->in; k < u->in + u->inputs && !(t->node[i].flags & GCKPTI_RUNS_ONCE); k++) {
            const gckpti_cut_node *q = &t->node[request.p.edges[k]];
            good = good && (q->flags & GCKPTI_READ || (q->own_bit && t->node[i].input_bits & q->own_bit));
        }
    }
    return good;
}

/* Checks that the recomputed nodes of a cut are a closure with the bytes and the cost of the cut. */
static void check_cut(const gckpti_cut_point *t, const gckpti_cut_table *table, int cut,
                      unsigned seed)
{
    const gckpti_cut *q = &table->last.cut[cut];
    unsigned r = 0;
    int64_t bytes;
    uint64_t work;
    unsigned char action[32];
    gckpti_mark_cut(&request.b, table, cut, action);
    for (int u = 0; u < request.p.nodes; u++)
        r |= action[u] ? 1u << u : 0;
    CHECK_MSG(closure(t->backward_index, r, &bytes, &work) && bytes == q->bytes && work == q->cost,
              "seed %u, point %d, cut %d: %ld bytes, work %lu", seed, t->backward_index, cut,
              (long)q->bytes, (unsigned long)q->cost);
}

static long cuts_tried, cuts_exact;
static void check_point(gckpti_cut_point *t, int64_t grain, uint64_t cost, unsigned seed)
{
    int exact = all_have_bits(t), cut;
    uint64_t least = UINT64_MAX;
    all_closures(t->backward_index, grain);
    gckpti_cut_table both[2]; /* corners of the hull; all cuts, as for small graphs with slower memory */
    const gckpti_cut_table *corners = &both[0], *all = &both[1];
    for (int i = 0; i < 2; i++) {
        memset(&t->table[GCKPTI_HULL], 0, sizeof *both);
        request.b.all = i;
        both[i] = *gckpti_cuts(&request.b, t, GCKPTI_HULL);
        CHECK(both[i].last.all == i);
    }
    request.b.all = 0;
    for (int k = 0; k < all->last.n && exact; k++)
        check_cut(t, all, k, seed);
    for (int k = 0; k < corners->last.n && exact; k++)
        check_cut(t, corners, k, seed);
    cuts_tried++;
    cuts_exact += exact;
    CHECK(all->last.n > 0 && corners->last.n > 0 && corners->last.n <= all->last.n);
    for (int capacity = 0; capacity < MOST_BYTES; capacity++) {
        least = least_cost[capacity] < least ? least_cost[capacity] : least;
        cut = gckpti_cut_within(&all->last, capacity * grain);
        uint64_t found = cut < 0 ? UINT64_MAX : all->last.cut[cut].cost;
        CHECK_MSG(found <= least && (!exact || found == least) && gckpti_hull_cost(&all->last, capacity * grain) == found,
                  "seed %u, point %d, %d units: a cut of %lu, the least closure has %lu", seed,
                  t->backward_index, capacity, (unsigned long)found, (unsigned long)least);
        if (capacity % 4 && capacity > 40)
            continue;
        uint64_t want = hull(capacity, cost), got = gckpti_hull_cost(&corners->last, capacity * grain);
        CHECK_MSG(got <= want && (!exact || want - got <= 2 + (want >> 20)),
                  "seed %u, point %d, %d units: proven %lu, the hull of all closures %lu", seed,
                  t->backward_index, capacity, (unsigned long)got, (unsigned long)want);
    }
}

/* Tests a chain in which backwards read few values: however long the chain is, the states of the dynamic programme stay
 * few enough that every value has a separate bit. */
static void test_chain(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 0.1f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8)), *x0 = x;
    char name[16];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "w%d", i / 10);
        x = i % 10 ? gckpt_scale(x, 2) : gckpt_add(x, gckpt_param(g, name, gckpt_shape1(8), init));
        x = i % 10 == 5 ? gckpt_tanh(x) : x;
    }
    gckpt_term term = { gckpt_mean_squared_error(x, x0, NULL), 1, 0 };
    memset(&request.d, 0, sizeof request.d);
    request.g = g;
    request.term = &term;
    request.terms = 1;
    CHECK_MSG(open_bound(), "%s", gckpt_error_text(g));
    for (int k = 0; k < request.b.points; k++)
        CHECK_MSG(all_have_bits(&request.b.point[k]), "point %d: a value is free", k);
    close_bound();
    util_free(NULL, NULL, g, s);
}

/* Tests more different layers than a hull can have corners: the bound may then be weaker, but must still be right. */
static void test_long(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 0.1f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 8)), *x0 = x;
    static gckpt_cost cost[4096];
    char name[16];
    memset(cost, 0, sizeof cost);
    for (int i = 0; i < 700; i++) {
        if (i % 70 == 0) {
            snprintf(name, sizeof name, "w%d", i);
            x = gckpt_add(x, gckpt_param(g, name, gckpt_shape1(8), init));
        }
        x = gckpt_tanh(x);
        cost[gckpt_id(x)].forward = 1000 + (uint64_t)(i * 7919 % 1009);
    }
    gckpt_term term = { gckpt_mean_squared_error(x, x0, NULL), 1, 0 };
    memset(&request.d, 0, sizeof request.d);
    request.g = g;
    request.term = &term;
    request.terms = 1;
    request.d.costs.by_id = cost;
    request.d.costs.count = (int)g->count;
    /* with two micro-batches all parameter gradients live from the start; with one they would add up during the step,
     * and the points that matter would come late */
    request.d.batch = 4;
    cases = 0;
    for (int group = 1; group < 400; group *= 3) {
        request.d.schedule.segment_size = group;
        gckpt_plan *p = plan_mode(GCKPT_SQRT, 0);
        check_plan(p, "long chain", (unsigned)group);
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, g, s);
}

static void test_closures(unsigned first, long count)
{
    for (long i = 0; i < count; i++) {
        unsigned seed = first + (unsigned)i;
        net_seed(seed, 4);
        /* scale of sizes: small for two of three graphs; the others exceed 4 GB on systems with 64 bits */
        int scale = i % 3 != 2 ? 1 : sizeof(size_t) > 4 ? 1 << 28 : 1 << 26;
        uint64_t cost = i % 3 == 2 ? UINT64_C(1) << 44 : i % 3 == 1 ? 1000003 : 1;
        flagged_graph(between(4, 13), 5, scale, cost);
        take_synthetic();
        if (chance(40))
            set_policies(20);
        if (chance(30)) {
            request.d.fetch.specs = request.fetch;
            request.d.fetch.count = random_fetches(0);
        }
        if (CHECK_MSG(open_bound(), "seed %u: %s", seed, gckpt_error_text(request.g)) &&
            CHECK(request.p.nodes <= 15))
            for (int k = 0; k < request.b.points; k++)
                check_point(&request.b.point[k], (int64_t)scale * FLOAT_BYTES, cost, seed);
        close_bound();
        synth_free();
    }
    printf("%ld points against all closures, %ld of them without free values\n", cuts_tried,
           cuts_exact);
    CHECK(cuts_exact * 10 >= cuts_tried * 9);
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : check_iterations(9) == 9 ? 1 : check_seed();
    long scale = argc > 2 ? strtol(argv[2], NULL, 10) : check_iterations(100);
    long extra = 0;
    net_features = NET_MIXING | NET_ALONE;
    CHECK(!gckpt_plan_describe(NULL).proven_cost && !gckpt_plan_describe(NULL).proven_bytes &&
          !gckpt_frontier_describe(NULL).proven_bytes && gckpt_plan_describe(NULL).gap <= 0);
    test_chain();
    test_long();
    test_closures(first, 60 * scale / 100);
    test_synthetic(first, 60 * scale / 100);
    test_real(first, 60 * scale / 100);
    for (int i = 0; i < CASES; i++) {
        printf("%-24s %7ld schedules, %7ld recompute, %6ld have no more work than is proven\n",
               names[i], score[i].tried, score[i].extra, score[i].tight);
        CHECK_MSG(argc > 1 || check_iterations(9) < 9 || score[i].extra >= scale, "%s: only %ld schedules", names[i],
                  score[i].extra);
        extra += score[i].extra;
    }
    CHECK_MSG(argc > 1 || extra >= scale, "only %ld schedules", extra);
    return check_report("test_bound");
}
