/* test_hash.c - the golden hash: one short training of nearly all ops gives the same bits for every plan,
 * micro-batch, thread count, compiler, option, processor and language.
 *
 * The sizes go just beyond the blocks of the numeric specification: 66 keys (tiles of 64), 1030 classes (chunks
 * of 1024), 5000 weights and more (norm blocks of 4096). Compiles as C99 and as C++11. If GOLDEN must change, the
 * numeric specification has changed: GCKPT_CONTRACT and the manual must change with it.
 *
 *     test_hash          the tests
 *     test_hash quick    fewer plans and one thread, for emulators
 *     test_hash plans    prints one hash of plans for fast kernels, which is also equal on all machines
 *     test_hash amx      prints the hash of the bf16 training with amx kernels only (or avx2, ..), for emulators */
#include "gradckpt.h"
#include "attention_block.h"
#include "check.h"

#define GOLDEN      UINT64_C(0x226066a7e94b0b8b)
#define GOLDEN_BF16 UINT64_C(0xf7e5630a0c19d425) /* of the training in bf16 */
/* Hash of plans under budgets, the same on every machine. It changes whenever a change of the planner leads to other
 * plans; then run this test and write the number that it prints here. */
#define PLANS UINT64_C(0x86b934ea8e1dc638)

enum { BATCH = 3, T = 66, C = 16, V = 1030, STEPS = 3 };

/* Each statement below creates one node or parameter, as in attention_block.h, so that the order of nodes does not
 * depend on the compiler. */

/* (B,T,C) -> (B,T,C): every nonlinearity. */
static gckpt_tensor *feed_forward(gckpt_tensor *x, void *user)
{
    (void)user;
    gckpt_tensor *quarter[4], *part[4];
    gckpt_tensor *a = gckpt_rmsnorm(x, weight(x, "rms.gain", C, 0), 0);
    gckpt_tensor *w = weight(x, "fc", C, 4 * C), *b = weight(x, "fc.bias", 4 * C, 0);
    a = gckpt_linear(a, w, b);
    for (int i = 0; i < 4; i++)
        quarter[i] = gckpt_slice(a, 2, i * C, (i + 1) * C);
    part[0] = gckpt_gelu(quarter[0]);
    part[1] = gckpt_silu(quarter[1]);
    part[1] = gckpt_mul(part[1], gckpt_sigmoid(quarter[0]));
    part[2] = gckpt_gelu_erf(gckpt_tanh(quarter[2]));
    part[3] = gckpt_relu(gckpt_sub(quarter[3], quarter[0]));
    a = gckpt_concat(part, 4, 2);
    a = gckpt_linear(a, weight(x, "out", 4 * C, C), NULL);
    return gckpt_add(gckpt_scale(x, 0.75f), a);
}

/* Full attention with 4 heads on (B,T,C), written with matmul and softmax; the result has the same shape. */
static gckpt_tensor *by_hand(gckpt_tensor *x, void *user)
{
    const int swap[4] = { 0, 2, 1, 3 };
    const int64_t rows = gckpt_shape_of(x).d[0];
    (void)user;
    gckpt_tensor *h = gckpt_reshape(x, gckpt_shape4(rows, T, 4, C / 4));
    h = gckpt_permute(h, swap, 4);
    gckpt_tensor *scores = gckpt_softmax(gckpt_scale(gckpt_matmul_transposed(h, h), 0.5f));
    h = gckpt_permute(gckpt_matmul(scores, h), swap, 4);
    h = gckpt_reshape(h, gckpt_shape3(rows, T, C));
    gckpt_tensor *pooled = gckpt_reshape(gckpt_mean(h, 1), gckpt_shape3(rows, 1, C));
    pooled = gckpt_mul(pooled, weight(x, "pool.gain", C, 0));
    return gckpt_add(h, pooled);
}

static gckpt_isa kernels = GCKPT_ISA_AUTO; /* the kernels that trainings use */
static const gckpt_backend *backend;       /* if NULL, the processor */
static gckpt_precision precision = GCKPT_FP32;
/* budget: budget of the next plans, or 0 for none; offloaded: bytes that the last plan offloads */
static size_t budget, offloaded;

static uint64_t train(gckpt_mode mode, int64_t micro, int threads, int update_in_backward,
                      double *loss)
{
    static int32_t tokens[BATCH * T], targets[BATCH * T];
    static float values[BATCH];
    for (int i = 0; i < BATCH * T; i++) {
        tokens[i] = (i * 379 + i / 7) % V;
        targets[i] = i % 11 == 3 ? -1 : (i * 211 + 17) % V;
        values[i % BATCH] = (float)(i % 5) - 2;
    }
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, 1234 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(micro, T));
    gckpt_tensor *target = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(micro, T));
    gckpt_tensor *value = gckpt_input(g, "value", GCKPT_F32, gckpt_shape1(micro));
    const gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), init);
    gckpt_tensor *x = gckpt_embed(table, in);
    x = gckpt_positions(x, weight(x, "places", T + 1, C), 0);
    x = gckpt_checkpoint(attention_block, x, NULL);
    x = gckpt_checkpoint(feed_forward, x, NULL);
    x = gckpt_checkpoint(by_hand, x, NULL);
    gckpt_tensor *guess = gckpt_mean(x, 1);
    guess = gckpt_linear(guess, weight(x, "value", C, 1), NULL);
    gckpt_term terms[3];
    terms[0].loss = gckpt_linear_cross_entropy(gckpt_layernorm(x, NULL, NULL, 0), table, target, NULL);
    terms[1].loss = gckpt_mean_squared_error(gckpt_sum(guess, 1), value, NULL);
    terms[2].loss = gckpt_sum_loss(gckpt_mul(table, table));
    for (int i = 0; i < 3; i++) {
        terms[i].weight = i == 0 ? 1.0f : i == 1 ? 0.5f : 0.01f;
        terms[i].regulariser = i == 2;
    }
    static gckpt_plan_desc desc;
    desc.mode = mode;
    desc.batch = BATCH;
    desc.threads = threads;
    desc.update_in_backward = update_in_backward;
    desc.backend = backend;
    desc.bf16.precision = precision;
    desc.budget = budget;
    desc.offload.bytes = budget > 0 ? 1 << 20 : 0; /* offloading at almost no cost */
    desc.offload.cost = 1;
    gckpt_plan *p = gckpt_plan_new(g, terms, 3, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    offloaded = p ? gckpt_plan_describe(p).offloaded : 0;
    static gckpt_exec_desc how; /* the automatic kernels use OpenMP if it is available */
    how.isa = kernels;
    how.backend = backend;
    how.parallel_for = kernels == GCKPT_ISA_AUTO ? NULL : any_order;
    how.debug = kernels == GCKPT_ISA_AUTO ? 0 : GCKPT_DEBUG_POISON;
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(p == NULL || e != NULL, "%s", gckpt_error_text(s));
    CHECK(kernels == GCKPT_ISA_AUTO || gckpt_exec_isa(e) == kernels);
    gckpt_feed feeds[3] = { { gckpt_id(in), tokens },
                            { gckpt_id(target), targets },
                            { gckpt_id(value), values } };
    gckpt_hyper hyper = { 0, 0.1f, 0, 0.99f, 0, 0, update_in_backward ? 0 : 0.5f };
    gckpt_report report = { 0, 0, 0, 0 };
    for (uint64_t step = 0; step < STEPS && e != NULL; step++) {
        hyper.lr = gckpt_lr_cosine(step, 1, STEPS, 0.01f, 0.001f);
        CHECK_MSG(gckpt_step(e, feeds, 3, BATCH, &hyper, &report) == GCKPT_OK, "%s",
                  gckpt_error_text(e));
    }
    *loss = report.loss;
    uint64_t hash = gckpt_store_hash(s);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return hash;
}

/* ---- plans must have the same instructions and offsets on every machine ---- */
static uint64_t mix(uint64_t hash, uint64_t number)
{
    for (int i = 0; i < 64; i += 8)
        hash = (hash ^ (number >> i & 255)) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_plan(uint64_t hash, const gckpt_plan *p)
{
    gckpt_instruction in = { GCKPT_FORWARD, 0 };
    gckpt_buffer b = { 0, 0, 0, 0, 0, GCKPT_BUFFER_VALUE };
    for (int i = 0; gckpt_plan_get(p, i, &in) == GCKPT_OK; i++)
        hash = mix(mix(hash, (uint64_t)in.kind), (uint64_t)in.id);
    uint64_t buffers = 0; /* their order says nothing */
    for (int i = 0; gckpt_plan_buffer(p, i, &b) == GCKPT_OK; i++)
        buffers += mix(mix(mix(mix(1, b.offset), b.size), (uint64_t)b.start), (uint64_t)b.end);
    return mix(mix(mix(hash, buffers), gckpt_plan_bytes(p)), gckpt_plan_describe(p).cost);
}

/* Builds a random network of `ops` ops: long and short skip connections, shared weights, wide and narrow layers. It
 * does not use net.h, whose nets change whenever an op is added, while PLANS must not change. */
static gckpt_term random_net(gckpt_graph *g, int ops, uint64_t *random)
{
    gckpt_tensor *at[128];
    const gckpt_init init = { 0, 0.1f, 0 };
    at[0] = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(4, 8));
    for (int i = 1; i < ops; i++) {
        char name[3] = { 'w', (char)('a' + i % 5), 0 };
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const unsigned draw = (unsigned)(*random >> 33), kind = draw % 8, back = draw / 8 % 16;
        gckpt_tensor *x = at[i - 1], *old = at[(int)back < i ? i - 1 - (int)back : 0];
        if (kind < 3) {
            const gckpt_tensor *in = x;
            int64_t width = gckpt_shape_of(in).d[1];
            gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(8, 8), init);
            x = width == 8 ? gckpt_linear(x, w, NULL) : gckpt_slice(x, -1, 8, 16);
        } else if (kind == 3) {
            x = gckpt_layernorm(x, NULL, NULL, 0);
        } else if (kind == 4) {
            gckpt_tensor *pair[2];
            pair[0] = pair[1] = x;
            x = gckpt_shape_of(x).d[1] < 32 ? gckpt_concat(pair, 2, 1) : gckpt_gelu(x);
        } else if (gckpt_shape_of(old).d[1] == gckpt_shape_of(x).d[1]) {
            x = kind == 5 ? gckpt_mul(x, old) : gckpt_add(x, old);
        } else {
            x = gckpt_silu(x);
        }
        at[i] = draw % 31 == 7 ? gckpt_keep(x) : x;
    }
    gckpt_tensor *out = gckpt_slice(at[ops - 1], -1, 0, 8);
    gckpt_tensor *w = gckpt_param(g, "last", gckpt_shape2(8, 8), init);
    gckpt_term term = { gckpt_mean_squared_error(gckpt_linear(out, w, NULL), y, NULL), 1, 0 };
    return term;
}

/* Returns a hash of plans. If threads is 0, these are plans for plain kernels; otherwise they contain scratch memory
 * for fast kernels. */
static uint64_t plans(int threads)
{
    static const int ops[] = { 8, 10, 40, 110 };
    uint64_t hash = UINT64_C(0xcbf29ce484222325), random = 1;
    for (int i = 0; i < 4; i++) {
        static gckpt_plan_desc desc;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        const gckpt_term term = random_net(g, ops[i], &random);
        desc.batch = i % 2 ? 10 : 0;
        desc.kernels.alignment = i % 3 ? 64 : 4;
        desc.kernels.plain = threads == 0;
        desc.threads = threads;
        gckpt_frontier *f = gckpt_frontier_new(g, &term, 1, &desc);
        int n = gckpt_frontier_describe(f).points;
        CHECK_MSG(n > 0, "%s", gckpt_error_text(g));
        for (int k = 0; k < n; k++) {
            gckpt_point point = { 0, 0, 0, 0, 0 };
            gckpt_frontier_get(f, k, &point);
            hash = mix(mix(hash, point.bytes), point.cost);
            gckpt_plan *p = k % 4 == 0 ? gckpt_frontier_plan(f, point.bytes) : NULL;
            hash = p ? hash_plan(hash, p) : hash;
            gckpt_plan_free(p);
        }
        gckpt_frontier_free(f);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
    return hash;
}

/* Trains with all kernels that this build and machine have, with several plans and splits, and with 1 to `most`
 * threads; compares the hashes with `golden`, and the first loss with `first`. */
static void by_all_kernels(uint64_t golden, double first, int most)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    double loss;
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
        for (int threads = 1; threads <= most && gckpt_isa_available((gckpt_isa)isa); threads++) {
            kernels = (gckpt_isa)isa;
            uint64_t got = train(modes[threads - 1], threads, threads, 0, &loss);
            CHECK_MSG(got == golden && loss == first,
                      "golden hash of %s, precision %d, %d threads: %016llx, loss %.17g",
                      isa_name(kernels), (int)precision, threads, (unsigned long long)got,
                      loss);
        }
    kernels = GCKPT_ISA_AUTO;
}

int main(int argc, char **argv)
{
    double loss, first, clipped;
    uint64_t hash;
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    for (int isa = 0; argc > 1 && isa < GCKPT_ISA_COUNT; isa++)
        if (strcmp(argv[1], isa_name((gckpt_isa)isa)) == 0) {
            CHECK_MSG(gckpt_isa_available((gckpt_isa)isa), "no %s here", argv[1]);
            precision = GCKPT_BF16, kernels = (gckpt_isa)isa;
            for (int n = 1; n <= BATCH && !check_failed; n++) {
                hash = train(n % 2 ? GCKPT_STORE_ALL : GCKPT_MEMORY_POOR, n, n, 0, &loss);
                CHECK_MSG(hash == GOLDEN_BF16, "golden hash of %s, %d threads: %016llx", argv[1], n,
                          (unsigned long long)hash);
            }
            return check_report("hash");
        }
    if (argc > 1 && argv[1][0] == 'p') {
        uint64_t one = plans(1), two = plans(2), three = plans(3);
        printf("%016llx\n", (unsigned long long)mix(mix(one, two), three));
        return check_failed != 0;
    }
    hash = train(GCKPT_STORE_ALL, BATCH, 1, 0, &first);
    clipped = first;
    CHECK(hash == train(GCKPT_MEMORY_POOR, 1, 1, 0, &loss));
    CHECK(loss == first);
    if (!quick) {
        CHECK(hash == train(GCKPT_SEGMENTS, 2, 2, 0, &loss));
        CHECK(loss == first);
        CHECK(hash == train(GCKPT_SQRT, BATCH, 3, 0, &loss));
        CHECK(loss == first);
        CHECK(train(GCKPT_STORE_ALL, BATCH, 1, 1, &first) ==
              train(GCKPT_SEGMENTS, BATCH, 2, 1, &loss));
        CHECK(loss == first);
    }
    CHECK_MSG(hash == GOLDEN, "golden hash: %016llx, expected %016llx", (unsigned long long)hash,
              (unsigned long long)GOLDEN);
    by_all_kernels(GOLDEN, clipped, quick ? 1 : 3);
#ifndef GCKPT_NO_BF16
    precision = GCKPT_BF16;
    hash = train(GCKPT_STORE_ALL, BATCH, 1, 0, &first);
    CHECK_MSG(hash == GOLDEN_BF16, "golden hash of bf16: %016llx, expected %016llx",
              (unsigned long long)hash, (unsigned long long)GOLDEN_BF16);
    by_all_kernels(GOLDEN_BF16, first, quick ? 1 : 2);
    precision = GCKPT_FP32;
#endif
    hash = plans(0);
    CHECK_MSG(hash == PLANS, "hash of plans: %016llx, expected %016llx", (unsigned long long)hash,
              (unsigned long long)PLANS);
    return check_report("hash");
}
