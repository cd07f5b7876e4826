/* cuda_rows.c - compares CUDA kernels with the plain kernels, bit by bit (block.h): softmax, norms, losses over classes
 * and attention, in fp32 and bf16 plans. Then it trains small nets with several plans, splits and precisions.
 *     build/cuda_rows [first seed] [rounds] */
#include "attention/attention.h"
#include "linear_loss/linear_loss.h"
#include "ops/ops.h"
#include "block.h"

/* Of the current case: 0 for ordinary values; 1 if any operand may contain NaN, infinities, zeros and subnormals; 2 if
 * only the first operand may. */
static int odd;

static float value(int special)
{
    static const uint32_t bits[] = { 0x7fc00000u, 0x7f800000u, 0xff800000u, 0x80000000u, 0u,          1u,
                                     0x80000001u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu, 0x00012345u };
    if (special && chance(special > 1 ? 10 : 2))
        return float_of(bits[below(12)]);
    float x = (float)((int)below(1 << 20) - (1 << 19)) / 262144.0f;
    return chance(10) ? x * 1e-3f : x;
}

/* Returns an operand of n floats. Its offset is a multiple of `multiple`; if that is 1, it is random. */
static float *operand(int64_t n, int multiple)
{
    float *x = block_take(n, multiple);
    for (int64_t i = 0; i < n; i++)
        x[i] = value(odd == 1);
    return x;
}

static gckpt_call new_call(const void *attributes, int inputs)
{
    gckpt_call c = block_call(attributes);
    c.inputs = inputs;
    c.plain = 1;
    block_clear();
    odd = chance(30) ? 1 + (int)below(2) : 0;
    return c;
}

/* Gives input i this shape and random values. */
static void input(gckpt_call *c, int i, gckpt_shape shape)
{
    float *x = operand(count_of(&shape), chance(70) ? 4 : 1);
    c->in[i].shape = shape;
    c->in[i].data = x;
    for (int64_t k = 0; odd == 2 && i == 0 && k < count_of(&shape); k++)
        x[k] = value(2);
}

/* Gives input i a gradient, by chance or if `always` is nonzero, and by chance a compensation if the op sums this
 * gradient over rows. */
static void gradient(const gckpt_op *op, gckpt_call *c, int i, int always)
{
    int64_t n = count_of(&c->in[i].shape);
    if (!always && chance(20))
        return;
    c->in[i].grad = operand(n, chance(70) ? 4 : 1);
    c->in[i].accumulate = chance(50);
    if (op->needs[i] & GCKPT_SUMS && chance(80))
        c->in[i].compensation = operand(n, 1);
    for (int64_t k = 0; c->in[i].compensation && k < n; k++)
        c->in[i].compensation[k] *= 1e-7f;
}

static int64_t size(int64_t most)
{
    static const int sizes[] = { 1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 300, 1023, 1024, 1025, 2100 };
    int64_t n;
    do
        n = sizes[below(sizeof sizes / sizeof *sizes)];
    while (n > most);
    return n;
}

/* ---- softmax, log_softmax ---- */
static void softmax(void)
{
    const gckpt_op *op = chance(50) ? &gckpti_op_softmax : &gckpti_op_log_softmax;
    gckpt_call c = new_call(NULL, 1);
    gckpt_shape shape = gckpt_shape2(size(65), size(1100));
    input(&c, 0, shape);
    c.shape = shape;
    float *row = (float *)(uintptr_t)c.in[0].data;
    for (int64_t i = 0; chance(20) && i < shape.d[1]; i++) /* all scores of this row are -inf */
        row[i] = float_of(0xff800000u);
    c.out = chance(30) ? row : operand(count_of(&shape), 1);
    both(op, GCKPT_FORWARD, &c);
    float *g = operand(count_of(&shape), 1);
    c.grad_out = g;
    gradient(op, &c, 0, 1);
    if (chance(30))
        c.in[0].grad = g, c.in[0].accumulate = 0;
    both(op, GCKPT_BACKWARD, &c);
}

/* ---- layernorm, rmsnorm ---- */
static void norms(void)
{
    int gain = chance(60), bias = chance(60), center = chance(60);
    if (!center)
        bias = 0;
    gckpti_norm o = { center, gain ? 1 : 0, !bias ? 0 : gain ? 2 : 1, chance(30) ? 0.25f : 0 };
    const gckpt_op *op = center ? &gckpti_op_layernorm : &gckpti_op_rmsnorm;
    gckpt_call c = new_call(&o, 1 + gain + bias);
    int64_t rows = size(300), n = size(rows > 130 ? 100 : 1025);
    input(&c, 0, gckpt_shape2(rows, n));
    float offset = chance(20) ? 1000.0f : 0.0f, *x = (float *)(uintptr_t)c.in[0].data;
    for (int64_t i = 0; i < rows * n; i++)
        x[i] += offset;
    for (int i = 1; i < c.inputs; i++)
        input(&c, i, gckpt_shape1(n));
    CHECK(op->shape(&c) == GCKPT_OK);
    c.out = chance(90) ? operand(rows * n, 1) : NULL;
    c.saved = c.out && chance(20) ? NULL : operand((int64_t)c.saved_bytes / 4, 1);
    both(op, GCKPT_FORWARD, &c);
    if (!c.saved)
        return;
    c.out = NULL;
    c.grad_out = operand(rows * n, 1);
    for (int i = 0; i < c.inputs; i++)
        gradient(op, &c, i, 0);
    both(op, GCKPT_BACKWARD, &c);
}

/* ---- cross_entropy, cross_entropy_with, soft_cross_entropy, linear_cross_entropy ---- */
static const int32_t *targets(int64_t rows, int64_t classes)
{
    float *x = operand(rows, 1);
    unsigned out = chance(50) ? 0 : chance(80) ? 20 : 100;
    for (int64_t r = 0; r < rows; r++) {
        int32_t t = chance(out) ? -1 - (int32_t)below(3) : (int32_t)below(classes);
        memcpy(x + r, &t, sizeof t);
    }
    return (const int32_t *)(const void *)x;
}

/* Gives the loss a sum and a count to add to, which may have values already; either may be absent (NULL). */
static void totals(gckpt_call *c)
{
    double *sum = (double *)(void *)operand(2, 2);
    int64_t *count = (int64_t *)(void *)operand(2, 2);
    *sum = chance(50) ? 0.0 : 12345.6789;
    *count = (int64_t)below(100);
    c->loss_sum = chance(80) ? sum : NULL;
    c->loss_count = chance(80) ? count : NULL;
    c->loss_scale = (float)(1 + below(5)) / 4;
}

static void cross_entropy(void)
{
    static const gckpt_op *const ops[] = { &gckpti_op_cross_entropy, &gckpti_op_cross_entropy_with,
                                           &gckpti_op_soft_cross_entropy };
    static const float smoothings[] = { 0.0f, 0.1f, 1.0f };
    int which = (int)below(3), soft = which == 2;
    const gckpt_op *op = ops[which];
    gckpt_call c = new_call(which == 1 ? &smoothings[below(3)] : NULL, 2);
    int64_t rows = size(chance(10) ? 2100 : 129), classes = size(rows > 200 ? 33 : rows > 40 ? 600 : 2100);
    int64_t share = which && chance(50) ? 1 + (int64_t)below(40) : 0; /* rows that share a weight; 0 without weights */
    gckpt_shape all = gckpt_shape3(rows, share ? share : 1, classes), inner = gckpt_shape2(rows, share ? share : 1);
    classes = all.d[2] = rows * inner.d[1] * classes > 60000 ? 1 + 60000 / (rows * inner.d[1]) : classes;
    input(&c, 0, all);
    float *x = (float *)(uintptr_t)c.in[0].data;
    for (int64_t i = 0; chance(20) && i < classes; i++)
        x[i] = chance(50) ? float_of(0xff800000u) : 1e4f;
    rows *= inner.d[1];
    if (soft)
        input(&c, 1, all);
    else
        c.in[1].shape = inner, c.in[1].index = targets(rows, classes);
    for (int64_t i = 0; soft && i < rows * classes; i++) /* some soft targets are 0 */
        if (chance(30))
            ((float *)(uintptr_t)c.in[1].data)[i] = 0.0f;
    if (share) {
        c.inputs = 3;
        input(&c, 2, chance(50) ? gckpt_shape1(inner.d[0]) : inner);
        for (int64_t i = 0; i < count_of(&c.in[2].shape); i++)
            if (chance(20))
                ((float *)(uintptr_t)c.in[2].data)[i] = chance(50) ? 0.0f : -0.0f;
    }
    totals(&c);
    float *saved = operand(2 * rows, 1);
    c.saved = chance(80) ? saved : NULL;
    both(op, GCKPT_FORWARD, &c);
    c.saved = saved;
    c.loss_sum = NULL, c.loss_count = NULL;
    gradient(op, &c, 0, !which);
    if (soft)
        gradient(op, &c, 1, 0);
    if (share)
        gradient(op, &c, 2, 0);
    both(op, GCKPT_BACKWARD, &c);
}

/* Returns n random values in bf16. */
static uint16_t *halves(int64_t n)
{
    float *words = operand((n + 1) / 2, 1);
    uint16_t *x = (uint16_t *)(void *)words;
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = gckpt_to_bf16(value(odd == 1 ? 2 : 0));
        memcpy(x + i, &half, sizeof half);
    }
    return x;
}

/* Tests linear_cross_entropy with sizes around the numbers of rows and classes that a kernel processes at a time, and
 * with several samples, at which bf16 plans restart the sums of dw. If `cut` is nonzero, there are more rows than a
 * kernel processes at a time, and samples lie across that limit. */
static void linear_cross_entropy(int cut)
{
    const gckpt_op *op = &gckpti_op_linear_cross_entropy;
    const gckpti_linear_loss capped = { 0, 0.5f + (float)below(4) };
    gckpt_call c = new_call(chance(40) ? &capped : NULL, 3);
    int64_t rows = size(129), classes = size(rows > 40 ? 300 : 2100), n = size(rows * classes > 9000 ? 5 : 65);
    if (cut || chance(10))
        rows = 2049 + (int64_t)below(70), classes = 1 + below(3), n = 1 + below(3);
    else if (chance(10))
        rows = 1 + below(3), classes = 4097 + (int64_t)below(70), n = 1 + below(3);
    int64_t each = cut ? 100 : size(100), entries = (rows + each - 1) / each;
    int flat = !cut && chance(40);
    c.precision = cut || chance(50) ? GCKPT_BF16 : GCKPT_FP32;
    rows = flat ? rows : entries * each;
    input(&c, 0, flat ? gckpt_shape2(rows, n) : gckpt_shape3(entries, each, n));
    if (c.precision == GCKPT_BF16 && chance(80))
        c.in[0].bf16 = halves(rows * n), c.in[0].data = NULL;
    input(&c, 1, gckpt_shape2(classes, n));
    c.in[2].shape = flat ? gckpt_shape1(rows) : gckpt_shape2(entries, each);
    c.in[2].index = targets(rows, classes);
    totals(&c);
    float *saved = operand(2 * rows, 1);
    c.saved = chance(80) ? saved : NULL;
    both(op, GCKPT_FORWARD, &c);
    c.saved = saved;
    c.loss_sum = NULL, c.loss_count = NULL;
    gradient(op, &c, 0, 0);
    gradient(op, &c, 1, 0);
    if (c.in[0].grad && c.in[0].bf16)
        c.in[0].grad_bf16 = halves(rows * n), c.in[0].grad = NULL;
    both(op, GCKPT_BACKWARD, &c);
}

/* ---- attention ---- */
/* Attention with a mask, each axis of which may be repeated and which hides some keys, and its gradient. */
static void masked_attention(void)
{
    static const int sizes[] = { 1, 3, 4, 7, 16, 33, 64, 68, 132 };
    const gckpt_op *op = &gckpti_op_masked_attention;
    gckpti_attention o = { 1 + (int)below(3), 0, 0, -1, 0, 0, 0 };
    const int group = chance(40) ? 2 : 1;
    gckpt_call c = new_call(&o, 4);
    const int64_t d = sizes[below(sizeof sizes / sizeof *sizes)], rows = 1 + below(3);
    const int64_t t = size(d > 64 ? 20 : 70), s = size(d > 64 ? 70 : 129), key_columns = o.heads * d;
    o.cap = chance(30) ? 0.75f : 0, o.scale = chance(40) ? 0.4f : 0;
    o.key_heads = group > 1 ? o.heads : 0, o.heads *= group;
    c.precision = chance(30) ? GCKPT_BF16 : GCKPT_FP32;
    for (int i = 0; i < 3; i++)
        input(&c, i, gckpt_shape3(rows, i ? s : t, i ? key_columns : o.heads * d));
    gckpt_shape mask = gckpt_shape4(rows, o.heads, t, s);
    for (int i = 0; i < 4; i++)
        mask.d[i] = chance(40) ? 1 : mask.d[i];
    for (; mask.n > 1 && mask.d[0] == 1 && chance(50); mask.n--)
        memmove(mask.d, mask.d + 1, 3 * sizeof *mask.d);
    input(&c, 3, mask);
    for (int64_t i = 0, n = count_of(&mask), hides = chance(60); i < n; i++)
        if (hides && chance(30))
            ((float *)(uintptr_t)c.in[3].data)[i] = float_of(0xff800000u);
    CHECK(op->shape(&c) == GCKPT_OK);
    float *out = operand(count_of(&c.shape), 1), *saved = operand((int64_t)c.saved_bytes / 4, 1);
    c.out = out, c.saved = saved;
    both(op, GCKPT_FORWARD, &c);
    op->forward(&c);
    c.grad_out = operand(count_of(&c.shape), 1);
    for (int i = 0; i < 4; i++)
        gradient(op, &c, i, 0);
    both(op, GCKPT_BACKWARD, &c);
}

static void scale_by(gckpt_arg *x, float factor)
{
    for (int64_t i = 0; i < count_of(&x->shape); i++)
        ((float *)(uintptr_t)x->data)[i] *= factor;
}

static void attention(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 7, 8, 16, 20, 32, 33, 63, 64, 65, 68, 96, 127, 128, 129, 132, 260 };
    const gckpt_op *op = &gckpti_op_attention;
    gckpti_attention o = { 1 + (int)below(3), chance(60), 0, 0, 0, 0, 0 };
    const int group = chance(40) ? 2 + (int)below(3) : 1, few = chance(30);
    gckpt_call c = new_call(&o, few ? 4 : 3);
    int64_t d = sizes[below(sizeof sizes / sizeof *sizes)], rows = 1 + below(2), t = size(d > 64 ? 65 : 129);
    int64_t s = size(d > 64 ? 65 : 129), missing = 0;
    s = o.causal && (s < t || chance(40)) ? t : s;
    if (o.causal && !few && chance(30)) { /* keys of a cache that is not full */
        missing = below(70), c.position = (int64_t)below((uint64_t)(s - t) + 1);
        o.causal += (int)(missing + c.position), s += missing;
    }
    if (chance(50)) {
        o.extras = 1, o.cap = chance(50) ? 0.75f * (float)(1 + below(4)) : 0, o.scale = chance(50) ? 0.4f : 0;
        o.window = o.causal && chance(80) ? 1 + (int)below(chance(50) ? 20 : 150) : 0;
    }
    if (o.window && !few && o.causal == 1 && chance(50)) { /* a cache of rows used as a ring buffer, full or not */
        s = (o.window + t + 62) / 64 * 64, c.position = (int64_t)below(300);
        missing = c.position + t < s ? s - c.position - t : 0;
        o.causal = 1 + (int)(s - t), o.extras += s == t;
    }
    if (d > 32)
        o.heads = 1 + (o.heads > 2), rows = 1 + few;
    const int64_t key_columns = o.heads * d; /* each group of `group` query heads shares one key head */
    o.key_heads = group > 1 ? o.heads : 0, o.heads *= group;
    c.precision = chance(50) ? GCKPT_BF16 : GCKPT_FP32;
    for (int i = 0; i < 3; i++) {
        input(&c, i, gckpt_shape3(rows, i ? s : t, i ? key_columns : o.heads * d));
        if (chance(15)) /* products so small that sums end as zeros of either sign */
            scale_by(&c.in[i], 1e-38f);
    }
    c.in[3].shape = gckpt_shape1(rows);
    int32_t *lengths = few ? (int32_t *)operand(rows, 1) : NULL;
    for (int64_t i = 0; few && i < rows; i++)
        lengths[i] = (int32_t)(chance(30) ? (uint64_t)s * below(2) : below((uint64_t)s + 1));
    c.in[3].index = lengths;
    CHECK(op->shape(&c) == GCKPT_OK);
    for (int64_t i = 0, row = s * key_columns, left; i < rows * row; i++)
        if (left = (few ? s - lengths[i / row] : missing) * key_columns, i % row >= row - left) {
            ((float *)(uintptr_t)c.in[1].data)[i] = float_of(0x7f800000u);
            ((float *)(uintptr_t)c.in[2].data)[i] = float_of(0x7fc00000u);
        }
    float *q = (float *)(uintptr_t)c.in[0].data, *k = (float *)(uintptr_t)c.in[1].data;
    for (int64_t i = 0; chance(10) && i < d; i++) /* query 0 begins with -inf, key 0 with a subnormal */
        q[i] = float_of(0xff800000u), k[i] = 1e-38f;
    int64_t n = count_of(&c.shape), all = o.heads * d;
    /* NaN and infinities in the last key, which no query except the last sees, and in the gradient of the first query,
     * to which most keys contribute nothing */
    int unseen = o.causal && chance(40);
    for (int64_t i = 0; unseen && i < key_columns; i++) {
        ((float *)(uintptr_t)c.in[1].data)[(s - 1) * key_columns + i] = value(2);
        ((float *)(uintptr_t)c.in[2].data)[(s - 1) * key_columns + i] = float_of(i % 2 ? 0x7f800000u : 0x7fc00000u);
    }
    c.out = chance(90) ? operand(n, chance(70) ? 4 : 1) : NULL;
    c.saved = c.out && chance(20) ? NULL : operand((int64_t)c.saved_bytes / 4, 1);
    both(op, GCKPT_FORWARD, &c);
    if (!c.out || !c.saved || o.causal > 1 || o.extras > 1)
        return;
    float *g = operand(n, chance(70) ? 4 : 1);
    for (int64_t i = 0; unseen && i < all; i++)
        g[i] = float_of(i % 3 ? 0x7f800000u : 0x7fc00000u);
    c.grad_out = g;
    for (int i = 0; i < 3; i++) {
        gradient(op, &c, i, 0);
        int64_t negative = c.in[i].accumulate && chance(20) ? count_of(&c.in[i].shape) : 0;
        while (negative-- > 0) /* sums of zeros are added to gradients of -0 */
            c.in[i].grad[negative] = float_of(0x80000000u);
    }
    if (!c.in[0].grad && !c.in[1].grad)
        c.out = NULL;
    both(op, GCKPT_BACKWARD, &c);
}

/* ---- small trainings: all plans, splits and precisions must give the processor's bits ---- */
enum { BATCH = 5, TOKENS = 9, WIDTH = 12, CLASSES = 37, STEPS = 2 };

static gckpt_tensor *weight(gckpt_graph *g, const char *name, int64_t a, int64_t b)
{
    gckpt_init init = { 0.3f, 0.1f, 0 };
    return gckpt_param(g, name, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}

/* Trains a net with two attentions of one input, a softmax in place, and two losses that read one table. Returns a hash
 * of the weights. */
static uint64_t train(const gckpt_backend *backend, gckpt_mode mode, int64_t micro, gckpt_precision precision)
{
    static int32_t tokens[BATCH * TOKENS], wanted[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++)
        tokens[i] = i * 29 % CLASSES, wanted[i] = i % 7 == 3 ? -1 : i * 17 % CLASSES;
    gckpt_store_desc seed = { { NULL, NULL, NULL, 0 }, 99 };
    gckpt_store *s = gckpt_store_new(&seed);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(micro, TOKENS));
    gckpt_tensor *to = gckpt_input(g, "wanted", GCKPT_I32, gckpt_shape2(micro, TOKENS));
    gckpt_tensor *table = weight(g, "table", CLASSES, WIDTH), *gain = weight(g, "gain", WIDTH, 0);
    gckpt_tensor *bias = weight(g, "bias", WIDTH, 0), *head = weight(g, "head", WIDTH, CLASSES);
    gckpt_tensor *x = gckpt_layernorm(gckpt_embed(table, in), gain, bias, 0);
    gckpt_tensor *a = gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 3, .causal = 1 }),
                 *y = gckpt_rmsnorm(gckpt_add(x, a), gain, 0);
    y = gckpt_add(y, gckpt_attention(y, x, a, &(gckpt_attention_desc){ .heads = 2 }));
    y = gckpt_add(gckpt_softmax(gckpt_layernorm(y, NULL, bias, 0)), y);
    gckpt_tensor *logits = gckpt_linear(y, head, NULL), *soft = gckpt_exp(gckpt_log_softmax(gckpt_scale(logits, 2)));
    gckpt_tensor *weights = gckpt_sigmoid(gckpt_mean(y, 2));
    gckpt_term terms[4] = { { gckpt_linear_cross_entropy(y, table, to, NULL), 1, 0 },
                            { gckpt_cross_entropy(logits, to, NULL, 0), 0.5f, 0 },
                            { gckpt_cross_entropy(logits, to, weights, 0.1f), 0.5f, 0 },
                            { gckpt_soft_cross_entropy(logits, soft, weights), 0.5f, 0 } };
    gckpt_plan_desc desc;
    gckpt_exec_desc how;
    memset(&desc, 0, sizeof desc);
    memset(&how, 0, sizeof how);
    desc.mode = mode, desc.batch = BATCH, desc.bf16.precision = precision;
    desc.backend = how.backend = backend;
    gckpt_plan *p = gckpt_plan_new(g, terms, 4, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    gckpt_feed feeds[2] = { { gckpt_id(in), tokens }, { gckpt_id(to), wanted } };
    gckpt_hyper hyper = { 0.01f, 0.1f, 0, 0.99f, 0, 0, 0.5f };
    gckpt_report report = { 0, 0, 0, 0 };
    uint64_t hash = 0;
    for (int step = 0; step < STEPS && e; step++) {
        CHECK_MSG(gckpt_step(e, feeds, 2, BATCH, &hyper, &report) == GCKPT_OK, "%s", gckpt_error_text(e));
        hash = hash * 31 + (uint64_t)(report.loss * 1e12);
        CHECK_MSG(report.loss > 0 && report.loss < 1e3, "loss %g", report.loss);
    }
    hash ^= gckpt_store_hash(s);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return hash;
}

static void trainings(void)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    static const gckpt_precision precisions[] = { GCKPT_FP32, GCKPT_BF16 };
    for (int i = 0; i < 2; i++) {
        uint64_t hash = train(NULL, GCKPT_STORE_ALL, BATCH, precisions[i]);
        for (int j = 0; j < 3; j++)
            CHECK_MSG(train(device, modes[j], j == 0 ? BATCH : 3 - j, precisions[i]) == hash,
                      "training, precision %d, mode %d", (int)precisions[i], (int)modes[j]);
    }
}

int main(int argc, char **argv)
{
    const int rounds = argc > 2 ? atoi(argv[2]) : 40;
    if (!block_open(argc, argv))
        return check_report("cuda rows");
    for (int i = 0; i < rounds; i++) {
        softmax();
        norms();
        cross_entropy();
        linear_cross_entropy(i < 3);
        attention();
        masked_attention();
    }
    trainings();
    block_close();
    return check_report("cuda rows");
}
