/* fuzz_plans.c - reads any bytes as a plan: gckpt_plan_read for graphs of several kinds.
 *
 * The first 4 bytes choose the graph, the allocation that fails, where the file ends and whether the plan runs. The
 * rest is the file, a sequence of 64-bit numbers. A file that is refused only for its hash is read again with the
 * right hash, so that mutations need not find the hash. The rules:
 * - No crash. A refusal is reported as the graph's error, with a text without control characters.
 * - Whatever is in the file, an accepted plan is right: tests/plan_check.h, which shares no code with the reader,
 *   finds no fault; a step gives exactly the loss and weights of a store-all plan; and the measured bytes are
 *   within the arena.
 * - A plan that was read can be written, read and written again, to the same bytes.
 * - All blocks are freed with the sizes with which they were allocated. */
#include "gradckpt.h"
#include "fuzz.h"
#include "plan_check.h"

enum { OPTIONS = 4, GRAPHS = 7, ROWS = 4, WORDS = 4096, TERMS = 3, FEEDS = 3 };

/* ---- graphs ---- */
typedef struct {
    fuzz_memory memory;
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_term terms[TERMS];
    int term_count, feed_count;
    gckpt_feed feeds[FEEDS];
    gckpt_tensor *middle, *first; /* middle: a tensor to fetch; first: a tensor with a policy */
} net;

static float floats[2 * ROWS][256], targets[2 * ROWS][64];
static int32_t tokens[2 * ROWS][8], classes[2 * ROWS][8];

static gckpt_tensor *weight(net *n, const char *name, int64_t a, int64_t b)
{
    static const gckpt_init normal = { 0.3f, 0, 0 };
    return gckpt_param(n->graph, name, b > 0 ? gckpt_shape2(a, b) : gckpt_shape1(a), normal);
}

static gckpt_tensor *input(net *n, const char *name, gckpt_type type, gckpt_shape shape,
                           const void *data)
{
    gckpt_tensor *t = gckpt_input(n->graph, name, type, shape);
    const gckpt_feed feed = { gckpt_id(t), data };
    n->feeds[n->feed_count++] = feed;
    return t;
}

static void minimise(net *n, gckpt_tensor *loss, float weight, int regulariser)
{
    const gckpt_term term = { loss, weight, regulariser };
    n->terms[n->term_count++] = term;
}

/* Builds the graph of a kind. Kind 0 has layers; 1 two losses, a regulariser, policies and a segment; 2 attention;
 * 3 images; 4 larger layers, for which micro-batches save memory; 5 gates; 6 ops over (B, T, C) without gradients,
 * which run in row tiles when memory is short. */
static void net_begin(net *n, int kind)
{
    memset(n, 0, sizeof *n);
    n->memory.most = (size_t)1 << 26;
    n->store = gckpt_store_new(NULL);
    gckpt_graph *g = n->graph = gckpt_graph_new(n->store, NULL);
    gckpt_tensor *x, *y, *h;
    if (kind == 2) {
        gckpt_tensor *ids = input(n, "ids", GCKPT_I32, gckpt_shape2(ROWS, 8), tokens);
        y = input(n, "y", GCKPT_I32, gckpt_shape2(ROWS, 8), classes);
        x = n->first = gckpt_embed(weight(n, "table", 16, 8), ids);
        h = gckpt_rmsnorm(x, weight(n, "gain", 8, 0), 0);
        h = gckpt_attention(gckpt_linear(h, weight(n, "q", 8, 8), NULL), gckpt_linear(h, weight(n, "k", 8, 8), NULL),
                            gckpt_linear(h, weight(n, "v", 8, 8), NULL),
                            &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
        h = n->middle = gckpt_add(x, gckpt_dropout(h, 0.1f));
        minimise(n, gckpt_cross_entropy(gckpt_linear(h, weight(n, "head", 8, 16), NULL), y, NULL, 0), 1, 0);
        return;
    }
    if (kind == 3) {
        static const gckpt_init normal = { 0.3f, 0, 0 };
        static const gckpt_window two = { { 2, 2 }, { 0, 0 }, { 0, 0 }, { 0, 0 }, 0, { 0, 0 } };
        x = input(n, "x", GCKPT_F32, gckpt_shape4(ROWS, 8, 8, 2), floats);
        y = input(n, "y", GCKPT_I32, gckpt_shape1(ROWS), classes);
        h = n->first = gckpt_relu(
            gckpt_conv2d(x, gckpt_param(g, "c", gckpt_shape4(3, 3, 2, 4), normal), NULL, NULL));
        h = n->middle = gckpt_max_pool(h, &two);
        h = gckpt_reshape(h, gckpt_shape2(ROWS, -1));
        minimise(n, gckpt_cross_entropy(gckpt_linear(h, weight(n, "head", 36, 8), NULL), y, NULL, 0), 1, 0);
        return;
    }
    if (kind == 6) {
        x = input(n, "x", GCKPT_F32, gckpt_shape3(ROWS, 32, 8), floats);
        y = input(n, "y", GCKPT_F32, gckpt_shape2(ROWS, 8), targets);
        h = gckpt_relu(gckpt_linear(x, weight(n, "w0", 8, 64), NULL));
        h = gckpt_mean(gckpt_linear(h, weight(n, "w1", 64, 8), NULL), 1);
        MUST(gckpt_store_freeze(n->store, "w0", 1) == GCKPT_OK);
        MUST(gckpt_store_freeze(n->store, "w1", 1) == GCKPT_OK);
        h = n->first = n->middle = gckpt_linear(h, weight(n, "head", 8, 8), NULL);
        minimise(n, gckpt_mean_squared_error(h, y, NULL), 1, 0);
        return;
    }
    const int wide = kind == 4 ? 64 : 8, layers = kind == 1 ? 5 : kind == 4 ? 6 : 3;
    x = h = input(n, "x", GCKPT_F32, gckpt_shape2(ROWS, 8), floats);
    y = input(n, "y", GCKPT_F32, gckpt_shape2(ROWS, 8), targets);
    for (int i = 0; i < layers; i++) {
        const char name[] = { 'w', (char)('0' + i), 0 }, bias[] = { 'b', (char)('0' + i), 0 };
        if (kind == 1 && i == 2)
            gckpt_segment_begin(g);
        const int to = i == layers - 1 ? 8 : wide;
        h = gckpt_linear(h, weight(n, name, i == 0 ? 8 : wide, to), weight(n, bias, to, 0));
        h = kind == 5 ? gckpt_mul(gckpt_sigmoid(h), gckpt_tanh(h)) : gckpt_gelu(h);
        if (kind == 1 && i == 3)
            gckpt_segment_end(g);
        n->first = i == 0 ? h : n->first;
        n->middle = i == 1 ? h : n->middle;
    }
    if (kind == 1) {
        gckpt_keep(n->first);
        gckpt_recompute(n->middle);
        gckpt_tensor *w = weight(n, "w0", 8, 8);
        minimise(n, gckpt_mean_squared_error(n->middle, y, NULL), 0.5f, 0);
        minimise(n, gckpt_sum_loss(gckpt_mul(w, w)), 0.25f, 1);
        MUST(gckpt_store_freeze(n->store, "b1", 1) == GCKPT_OK);
    }
    minimise(n, gckpt_mean_squared_error(h, y, NULL), 1, 0);
}

static void net_end(net *n)
{
    gckpt_graph_free(n->graph);
    gckpt_store_free(n->store);
    MUST(n->memory.live == 0);
}

/* ---- the parts of a plan file on which the bits of a step depend, and the result of a step ---- */
/* Offsets of the numbers of a plan file (see export/export.h) that follow the numbers of the tensors. */
enum {
    LEAST_WORK,
    PROVEN_WORK,
    OFFLOAD_WORK,
    COMM_COST,
    BATCH,
    MODE,
    OPTIMISER,
    STATE_SLOTS,
    IN_BACKWARD,
    THREADS,
    MADE_FOR,
    PRECISION,
    LOWERING,
    FUSED,
    VIRTUAL_RANKS,
    RANKS,
    SHARD,
    OVERLAP,
    ALIGNMENT,
    PROVEN_BYTES,
    OFFLOADED,
    TERM_COUNT,
    NUMBERS
};
/* Returns the index at which those numbers begin. They are followed by five numbers for each loss term, then fetches,
 * then instructions. */
static size_t numbers_at(const uint64_t *words) { return 4 + 3 * (size_t)words[3]; }

/* Returns the index of the number of instructions in the file, or 0 if it is not within the first `count` words. */
static size_t list_at(const uint64_t *words, size_t count)
{
    if (count < 8 || words[3] > 200 || numbers_at(words) + NUMBERS >= count)
        return 0;
    size_t at = numbers_at(words) + NUMBERS;
    const uint64_t terms = words[at - 1];
    if (terms > 8 || at + 5 * terms >= count)
        return 0;
    at += 5 * (size_t)terms;
    if (words[at] > 16 || at + 1 + 2 * words[at] >= count)
        return 0;
    at += 1 + 2 * (size_t)words[at];
    return words[at] < count - at - 1 ? at : 0;
}

typedef struct {
    gckpt_result result;
    double loss;
    uint64_t weights;
} outcome;

static void own_optimiser(void *user, const gckpt_update *u)
{
    (void)user;
    for (int64_t i = 0; i < u->elements; i++)
        u->values[i] -= 0.0625f * (u->gradient ? u->gradient[i] : 0);
}

static void any_order(void *user, int64_t n, void (*body)(void *context, int64_t i), void *context)
{
    (void)user;
    while (n-- > 0)
        body(context, n);
}

/* Takes a step of the plan in a new store. The arena is filled with a pattern, so that reading unwritten bytes
 * changes the result. */
static outcome run(net *n, const gckpt_plan *p, int64_t rows, int train, unsigned debug)
{
    outcome out = { GCKPT_E_MEMORY, 0, 0 };
    gckpt_exec_desc desc;
    gckpt_report report = { 0, 0, 0, 0 };
    memset(&desc, 0, sizeof desc);
    desc.memory = fuzz_memory_of(&n->memory);
    desc.debug = debug;
    desc.custom_optimiser = own_optimiser;
    desc.parallel_for = any_order;
    const gckpt_hyper hyper = gckpt_hyper_lr(0.01f);
    gckpt_exec *e = gckpt_exec_new(p, n->store, &desc);
    if (e) {
        out.result = train ? gckpt_step(e, n->feeds, n->feed_count, rows, &hyper, &report)
                           : gckpt_forward(e, n->feeds, n->feed_count, rows, &report);
        if (out.result != GCKPT_OK)
            fprintf(stderr, "step: %s\n", gckpt_error_text(e));
    }
    gckpt_exec_free(e);
    out.loss = report.loss;
    out.weights = gckpt_store_hash(n->store);
    return out;
}

static float float_of(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float x;
    memcpy(&x, &low, 4);
    return x;
}

/* Returns the result of a store-all plan that agrees with the file in everything that the bits depend on. Keeps
 * results for later calls. */
static outcome wanted(int kind, const uint64_t *words, int64_t rows)
{
    static struct {
        uint64_t key[6 + 2 * TERMS];
        outcome out;
    } known[64];
    static int next;
    const uint64_t *in = words + numbers_at(words), terms = in[TERM_COUNT];
    uint64_t key[6 + 2 * TERMS] = { (uint64_t)kind, in[OPTIMISER], in[STATE_SLOTS],
                                    in[PRECISION],  in[VIRTUAL_RANKS],    in[BATCH] };
    MUST(terms <= TERMS);
    for (uint64_t i = 0; i < terms; i++) {
        key[6 + 2 * i] = 1 + 2 * in[NUMBERS + 5 * i] + in[NUMBERS + 5 * i + 2];
        key[7 + 2 * i] = in[NUMBERS + 5 * i + 1];
    }
    for (int i = 0; i < 64; i++)
        if (key[5] > 0 && memcmp(key, known[i].key, sizeof key) == 0)
            return known[i].out;
    net n;
    net_begin(&n, kind);
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.mode = GCKPT_STORE_ALL;
    desc.as_built = 1;
    desc.optimiser = (gckpt_optimiser)in[OPTIMISER];
    desc.custom_state = desc.optimiser == GCKPT_CUSTOM_OPTIMISER ? (int)in[STATE_SLOTS] : 0;
    desc.precision = (gckpt_precision)in[PRECISION];
    desc.virtual_ranks = (int)in[VIRTUAL_RANKS];
    desc.batch = (int64_t)in[BATCH];
    gckpt_term list[TERMS];
    for (uint64_t i = 0; i < terms; i++) {
        const uint64_t *t = in + NUMBERS + 5 * i;
        list[i].loss = NULL;
        for (int k = 0; k < n.term_count; k++)
            if (gckpt_id(n.terms[k].loss) == (int)t[0])
                list[i].loss = n.terms[k].loss;
        list[i].weight = float_of(t[1]);
        list[i].regulariser = (int)t[2];
    }
    gckpt_plan *p = gckpt_plan_new(n.graph, list, (int)terms, &desc);
    if (!p)
        fprintf(stderr, "%s\n", gckpt_error_text(n.graph));
    MUST(p != NULL);
    memcpy(known[next].key, key, sizeof key);
    known[next].out = run(&n, p, rows, 1, 0);
    gckpt_plan_free(p);
    net_end(&n);
    next = (next + 1) % 64;
    return known[(next + 63) % 64].out;
}

/* ---- one input ---- */
static const uint64_t start = UINT64_C(0xcbf29ce484222325);
static uint64_t fnv(const uint8_t *bytes, size_t n)
{
    uint64_t hash = start;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void put_little(uint8_t *bytes, uint64_t n)
{
    for (int i = 0; i < 8; i++, n >>= 8)
        bytes[i] = (uint8_t)n;
}

static gckpt_plan *read_plan(net *n, fuzz_file *f, const uint8_t *o)
{
    const gckpt_memory memory = fuzz_memory_of(&n->memory);
    n->memory.fail = o[1] >= 128 ? n->memory.calls + 1 + 4 * (o[1] - 128) : 0;
    f->at = 0;
    gckpt_plan *p = gckpt_plan_read(n->graph, fuzz_read, f, &memory);
    n->memory.fail = 0;
    if (!p) {
        const char *text = gckpt_error_text(n->graph);
        MUST(gckpt_error(n->graph) > GCKPT_SKIPPED && text[0] != 0);
        for (; *text; text++)
            MUST((unsigned char)*text >= 0x20 && *text != 0x7f);
    }
    return p;
}

static void check_plan(net *n, const gckpt_plan *p, int kind, const uint8_t *o)
{
    static uint64_t words[WORDS];
    const char *problem = plan_check(p, n->graph, NULL);
    /* a loss may run after its backward in a file, though never in a plan made by the library; its bits are still
     * compared */
    if (problem && strstr(problem, "backward of") && strstr(problem, "comes before its forward"))
        problem = NULL;
    if (problem)
        fprintf(stderr, "wrong plan: %s\n", problem);
    MUST(problem == NULL);
    fuzz_file f = { NULL, 0, 0, 0, 0 }, again = f;
    MUST(gckpt_plan_write(p, fuzz_write, &f) == GCKPT_OK);
    gckpt_plan *same = gckpt_plan_read(n->graph, fuzz_read, &f, NULL);
    if (!same)
        fprintf(stderr, "%s\n", gckpt_error_text(n->graph));
    MUST(same && gckpt_plan_write(same, fuzz_write, &again) == GCKPT_OK);
    MUST(f.size == again.size && memcmp(f.bytes, again.bytes, f.size) == 0);
    gckpt_plan_free(same);
    MUST(f.size / 8 <= WORDS);
    for (size_t i = 0; i < f.size / 8; i++) {
        words[i] = 0;
        for (int k = 8; k-- > 0;)
            words[i] = words[i] << 8 | f.bytes[8 * i + (size_t)k];
    }
    fuzz_file_end(&f);
    fuzz_file_end(&again);
    const uint64_t *in = words + numbers_at(words);
    const int train = in[MODE] != GCKPT_INFERENCE;
    if ((o[3] & 1) == 0 || gckpt_plan_arena(p) > n->memory.most / 2)
        return;
    const int64_t rows = in[BATCH] > 2 * ROWS ? 2 * ROWS : (int64_t)in[BATCH];
    const outcome got =
        run(n, p, rows, train, o[3] & 2 ? GCKPT_DEBUG_POISON | GCKPT_DEBUG_RECOMPUTE : 0);
    if (!train || got.result == GCKPT_E_MEMORY)
        return;
    const outcome want = wanted(kind, words, rows);
    MUST(got.result == want.result);
    MUST(memcmp(&got.loss, &want.loss, sizeof want.loss) == 0 && got.weights == want.weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *o, size_t size)
{
    net n;
    if (size < OPTIONS || size - OPTIONS > 8 * WORDS)
        return 0;
    const int kind = o[0] % GRAPHS;
    fuzz_file f = { NULL, size - OPTIONS, 0, 0, 0 };
    f.bytes = (uint8_t *)malloc(f.size + 1);
    memcpy(f.bytes, o + OPTIONS, f.size);
    f.fail_at = o[2] >= 224 ? 1 + f.size * (size_t)(o[2] - 224) / 32 : 0;
    net_begin(&n, kind);
    gckpt_plan *p = read_plan(&n, &f, o);
    if (!p && strstr(gckpt_error_text(n.graph), "(its hash)")) {
        MUST(f.at >= 8);
        put_little(f.bytes + f.at - 8, fnv(f.bytes, f.at - 8));
        p = read_plan(&n, &f, o);
        MUST(p || !strstr(gckpt_error_text(n.graph), "(its hash)"));
    }
    if (p)
        check_plan(&n, p, kind, o);
    gckpt_plan_free(p);
    net_end(&n);
    fuzz_file_end(&f);
    return 0;
}

/* ---- mutations of any number of a plan file, and of its list of instructions ---- */
#define ONE_OF(list, d) (list)[fuzz_draw(d, sizeof(list) / sizeof *(list))]
static size_t change(uint64_t *w, size_t count, fuzz_draws *d)
{
    static const uint64_t odd[] = { 0,     1,         2,          3,         64,        4096,
                                    65536, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX };
    const size_t at = list_at(w, count);
    const size_t length = at > 0 ? (size_t)w[at] : 0;
    const size_t i = at + 1 + (length > 0 ? (size_t)fuzz_draw(d, length) : 0);
    const size_t k = at + 1 + (length > 0 ? (size_t)fuzz_draw(d, length) : 0);
    uint64_t kind = fuzz_draw(d, 12);
    uint64_t word = w[i];
    if (length == 0 && kind < 6)
        kind = 6 + kind % 6;
    switch (kind) {
    case 0: /* moves an instruction */
        if (i < k)
            memmove(w + i, w + i + 1, (k - i) * sizeof *w);
        else
            memmove(w + k + 1, w + k, (i - k) * sizeof *w);
        w[k] = word;
        return count;
    case 1: /* swaps two */
        w[i] = w[k];
        w[k] = word;
        return count;
    case 2: /* repeats one elsewhere */
        if (count == WORDS)
            return count;
        memmove(w + k + 1, w + k, (count - k) * sizeof *w);
        w[k] = word;
        w[at]++;
        return count + 1;
    case 3: /* removes one */
        memmove(w + i, w + i + 1, (count - i - 1) * sizeof *w);
        w[at]--;
        return count - 1;
    case 4: /* changes the instruction's kind or tensor */
        w[i] = fuzz_draw(d, 2) ? word ^ (1 + fuzz_draw(d, 7)) : word + 8 * fuzz_draw(d, 5) - 16;
        return count;
    case 5: { /* changes an offset of the instruction, the number of its offsets, or a number of the parameters */
        const size_t behind = at + 1 + length;
        const size_t j = behind + (size_t)fuzz_draw(d, count - behind);
        w[j] = fuzz_draw(d, 2) ? w[j] + 64 * fuzz_draw(d, 9) - 256
                               : w[behind + (size_t)fuzz_draw(d, count - behind)];
        return count;
    }
    case 6: { /* changes a number of the plan, of a loss term or of a fetch */
        const size_t from = count > 4 && w[3] < 200 && numbers_at(w) < count ? numbers_at(w) : 0;
        const size_t j = from + (size_t)fuzz_draw(d, NUMBERS + 8);
        if (j < count)
            w[j] = fuzz_draw(d, 2) ? ONE_OF(odd, d) : w[j] + fuzz_draw(d, 5) - 2;
        return count;
    }
    case 7: /* adds or removes a buffer at the end */
        if (count > 9 && fuzz_draw(d, 2))
            return count - 1;
        if (count < WORDS)
            w[count] = w[count - 1];
        return count < WORDS ? count + 1 : count;
    default: {
        const size_t j = (size_t)fuzz_draw(d, count);
        w[j] = fuzz_draw(d, 2) ? ONE_OF(odd, d) : w[j] + fuzz_draw(d, 9) - 4;
        return count;
    }
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed)
{
    static uint64_t words[WORDS];
    fuzz_draws d = { seed };
    const uint64_t kind = fuzz_draw(&d, 16);
    if (size < OPTIONS + 64 || size > OPTIONS + 8 * (WORDS - 8))
        return LLVMFuzzerMutate(bytes, size, most);
    if (kind == 0) {
        const uint64_t at = fuzz_draw(&d, OPTIONS);
        bytes[at] = (uint8_t)(at == 3            ? 1 + 2 * fuzz_draw(&d, 2)
                              : fuzz_draw(&d, 2) ? 0
                                                 : fuzz_draw(&d, 256));
        return size;
    }
    if (kind == 1)
        return OPTIONS + LLVMFuzzerMutate(bytes + OPTIONS, size - OPTIONS, most - OPTIONS);
    size_t count = (size - OPTIONS) / 8;
    for (size_t i = 0; i < count; i++) {
        words[i] = 0;
        for (int k = 8; k-- > 0;)
            words[i] = words[i] << 8 | bytes[OPTIONS + 8 * i + (size_t)k];
    }
    for (uint64_t n = 1 + fuzz_draw(&d, 3); n > 0; n--)
        count = change(words, count, &d);
    if (OPTIONS + 8 * count > most)
        return size;
    for (size_t i = 0; i < count; i++)
        put_little(bytes + OPTIONS + 8 * i, words[i]);
    return OPTIONS + 8 * count;
}

/* ---- seeds: plans of every mode and several options ---- */
static void seed(const char *folder, int kind, int way, int *number)
{
    net n;
    net_begin(&n, kind);
    gckpt_plan_desc desc;
    memset(&desc, 0, sizeof desc);
    const gckpt_fetch_spec fetches[] = { { n.middle, 0 }, { n.middle, 1 }, { n.first, 1 } };
    desc.mode = way < 4 ? (gckpt_mode)(GCKPT_STORE_ALL + way) : GCKPT_AUTO;
    desc.batch = way % 3 == 2 ? 2 * ROWS : ROWS;
    desc.virtual_ranks = way % 8 == 2 ? 4 : way % 8 == 5 ? 2 : 0;
    desc.update_in_backward = way % 8 == 3 && desc.batch == ROWS;
    desc.stage_parameters = way % 8 == 6;
    desc.precision = way % 8 == 7 ? GCKPT_BF16 : GCKPT_FP32;
    desc.optimiser = (gckpt_optimiser)(way % 4);
    desc.custom_state = desc.optimiser == GCKPT_CUSTOM_OPTIMISER ? 1 : 0;
    desc.threads = way % 5 == 4 ? 2 : 1;
    desc.fetch = fetches;
    desc.fetches = way % 4 == 1 ? 3 : 0;
    desc.offload_bytes = way % 8 == 4 ? 4096 : 0;
    desc.offload_cost = 1 << 20;
    desc.overlap_offload = way == 12;
    int terms = n.term_count;
    if (way == 15) {
        desc.mode = GCKPT_INFERENCE;
        desc.fetches = 1;
        terms = way % 2;
    }
    gckpt_plan *p = gckpt_plan_new(n.graph, n.terms, terms, &desc);
    for (int k = 0; p && way >= 4 && k < 3; k++) { /* plans with as few bytes as possible */
        desc.budget = gckpt_plan_bytes(p) - gckpt_plan_arena(p) / (size_t)(4 + way);
        gckpt_plan *smaller = gckpt_plan_new(n.graph, n.terms, terms, &desc);
        if (!smaller)
            break;
        gckpt_plan_free(p);
        p = smaller;
    }
    if (!p)
        fprintf(stderr, "graph %d, way %d: %s\n", kind, way, gckpt_error_text(n.graph));
    MUST(p != NULL);
    fuzz_file f = { NULL, 0, 0, 0, 0 };
    const uint8_t o[OPTIONS] = { (uint8_t)kind, 0, 0, 3 };
    fuzz_write(&f, o, OPTIONS);
    MUST(gckpt_plan_write(p, fuzz_write, &f) == GCKPT_OK);
    fuzz_seed(folder, (*number)++, f.bytes, f.size);
    MUST(LLVMFuzzerTestOneInput(f.bytes, f.size) == 0);
    gckpt_plan_free(p);
    fuzz_file_end(&f);
    net_end(&n);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *folder = getenv("FUZZ_SEEDS");
    int number = 0;
    (void)argc;
    (void)argv;
    for (int i = 0; i < 2 * ROWS; i++) {
        for (int k = 0; k < 256; k++)
            floats[i][k] = (float)((i * 31 + k * 7) % 19) / 8 - 1;
        for (int k = 0; k < 64; k++)
            targets[i][k] = (float)((i * 13 + k * 5) % 11) / 8 - 0.5f;
        for (int k = 0; k < 8; k++) {
            tokens[i][k] = (i * 5 + k * 3) % 16;
            classes[i][k] = (i * 3 + k) % 8;
        }
    }
    if (!folder)
        return 0;
    for (int kind = 0; kind < GRAPHS; kind++)
        for (int way = 0; way < 16; way++)
            seed(folder, kind, way, &number);
    exit(0);
}
