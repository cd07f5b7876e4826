/* simulate.c - plans models that are too large for one machine for 8 to 1,024 ranks, and
 * simulates a step of each plan: its duration, the time spent waiting for communication, and the
 * bytes of a rank. It does not run the model.
 *
 *     cc -O2 -I. examples/simulate.c -o simulate && ./simulate
 *     ./simulate --model llama-7b --ranks 64 --shard values --network 10gb --json -
 *     ./simulate --help
 *
 * Every rank has --budget bytes. Within them, the planner keeps activations and, if values are
 * sharded, gathered parameters; other values are recomputed or gathered again.
 * examples/simulate.h has the model of time, which docs/distributed.md describes. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "model.h"
#include "options.h"
#include "simulate.h"
#include <errno.h>
#include <time.h>

/* ---- options --------------------------------------------------------------------------------- */
enum { MODELS = 3, SHARDS = 4, NETWORKS = 4, MAX_RANKS = 16 };
typedef struct {
    const char *name, *title;
    /* inner: width inside the MLP, or 0 for a GPT-2 */
    int64_t layers, heads, width, inner, context, vocabulary;
    /* batch: rows per step; rows: rows in a micro-batch */
    int64_t batch, rows;
    double budget;
} model;
static const model models[MODELS] = {
    { "gpt2", "GPT-2 124M", 12, 12, 768, 0, 1024, 50257, 1024, 4, 8e9 },
    { "gpt2-xl", "GPT-2 1.5B", 48, 25, 1600, 0, 1024, 50257, 1024, 4, 32e9 },
    { "llama-7b", "Llama 7B", 32, 32, 4096, 11008, 2048, 32000, 1024, 4, 80e9 },
};
static const char *const model_names[] = { "gpt2", "gpt2-xl", "llama-7b", "all", NULL };
static const char *const shard_names[] = { "none", "state", "gradients", "values", "all", NULL };
static const char *const shard_titles[SHARDS] = { "none", "state", "gradients", "values" };
/* Networks: bandwidth of a rank in each direction, in bytes per second, and latency in seconds. 450
 * GB/s is the specification of NVLink 4. */
static const simulate_link nvlink = { 450e9, 5e-6 };
static const simulate_link link_100gb = { 12.5e9, 10e-6 }, link_10gb = { 1.25e9, 30e-6 };
static const char *const network_names[] = { "nodes", "nvlink", "100gb", "10gb", "all", NULL };
static const char *const network_titles[NETWORKS] = { "NVLink in nodes of 8, 100 Gb/s", "NVLink",
                                                "100 Gb/s", "10 Gb/s" };

static struct {
    int64_t model, shard, network, batch, rows, virtual_ranks, budget, overlap, help;
    double flops, mem_bandwidth, bandwidth, latency;
    const char *ranks, *json;
} o;
static const options_desc option_descs[] = {
    { "model", OPTIONS_CHOICE, &o.model, "all", 0, 0, model_names,
      "model to plan; all plans gpt2-xl and llama-7b" },
    { "ranks", OPTIONS_TEXT, &o.ranks, "8,64,256,1024", 0, 0, NULL,
      "numbers of ranks, powers of two" },
    { "shard", OPTIONS_CHOICE, &o.shard, "all", 0, 0, shard_names,
      "tensors that are split among ranks; each choice includes the ones before it, all "
      "simulates each" },
    { "network", OPTIONS_CHOICE, &o.network, "all", 0, 0, network_names,
      "network between ranks; nodes has NVLink within 8 ranks and 100 Gb/s per rank between "
      "nodes; all simulates each" },
    { "bandwidth", OPTIONS_REAL, &o.bandwidth, "0", 0, 1e6, NULL,
      "bandwidth of the network, GB/s per rank in each direction, at least 1e-6; 0 takes that "
      "of --network" },
    { "latency", OPTIONS_REAL, &o.latency, "0", 0, 1e6, NULL,
      "microseconds per collective, with --bandwidth" },
    { "batch", OPTIONS_INT, &o.batch, "0", 0, 1 << 20, NULL, "rows per step; 0 takes the model's" },
    { "micro-batch", OPTIONS_INT, &o.rows, "0", 0, 1 << 20, NULL,
      "rows per pass of a rank; 0 takes the model's, or fewer if a rank has fewer" },
    { "virtual-ranks", OPTIONS_INT, &o.virtual_ranks, "0", 0, 1 << 20, NULL,
      "parts of a batch with separate gradient sums; 0 takes the number of ranks" },
    { "budget", OPTIONS_BYTES, &o.budget, "0", 0, 9007199254740992.0, NULL,
      "memory of a rank; 0 takes the model's, 8, 32 or 80 GB" },
    { "overlap", OPTIONS_INT, &o.overlap, "1", 0, 1, NULL,
      "if 1, all-gathers of sharded values overlap computation; if 0, each is issued at its "
      "first use" },
    { "flops", OPTIONS_REAL, &o.flops, "50", 0.001, 1e6, NULL,
      "10^12 floating-point operations per second; 50 is about an H200 in fp32" },
    { "memory-bandwidth", OPTIONS_REAL, &o.mem_bandwidth, "4.8", 0.0001, 1e6, NULL,
      "10^12 bytes of device memory per second" },
    { "json", OPTIONS_FILE, &o.json, NULL, 0, 0, NULL,
      "write one JSON object per line; - writes to standard output" },
    { "help", OPTIONS_FLAG, &o.help, NULL, 0, 0, NULL, "print this text" },
};
static const options_table options = { "simulate", option_descs, sizeof option_descs / sizeof option_descs[0],
                                       18,         "NAME",  NULL,
                                       0,          NULL };
static const char *const groups[] = { "Model and plan",
                                      "model batch micro-batch virtual-ranks shard budget overlap",
                                      "Machine",
                                      "ranks network bandwidth latency flops memory-bandwidth",
                                      "Reports",
                                      "json help",
                                      NULL };

/* ---- models ---------------------------------------------------------------------------------- */
static gckpt_tensor *build(const model *m, gckpt_graph *g, int64_t n)
{
    const gckpt_shape shape = gckpt_shape2(n, m->context);
    gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, shape);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    model_any built;
    if (m->inner > 0) {
        llama_new(&built, m->layers, m->width, m->heads, m->heads, m->context, m->vocabulary);
        built.config.inner = m->inner;
        built.config.tied = 0;
    } else {
        gpt2_new(&built, m->layers, m->heads, m->width, m->context, m->vocabulary);
    }
    return model_loss(&built, model_hidden(&built, tokens, NULL), targets);
}

/* ---- plans ----------------------------------------------------------------------------------- */
typedef struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_plan *plan;
    int64_t parameters;
    double planning; /* time that planning took, in seconds */
    /* if there is no plan, the bytes that a plan needs, or 0 after another error */
    size_t least;
} plan_result;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static simulate_machine machine(int network)
{
    simulate_machine m = { 1e12 * o.flops, 1e12 * o.mem_bandwidth, 1, nvlink, nvlink, 0 };
    m.node_size = network == 0 ? 8 : 1;
    m.inter_node = network == 1 ? nvlink : network == 3 ? link_10gb : link_100gb;
    if (o.bandwidth > 0) {
        m.node_size = 1;
        m.inter_node.bandwidth = 1e9 * o.bandwidth;
        m.inter_node.latency = 1e-6 * o.latency;
    }
    return m;
}

/* Returns gckpt_plan_desc.ranks.link_cost, which is the cost of gathering 2^20 bytes from `ranks`
 * ranks. */
static uint64_t link_cost(const simulate_machine *m, int ranks)
{
    const double near = m->node_size < ranks ? m->node_size : ranks;
    const double seconds = (1 - 1 / near) / m->intra_node.bandwidth +
                           (1 / near - 1 / (double)ranks) / m->inter_node.bandwidth;
    const double cost = m->throughput * seconds * 1048576;
    return cost < 1e19 ? (uint64_t)cost : UINT64_MAX;
}

static plan_result plan(const model *m, const simulate_ranks *r, const simulate_machine *at)
{
    plan_result p;
    gckpt_plan_desc desc;
    gckpt_parameter q;
    gckpt_term loss = { NULL, 1, 0 };
    const double start = now();
    memset(&p, 0, sizeof p);
    memset(&desc, 0, sizeof desc);
    desc.batch = o.batch > 0 ? o.batch : m->batch;
    const int64_t most = (desc.batch + r->virtual_ranks - 1) / r->virtual_ranks,
                  n = o.rows > 0 ? o.rows : m->rows;
    desc.ranks.virtual_ranks = r->virtual_ranks;
    desc.budget = o.budget > 0 ? (size_t)o.budget : (size_t)m->budget;
    desc.ranks.link_cost = r->shard == GCKPT_SHARD_VALUES ? link_cost(at, r->ranks) : 0;
    desc.ranks.overlap = o.overlap != 0;
    p.store = gckpt_store_new(NULL);
    gckpt_store_ranks(p.store, r->rank, r->ranks, r->shard);
    p.graph = gckpt_graph_new(p.store, NULL);
    loss.loss = build(m, p.graph, n < most ? n : most);
    p.plan = gckpt_plan_new(p.graph, &loss, 1, &desc);
    for (int i = 0; gckpt_store_peek(p.store, i, &q) == GCKPT_OK; i++)
        p.parameters += q.elements;
    const char *least = strstr(gckpt_error_text(p.graph), "at least ");
    if (p.plan == NULL && gckpt_error(p.graph) == GCKPT_E_BUDGET && least != NULL)
        p.least = (size_t)strtod(least + strlen("at least "), NULL);
    p.planning = now() - start;
    return p;
}

static void plan_result_free(plan_result *p)
{
    gckpt_plan_free(p->plan);
    gckpt_graph_free(p->graph);
    gckpt_store_free(p->store);
}

/* ---- output ---------------------------------------------------------------------------------- */
static void write_json(FILE *f, const model *m, const simulate_ranks *r, int network, const plan_result *p,
                      const simulate_step *s)
{
    const gckpt_plan_info info = gckpt_plan_describe(p->plan);
    static const char *const kinds[] = { "parameters", "state",   "gradients", "activations",
                                         "workspace",  "tables",  "caches",    "reduction",
                                         "gathered",   "host_state" };
    enum { ALL_HAVE_NAMES = 1 / (sizeof kinds / sizeof *kinds == GCKPT_BYTES_KINDS) };
    char text[512];
    fprintf(f,
            "{\"model\":\"%s\",\"parameters\":%lld,\"ranks\":%d,\"virtual_ranks\":%d,\"shard\":\"%s\","
            "\"network\":\"%s\"",
            m->name, (long long)p->parameters, r->ranks, r->virtual_ranks, shard_names[r->shard],
            o.bandwidth > 0 ? "given" : network_names[network]);
    if (p->plan == NULL) {
        fprintf(f, ",\"least_bytes\":%zu}\n", p->least);
        return;
    }
    fprintf(f, ",\"batch\":%lld,\"micro_batch\":%lld,\"bytes\":%zu",
            (long long)info.batch, (long long)info.rows,
            gckpt_plan_bytes(p->plan));
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        fprintf(f, ",\"%s_bytes\":%zu", kinds[i], gckpt_plan_kind_bytes(p->plan, i));
    snprintf(text, sizeof text,
             ",\"overhead\":%.6g,\"planning_seconds\":%.3f,\"seconds\":%.6g,\"compute\":%.6g,"
             "\"exposed\":%.6g,\"communication_seconds\":%.6g,\"bytes_sent\":%llu,\"exchanges\":%llu}\n",
             info.overhead, p->planning, s->seconds, s->compute, s->exposed, s->comm,
             (unsigned long long)s->sent, (unsigned long long)s->exchanges);
    json_write_finite(f, text);
}

/* Prints the memory of a rank in GB, in four columns: weights and optimiser state; gradients and
 * reduction buffers; gathered values; activations with their gradients and workspace. */
static void print_bytes(const simulate_ranks *r, const plan_result *p)
{
    const gckpt_plan_info info = gckpt_plan_describe(p->plan);
    double kind[GCKPT_BYTES_KINDS];
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        kind[i] = 1e-9 * (double)gckpt_plan_kind_bytes(p->plan, i);
    const int64_t most = info.rows;
    /* number of rows of a virtual rank */
    const int64_t rows = (info.batch + r->virtual_ranks - 1) / r->virtual_ranks;
    printf("| %d | %s | %lld x %lld | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f %%", r->ranks,
           shard_titles[r->shard], (long long)(r->virtual_ranks / r->ranks * ((rows + most - 1) / most)),
           (long long)most, 1e-9 * (double)gckpt_plan_bytes(p->plan),
           kind[GCKPT_BYTES_PARAMETERS] + kind[GCKPT_BYTES_STATE],
           kind[GCKPT_BYTES_GRADIENTS] + kind[GCKPT_BYTES_REDUCTION], kind[GCKPT_BYTES_GATHERED],
           kind[GCKPT_BYTES_ACTIVATIONS] + kind[GCKPT_BYTES_WORKSPACE],
           100 * info.overhead);
}

static int first_network(void) { return o.bandwidth > 0 ? 2 : o.network < NETWORKS ? (int)o.network : 0; }
static int last_network(void) { return o.network < NETWORKS || o.bandwidth > 0 ? first_network() : NETWORKS - 1; }

/* Simulates a step on every network. If the plan depends on the network, makes one for each.
 * Returns 1, or 0 after an error. */
static int simulate(const model *m, simulate_ranks r, FILE *events)
{
    plan_result p;
    int printed = 0;
    memset(&p, 0, sizeof p);
    for (int network = first_network(); network <= last_network(); network++) {
        const simulate_machine at = machine(network);
        if (p.store == NULL || r.shard == GCKPT_SHARD_VALUES) {
            plan_result_free(&p);
            p = plan(m, &r, &at);
        }
        if (p.plan == NULL && p.least == 0)
            break;
        simulate_step s;
        memset(&s, 0, sizeof s);
        if (p.plan != NULL)
            s = simulate_run(p.plan, p.graph, &r, &at);
        if (events != NULL)
            write_json(events, m, &r, network, &p, &s);
        if (events != stdout && p.plan == NULL && !printed)
            printf("| %d | %s | - | needs %.1f | | | | | |", r.ranks, shard_titles[r.shard],
                   1e-9 * (double)p.least);
        else if (events != stdout && p.plan != NULL && !printed)
            print_bytes(&r, &p);
        if (events != stdout && p.plan != NULL && !printed)
            printf(" | %.1f", 1e-9 * (double)s.sent);
        if (events != stdout && p.plan != NULL)
            printf(" | %.2f (%.2f)", s.seconds, s.exposed);
        else if (events != stdout)
            printf(" |");
        printed = 1;
    }
    const int good = printed && (p.plan != NULL || p.least > 0);
    if (events != stdout && printed)
        printf(" |\n");
    if (!good)
        fprintf(stderr, "simulate: %s, %d ranks: %s\n", m->title, r.ranks,
                gckpt_error_text(p.graph));
    plan_result_free(&p);
    return good;
}

/* Reads the numbers in --ranks. Returns how many they are, or 0 if one of them is not a power of
 * two. */
static int read_ranks(int *to)
{
    int n = 0;
    const char *s = o.ranks;
    char *end;
    while (*s != 0 && n < MAX_RANKS) {
        const long v = strtol(s, &end, 10);
        if (end == s || v < 1 || v > 1 << 20 || (v & (v - 1)) != 0 || (*end != 0 && *end != ','))
            return 0;
        to[n++] = (int)v;
        s = end + (*end == ',');
    }
    return *s == 0 ? n : 0;
}

/* Checks the options and reads --ranks. Returns 0, or prints the error and returns an exit
 * status. */
static int check_options(int *ranks, int *count)
{
    *count = read_ranks(ranks);
    if (*count == 0) {
        fprintf(stderr, "simulate: --ranks %s: allowed are up to %d powers of two, such as 8,64\n",
                o.ranks, MAX_RANKS);
        return 2;
    }
    if ((o.virtual_ranks & (o.virtual_ranks - 1)) != 0) {
        fprintf(stderr, "simulate: --virtual-ranks %lld: allowed is 0 or a power of two\n",
                (long long)o.virtual_ranks);
        return 2;
    }
    /* with a smaller bandwidth, the duration of a step overflows */
    if (o.bandwidth > 0 && o.bandwidth < 1e-6) {
        fprintf(stderr, "simulate: --bandwidth %g: allowed is 0, or from 1e-6 to 1e6\n",
                o.bandwidth);
        return 2;
    }
    return 0;
}

static int simulate_model(const model *m, const int *ranks, int count, FILE *events)
{
    if (events != stdout) {
        printf("\n%s, %lld tokens a step, %.0f GB a rank\n\n| ranks | shard | micro-batches | GB a "
               "rank | weights, state | gradients | gathered | activations | recomputed | GB sent",
               m->title, (long long)((o.batch > 0 ? o.batch : m->batch) * m->context),
               1e-9 * (o.budget > 0 ? (double)o.budget : m->budget));
        for (int i = first_network(); i <= last_network(); i++)
            printf(" | %s", o.bandwidth > 0 ? "s" : network_titles[i]);
        printf(" |\n|---|---|---|---|---|---|---|---|---|---");
        for (int i = first_network(); i <= last_network(); i++)
            printf("|---");
        printf("|\n");
    }
    for (int i = 0; i < count; i++)
        for (int shard = 0; shard < SHARDS; shard++) {
            simulate_ranks r = { 0, ranks[i], o.virtual_ranks > 0 ? (int)o.virtual_ranks : ranks[i],
                                 (gckpt_shard)shard };
            if ((o.shard == SHARDS || o.shard == shard) && !simulate(m, r, events))
                return 0;
        }
    return 1;
}

int main(int argc, char **argv)
{
    int ranks[MAX_RANKS], count, good = 1;
    if (options_parse(&options, argc, argv) != 0)
        return 2;
    if (o.help) {
        printf("simulate - simulates a training step of many ranks from its plan\n\n"
               "Usage: simulate [--OPTION VALUE ..]\n\n"
               "Example:\n"
               "    simulate --model llama-7b --ranks 64 --shard values --network 10gb\n\n");
        options_print_groups(&options, groups);
        return fflush(stdout) != 0;
    }
    if (check_options(ranks, &count) != 0)
        return 2;
    FILE *events = o.json == NULL ? NULL : strcmp(o.json, "-") == 0 ? stdout : fopen(o.json, "w");
    if (o.json != NULL && events == NULL) {
        fprintf(stderr, "simulate: --json %s: %s\n", o.json, strerror(errno));
        return 1;
    }
    for (int i = 0; i < MODELS && good; i++)
        if (o.model == i || (o.model == MODELS && i > 0))
            good = simulate_model(&models[i], ranks, count, events);
    if (events != NULL && events != stdout && fclose(events) != 0) {
        fprintf(stderr, "simulate: --json %s: %s\n", o.json, strerror(errno));
        good = 0;
    }
    if (fflush(stdout) != 0) {
        fprintf(stderr, "simulate: standard output: %s\n", strerror(errno));
        good = 0;
    }
    return !good;
}
