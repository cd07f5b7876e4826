/* cuda_products.c - compares matmul, linear and embed on CUDA with the plain kernels, bit by bit (block.h). The cases
 * have every tile size, results that fill tiles exactly or in part, every layout of an operand, and f32 and bf16
 * operands at any offset. Then small nets are trained.
 *     build/cuda_products [first seed] */
#include "num/num.h"
#include "ops/ops.h"
#include "block.h"
#include "underflow.h"
#ifdef GCKPT_CUDA_SHIM
#include "cuda_shim.h"
#endif

/* Of the current case: `aligned` if operands begin at multiples of 16 bytes; `special` selects unusual values
 * (any_value). */
static int aligned, special;

static float any_value(void)
{
    static const uint32_t odd[] = { 0x80000000u, 0u,          0x80000000u, 0x00000001u, 0x80000001u, 0x007fffffu,
                                    0x00800000u, 0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu };
    if (special == 1 && chance(60))
        return float_of(odd[below(2)]);
    if (special == 2 && chance(97)) /* small numbers: products subnormal or near 2^-126 */
        return float_of((below(2) << 31) + ((40 + below(40)) << 23) + below(1 << 23));
    /* numbers whose sums and products are around 2^-126, where an ordinary fma rounds to fewer bits than the
     * specification demands */
    if (special == 4)
        return float_of((below(2) << 31) +
                        (chance(50) ? 0x800000 + below(40) : ((51 + below(3)) << 23) + below(1 << 23)));
    if (special == 3 && chance(3))
        return float_of(odd[below(sizeof odd / sizeof *odd)]);
    float x = (float)((int)below(1 << 20) - (1 << 19)) / 65536.0f;
    return chance(20) ? x * 1e-3f : x;
}

static void start(void)
{
    block_clear();
    aligned = chance(60);
    special = chance(50) ? 1 + (int)below(4) : 0;
}

static float *operand(int64_t n)
{
    float *x = block_take(n, aligned ? 4 : 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = any_value();
    return x;
}

static uint16_t *operand_bf16(int64_t n)
{
    float *at = operand((n + 2) / 2);
    uint16_t *x = (uint16_t *)(void *)at + (aligned ? 0 : below(2));
    for (int64_t i = 0; i < n; i++)
        x[i] = gckpt_to_bf16(any_value());
    return x;
}

/* ---- calls ---- */
static gckpt_call new_call(gckpt_precision precision, const int *transposed)
{
    gckpt_call c = block_call(transposed);
    c.precision = precision;
    c.plain = 1;
    return c;
}

static void give(const gckpt_call *c, int64_t n, int narrow, const float **f32, const uint16_t **bf16)
{
    if (c->precision != GCKPT_FP32 && narrow)
        *bf16 = operand_bf16(n);
    else
        *f32 = operand(n);
}

/* Runs forward and backward of a call whose input shapes are set. The first `values` inputs get values; these and the
 * results are randomly f32 or bf16. */
static void run(const gckpt_op *op, gckpt_call c, int values)
{
    start();
    CHECK_MSG(op->shape(&c) == GCKPT_OK, "%s: no shape", op->name);
    int64_t n = count_of(&c.shape);
    const int takes = (op->flags & GCKPT_TAKES_BF16) != 0;
    for (int i = 0; i < values; i++) /* a bias or a table is never stored as bf16 */
        give(&c, count_of(&c.in[i].shape), takes && values == c.inputs && i < 2 && chance(50), &c.in[i].data, &c.in[i].bf16);
    if (values < c.inputs) { /* the index of embed: half of the tokens use rows 0 to 2 */
        int32_t *index = (int32_t *)(void *)operand(count_of(&c.in[1].shape));
        int64_t rows = c.in[0].shape.d[0];
        for (int64_t i = 0; i < count_of(&c.in[1].shape); i++)
            index[i] = (int32_t)below(chance(50) && rows > 3 ? 3 : rows);
        c.in[1].index = index;
    }
    gckpt_call back = c;
    give(&c, n, takes && chance(50), (const float **)&c.out, (const uint16_t **)&c.out_bf16);
    both(op, GCKPT_FORWARD, &c);
    give(&back, n, takes && chance(50), &back.grad_out, &back.grad_out_bf16);
    for (int i = 0; i < values; i++) {
        gckpt_arg *in = &back.in[i];
        int64_t size = count_of(&in->shape);
        in->accumulate = chance(50);
        if (chance(10))
            continue;
        give(&back, size, takes && values == c.inputs && i < 2 && chance(40), (const float **)&in->grad,
             (const uint16_t **)&in->grad_bf16);
        if (i == 2 && chance(80)) {
            in->compensation = operand(size);
            for (int64_t k = 0; k < size; k++)
                in->compensation[k] *= 1e-6f;
        }
    }
    both(op, GCKPT_BACKWARD, &back);
}

/* Tests linear with `entries` samples of `rows` rows each. In bf16 plans, sums of weight gradients restart at each
 * sample. */
static void entries_of(int64_t entries, int64_t rows, int64_t k, int64_t n, int transposed, int bias,
                       gckpt_precision precision)
{
    gckpt_call c = new_call(precision, &transposed);
    c.inputs = 2 + bias;
    c.in[0].shape = rows % 2 || chance(60) ? gckpt_shape3(entries, rows, k) : gckpt_shape4(entries, 2, rows / 2, k);
    c.in[1].shape = transposed ? gckpt_shape2(n, k) : gckpt_shape2(k, n);
    c.in[2].shape = gckpt_shape1(n);
    run(&gckpti_op_linear, c, c.inputs);
}

static void linear_of(int64_t rows, int64_t k, int64_t n, int transposed, int bias, gckpt_precision precision)
{
    gckpt_call c = new_call(precision, &transposed);
    c.inputs = 2 + bias;
    c.in[0].shape = chance(80) ? gckpt_shape2(rows, k) : gckpt_shape3(1, rows, k);
    c.in[1].shape = transposed ? gckpt_shape2(n, k) : gckpt_shape2(k, n);
    c.in[2].shape = gckpt_shape1(n);
    run(&gckpti_op_linear, c, c.inputs);
}

static void matmul_of(int64_t batch, int64_t m, int64_t k, int64_t n, int transposed, int one,
                      gckpt_precision precision)
{
    gckpt_call c = new_call(precision, &transposed);
    c.inputs = 2;
    c.in[0].shape = gckpt_shape3(batch, m, k);
    int64_t high = transposed ? n : k, wide = transposed ? k : n;
    c.in[1].shape = one ? gckpt_shape2(high, wide) : gckpt_shape3(batch, high, wide);
    run(&gckpti_op_matmul, c, 2);
}

/* Runs a product of broadcast operands: some of up to three leading axes are 1 or, the first ones, missing. */
static void broadcast_of(int64_t m, int64_t k, int64_t n, int transposed, gckpt_precision precision)
{
    gckpt_call c = new_call(precision, &transposed);
    c.inputs = 2;
    gckpt_shape *a = &c.in[0].shape, *b = &c.in[1].shape;
    a->n = b->n = 5;
    for (int i = 0; i < 3; i++) {
        a->d[i] = b->d[i] = 1 + (int64_t)below(3);
        if (chance(60))
            *(chance(50) ? &a->d[i] : &b->d[i]) = 1;
    }
    a->d[3] = m, a->d[4] = k, b->d[3] = transposed ? n : k, b->d[4] = transposed ? k : n;
    for (gckpt_shape *x = chance(50) ? a : b; x->n > 2 && chance(40); x->n--)
        memmove(x->d, x->d + 1, 4 * sizeof *x->d);
    run(&gckpti_op_broadcast_matmul, c, 2);
}

static void embed_of(int64_t table, int64_t rows, int64_t n, gckpt_precision precision)
{
    gckpt_call c = new_call(precision, NULL);
    c.inputs = 2;
    c.in[0].shape = gckpt_shape2(table, n);
    c.in[1].shape = rows % 2 ? gckpt_shape1(rows) : gckpt_shape2(2, rows / 2);
    run(&gckpti_op_embed, c, 1);
}

static int64_t odd_size(int most)
{
    static const int sizes[] = { 1,  2,  3,  4,  5,  7,  8,  9,  12, 16,  24,  31,  32, 33,
                                 36, 47, 48, 49, 63, 64, 65, 96, 97, 127, 128, 129, 132 };
    int n = sizes[below(sizeof sizes / sizeof *sizes)];
    return n <= most ? n : 1 + (int)below(most);
}

/* Tests every tile size with results that fill a tile, or whose rows and columns are 1 or 4 fewer or more than the
 * tile's. Some numbers of terms are multiples of the kernel's pipeline stages, some are not. */
static void test_tiles(void)
{
    static const int tiles[6][2] = { { 128, 128 }, { 128, 64 }, { 96, 48 }, { 64, 64 }, { 32, 64 }, { 32, 32 } };
    static const int links[] = { 1, 7, 8, 9, 24, 32, 36, 41 };
    for (int i = 0; i < 36; i++) {
        int off = i / 6 % 3, m = tiles[i % 6][0], n = tiles[i % 6][1];
        m += off == 1 ? -1 : off == 2 ? 4 : 0;
        n += off == 1 ? -4 : off == 2 ? 1 : 0;
        gckpt_precision precision = i % 5 == 4 ? GCKPT_BF16 : GCKPT_FP32;
        linear_of(m, links[below(8)], n, i / 6 % 2, i / 18, precision);
        linear_of(links[below(8)], m, n, i / 6 % 2, 0, precision); /* here the weight gradient has the tile's size */
    }
}

/* Tests bf16 plans, which sum terms in blocks of 32: samples that end within a block, with a block, or within a
 * pipeline stage of the kernel, and samples of less than 32 rows, whose sum is one chain. */
static void test_blocks(void)
{
    static const int rows[] = { 1, 7, 8, 31, 32, 33, 40, 63, 64, 65, 96, 100 };
    for (int i = 0; i < 48; i++) {
        int64_t entries = 1 + (int64_t)below(5), m = rows[i % 12], k = odd_size(40), n = odd_size(40);
        entries_of(entries, m, k, n, i / 12 % 2, i / 24, GCKPT_BF16);
        matmul_of(entries, m, odd_size(100), n, i / 12 % 2, i / 24, GCKPT_BF16);
    }
}

static void test_random(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        gckpt_precision precision = chance(65) ? GCKPT_FP32 : GCKPT_BF16;
        int most = chance(20) ? 132 : 40;
#ifdef GCKPT_CUDA_SHIM
        static const int chips[] = { 1, 2, 6, 132 };
        cuda_shim.multiprocessors = chips[below(4)];
#endif
        int64_t m = odd_size(most), k = odd_size(most), n = odd_size(most);
        linear_of(m, k, n, chance(50), chance(60), precision);
        m = odd_size(40), k = odd_size(40), n = odd_size(40);
        matmul_of(1 + (int64_t)below(3), m, k, n, chance(50), chance(30), precision);
        broadcast_of(odd_size(40), odd_size(most), odd_size(40), chance(50), precision);
        embed_of(1 + (int64_t)below(300), 1 + (int64_t)below(200), chance(90) ? odd_size(132) : 300, precision);
    }
}

/* Tests sums of products that are all -0 and must stay -0; one additional term of +0 would make them +0. */
static void test_zeros(void)
{
    for (int64_t k = 1; k < 20; k++) {
        int transposed = (int)(k & 1), n = k % 3 ? 32 : 5;
        gckpt_call c = new_call(GCKPT_FP32, &transposed);
        c.inputs = 3;
        c.in[0].shape = gckpt_shape2(8, k);
        c.in[1].shape = transposed ? gckpt_shape2(n, k) : gckpt_shape2(k, n);
        c.in[2].shape = gckpt_shape1(n);
        start();
        CHECK(gckpti_op_linear.shape(&c) == GCKPT_OK);
        float *x = operand(8 * k), *w = operand(n * k), *bias = operand(n), *out = operand(8 * n);
        for (int64_t i = 0; i < 8 * k; i++)
            x[i] = 0.0f;
        for (int64_t i = 0; i < n * k; i++)
            w[i] = -0.0f;
        for (int64_t i = 0; i < n; i++)
            bias[i] = -0.0f;
        c.in[0].data = x, c.in[1].data = w, c.in[2].data = bias, c.out = out;
        both(&gckpti_op_linear, GCKPT_FORWARD, &c);
        CHECK(bits_of(out[0]) == 0x80000000u);
    }
}

/* ---- trainings ---- */
enum { B = 5, T = 6, C = 20, V = 37 };
typedef struct {
    gckpt_mode mode;
    gckpt_precision precision;
    int64_t rows;
} training;

static uint64_t train(const training *o, const gckpt_backend *backend)
{
    static int32_t tokens[B * T], targets[B * T];
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_I32, gckpt_shape2(o->rows, T));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_I32, gckpt_shape2(o->rows, T));
    gckpt_tensor *table = gckpt_param(g, "table", gckpt_shape2(V, C), normal);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, 3 * C), normal);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(3 * C), normal);
    gckpt_tensor *v = gckpt_param(g, "v", gckpt_shape2(C, 3 * C), normal);
    gckpt_tensor *h = gckpt_embed(table, in);
    h = gckpt_tanh(gckpt_linear(h, w, b));
    h = gckpt_linear_transposed(h, v, NULL);
    h = gckpt_matmul(gckpt_scale(gckpt_matmul_transposed(h, h), 0.1f), h); /* reads h three times */
    /* The second operand of this product is computed from parameters and shared by all rows. */
    h = gckpt_matmul(h, gckpt_linear_transposed(w, v, NULL));
    gckpt_term terms[2] = { { gckpt_cross_entropy(gckpt_linear_transposed(h, table, NULL), target, NULL, 0), 1, 0 },
                            { gckpt_sum_loss(gckpt_mul(b, b)), 0.01f, 1 } };
    gckpt_plan_desc d = { .mode = o->mode, .batch = B, .bf16.precision = o->precision, .backend = backend };
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec_desc ed = { .backend = backend };
    gckpt_exec *e = gckpt_exec_new(p, s, &ed);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    uint64_t hash = 1;
    for (int step = 0; step < 3 && e; step++) {
        gckpt_report r = { 0 };
        gckpt_hyper hyper = { .lr = 0.01f, .clip = step ? 0.5f : 0 };
        gckpt_feed feeds[2] = { { gckpt_id(in), tokens }, { gckpt_id(target), targets } };
        for (int i = 0; i < B * T; i++) {
            tokens[i] = (i * 7 + step * 3) % (i % 2 ? V : 4);
            targets[i] = i % 9 == 5 ? -1 : (i * 11 + step) % V;
        }
        CHECK_MSG(gckpt_step(e, feeds, 2, step == 1 ? B - 1 : B, &hyper, &r) == GCKPT_OK, "%s", gckpt_error_text(e));
        double two[2];
        two[0] = r.loss, two[1] = r.grad_norm;
        hash = gckpti_fnv(hash, two, sizeof two) ^ gckpt_store_hash(s);
    }
    util_free(e, p, g, s);
    return hash;
}

static void test_trainings(void)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    for (int way = 0; way < 12; way++) { /* without GCKPT_BF16_FAST: the processor lacks it */
        training o = { modes[way % 3], (gckpt_precision)(way / 6), way % 2 ? 2 : B };
        uint64_t want = train(&o, NULL), got = train(&o, device);
        CHECK_MSG(got == want, "training %d: other bits", way);
    }
}

int main(int argc, char **argv)
{
    if (!block_open(argc, argv))
        return check_report("cuda products");
    test_zeros();
#ifdef GCKPT_CUDA_SHIM /* one multiprocessor makes kernels choose the largest tile that fits, 132 make them small */
    int many = cuda_shim.multiprocessors;
    cuda_shim.multiprocessors = 1;
    test_tiles();
    test_blocks();
    test_random(24);
    cuda_shim.multiprocessors = many;
#else
    test_tiles();
    test_blocks();
    test_random(200);
    linear_of(1700, 41, 300, 0, 1, GCKPT_FP32);
    linear_of(37, 1000, 600, 1, 0, GCKPT_FP32);
#endif
    test_trainings();
    check_underflow(device, GCKPT_ISA_AUTO, 0);
    block_close();
    return check_report("cuda products");
}
