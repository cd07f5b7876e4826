/* fuzz_calls.c - calls of the whole API in an order that the input chooses: stores, graphs of any op, plans of any mode
 * and option, executors, steps in all ways, files in memory, mapped and by path, caches and quantising. Calls have
 * wrong arguments, an allocation fails, callbacks fail or cancel. A call that needs an object which does not exist
 * creates it first, so that short inputs reach steps.
 *
 * The rules:
 * - Sanitizers report nothing.
 * - A refused call returns the error that its object then reports, with a text, and all getters of the store return
 *   the same values as before the call.
 * - Two plans of one net, with any micro-batch, give the same bits in a step.
 * - The measured bytes equal those of the plan, and tests/plan_check.h accepts the plan.
 * - A store that is written and read is unchanged; a refused write leaves the existing file.
 * - After everything is freed, in any allowed order, no byte and no file is left.
 *
 *     FUZZ_SEEDS=DIR ./fuzz_calls      writes seeds
 *     FUZZ_TALK=1 ./fuzz_calls FILE    prints the result of each call
 *     FUZZ_COUNT=1 ./fuzz_calls ..     prints how often each function was called, and how often it succeeded */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "examples/fit.h"
#include "../names.h"
#include "examples/print.h"
#define PLAN_CHECK_OFF "it is called where the input says so"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_net.h"
#include <dirent.h>
#include <unistd.h>

enum {
    STORES = 2,
    NETS = 4,
    PLANS = 6,
    EXECS = 5,
    FRONTIERS = 2,
    BATCH = 16,
    FEEDS = 24,
    MAPS = 6
};

static bytes in; /* the rest of the input */
static heap memory;
static long calls[64], accepted[64]; /* for each command: number of calls, and number of calls that succeeded */
static int verbose;

typedef struct {
    gckpt_store *s;
    int notes;
} store_slot;
typedef struct {
    gckpt_graph *g;
    fuzz_net net;
    bytes built_from;
    int store;
} net_slot;
typedef struct {
    gckpt_plan *p;
    int store, net;           /* net: number of the net, or -1 after the net was freed */
    uint64_t built_from, frozen; /* hashes of the net and the plan's options, and of the frozen parameters */
    gckpt_plan_desc d;
    gckpt_fetch_spec fetch[NET_FETCHES];
    int fetches, fetch_ids[NET_FETCHES];   /* tensors that `fetch` names */
    int length, tensors, updates; /* updates: nonzero if the plan has updates */
    int feeds;
    gckpt_feed feed[FEEDS];
    int64_t in_batch;
    void *block; /* the block in which the plan was made, or NULL */
} plan_slot;
typedef struct {
    gckpt_exec *e;
    plan_slot of; /* a copy of the slot of the executor's plan, taken when the executor was made */
    unsigned debug;
    /* caches_of: number of the executor whose caches this one shares, or -1; users: number of executors that share
     * its caches */
    int caches_of, users;
    int under_way, has_store; /* under_way: nonzero within a step; has_store: nonzero until the store is freed */
    int steps;             /* number of complete steps with full batches; negative after another kind of step */
    void *block;
} exec_slot;

static store_slot stores[STORES];
static net_slot nets[NETS];
static plan_slot plans[PLANS];
static exec_slot execs[EXECS];
static struct {
    gckpt_frontier *f;
    int net, store;
    long generation;
    size_t bytes; /* the store's bytes */
    gckpt_plan_desc d;
} frontiers[FRONTIERS];
/* number of changes to anything that plans depend on; a frontier is only valid in the generation in which it was
 * made */
static long generation;
static struct {
    long progress, offload, exchange, io;
} fails; /* for each kind of callback, the number of the call that fails; 0 for none */
static unsigned char host_memory[1 << 16];
static void *maps[MAPS]; /* files that stores map */
static const char *folder;
static int available[GCKPT_ISA_COUNT]; /* indexed by gckpt_isa */
static struct {
    const char *name;
    long count;
} covered[] = {
    { "  by fast kernels", 0 },     { "  by plain kernels", 0 },  { "  in a given block", 0 },
    { "  offloading", 0 },          { "  in leaves", 0 },         { "  with caches", 0 },
    { "  of packed values", 0 },    { "  of pinned tensors", 0 }, { "  in bf16", 0 },
    { "  in micro-batches", 0 },    { "  cancelled", 0 },         { "  out of memory", 0 },
    { "  with a rank's engine", 0 }
};
enum {
    FAST,
    PLAIN,
    BLOCK,
    OFFLOADS,
    VRANKS,
    CACHES,
    PACKED,
    POLICIES,
    BF16,
    SPLIT,
    CANCELLED,
    NO_MEMORY,
    RANK,
    SEEN
};

/* ---- a digest of a store's getters ---- */
static uint64_t mix_number(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}
static uint64_t mix(uint64_t h, const void *at, size_t size)
{
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t x = 0;
        memcpy(&x, (const unsigned char *)at + i, size - i < sizeof x ? size - i : sizeof x);
        h = mix_number(h, x);
    }
    return mix_number(h, size);
}

/* What a digest of a store includes: all values, or only those that exist already, since including a value
 * initialises it. */
enum { VALUES, INITIALISED };
/* Returns the store's hash, or 0 if some parameter is too large to initialise its values. */
static uint64_t hash_of(const gckpt_store *s)
{
    return gckpt_store_bytes(s) < (size_t)8 << 20 ? gckpt_store_hash(s) : 0;
}
static uint64_t store_digest(const gckpt_store *s, int values)
{
    uint64_t h = 14695981039346656037u;
    gckpt_parameter p;
    if (!s)
        return 0;
    h = mix_number(h, (uint64_t)gckpt_store_count(s));
    h = mix_number(h, gckpt_store_bytes(s));
    h = mix_number(h, gckpt_store_step(s));
    h = mix_number(h, hash_of(s));
    for (int i = 0; gckpt_store_peek(s, i, &p) == GCKPT_OK; i++) {
        h = mix(h, p.name, strlen(p.name));
        h = mix(h, p.shape.d, sizeof p.shape.d[0] * (size_t)p.shape.n);
        h = mix_number(h, (uint64_t)p.frozen * 8 + (uint64_t)p.storage);
        h = mix(h, &p.lr_scale, sizeof p.lr_scale);
        h = mix(h, &p.decay_scale, sizeof p.decay_scale);
        h = mix_number(h, values == INITIALISED ? 0 : (uint64_t)(uintptr_t)p.values);
        h = mix_number(h, values == INITIALISED ? 0 : (uint64_t)(uintptr_t)p.quantised);
        h = mix_number(h, (uint64_t)p.count);
        for (int k = 0; k < 4; k++) {
            h = mix_number(h, (uint64_t)(uintptr_t)p.state[k]);
            for (int64_t j = 0; p.state[k] && j < p.count; j++) {
                const uint32_t u = bits_of(p.state[k][j]);
                h = mix_number(h, p.state[k][j] != p.state[k][j] ? 0x7fc00000u : u);
            }
        }
        MUST(gckpt_store_find(s, p.name) == i, "%s is not found", p.name);
    }
    const char *note = gckpt_store_note(s, "n1");
    return note ? mix(h, note, strlen(note)) : h;
}
static uint64_t frozen_of(const gckpt_store *s)
{
    uint64_t h = 1;
    gckpt_parameter p;
    for (int i = 0; gckpt_store_peek(s, i, &p) == GCKPT_OK; i++)
        h = h * 31 + (uint64_t)p.frozen;
    return h;
}

/* ---- results ---- */
static int is_error(gckpt_result r) { return r >= GCKPT_E_SHAPE; }

/* Checks the result of a call that reports errors on `object`. */
static int check_result(int command, const void *object, gckpt_result r)
{
    calls[command]++;
    accepted[command] += !is_error(r);
    if (verbose)
        fprintf(stderr, "  %d: %s%s%s\n", command, gckpt_result_text(r),
                is_error(r) && object ? ": " : "",
                is_error(r) && object ? gckpt_error_text(object) : "");
    MUST(r >= 0 && r < GCKPT_RESULT_COUNT, "result %d of command %d", (int)r, command);
    covered[CANCELLED].count += r == GCKPT_CANCELLED;
    covered[NO_MEMORY].count += r == GCKPT_E_MEMORY;
    if (is_error(r) && object) {
        MUST(gckpt_error(object) == r, "command %d gave %s, its object says %s (%s)", command,
             gckpt_result_text(r), gckpt_result_text(gckpt_error(object)),
             gckpt_error_text(object));
        MUST(gckpt_error_text(object)[0] != 0, "no text");
    }
    return !is_error(r);
}
/* Checks a call that returns a new object. */
static int check_object(int command, const void *result, const void *object)
{
    calls[command]++;
    accepted[command] += result != NULL;
    if (verbose)
        fprintf(stderr, "  %d: %s\n", command,
                result   ? "made"
                : object ? gckpt_error_text(object)
                         : "of nothing");
    if (!result && object)
        MUST(is_error(gckpt_error(object)) && gckpt_error_text(object)[0] != 0,
             "command %d: nothing was made, and no error (%s)", command, gckpt_error_text(object));
    return result != NULL;
}

/* ---- callbacks ---- */
static int fails_now(long *count) { return *count > 0 && --*count == 0; }
static int progress(void *user, const gckpt_progress *p)
{
    (void)user;
    MUST(p->instruction >= 0 && p->instruction < p->instructions && p->name, "progress %d of %d",
         p->instruction, p->instructions);
    return fails_now(&fails.progress);
}
static size_t offload(void *user, size_t at, const void *from, size_t size)
{
    (void)user;
    if (fails_now(&fails.offload) || at + size > sizeof host_memory)
        return 0;
    memcpy(host_memory + at, from, size);
    return size;
}
static size_t reload(void *user, size_t at, void *to, size_t size)
{
    (void)user;
    if (fails_now(&fails.offload) || at + size > sizeof host_memory)
        return 0;
    memcpy(to, host_memory + at, size);
    return size;
}
static int wait_for(void *user, int later)
{
    (void)user, (void)later;
    return fails_now(&fails.offload);
}
static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    for (int64_t i = 0; i < u->elements; i++) {
        const float g = u->gradient[i] * u->clip_scale;
        for (int k = 0; k < 4 && u->state[k]; k++)
            u->state[k][i] = 0.5f * u->state[k][i] + g;
        u->values[i] -= 0.01f * u->lr_scale * (u->state[0] ? u->state[0][i] : g);
    }
}
static int exchange(void *user, int peer, const void *send, size_t send_bytes, void *receive,
                    size_t receive_bytes)
{
    (void)user, (void)peer, (void)send, (void)send_bytes;
    if (receive_bytes)
        memset(receive, 0, receive_bytes);
    return !fails_now(&fails.exchange);
}
static size_t io_write(void *user, const void *at, size_t size)
{
    return fails_now(&fails.io) ? size / 2 : file_write(user, at, size);
}
static size_t io_read(void *user, void *at, size_t size)
{
    return fails_now(&fails.io) ? size / 2 : file_read(user, at, size);
}
static double seconds(void *user) { return (*(double *)user += 0.25); }

/* ---- freeing ---- */
static void free_exec(int i)
{
    exec_slot *x = &execs[i];
    if (!x->e || x->users > 0)
        return;
    if (x->caches_of >= 0)
        execs[x->caches_of].users--;
    gckpt_exec_free(x->e);
    free(x->block);
    x->e = NULL;
}
static void free_plan(int i)
{
    gckpt_plan_free(plans[i].p);
    free(plans[i].block);
    plans[i].p = NULL, plans[i].block = NULL;
}
static void free_frontier(int i)
{
    gckpt_frontier_free(frontiers[i].f);
    frontiers[i].f = NULL;
}
static void free_net(int i)
{
    for (int k = 0; k < FRONTIERS; k++)
        if (frontiers[k].f && frontiers[k].net == i)
            free_frontier(k);
    for (int k = 0; k < PLANS; k++)
        plans[k].net = plans[k].net == i ? -1 : plans[k].net;
    gckpt_graph_free(nets[i].g);
    nets[i].g = NULL;
}
/* Frees the nets of store i, then the store. Plans and executors made with the store stay; such an executor may then
 * only be freed. */
static void free_store(int i)
{
    for (int k = 0; k < NETS; k++)
        if (nets[k].g && nets[k].store == i)
            free_net(k);
    for (int k = 0; k < EXECS; k++)
        if (execs[k].e && execs[k].of.store == i)
            execs[k].has_store = 0;
    for (int k = 0; k < PLANS; k++)
        plans[k].store = plans[k].store == i ? -1 : plans[k].store;
    gckpt_store_free(stores[i].s);
    stores[i].s = NULL;
}
static void free_all(void)
{
    for (int i = 0; i < FRONTIERS; i++)
        free_frontier(i);
    if (choose(&in, 2)) /* stores before their objects */
        for (int i = 0; i < STORES; i++)
            free_store(i);
    for (int iteration = 0; iteration < 2; iteration++)
        for (int i = 0; i < EXECS; i++)
            free_exec(i);
    for (int i = 0; i < PLANS; i++)
        free_plan(i);
    for (int i = 0; i < NETS; i++)
        free_net(i);
    for (int i = 0; i < STORES; i++)
        free_store(i);
}

/* ---- choice of an object ---- */
static int find_store(void)
{
    const int from = choose(&in, STORES);
    for (int k = 0; k < STORES; k++) {
        const int i = (from + k) % STORES;
        /* initialising the values of a huge parameter would take too long */
        if (stores[i].s && gckpt_store_bytes(stores[i].s) < (size_t)8 << 20)
            return i;
    }
    return -1;
}
#define FIND(name, slots, most, there)                                                             \
    static int name(void)                                                                          \
    {                                                                                              \
        const int from = choose(&in, most);                                                          \
        for (int i = 0; i < (most); i++) {                                                         \
            const int k = (from + i) % (most);                                                     \
            if (there)                                                                             \
                return k;                                                                          \
        }                                                                                          \
        return -1;                                                                                 \
    }
FIND(find_net, nets, NETS, nets[k].g != NULL)
FIND(find_plan, plans, PLANS, plans[k].p != NULL)
FIND(find_exec, execs, EXECS, execs[k].e != NULL && execs[k].has_store)

static const char *pattern(void)
{
    static const char *const patterns[] = { "*",  "p0*",  "p1*", "p?.*", "p2*",
                                            "m*", "none", "",    "p[",   "v0" };
    return patterns[choose(&in, 10)];
}

/* ---- stores and nets ---- */
static gckpt_memory heap_or_block(void **block, size_t need)
{
    gckpt_memory m = net_heap(&memory);
    *block = NULL;
    if (need == 0 || need > 1 << 20)
        return m;
    memset(&m, 0, sizeof m);
    m.size = need - (in.odd ? (size_t)choose(&in, 8) % need : 0);
    *block = malloc(m.size + 1);
    m.memory = (char *)*block + 1; /* a memory block may begin at any address */
    return m;
}
static void new_store(int command)
{
    const int i = choose(&in, STORES);
    gckpt_store_desc d;
    memset(&d, 0, sizeof d);
    d.memory = net_heap(&memory);
    d.seed = byte(&in);
    if (stores[i].s)
        return;
    memset(&stores[i], 0, sizeof stores[i]);
    stores[i].s = gckpt_store_new(&d);
    check_object(command, stores[i].s, NULL);
}
static void build(int i, int store, bytes b, int64_t rows)
{
    net_slot *n = &nets[i];
    const gckpt_memory m = net_heap(&memory);
    const uint64_t before = store_digest(stores[store].s, VALUES);
    n->store = store, n->built_from = b;
    n->g = gckpt_graph_new(stores[store].s, &m);
    pc_reset_graph(n->g);
    if (!check_object(1, n->g, stores[store].s)) {
        MUST(store_digest(stores[store].s, VALUES) == before,
             "a graph that was not made changed the store");
        return;
    }
    net_make(&n->net, n->g, b, rows);
    if (verbose)
        fprintf(stderr, "  net %d of %ld rows: %d tensors, %s\n", i, (long)rows,
                gckpt_graph_size(n->g), gckpt_error_text(n->g));
    for (int k = 0; k < gckpt_graph_size(n->g); k++) {
        gckpt_node node;
        MUST(gckpt_graph_node(n->g, k, &node) == GCKPT_OK && node.op && node.name &&
                 node.inputs <= GCKPT_MAX_INPUTS,
             "node %d", k);
    }
}
static void new_net(int command)
{
    const int i = choose(&in, NETS), store = find_store(),
              again = choose(&in, 4) == 0 ? find_net() : -1;
    const int64_t rows = 1 + number(&in, 4);
    (void)command;
    const size_t wide = again < 0 ? byte(&in) : 0, size = wide < 224 ? wide % 72 : wide;
    if (store < 0 || i == again)
        return;
    free_net(i);
    build(i, store, again < 0 ? part(&in, size) : nets[again].built_from, rows);
}

/* ---- plans ---- */
static uint64_t recipe(const net_slot *n, const gckpt_plan_desc *d)
{
    uint64_t h = mix(14695981039346656037u, n->built_from.at, n->built_from.left);
    h = mix_number(h, (uint64_t)d->optimiser * 8 + (uint64_t)d->custom_state);
    h = mix_number(h, (uint64_t)d->bf16.precision);
    h = mix_number(h, d->mode == GCKPT_INFERENCE);
    h = mix_number(h, (uint64_t)(d->ranks.virtual_ranks > 1 ? d->ranks.virtual_ranks * 1000 + d->batch : 0));
    return h;
}
static gckpt_plan_desc options(const net_slot *n, gckpt_fetch_spec *fetch)
{
    static gckpt_cost costs[256];
    const int whole_batch = n->net.caches > 0 && !in.odd;
    gckpt_plan_desc d;
    const unsigned a = byte(&in), c = byte(&in);
    memset(&d, 0, sizeof d);
    d.mode = (gckpt_mode)(a % (in.odd ? 9 : 8));
    d.mode = d.mode == GCKPT_SCHEDULE && !in.odd ? GCKPT_AUTO : d.mode;
    d.mode = whole_batch ? GCKPT_INFERENCE : d.mode;
    d.batch = a & 64 ? 1 + number(&in, BATCH) : a & 128 ? n->net.rows * (1 + choose(&in, 4)) : 0;
    d.budget = c % 4 == 0 ? (size_t)byte(&in) * (size_t)(1 + byte(&in)) : 0;
    d.optimiser = c & 64 ? (gckpt_optimiser)whole(&in, in.odd ? 5 : 4) : GCKPT_ADAMW;
    d.custom_state = d.optimiser == GCKPT_CUSTOM_OPTIMISER ? whole(&in, 5) : 0;
    if (c & 4) {
        const unsigned e = byte(&in), f = byte(&in);
        d.update_in_backward = e % 8 == 0;
        d.schedule.as_built = e / 8 % 2;
        d.threads = e / 16 % 4 == 0 ? 2 : 0;
        d.ranks.virtual_ranks = f % 8 == 0 ? 1 << choose(&in, 4) : f % 64 == 1 ? whole(&in, 5) : 0;
        d.kernels.stage_parameters = f / 8 % 4 == 0;
        d.kernels.plain = f / 32 % 4 == 0;
        d.ranks.overlap = f % 64 == 2;
    }
    if (c & 8) {
        const unsigned e = byte(&in), f = byte(&in);
        d.kernels.alignment = e % 8 == 0             ? (size_t)1 << choose(&in, 9)
                      : in.odd && e % 8 == 1 ? (size_t)number(&in, 100)
                                             : 0;
        d.offload.bytes = e / 8 % 2 ? (size_t)byte(&in) * 64 : 0;
        d.offload.cost = e / 16 % 2 ? (uint64_t)byte(&in) << choose(&in, 40) : 0;
        d.offload.overlap = e / 32 % 2;
        d.bf16.precision = f % 4 == 0 ? (gckpt_precision)(f / 4 % (in.odd ? 4 : 2)) : GCKPT_FP32;
        d.schedule.segment_size = f % 8 == 7 ? whole(&in, 5) : 0;
        /* some are negative */
        d.schedule.segment_size -= d.schedule.segment_size > 0 && d.schedule.segment_size < 5 ? 2 : 0;
        if (f / 32 % 4 == 0 && gckpt_graph_size(n->g) <= 256) {
            for (int i = 0; i < 256; i++) {
                const uint64_t w = i < 8 ? byte(&in) : 3;
                costs[i].forward = w > 250 ? UINT64_MAX / (w - 249) : w, costs[i].backward = 2 * w;
            }
            d.costs.by_id = costs;
            d.costs.count = in.odd ? whole(&in, 100) : gckpt_graph_size(n->g);
            d.costs.count = d.costs.count > 256 ? 256 : d.costs.count;
        }
    }
    if (c & 16) {
        memcpy(fetch, n->net.fetch, sizeof n->net.fetch);
        d.fetch.specs = fetch;
        d.fetch.count = n->net.fetches;
        for (int i = 0; i < d.fetch.count && d.mode == GCKPT_INFERENCE && !in.odd; i++)
            fetch[i].gradient = 0;
        if (in.odd && d.fetch.count && choose(&in, 8) == 0)
            fetch[0].tensor = NULL;
    }
    d.memory = net_heap(&memory);
    return d;
}
static void check_plan(const gckpt_plan *p, const gckpt_graph *g, const gckpt_plan_desc *d)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    size_t kinds = 0;
    const char *op = NULL;
    int64_t first;
    const int length = info.instructions;
    MUST(length >= 0 && gckpt_plan_bytes(p) >= info.arena &&
             info.arena >= info.peak,
         "bytes");
    MUST(!d->budget || gckpt_plan_bytes(p) <= d->budget, "over the budget: %lu, %lu",
         (unsigned long)gckpt_plan_bytes(p), (unsigned long)d->budget);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        kinds += i == GCKPT_BYTES_TABLES ? 0 : gckpt_plan_kind_bytes(p, i);
    MUST(kinds == gckpt_plan_bytes(p) - info.arena + info.peak,
         "kinds add up to %lu", (unsigned long)kinds);
    MUST(info.proven_cost <= info.cost || d->mode == GCKPT_INFERENCE,
         "proven work");
    MUST(info.proven_bytes <= gckpt_plan_bytes(p), "proven bytes");
    MUST(info.overhead >= 0 && info.gap >= 0 && info.recompute >= 0,
         "overhead %g, gap %g", info.overhead, info.gap);
    gckpt_plan_split_exact(p, &op);
    gckpt_plan_rank_rows(p, info.batch, 0, &first);
    MUST(info.step_cost >= info.cost || info.batch < info.rows,
         "step work");
    if (g && choose(&in, 8) == 0) { /* a check that takes longer than all others, so only one plan in eight gets it */
        const char *problem = plan_check(p, g, d);
        MUST(!problem, "plan_check: %s", problem);
    }
}
/* Records the options of a new plan in its slot, and feeds for its net. */
static void note_plan(plan_slot *s, int net, const gckpt_plan_desc *d)
{
    s->store = nets[net].store, s->net = net, s->d = *d;
    s->length = gckpt_plan_describe(s->p).instructions, s->tensors = gckpt_graph_size(nets[net].g);
    gckpt_instruction last;
    for (int i = 0; gckpt_plan_get(s->p, i, &last) == GCKPT_OK; i++)
        s->updates |= last.kind == GCKPT_UPDATE;
    s->fetches = d->fetch.specs ? d->fetch.count : 0;
    for (int i = 0; i < s->fetches && i < NET_FETCHES; i++)
        s->fetch_ids[i] = gckpt_id(d->fetch.specs[i].tensor);
    s->built_from = recipe(&nets[net], d);
    s->frozen = frozen_of(stores[s->store].s);
    s->feeds = net_feed_all(nets[net].g, &in, s->feed, FEEDS);
}
/* Makes plan i of the net. If `like` is not NULL, with options with which the plan must give the same bits as a plan
 * made with `like`. */
static void plan_of(int command, int i, int net, const gckpt_plan_desc *like)
{
    plan_slot fresh;
    memset(&fresh, 0, sizeof fresh);
    gckpt_plan_desc d = options(&nets[net], fresh.fetch);
    net_slot *n = &nets[net];
    gckpt_store *s = stores[n->store].s;
    if (like) {
        d.optimiser = like->optimiser, d.custom_state = like->custom_state;
        d.bf16.precision = like->bf16.precision, d.ranks.virtual_ranks = like->ranks.virtual_ranks;
        d.mode = like->mode == GCKPT_INFERENCE ? GCKPT_INFERENCE
                 : d.mode == GCKPT_INFERENCE   ? GCKPT_AUTO
                                               : d.mode;
    }
    const int terms = d.mode == GCKPT_INFERENCE && !like && choose(&in, 2) && d.fetch.count > 0 ? 0
                      : in.odd && !like ? whole(&in, n->net.terms + 1)
                                        : n->net.terms;
    if (terms > NET_TERMS) /* the array has fewer loss terms than this, which the library cannot detect */
        return;
    const uint64_t before = store_digest(s, VALUES);
    const size_t live = memory.live;
    const int whole_list = terms == n->net.terms;
    const int plain = !like && choose(&in, 16) == 0;
    gckpt_plan *p = gckpt_plan_new(n->g, n->net.term, terms, plain ? NULL : &d);
    MUST(store_digest(s, VALUES) == before, "planning changed the store");
    if (!check_object(command, p, n->g)) {
        MUST(memory.live == live, "a plan that was refused left %ld bytes",
             (long)(memory.live - live));
        return;
    }
    /* makes the plan once more for a smaller budget, so that ops are recomputed or values offloaded */
    const unsigned less = choose(&in, 4) == 0 && !plain ? 1 + byte(&in) % 15 : 0;
    if (less && d.budget == 0 && (d.mode == GCKPT_AUTO || d.mode == GCKPT_OPTIMAL)) {
        d.budget = gckpt_plan_bytes(p) - gckpt_plan_describe(p).arena * less / 16;
        if (less % 4 == 0) /* makes offloading almost free, so that the plan offloads */
            d.offload.bytes = 1 << 14, d.offload.cost = 1;
        gckpt_plan *smaller = gckpt_plan_new(n->g, n->net.term, terms, &d);
        if (check_object(command, smaller, n->g)) {
            gckpt_plan_free(p);
            p = smaller;
        } else
            d.budget = 0;
    }
    free_plan(i);
    plans[i] = fresh;
    plans[i].p = p;
    d.fetch.specs = d.fetch.specs ? plans[i].fetch : NULL;
    if (plain)
        memset(&d, 0, sizeof d);
    note_plan(&plans[i], net, &d);
    if (!whole_list)
        plans[i].built_from = mix_number(plans[i].built_from, (uint64_t)terms);
    if (!d.costs.by_id)
        check_plan(p, n->g, &d);
    plans[i].d.costs.by_id = NULL, plans[i].d.fetch.specs = NULL; /* these arrays are reused */
}
static void new_plan(int command)
{
    const int i = choose(&in, PLANS), net = find_net();
    if (net >= 0)
        plan_of(command, i, net, NULL);
}

static const char *net_rename(void *user, const char *name)
{
    (void)user;
    return name[0] == 'm' ? NULL : name;
}
static int net_build(gckpt_graph *g, int64_t rows, gckpt_term *terms, void *user)
{
    fuzz_net n;
    const net_slot *of = (const net_slot *)user;
    if (rows > 8)
        return -1;
    net_make(&n, g, of->built_from, rows);
    for (int i = 0; i < n.terms; i++)
        terms[i] = n.term[i];
    return n.terms;
}
static void fit(int command)
{
    const int i = choose(&in, PLANS), net = find_net();
    if (net < 0)
        return;
    gckpt_fetch_spec fetch[NET_FETCHES];
    gckpt_plan_desc d = options(&nets[net], fetch);
    gckpt_store *s = stores[nets[net].store].s;
    const int64_t batch = 1 + number(&in, 8);
    (void)command;
    if (!in.odd)
        d.costs.by_id = NULL, d.costs.count = 0, d.fetch.count = 0, d.fetch.specs = NULL,
        d.mode = d.mode == GCKPT_INFERENCE ? GCKPT_AUTO : d.mode;
    d.costs.count = d.costs.count > 256 ? 256 : d.costs.count;
    if (choose(&in, 4) == 0)
        d.update_in_backward = FIT_IF_USEFUL;
    if (batch > BATCH)
        return;
    fit_error why;
    gckpt_plan *p = fit_plan(s, net_build, &nets[net], batch, &d, NULL, &why);
    MUST((p != NULL) == (why.result == GCKPT_OK), "fit: %s", why.text);
    if (!p)
        return;
    free_plan(i);
    memset(&plans[i], 0, sizeof plans[i]);
    plans[i].p = p;
    d.batch = batch;
    note_plan(&plans[i], net, &d);
    plans[i].d.costs.by_id = NULL, plans[i].d.fetch.specs = NULL;
    plans[i].built_from = recipe(&nets[net], &d);
}
static void frontier(int command)
{
    const int i = choose(&in, FRONTIERS), what = choose(&in, 3), k = choose(&in, PLANS);
    if (what == 0 || !frontiers[i].f) {
        const int net = find_net();
        gckpt_fetch_spec fetch[NET_FETCHES];
        if (net < 0 || frontiers[i].f)
            return;
        gckpt_plan_desc d = options(&nets[net], fetch);
        d.fetch.count = 0, d.fetch.specs = NULL, d.costs.by_id = NULL, d.costs.count = 0;
        const size_t live = memory.live;
        gckpt_frontier *f =
            gckpt_frontier_new(nets[net].g, nets[net].net.term, nets[net].net.terms, &d);
        if (check_object(command, f, nets[net].g))
            frontiers[i].f = f, frontiers[i].net = net, frontiers[i].store = nets[net].store,
            frontiers[i].generation = generation, frontiers[i].d = d,
            frontiers[i].bytes = gckpt_store_bytes(stores[nets[net].store].s);
        else
            MUST(memory.live == live, "a frontier that was refused left bytes");
        return;
    }
    const gckpt_frontier *f = frontiers[i].f;
    const int points = gckpt_frontier_describe(f).points;
    gckpt_point last = { 0, UINT64_MAX, 0, 0, 0 }, at;
    MUST(points > 0, "no points");
    for (int j = 0; j < points; j++) {
        MUST(gckpt_frontier_get(f, j, &at) == GCKPT_OK && at.bytes > last.bytes &&
                 at.cost < last.cost && at.proven_cost <= at.cost,
             "point %d", j);
        last = at;
        MUST(gckpt_frontier_find(f, at.bytes) == j, "point %d is not found", j);
    }
    MUST(gckpt_frontier_get(f, points, &at) == GCKPT_E_ARG &&
             gckpt_frontier_get(f, -1, &at) == GCKPT_E_ARG,
         "beyond");
    file to = { 0 };
    (choose(&in, 2) ? print_frontier : print_frontier_json)(f, last.bytes, io_write, &to);
    free(to.bytes);
    gckpt_frontier_get(f, choose(&in, points), &at);
    const size_t budget = choose(&in, 4) ? at.bytes + byte(&in) : (size_t)byte(&in) * 8;
    gckpt_plan *p = gckpt_frontier_plan(f, budget);
    const int net = frontiers[i].net;
    if (!check_object(command + 1, p, nets[net].g))
        return;
    if (frontiers[i].generation != generation ||
        frontiers[i].bytes != gckpt_store_bytes(stores[frontiers[i].store].s)) {
        gckpt_plan_free(p);
        return;
    }
    MUST(budget == 0 || gckpt_plan_bytes(p) <= budget,
         "a frontier's plan of %lu bytes for a budget of %lu", (unsigned long)gckpt_plan_bytes(p),
         (unsigned long)budget);
    free_plan(k);
    memset(&plans[k], 0, sizeof plans[k]);
    plans[k].p = p;
    gckpt_plan_desc d = frontiers[i].d;
    d.mode = GCKPT_OPTIMAL, d.budget = budget;
    note_plan(&plans[k], net, &d);
    check_plan(p, nets[net].g, &d);
}
static void plan_texts(int command)
{
    const int i = find_plan();
    const unsigned how = byte(&in);
    file to = { 0 };
    gckpt_result r;
    if (i < 0)
        return;
    switch (how % 3) {
    case 0: r = print_plan(plans[i].p, io_write, &to); break;
    case 1: r = print_trace(plans[i].p, io_write, &to); break;
    default:
        r = gckpt_plan_c(plans[i].p, how & 64 ? "plan" : how & 128 ? "1 wrong" : "", io_write, &to);
        break;
    }
    MUST(r == GCKPT_OK || r == GCKPT_E_FILE || r == GCKPT_E_ARG || r == GCKPT_E_MEMORY,
         "printing gives %d", (int)r);
    free(to.bytes);
}
static void plan_params(int command)
{
    const int i = find_plan(), store = find_store();
    if (i < 0 || store < 0)
        return;
    gckpt_store *s = stores[store].s;
    const uint64_t before = store_digest(s, VALUES);
    const gckpt_result r = gckpt_plan_params(plans[i].p, s);
    if (!check_result(command, s, r))
        MUST(store_digest(s, VALUES) == before, "plan_params was refused and changed the store: %s",
             gckpt_error_text(s));
}

/* ---- executors ---- */
static void exec_of(int command, int i, int plan)
{
    int caches = -1;
    free_exec(i);
    if (execs[i].e)
        return;
    const int store = in.odd && byte(&in) > 200 ? find_store() : plans[plan].store;
    if (store < 0)
        return;
    gckpt_store *s = stores[store].s;
    gckpt_exec_desc d;
    const unsigned a = byte(&in), c = byte(&in);
    static const gckpt_transport alone = { .size = 1, .exchange = exchange };
    memset(&d, 0, sizeof d);
    d.debug = a & 1 ? byte(&in) & 31 : 0;
    /* with fast kernels, creating an executor takes as long as a step, since fast kernels are compared with plain
     * ones */
    d.isa = a & 2 ? (gckpt_isa)(byte(&in) % (in.odd ? 9 : GCKPT_ISA_COUNT)) : GCKPT_ISA_PLAIN;
    d.isa = in.odd || available[d.isa] ? d.isa : GCKPT_ISA_AUTO;
    d.skip_nonfinite = (a >> 3 & 3) == 3;
    const int host_bytes = a & 32 || (!in.odd && gckpt_plan_describe(plans[plan].p).offloaded > 0);
    d.offload = host_bytes ? offload : NULL, d.reload = host_bytes ? reload : NULL;
    d.wait = host_bytes && c & 1 ? wait_for : NULL;
    if (in.odd && c % 16 == 0)
        d.reload = NULL;
    d.progress = progress;
    d.custom_optimiser = c & 2 || !in.odd ? own_optimiser : NULL;
    d.parallel_for = c & 4 ? any_order : NULL;
    d.transport = c % 32 == 9 ? &alone : NULL;
    if (c % 8 == 3 && (caches = find_exec()) >= 0) {
        while (execs[caches].caches_of >= 0)
            caches = execs[caches].caches_of;
        d.caches_of = execs[caches].e;
    }
    void *block;
    size_t need = choose(&in, 4) == 0 ? gckpt_exec_need(plans[plan].p, &d) : 0;
    d.memory = heap_or_block(&block, need);
    const uint64_t before = store_digest(s, VALUES);
    const size_t live = memory.live;
    const int plain = choose(&in, 16) == 0 && gckpt_plan_bytes(plans[plan].p) < memory.limit;
    gckpt_exec *e = gckpt_exec_new(plans[plan].p, s, plain ? NULL : &d);
    if (!check_object(command, e, s)) {
        MUST(store_digest(s, VALUES) == before, "an executor that was refused changed the store: %s",
             gckpt_error_text(s));
        MUST(memory.live == live, "an executor that was refused left bytes: %s",
             gckpt_error_text(s));
        /* the block need not have space for values and state, which belong to the store */
        MUST(gckpt_error(s) != GCKPT_E_MEMORY || !block || memory.fail_at != 0 || in.odd ||
                 gckpt_store_bytes(s) > memory.limit / 4,
             "in a block of the bytes that it needs: %s", gckpt_error_text(s));
        free(block);
        return;
    }
    exec_slot *x = &execs[i];
    memset(x, 0, sizeof *x);
    if (plain)
        memset(&d, 0, sizeof d), caches = -1;
    x->e = e, x->of = plans[plan], x->debug = d.debug, x->block = block;
    x->of.store = store;
    x->of.p = NULL;
    x->of.in_batch = gckpt_plan_describe(plans[plan].p).batch;
    x->has_store = 1, x->caches_of = caches;
    if (caches >= 0)
        execs[caches].users++;
    const gckpt_plan *made_from = plans[plan].p;
    const gckpt_plan_info info = gckpt_plan_describe(made_from);
    covered[FAST].count += gckpt_exec_isa(e) > GCKPT_ISA_C;
    covered[PLAIN].count += gckpt_exec_isa(e) == GCKPT_ISA_PLAIN;
    covered[BLOCK].count += block != NULL;
    covered[OFFLOADS].count += info.offloaded > 0;
    covered[VRANKS].count += plans[plan].d.ranks.virtual_ranks > 1;
    covered[BF16].count += plans[plan].d.bf16.precision != GCKPT_FP32;
    covered[SPLIT].count += info.rows < info.batch;
    covered[RANK].count += d.transport != NULL;
    if (plans[plan].net >= 0)
        covered[CACHES].count += nets[plans[plan].net].net.caches > 0,
            covered[POLICIES].count += nets[plans[plan].net].net.policies > 0;
    gckpt_parameter stored;
    for (int k = 0; gckpt_store_peek(s, k, &stored) == GCKPT_OK; k++)
        if (stored.quantised) {
            covered[PACKED].count++;
            break;
        }
    MUST(gckpt_exec_isa(e) != GCKPT_ISA_AUTO, "which instructions?");
    /* records the properties that decide whether two executors must give the same bits */
    x->of.d.mode = gckpt_plan_describe(plans[plan].p).mode;
    x->of.d.batch = gckpt_plan_describe(plans[plan].p).rows;
    x->of.d.schedule.as_built = gckpt_plan_split_exact(plans[plan].p, NULL);
    x->of.d.update_in_backward = gckpt_plan_describe(plans[plan].p).update_in_backward;
    x->of.d.budget = gckpt_plan_bytes(plans[plan].p);
    x->of.d.offload.bytes = gckpt_plan_kind_bytes(plans[plan].p, GCKPT_BYTES_PARAMETERS) +
                            gckpt_plan_kind_bytes(plans[plan].p, GCKPT_BYTES_STATE);
}
static void new_exec(int command)
{
    const int i = choose(&in, EXECS), plan = find_plan();
    if (plan >= 0)
        exec_of(command, i, plan);
}
static float fraction(void)
{
    const float x = real(&in);
    return in.odd || (x > 0 && x < 1) ? x : 0.5f;
}
static gckpt_hyper hyper_of(void)
{
    gckpt_hyper h = gckpt_hyper_lr(0.01f);
    const unsigned a = byte(&in);
    if (a & 1)
        h.weight_decay = real(&in);
    if (a & 2)
        h.clip = real(&in);
    if (a & 4)
        h.lr = real(&in);
    if (a & 8)
        h.beta1 = fraction(), h.beta2 = fraction();
    if (a & 16)
        h.momentum = fraction(), h.eps = fraction();
    return h;
}
/* Returns a number of rows for a call of the executor, at most the rows of the feeds: an inference plan accepts any
 * number, while other plans refuse most. */
static int64_t rows_of(const exec_slot *x)
{
    const unsigned a = byte(&in);
    if (a < 208)
        return x->of.in_batch < NET_ROWS ? x->of.in_batch : NET_ROWS;
    return a < 240 || x->of.d.mode == GCKPT_INFERENCE ? (int64_t)(a % NET_ROWS)
                                                      : number(&in, NET_ROWS);
}
/* Makes feeds for the executor, valid or with an error. Returns their number. */
static int feeds_of(const exec_slot *x, gckpt_feed *f)
{
    int n = x->of.feeds;
    memcpy(f, x->of.feed, sizeof x->of.feed);
    if (n > 0 && in.odd && byte(&in) > 220)
        switch (choose(&in, 4)) {
        case 0: n--; break;
        case 1: f[0].data = NULL; break;
        case 2: f[0].input = whole(&in, 40); break;
        default: f[0] = f[n - 1];
        }
    return n;
}
static void after_step(exec_slot *x, gckpt_result r, uint64_t before, const char *what)
{
    gckpt_store *s = stores[x->of.store].s;
    const int partly = x->of.d.update_in_backward || x->debug & GCKPT_DEBUG_FINITE;
    if (r == GCKPT_OK || r == GCKPT_MORE || (partly && r != GCKPT_E_ARG))
        return;
    MUST(store_digest(s, VALUES) == before, "%s: %s (%s) changed the store", what, gckpt_result_text(r),
         gckpt_error_text(x->e));
}
static void step(int command)
{
    const int i = find_exec();
    if (i < 0 || execs[i].of.feeds < 0)
        return;
    exec_slot *x = &execs[i];
    gckpt_feed f[FEEDS];
    const int n = feeds_of(x, f), how = choose(&in, 8);
    const int64_t rows = rows_of(x);
    const gckpt_hyper h = hyper_of();
    gckpt_report report;
    gckpt_store *s = stores[x->of.store].s;
    const uint64_t before = store_digest(s, VALUES), steps = gckpt_store_step(s);
    gckpt_result r;
    memset(&report, 0, sizeof report);
    if (x->of.d.mode == GCKPT_INFERENCE && how < 7)
        r = gckpt_forward(x->e, f, n, rows, &report);
    else if (how == 0)
        r = gckpt_gradients(x->e, f, n, rows, &report);
    else if (how == 2) {
        if ((r = gckpt_step_begin(x->e, &h)) == GCKPT_OK) {
            for (int64_t at = 0; at < rows && r == GCKPT_OK;) {
                const int64_t part_rows = 1 + number(&in, 4);
                if (at + part_rows > NET_ROWS)
                    break;
                r = gckpt_step_add(x->e, f, n, part_rows);
                at += part_rows > 0 ? part_rows : 1;
            }
            x->under_way = r == GCKPT_OK;
            if (r == GCKPT_OK && choose(&in, 8))
                r = gckpt_step_end(x->e, &report), x->under_way = 0;
        }
        x->steps = -1000;
    } else if (how == 3) {
        r = gckpt_step_start(x->e, f, n, rows, &h);
        if (r == GCKPT_OK) {
            int turns = 1 + choose(&in, 8);
            do
                r = gckpt_run_some(x->e, choose(&in, 3) ? 1000 : 1 + whole(&in, 40), &report);
            while (r == GCKPT_MORE && --turns > 0);
            gckpt_next_instruction(x->e);
            if (r == GCKPT_MORE) { /* leaves the step unfinished; the next step of the executor abandons it */
                x->steps = -1000, x->under_way = 1;
                check_result(command, x->e, r);
                return;
            }
        }
    } else
        r = gckpt_step(x->e, f, n, rows, &h, &report);
    if (r == GCKPT_OK && how != 2)
        x->under_way = 0;
    const int good = check_result(command, x->e, r);
    x->steps = r == GCKPT_OK && rows == x->of.in_batch && how >= 3 ? x->steps + 1 : -1000;
    after_step(x, r, before, "step");
    if (r == GCKPT_OK && (how == 0 || x->of.d.mode == GCKPT_INFERENCE))
        MUST(store_digest(s, VALUES) == before, "gradients or a forward alone changed the store");
    if (r == GCKPT_OK && how > 3 && x->of.d.mode != GCKPT_INFERENCE)
        MUST(report.step == gckpt_store_step(s) &&
                 report.step == steps + (report.count > 0 && x->of.updates),
             "step %lu, %lu, %lu", (unsigned long)report.step, (unsigned long)gckpt_store_step(s),
             (unsigned long)steps);
    double sum;
    int64_t count;
    for (int k = 0; k < 4; k++)
        gckpt_term_loss(x->e, k, &sum, &count);
    if (good && x->debug & GCKPT_DEBUG_MEASURE && !(x->debug & GCKPT_DEBUG_POISON) &&
        x->steps == 2 && x->of.d.ranks.virtual_ranks <= 1 && gckpt_store_bytes(s) == x->of.d.offload.bytes &&
        x->of.in_batch >= x->of.d.batch)
        MUST(gckpt_bytes_measured(x->e) == x->of.d.budget,
             "%lu bytes planned, %lu measured: mode %s, %d fetches, how %d, rows %ld",
             (unsigned long)x->of.d.budget, (unsigned long)gckpt_bytes_measured(x->e),
             mode_name(x->of.d.mode), x->of.fetches, how, (long)rows);
}
static int same_bits(const plan_slot *a, const plan_slot *b)
{
    return a->built_from == b->built_from && a->frozen == b->frozen && a->store == b->store &&
           (a->d.mode == GCKPT_INFERENCE) == (b->d.mode == GCKPT_INFERENCE) &&
           a->d.bf16.precision != GCKPT_BF16_FAST &&
           (a->d.batch == b->d.batch || (a->d.schedule.as_built && b->d.schedule.as_built));
}
/* Makes another plan of the net of executor a, and an executor for the plan. Returns the executor's number, or -1. */
static int other_exec(int a)
{
    const plan_slot *of = &execs[a].of;
    const int plan = choose(&in, PLANS), i = (a + 1 + choose(&in, EXECS - 1)) % EXECS;
    if (of->net < 0 || !nets[of->net].g || nets[of->net].store != of->store || execs[i].users > 0)
        return -1;
    plan_of(2, plan, of->net, &of->d);
    if (!plans[plan].p || plans[plan].net != of->net)
        return -1;
    exec_of(3, i, plan);
    return execs[i].e ? i : -1;
}
/* Takes the same step with two executors of a net; the bits must be equal. */
static void compare_plans(int command)
{
    const int a = find_exec();
    int c = find_exec();
    if (a < 0 || execs[a].of.feeds < 0)
        return;
    if (a == c || !same_bits(&execs[a].of, &execs[c].of))
        c = other_exec(a);
    if (c < 0 || !same_bits(&execs[a].of, &execs[c].of))
        return;
    exec_slot *x[2] = { &execs[a], &execs[c] };
    const int inference = x[0]->of.d.mode == GCKPT_INFERENCE;
    gckpt_store *s = stores[x[0]->of.store].s;
    int64_t rows = x[0]->of.in_batch < x[1]->of.in_batch ? x[0]->of.in_batch : x[1]->of.in_batch;
    rows = rows > NET_ROWS ? NET_ROWS : rows;
    gckpt_hyper h = hyper_of();
    if (x[0]->of.d.update_in_backward || x[1]->of.d.update_in_backward)
        h.clip = 0;
    gckpt_result r[2];
    gckpt_report report[2];
    uint64_t hash[2], before = 0, weights = hash_of(s);
    memset(report, 0, sizeof report);
    for (int k = 0; k < 2; k++) {
        file kept = { 0 };
        gckpt_feed f[FEEDS]; /* these feeds are valid for both executors, since their graphs have equal ids */
        memcpy(f, x[0]->of.feed, sizeof f);
        const gckpt_result wrote = gckpt_store_write(s, file_write, &kept, NULL);
        before = store_digest(s, INITIALISED);
        r[k] = inference ? gckpt_forward(x[k]->e, f, x[0]->of.feeds, rows, &report[k])
                         : gckpt_step(x[k]->e, f, x[0]->of.feeds, rows, &h, &report[k]);
        check_result(command, x[k]->e, r[k]);
        x[k]->steps = -1000, x[k]->under_way = 0;
        hash[k] = store_digest(s, INITIALISED);
        if (wrote != GCKPT_OK || (gckpt_store_read(s, file_read, &kept, kept.size, NULL) != GCKPT_OK)) {
            free(kept.bytes);
            return;
        }
        free(kept.bytes);
        MUST(hash_of(s) == weights, "written and read a store has other values");
        MUST(store_digest(s, INITIALISED) == before, "written and read a store is another");
    }
    if (r[0] != GCKPT_OK || r[1] != GCKPT_OK || gckpt_position(x[0]->e) != gckpt_position(x[1]->e))
        return;
    accepted[command + 1]++;
    MUST(hash[0] == hash[1], "other weights by another plan: modes %s and %s, rows %ld and %ld",
         mode_name(x[0]->of.d.mode), mode_name(x[1]->of.d.mode), (long)x[0]->of.d.batch,
         (long)x[1]->of.d.batch);
    MUST(report[0].count == report[1].count && report[0].step == report[1].step, "counts");
    for (int k = 0; k < 2 && gckpt_position(x[0]->e) == 0; k++) {
        const double p = k ? report[0].loss : report[0].grad_norm,
                     q = k ? report[1].loss : report[1].grad_norm;
        MUST(p == q || (p != p && q != q), "%s %.17g and %.17g: modes %s and %s",
             k ? "loss" : "norm", p, q, mode_name(x[0]->of.d.mode),
             mode_name(x[1]->of.d.mode));
    }
}
static void fetch_values(int command)
{
    static float to[NET_ROWS * NET_ELEMENTS];
    const int i = find_exec(), any = whole(&in, 40), gradient = choose(&in, 2);
    if (i < 0)
        return;
    const unsigned how = byte(&in);
    const plan_slot *of = &execs[i].of;
    const int id = of->fetches > 0 && how < 200 ? of->fetch_ids[(unsigned)any % (unsigned)of->fetches] : any;
    if (how % 2) {
        const float *f = gckpt_fetch(execs[i].e, id, gradient);
        volatile float first = f ? f[0] : 0;
        (void)first;
        calls[command]++;
        accepted[command] += f != NULL;
        MUST(f || gckpt_error_text(execs[i].e)[0], "fetch says nothing");
    } else
        check_result(command, execs[i].e,
             gckpt_collect(execs[i].e, id, gradient, how & 4 ? to : NULL,
                           how & 8 ? byte(&in) : NET_ROWS * NET_ELEMENTS));
}
static void positions(int command)
{
    const int i = find_exec();
    if (i < 0)
        return;
    const int64_t at = gckpt_position(execs[i].e), to = number(&in, 20);
    const gckpt_result r = gckpt_rewind(execs[i].e, to);
    if (check_result(command, execs[i].e, r))
        MUST(gckpt_position(execs[i].e) == to, "rewound to %ld", (long)to);
    else
        MUST(gckpt_position(execs[i].e) == at, "a rewind that was refused moved");
}

/* ---- stores: values, files ---- */
static void settings(int command)
{
    const int store = find_store();
    if (store < 0)
        return;
    gckpt_store *s = stores[store].s;
    const uint64_t before = store_digest(s, VALUES);
    const char *of = pattern();
    gckpt_result r;
    generation++;
    switch (choose(&in, 8)) {
    case 0: r = gckpt_store_freeze(s, of, choose(&in, 2)); break;
    case 1: r = gckpt_store_group(s, of, real(&in), real(&in)); break;
    case 2: r = gckpt_store_reset(s, of); break;
    case 3: r = gckpt_store_pull(s, of); break;
    case 4: r = gckpt_store_push(s, of); break;
    case 5:
        r = gckpt_store_set_note(s, choose(&in, 4) ? "n1" : "step",
                                 choose(&in, 2) ? "some \"text\"\n" : NULL);
        break;
    case 6: {
        gckpt_parameter p;
        r = gckpt_store_get(s, whole(&in, 12), &p);
        for (int64_t k = 0;
             r == GCKPT_OK && p.values && !p.frozen && k < p.count && k < 4 && in.odd; k++)
            p.values[k] = real(&in);
        if (r == GCKPT_E_ARG) /* the index is the end of the list, which the store does not report as an error */
            return;
        break;
    }
    default: {
        r = gckpt_store_ranks(s, whole(&in, 2), 1 << choose(&in, 2), (gckpt_shard)choose(&in, 4));
        if (r == GCKPT_OK) /* makes the store that of a single process again */
            r = gckpt_store_ranks(s, 0, 1, GCKPT_SHARD_NONE);
    }
    }
    if (!check_result(command, s, r))
        MUST(store_digest(s, VALUES) == before, "refused, it changed the store: %s", gckpt_error_text(s));
}
static void pack(int command)
{
    const int store = find_store();
    const char *of = pattern();
    const gckpt_storage storage = (gckpt_storage)choose(&in, in.odd ? 6 : 5);
    if (store < 0)
        return;
    gckpt_store *s = stores[store].s;
    generation++;
    if (choose(&in, 2))
        gckpt_store_freeze(s, of, 1);
    const uint64_t before = store_digest(s, VALUES);
    const gckpt_result r = gckpt_store_quantise(s, of, storage);
    if (!check_result(command, s, r))
        MUST(store_digest(s, VALUES) == before, "a pack that was refused changed the store: %s",
             gckpt_error_text(s));
    for (int i = 0; i < EXECS; i++)
        execs[i].steps = -1000;
}
static void external(int command)
{
    static float values[2][64];
    static uint16_t halves[64];
    const int store = find_store(), which = choose(&in, 2);
    gckpt_shape shape = gckpt_shape2(1 + number(&in, 8), 1 + number(&in, 8));
    char name[32];
    if (in.odd)
        snprintf(name, sizeof name, "p%d", choose(&in, 30));
    else
        net_param_name(name, sizeof name, choose(&in, 8), &shape);
    /* a shape with more elements than the array would be a mistake of the caller that the library cannot detect */
    if (store < 0 || (shape.d[0] > 8 && shape.d[1] > 0) || (shape.d[1] > 8 && shape.d[0] > 0))
        return;
    gckpt_store *s = stores[store].s;
    generation++;
    const uint64_t before = store_digest(s, VALUES);
    const gckpt_result r =
        choose(&in, 3)
            ? gckpt_store_external(s, name, shape, values[which], choose(&in, 2))
            : gckpt_store_external_quantised(s, name, shape,
                                          choose(&in, 2) ? GCKPT_STORAGE_BF16 : GCKPT_STORAGE_F16,
                                          halves);
    if (!check_result(command, s, r))
        MUST(store_digest(s, VALUES) == before, "refused, it changed the store: %s", gckpt_error_text(s));
}
static void files(int command)
{
    const int from = find_store(), to = find_store(),
              changes = choose(&in, 4) == 0 ? 1 + choose(&in, 3) : 0;
    gckpt_file_desc d;
    const unsigned a = byte(&in);
    file f = { 0 };
    if (from < 0 || to < 0)
        return;
    memset(&d, 0, sizeof d);
    d.values_only = a & 1, d.partial = a >> 1 & 1;
    d.storage = a & 4 ? (gckpt_storage)(byte(&in) % (in.odd ? 6 : 3)) : GCKPT_STORAGE_F32;
    d.rename = a & 8 ? net_rename : NULL;
    const uint64_t wrote_from = store_digest(stores[from].s, INITIALISED);
    gckpt_result r = a & 32 ? gckpt_store_write(stores[from].s, io_write, &f, NULL)
                            : gckpt_store_write(stores[from].s, io_write, &f, &d);
    const int wrote = check_result(command, stores[from].s, r);
    MUST(store_digest(stores[from].s, INITIALISED) == wrote_from, "writing changed the store");
    if (wrote && f.size) {
        gckpt_store *s = stores[to].s;
        for (int k = 0; k < changes; k++)
            f.bytes[(byte(&in) * 256 + byte(&in)) % (f.size < 2000 ? f.size : 2000)] ^=
                (unsigned char)byte(&in);
        const size_t size = changes == 3 ? f.size / 2 : f.size;
        const uint64_t before = store_digest(s, VALUES);
        r = a & 32 ? gckpt_store_read(s, io_read, &f, size, NULL)
                   : gckpt_store_read(s, io_read, &f, size, &d);
        if (!check_result(command + 1, s, r))
            MUST(store_digest(s, VALUES) == before, "a file that was refused changed the store: %s",
                 gckpt_error_text(s));
        for (int i = 0; i < EXECS; i++)
            execs[i].steps = -1000;
    }
    free(f.bytes);
}
/* Maps a file into a store. The file may be damaged, and may begin at any address. */
static void map(int command)
{
    const int from = find_store(), to = find_store(), slot = choose(&in, MAPS);
    gckpt_file_desc d;
    const unsigned a = byte(&in);
    file f = { 0 };
    if (from < 0 || to < 0 || maps[slot])
        return;
    memset(&d, 0, sizeof d);
    d.values_only = a & 1;
    d.storage = a & 4 ? (gckpt_storage)(byte(&in) % 3) : GCKPT_STORAGE_F32;
    if (gckpt_store_write(stores[from].s, file_write, &f, &d) == GCKPT_OK && f.size) {
        gckpt_store *s = stores[to].s;
        const unsigned changes = a & 8 ? 1 + a / 64 : 0, shift = a & 16 ? byte(&in) % 16 : 0;
        const size_t size = a & 8 && a & 32 ? f.size * byte(&in) / 256 : f.size;
        for (unsigned k = 0; k < changes; k++)
            f.bytes[(byte(&in) * 256 + byte(&in)) % f.size] ^= (unsigned char)byte(&in);
        d.partial = a >> 1 & 1, d.writable = a >> 5 & 1;
        d.rename = a & 128 ? net_rename : NULL;
        maps[slot] = malloc(size + 16);
        memcpy((char *)maps[slot] + shift, f.bytes, size);
        generation++;
        const uint64_t before = store_digest(s, VALUES);
        const gckpt_result r = gckpt_store_map(s, (char *)maps[slot] + shift, size, &d);
        if (!check_result(command, s, r))
            MUST(store_digest(s, VALUES) == before, "a map that was refused changed the store: %s",
                 gckpt_error_text(s));
        for (int i = 0; i < EXECS; i++)
            execs[i].steps = -1000;
    }
    free(f.bytes);
}
static int entries(const char *at)
{
    int n = 0;
    DIR *d = opendir(at);
    MUST(d, "%s", at);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
static uint64_t file_hash(const char *path)
{
    static unsigned char bytes[1 << 16];
    uint64_t h = 0;
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    while ((n = fread(bytes, 1, sizeof bytes, f)) > 0)
        h = mix(h + 1, bytes, n);
    fclose(f);
    return h;
}
/* Saves and loads files by path: names of any characters and lengths, folders, missing files. */
static void by_path(int command)
{
    static const char *const names[] = { "plain",
                                         "two words.safetensors",
                                         "a\tb\nc",
                                         "%s%n%d",
                                         "quote'\"\\",
                                         "-rf",
                                         "\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80",
                                         "\xff\xfe\x80",
                                         "missing/folder",
                                         ".",
                                         "",
                                         "./../" };
    enum { NAMES = sizeof names / sizeof names[0] };
    static char path[5000];
    const int from = find_store(), to = find_store(), which = choose(&in, NAMES + 2);
    const unsigned a = byte(&in);
    gckpt_file_desc d;
    if (from < 0 || to < 0)
        return;
    int at = snprintf(path, 600, "%s/", folder);
    if (which < NAMES) {
        snprintf(path + at, 64, "%s", names[which]);
    } else { /* names whose lengths are near the limits of names and paths */
        const int n = which == NAMES ? 230 + choose(&in, 28) : 4000 + choose(&in, 200);
        for (int i = 0; i < n; i++)
            path[at++] = which > NAMES && i % 2 ? '/' : which > NAMES ? '.' : 'n';
        path[at] = 0;
    }
    memset(&d, 0, sizeof d);
    d.values_only = a & 1, d.partial = a >> 1 & 1;
    d.storage = a & 4 ? (gckpt_storage)(byte(&in) % 3) : GCKPT_STORAGE_F32;
    d.rename = a & 8 ? net_rename : NULL;
    const int before_entries = entries(folder);
    FILE *was = a & 16 ? fopen(path, "wb") : NULL; /* creates another file under that name first */
    if (was)
        MUST(fputs("another", was) >= 0 && fclose(was) == 0, "%s", path);
    const uint64_t old = file_hash(path);
    if (verbose)
        fprintf(stderr, "  path %.80s\n", path);
    gckpt_store *s = stores[from].s, *t = stores[to].s;
    const uint64_t wrote_from = store_digest(s, INITIALISED);
    gckpt_result r = a & 32 ? gckpt_store_save(s, path, NULL) : gckpt_store_save(s, path, &d);
    const int saved = check_result(command, s, r);
    MUST(store_digest(s, INITIALISED) == wrote_from, "saving changed the store");
    MUST(saved || file_hash(path) == old, "a save that failed changed the file");
    if (saved && a & 64) {
        FILE *f = fopen(path, a & 128 ? "rb+" : "ab");
        MUST(f, "%s", path);
        if (a & 128)
            fseek(f, byte(&in) * 256 + byte(&in), SEEK_SET);
        MUST(putc((int)byte(&in), f) != EOF && fclose(f) == 0, "%s", path);
    }
    const uint64_t before = store_digest(t, VALUES);
    r = a & 32 ? gckpt_store_load(t, path, NULL) : gckpt_store_load(t, path, &d);
    if (!check_result(command + 1, t, r))
        MUST(store_digest(t, VALUES) == before, "a file that was refused changed the store: %s",
             gckpt_error_text(t));
    for (int i = 0; i < EXECS; i++)
        execs[i].steps = -1000;
    if (saved || was)
        MUST(remove(path) == 0, "%s is not there", path);
    MUST(entries(folder) == before_entries, "a save leaves something beside %s", path);
}
/* Calls functions that are allowed on any object at any time. */
static void getters(int command)
{
    const int net = find_net(), plan = find_plan(), exec = find_exec(), i = whole(&in, 64);
    gckpt_node node;
    gckpt_instruction instruction;
    gckpt_usage usage;
    gckpt_buffer buffer;
    calls[command]++;
    if (net >= 0)
        MUST((gckpt_graph_node(nets[net].g, i, &node) == GCKPT_OK) ==
                 (i >= 0 && i < gckpt_graph_size(nets[net].g)),
             "node %d", i);
    if (plan >= 0) {
        const gckpt_plan *p = plans[plan].p;
        const gckpt_plan_info info = gckpt_plan_describe(p);
        MUST((gckpt_plan_get(p, i, &instruction) == GCKPT_OK) ==
                 (i >= 0 && i < info.instructions),
             "instruction %d", i);
        MUST((gckpt_plan_usage(p, i, &usage) == GCKPT_OK) == (i >= 0 && i < info.instructions),
             "usage %d", i);
        MUST((gckpt_plan_buffer(p, i, &buffer) == GCKPT_OK) ==
                 (i >= 0 && i < info.buffers),
             "buffer %d", i);
        MUST(gckpt_plan_name(p, i) && gckpt_plan_op(p, i) && mode_name(info.mode),
             "names");
        gckpt_plan_kind_bytes(p, i);
        MUST(gckpt_store_need(p) >= gckpt_store_need(NULL), "store_need");
        int64_t first = -1;
        const int64_t rows = number(&in, 20);
        const int64_t rank_rows = gckpt_plan_rank_rows(p, rows, 0, choose(&in, 2) ? &first : NULL);
        MUST(rank_rows == rows || rows < 0 || rows > 20, "share %ld of %ld", (long)rank_rows, (long)rows);
        if (i % 4 == 0)
            gckpt_exec_need(p, NULL);
    }
    if (exec >= 0) {
        const int x = exec;
        uint64_t hash;
        MUST(isa_name(gckpt_exec_isa(execs[x].e)), "isa");
        gckpt_next_instruction(execs[x].e), gckpt_exec_bytes_sent(execs[x].e), gckpt_bytes_measured(execs[x].e);
        if (!execs[x].under_way && hash_of(stores[execs[x].of.store].s) &&
            gckpt_gather_values(execs[x].e, -1, NULL, &hash) == GCKPT_OK)
            MUST(hash == gckpt_store_hash(stores[execs[x].of.store].s), "hashes");
        if (!execs[x].under_way) {
            static float all[1 << 14];
            gckpt_parameter p;
            const int index = whole(&in, 12);
            if (gckpt_store_peek(stores[execs[x].of.store].s, index, &p) != GCKPT_OK ||
                p.elements <= 1 << 14)
                gckpt_gather_values(execs[x].e, index, all, NULL);
        }
    }
    /* NULL */
    MUST(gckpt_error(NULL) == GCKPT_E_MEMORY && gckpt_error_text(NULL)[0], "NULL");
    const float f = real(&in);
    gckpt_from_bf16(gckpt_to_bf16(f));
    gckpt_lr_cosine(byte(&in), byte(&in), byte(&in), f, 0);
    isa_name((gckpt_isa)(i & 7)), gckpt_threads();
    gckpt_result_text((gckpt_result)(i & 31));
    MUST(gckpt_shape_of(NULL).n == -1 && gckpt_id(NULL) == -1 && !gckpt_graph_of(NULL) &&
             gckpt_graph_size(NULL) == 0,
         "NULL");
}
static void failing(int command)
{
    const long n = 1 + choose(&in, 64);
    calls[command]++;
    switch (choose(&in, 6)) {
    case 0: memory.fail_at = memory.calls + n; break;
    case 1: memory.fail_at = memory.calls + 1 + n * n / 8; break;
    case 2: fails.progress = n; break;
    case 3: fails.offload = n % 8 + 1; break;
    case 4: fails.exchange = n; break;
    default: fails.io = n;
    }
}
static void freeing(int command)
{
    calls[command]++;
    switch (choose(&in, 6)) {
    case 0: free_frontier(choose(&in, FRONTIERS)); break;
    case 1: free_plan(choose(&in, PLANS)); break;
    case 2: free_net(choose(&in, NETS)); break;
    case 3:
    case 4: free_exec(choose(&in, EXECS)); break;
    default:
        if (byte(&in) > 180)
            free_store(choose(&in, STORES));
    }
}

enum { NOTHING, A_STORE, A_NET, A_PLAN, AN_EXECUTOR };
static const struct {
    void (*run)(int command);
    int id, needs;
    const char *name;
} commands[] = {
    { new_store, 0, NOTHING, "store_new" },
    { new_net, 1, A_STORE, "graph_new" },
    { new_plan, 2, A_NET, "plan_new" },
    { new_plan, 2, A_NET, "" },
    { new_exec, 3, A_PLAN, "exec_new" },
    { new_exec, 3, A_PLAN, "" },
    { step, 4, AN_EXECUTOR, "step, gradients, forward" },
    { step, 4, AN_EXECUTOR, "" },
    { step, 4, AN_EXECUTOR, "" },
    { step, 4, AN_EXECUTOR, "" },
    { compare_plans, 5, AN_EXECUTOR, "steps of two plans" },
    { compare_plans, 5, AN_EXECUTOR, "" },
    { fit, 7, A_NET, "fit" },
    { frontier, 8, A_NET, "frontier_new" },
    { frontier, 8, NOTHING, "" },
    { plan_texts, 10, A_PLAN, "plan_print, _trace, _c" },
    { plan_params, 11, A_PLAN, "plan_params" },
    { fetch_values, 12, AN_EXECUTOR, "fetch, collect" },
    { positions, 13, AN_EXECUTOR, "rewind" },
    { step, 4, AN_EXECUTOR, "" },
    { settings, 15, A_STORE, "freeze, group, reset, ranks, notes" },
    { settings, 15, A_STORE, "" },
    { pack, 16, A_STORE, "pack" },
    { external, 17, A_STORE, "external" },
    { files, 18, A_STORE, "store_write" },
    { files, 18, A_STORE, "" },
    { map, 23, A_STORE, "map" },
    { by_path, 24, A_STORE, "save" },
    { getters, 20, NOTHING, "getters" },
    { failing, 21, NOTHING, "failing" },
    { failing, 21, NOTHING, "" },
    { freeing, 22, NOTHING, "free" },
};
/* Creates the objects that a command needs, as far as they do not exist. */
static void prepare(int needs)
{
    int there[5] = { 1, 0, 0, 0, 0 };
    for (int i = 0; i < STORES; i++)
        there[A_STORE] |= stores[i].s != NULL;
    for (int i = 0; i < NETS; i++)
        there[A_NET] |= nets[i].g != NULL;
    for (int i = 0; i < PLANS; i++)
        there[A_PLAN] |= plans[i].p != NULL;
    for (int i = 0; i < EXECS; i++)
        there[AN_EXECUTOR] |= execs[i].e != NULL && execs[i].has_store;
    if (needs >= A_STORE && !there[A_STORE])
        new_store(0);
    if (needs >= A_NET && !there[A_NET])
        new_net(1);
    if (needs >= A_PLAN && !there[A_PLAN])
        new_plan(2);
    if (needs >= AN_EXECUTOR && !there[AN_EXECUTOR])
        new_exec(3);
}

static void print_counts(void)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (commands[i].name[0])
            fprintf(stderr, "%-36s %9ld %9ld\n", commands[i].name, calls[commands[i].id],
                    accepted[commands[i].id]);
    fprintf(stderr, "%-36s %9s %9ld\n%-36s %9ld %9ld\n%-36s %9ld %9ld\n%-36s %9ld %9ld\n",
            "  compared", "", accepted[6], "  frontier_plan", calls[9], accepted[9], "  store_read",
            calls[19], accepted[19], "  load", calls[25], accepted[25]);
    for (int i = 0; i < SEEN; i++)
        fprintf(stderr, "%-36s %9ld\n", covered[i].name, covered[i].count);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    /* creates a store and a net of 2 rows from 60 bytes; random calls follow */
    static const uint8_t head[] = { 0, 0, 0, 5, 1, 0, 0, 1, 1, 60 };
    (void)argc, (void)argv;
    verbose = getenv("FUZZ_TALK") != NULL;
    folder = getenv("FUZZ_DIR") ? getenv("FUZZ_DIR") : ".";
    for (int i = 0; i < GCKPT_ISA_COUNT; i++)
        available[i] = gckpt_isa_available((gckpt_isa)i);
    write_seeds("calls", 400, 160, head, sizeof head);
    net_data();
    net_with_caches = 2;
    if (getenv("FUZZ_COUNT"))
        atexit(print_counts);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size)
{
    in.at = at, in.left = size;
    net_memory(&memory);
    memset(&fails, 0, sizeof fails);
    memset(plans, 0, sizeof plans), memset(execs, 0, sizeof execs), memset(nets, 0, sizeof nets);
    memset(host_memory, 0, sizeof host_memory);
    in.odd = byte(&in) % 4 == 3;
    for (int iteration = 0; iteration < 80 && in.left > 0; iteration++) {
        const unsigned c = byte(&in) % (sizeof commands / sizeof commands[0]);
        if (verbose)
            fprintf(stderr, "%s %d\n", commands[c].name, commands[c].id);
        prepare(commands[c].needs);
        commands[c].run(commands[c].id);
    }
    free_all();
    for (int i = 0; i < MAPS; i++) {
        free(maps[i]);
        maps[i] = NULL;
    }
    for (int i = 0; i < EXECS; i++)
        MUST(!execs[i].e, "an executor is left");
    MUST(memory.live == 0 && memory.blocks == 0, "%lu bytes in %ld blocks are left",
         (unsigned long)memory.live, memory.blocks);
    MUST(memory.wrong_sizes == 0, "%ld blocks were given back with another size",
         memory.wrong_sizes);
    return 0;
}
