/* fuzz_schedule.c - any list of instructions as desc.schedule. The list is that of a plan of any mode, with or
 * without a budget; or that of a store-all plan in which everything that a backward reads is recomputed or reloaded
 * before the backward; or a list of arbitrary numbers. Then forwards are repeated, removed or moved, and other
 * instructions, reloads and waits for offload copies are inserted.
 *
 * The rules: The list is either refused, with an error text and nothing allocated, or accepted. If it is accepted,
 * tests/plan_check.h accepts the plan, and steps with the plan give the losses, norm and weights of the store-all
 * plan to the bit, while unused bytes of the arena are filled with a pattern and recomputed values are compared. */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#define PLAN_CHECK_OFF "it is called on each plan that was accepted"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_net.h"

enum { MOST = 400, FEEDS = 24 };

static heap memory;
static long tried, planned, accepted, ran, again, offloads;
static unsigned char host_memory[1 << 17];

static size_t offload(void *user, size_t at, const void *from, size_t size)
{
    (void)user;
    MUST(at + size <= sizeof host_memory, "%lu bytes to %lu", (unsigned long)size,
         (unsigned long)at);
    memcpy(host_memory + at, from, size);
    return size;
}
static size_t reload(void *user, size_t at, void *to, size_t size)
{
    (void)user;
    MUST(at + size <= sizeof host_memory, "%lu bytes from %lu", (unsigned long)size,
         (unsigned long)at);
    memcpy(to, host_memory + at, size);
    return size;
}

static void begin(net_run *l, bytes b, int64_t rows)
{
    net_run_open(l, &memory);
    pc_reset_graph(l->g);
    net_make(&l->net, l->g, b, rows);
}
static void end(net_run *l)
{
    util_free(l->e, l->p, l->g, l->s);
    memset(l, 0, sizeof *l);
}
static void steps(net_run *l, unsigned debug, gckpt_isa isa, const gckpt_feed *f, int n, int64_t rows,
                  const gckpt_hyper *h)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    d.memory = net_heap(&memory), d.debug = debug;
    d.isa = isa;
    d.offload = offload, d.reload = reload;
    l->e = gckpt_exec_new(l->p, l->s, &d);
    for (int i = 0; i < 2 && l->e; i++)
        l->result[i] = gckpt_step(l->e, f, n, rows, h, &l->report[i]);
    /* no hash if the executor could not be made, since parameters may then be too large */
    l->hash = l->e ? gckpt_store_hash(l->s) : 0;
}

/* Inserts before each backward forwards or reloads of its op's inputs and, as the bits of `how` say, of the op itself
 * and of the inputs of those inputs. Returns the new length of the list. */
static int recompute_all(const gckpt_graph *g, unsigned how, const gckpt_instruction *from, int length,
                    gckpt_instruction *list)
{
    int n = 0;
    for (int i = 0; i < length && n < MOST - 80; i++) {
        gckpt_node node, deeper;
        if (from[i].kind == GCKPT_BACKWARD && gckpt_graph_node(g, from[i].id, &node) == GCKPT_OK) {
            for (int k = node.inputs; k-- > 0;) {
                const gckpt_kind kind = how >> (k + i) % 5 & 1 ? GCKPT_RELOAD : GCKPT_FORWARD;
                if (kind == GCKPT_FORWARD && how & 64 &&
                    gckpt_graph_node(g, node.input[k], &deeper) == GCKPT_OK)
                    for (int j = 0; j < deeper.inputs && n < MOST - 80; j++)
                        list[n].kind = kind, list[n++].id = deeper.input[j];
                list[n].kind = kind, list[n++].id = node.input[k];
            }
            if (how & 32)
                list[n].kind = how & 16 ? GCKPT_RELOAD : GCKPT_FORWARD, list[n++].id = from[i].id;
        }
        list[n++] = from[i];
    }
    /* removes instructions of inputs, parameters and constants, which have no forward */
    int kept = 0;
    for (int i = 0; i < n; i++) {
        gckpt_node node;
        if (list[i].kind == GCKPT_BACKWARD ||
            (gckpt_graph_node(g, list[i].id, &node) == GCKPT_OK && strcmp(node.op, "input") != 0 &&
             strcmp(node.op, "param") != 0 && strcmp(node.op, "constant") != 0))
            list[kept++] = list[i];
    }
    return kept;
}

/* Makes the list of instructions, from the list of plan p or from nothing. Returns its length. */
static int schedule(bytes *b, const gckpt_plan *p, const gckpt_graph *g, gckpt_instruction *list)
{
    const gckpt_plan_info info = gckpt_plan_describe(p);
    static gckpt_instruction plain[MOST];
    const int tensors = gckpt_graph_size(g);
    int n = 0;
    const unsigned how = byte(b);
    for (int i = 0; how % 8 != 7 && i < info.instructions && n < MOST / 2; i++) {
        gckpt_plan_get(p, i, &plain[n]);
        n += plain[n].kind == GCKPT_FORWARD || plain[n].kind == GCKPT_BACKWARD ||
             plain[n].kind == GCKPT_RELOAD || plain[n].kind == GCKPT_OFFLOAD_DONE;
    }
    if (how % 8 == 6 || how % 8 == 5)
        n = recompute_all(g, how % 8 == 5 ? byte(b) & 96 : byte(b), plain, n, list);
    else
        memcpy(list, plain, (size_t)n * sizeof *list);
    for (int edits = how & 128 ? 0 : byte(b) % 8; edits > 0 && n < MOST - 40; edits--) {
        const unsigned what = byte(b);
        const int at = n ? (byte(b) * 256 + byte(b)) % (n + 1) : 0;
        if (what % 8 < 4) { /* repeats a stretch */
            const int from = n ? byte(b) % n : 0, size = 1 + byte(b) % 16;
            gckpt_instruction again[16];
            int k = 0;
            for (int i = from; i < n && i < from + size; i++)
                if (list[i].kind == GCKPT_FORWARD)
                    again[k++] = list[i];
            memmove(list + at + k, list + at, (size_t)(n - at) * sizeof *list);
            memcpy(list + at, again, (size_t)k * sizeof *list);
            n += k;
        } else if (what % 8 == 4 && n > 0 && at < n) { /* removes one */
            memmove(list + at, list + at + 1, (size_t)(n - at - 1) * sizeof *list);
            n--;
        } else if (what % 8 == 5 && n > 1) { /* moves one */
            const int from = byte(b) % n, to = at % n;
            const gckpt_instruction one = list[from];
            memmove(list + from, list + from + 1, (size_t)(n - from - 1) * sizeof *list);
            memmove(list + to + 1, list + to, (size_t)(n - 1 - to) * sizeof *list);
            list[to] = one;
        } else { /* inserts a new one */
            static const gckpt_kind kinds[] = { GCKPT_FORWARD, GCKPT_BACKWARD, GCKPT_RELOAD,
                                                GCKPT_FORWARD, GCKPT_RELOAD,   GCKPT_UPDATE,
                                                GCKPT_OFFLOAD_DONE,    GCKPT_REDUCE,   GCKPT_OFFLOAD,
                                                GCKPT_BEGIN, GCKPT_NEXT,     GCKPT_BARRIER };
            memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
            list[at].kind =
                b->odd && what > 250 ? (gckpt_kind)99 : kinds[byte(b) % (b->odd ? 12 : 5)];
            list[at].id = b->odd && what % 16 == 15 ? whole(b, 64) : byte(b) % (tensors + b->odd);
            n++;
        }
    }
    return n;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
static void print_counts(void)
{
    fprintf(stderr,
            "%ld tries, %ld nets, %ld schedules accepted, %ld of them with something again, %ld "
            "with offloads; %ld run\n",
            tried, planned, accepted, again, offloads, ran);
}
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const uint8_t head[] = { 0, 60 };
    (void)argc, (void)argv;
    write_seeds("schedule", 200, 120, head, sizeof head);
    net_data();
    net_with_caches = 0;
    if (getenv("FUZZ_COUNT"))
        atexit(print_counts);
    return 0;
}

static void try_one(bytes in)
{
    static gckpt_instruction list[MOST];
    static const gckpt_mode modes[8] = { GCKPT_STORE_ALL, GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                         GCKPT_SQRT,      GCKPT_STORE_ALL, GCKPT_AUTO,
                                         GCKPT_AUTO,      GCKPT_STORE_ALL };
    net_run a, c;
    in.odd = byte(&in) % 4 == 3;
    const bytes net = part(&in, byte(&in));
    const unsigned o = byte(&in), q = byte(&in);
    const int64_t rows = 1 + o % 3;
    gckpt_feed f[FEEDS];
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    begin(&a, net, rows);
    d.memory = net_heap(&memory);
    d.mode = GCKPT_STORE_ALL;
    d.batch = rows * (o & 4 ? 2 : 1);
    d.optimiser = o & 8 ? GCKPT_SGD : GCKPT_ADAMW;
    d.update_in_backward = (o & 0x30) == 0x30;
    d.kernels.stage_parameters = o >> 6 & 1;
    d.bf16.precision = q % 8 == 7 ? GCKPT_BF16 : GCKPT_FP32;
    d.ranks.virtual_ranks = q % 8 == 6 ? 2 : 0;
    d.fetch.specs = a.net.fetch, d.fetch.count = q & 8 ? a.net.fetches : 0;
    tried++;
    a.p = gckpt_plan_new(a.g, a.net.term, a.net.terms, &d);
    const int n = a.p ? net_feed_all(a.g, &in, f, FEEDS) : -1;
    if (n >= 0) {
        gckpt_hyper h = gckpt_hyper_lr(0.01f);
        begin(&c, net, rows);
        planned++;
        d.offload.bytes = q & 16 ? (q & 32 ? 100000 : 300) : 0;
        d.offload.overlap = q >> 6 & 1;
        d.fetch.specs = c.net.fetch;
        const unsigned from = byte(&in);
        gckpt_plan *by = NULL; /* the plan whose list of instructions is changed */
        d.mode = modes[from % 8];
        if (d.mode != GCKPT_STORE_ALL) {
            d.offload.cost = d.mode == GCKPT_AUTO && from & 8 ? 1 : 0;
            d.budget = d.mode == GCKPT_AUTO
                           ? gckpt_plan_bytes(a.p) - gckpt_plan_describe(a.p).arena * (1 + from / 16) / 20
                           : 0;
            by = gckpt_plan_new(c.g, c.net.term, c.net.terms, &d);
            d.budget = 0;
        }
        d.mode = GCKPT_SCHEDULE;
        d.schedule.count = schedule(&in, by ? by : a.p, c.g, list);
        d.schedule.instructions = list;
        gckpt_plan_free(by);
        const size_t live = memory.live;
        c.p = gckpt_plan_new(c.g, c.net.term, c.net.terms, &d);
        if (!c.p) {
            const gckpt_result r = gckpt_error(c.g);
            MUST(r >= GCKPT_E_SHAPE && gckpt_error_text(c.g)[0], "refused without a word");
            MUST(memory.live == live, "what was refused left %ld bytes",
                 (long)(memory.live - live));
        } else {
            /* a check that takes longer than all others, so only some inputs, chosen by their bytes, get it */
            const char *problem = o / 16 % 4 == q % 4 ? plan_check(c.p, c.g, &d) : NULL;
            const gckpt_isa isa = q % 16 == 9 ? GCKPT_ISA_AUTO : GCKPT_ISA_PLAIN;
            accepted++;
            again += gckpt_plan_describe(c.p).recompute > 0;
            offloads += gckpt_plan_describe(c.p).offloaded > 0;
            /* a backward does not read its loss, so the loss may run after it, though no plan of the library does so */
            if (problem && strstr(problem, "backward of") &&
                strstr(problem, "comes before its forward"))
                problem = NULL;
            MUST(!problem, "plan_check: %s", problem);
            steps(&a, 0, isa, f, n, d.batch, &h);
            steps(&c, q & 128 ? GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_POISON : GCKPT_DEBUG_MEASURE,
                  isa, f, n, d.batch, &h);
            ran += a.e && c.e;
            MUST(!a.e == !c.e || gckpt_error(a.e ? c.s : a.s) == GCKPT_E_MEMORY,
                 "only one has an executor: %s", gckpt_error_text(a.e ? c.s : a.s));
            for (int i = 0; i < 2 && a.e && c.e; i++) {
                const double *x = &a.report[i].loss, *y = &c.report[i].loss;
                MUST(a.result[i] == c.result[i], "%s; %s", gckpt_error_text(a.e),
                     gckpt_error_text(c.e));
                MUST(*x == *y || (*x != *x && *y != *y), "loss %.17g, %.17g", *x, *y);
                x = &a.report[i].grad_norm, y = &c.report[i].grad_norm;
                MUST(*x == *y || (*x != *x && *y != *y), "norm %.17g, %.17g", *x, *y);
                MUST(a.report[i].count == c.report[i].count, "counts");
            }
            MUST(!a.e || !c.e || a.hash == c.hash, "other weights");
            if (a.e && c.e && c.result[0] == GCKPT_OK && c.result[1] == GCKPT_OK && !(q & 128) &&
                d.ranks.virtual_ranks < 2 &&
                gckpt_store_bytes(c.s) == gckpt_plan_kind_bytes(c.p, GCKPT_BYTES_PARAMETERS) +
                                              gckpt_plan_kind_bytes(c.p, GCKPT_BYTES_STATE))
                MUST(gckpt_bytes_measured(c.e) == gckpt_plan_bytes(c.p),
                     "%lu bytes planned, %lu measured", (unsigned long)gckpt_plan_bytes(c.p),
                     (unsigned long)gckpt_bytes_measured(c.e));
        }
        end(&c);
    }
    end(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *at, size_t size)
{
    bytes in;
    in.at = at, in.left = size, in.odd = 0;
    net_memory(&memory);
    try_one(in);
    MUST(memory.live == 0 && memory.blocks == 0 && memory.wrong_sizes == 0,
         "%lu bytes in %ld blocks are left", (unsigned long)memory.live, memory.blocks);
    return 0;
}
