/* cuda_elementwise.c - compares CUDA kernels with the plain kernels, bit by bit (block.h): fills and copies between
 * ops, elementwise ops, broadcasting, shape ops, rotary and elementwise losses, with operands at any offset. Then small
 * nets are trained.
 *     build/cuda_elementwise [first seed] */
#include "num/num.h"
#include "attention/attention.h"
#include "axes/axes.h"
#include "ops/internal.h"
#include "images/images.h"
#include "cpu/internal.h"
#include "block.h"
#include <math.h>
#ifdef GCKPT_CUDA_SHIM
#include "cuda_shim.h"
#endif

/* Of the current case: `aligned` is nonzero if operands begin at multiples of 16 bytes. `special` is 0 for ordinary
 * values, 1 if some values are zeros or tiny, 2 if some are also NaN, infinite or the largest floats. */
static int aligned, special;

static float any_value(void)
{
    static const uint32_t odd[] = { 0x7fc00000u, 0x7f800000u, 0xff800000u, 0x80000000u, 0u,
                                    1u, 0x80000001u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0xff7fffffu };
    if (special && chance(10))
        return float_of(odd[below(special > 1 ? 11 : 6) + (special > 1 ? 0 : 3)]);
    float x = (float)((int)below(1 << 20) - (1 << 19)) / 65536.0f;
    return chance(20) ? x * 1e-3f : x;
}

/* Returns an operand of n floats with random values. */
static float *operand(int64_t n)
{
    float *x = block_take(n, aligned ? 4 : 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = any_value();
    return x;
}

static void start(void)
{
    block_clear();
    aligned = chance(60);
    special = chance(30) ? 1 + chance(40) : 0;
}

/* ---- calls ---- */
static int64_t odd_size(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 200 };
    return sizes[below(sizeof sizes / sizeof *sizes)];
}

/* Returns a random shape with at most `most` elements. */
static gckpt_shape any_shape(int dims, int64_t most)
{
    gckpt_shape s = { 0 };
    int64_t n = 1;
    s.n = dims;
    for (int i = 0; i < dims; i++) {
        s.d[i] = odd_size();
        while (n * s.d[i] > most)
            s.d[i] = s.d[i] / 2 + (s.d[i] == 1);
        n *= s.d[i];
        if (n >= most)
            most = n;
    }
    for (int i = dims - 1; i > 0; i--) { /* shuffles the sizes, so that any axis may be the largest */
        int j = (int)below(i + 1);
        int64_t d = s.d[i];
        s.d[i] = s.d[j], s.d[j] = d;
    }
    return s;
}

static gckpt_call new_call(const void *attributes)
{
    gckpt_call c = block_call(attributes);
    c.seed = 0x123456789abcdefu + below(3);
    c.step = below(5);
    c.id = 3 + (int)below(9);
    return c;
}

/* Infers the shape of a call's output, then sets the call's rows and input values. forward() and backward() add the
 * output and the gradients. */
static void operands(const gckpt_op *op, gckpt_call *c)
{
    start();
    CHECK_MSG(op->shape(c) == GCKPT_OK, "%s: no shape", op->name);
    if (c->in[0].shape.n && !c->mixes_rows && c->shape.n && chance(80)) {
        c->rows = c->in[0].shape.d[0];
        c->first_row = chance(50) ? (int64_t)below(3) * c->rows + (int64_t)below(5) : 0;
    }
    for (int i = 0; i < c->inputs; i++) {
        c->in[i].data = operand(count_of(&c->in[i].shape));
        c->in[i].accumulate = chance(50);
    }
    float *x = (float *)(uintptr_t)c->in[0].data; /* input 0 of gckpt_where is the condition: many elements are 0 */
    for (int64_t i = 0; op == &gckpti_op_where && i < count_of(&c->in[0].shape); i++)
        if (chance(40))
            x[i] = float_of(chance(30) ? 0x80000000u : 0);
    if (op == &gckpti_op_where && chance(50))
        c->in[0].index = (const int32_t *)(const void *)x, c->in[0].data = NULL;
}

static void forward(const gckpt_op *op, gckpt_call c)
{
    operands(op, &c);
    for (int i = 0; i < c.inputs && !c.out; i++)
        if (op->flags & GCKPT_INPLACE(i) && count_of(&c.in[i].shape) == count_of(&c.shape) && chance(40))
            c.out = (float *)(uintptr_t)c.in[i].data;
    if (!c.out)
        c.out = operand(count_of(&c.shape));
    both(op, GCKPT_FORWARD, &c);
}

static void backward(const gckpt_op *op, gckpt_call c)
{
    operands(op, &c);
    int64_t n = count_of(&c.shape);
    float *g = operand(n);
    c.out = operand(n);
    c.grad_out = g;
    for (int i = 0; i < c.inputs; i++) {
        gckpt_arg *in = &c.in[i];
        int64_t size = count_of(&in->shape);
        int passes = op->flags & GCKPT_PASSES_GRAD(i) && size == n && chance(20) && (i == 0 || c.in[0].grad != g);
        if (chance(10) || in->index)
            continue;
        in->grad = (passes || (i == 0 && op->flags & GCKPT_INPLACE_GRAD && chance(30))) ? g : operand(size);
        if (op->needs[i] & GCKPT_SUMS && in->grad != g && (size != n || chance(30)))
            in->compensation = operand(size);
        for (int64_t k = 0; in->compensation && k < size; k++)
            in->compensation[k] *= 1e-6f;
        if (in->grad == g)
            in->accumulate = 0;
    }
    both(op, GCKPT_BACKWARD, &c);
}

static void unary(const gckpt_op *op, const void *attributes)
{
    for (int round = 0; round < 24; round++) {
        gckpt_call c = new_call(attributes);
        c.inputs = 1;
        c.in[0].shape = any_shape((int)below(4), 2000);
        c.training = !chance(10);
        forward(op, c);
        c.training = 1;
        if (op->backward)
            backward(op, c);
    }
}

static void test_unary(void)
{
    static const float factor = -0.3f, p = 0.25f, leaks[] = { 0.0f, 0.01f, 2.5f },
                       exponents[] = { 1.0f, 2.0f, 3.0f, -1.7f, 4.0f };
    static const float clamps[][2] = { { -1.0f, 2.0f }, { 0.0f, 0.0f }, { -INFINITY, -0.001f } };
#define UNARY(name, ...) unary(&gckpti_op_##name, NULL);
    UNARY_TESTS(UNARY)
#undef UNARY
    for (int i = 0; i < 5; i++)
        unary(&gckpti_op_pow, &exponents[i]);
    for (int i = 0; i < 3; i++)
        unary(&gckpti_op_clamp, clamps[i]);
    for (int i = 0; i < 3; i++)
        unary(&gckpti_op_leaky_relu, &leaks[i]), unary(&gckpti_op_elu, &leaks[i]);
    unary(&gckpti_op_detach, NULL);
    unary(&gckpti_op_scale, &factor);
    unary(&gckpti_op_dropout, &p);
}

/* Tests ops of two inputs in which any axis may be 1 (broadcast) or missing. */
static void test_broadcasting(void)
{
    const gckpt_op *ops[7] = { &gckpti_op_add,     &gckpti_op_sub,     &gckpti_op_mul,  &gckpti_op_div,
                               &gckpti_op_maximum, &gckpti_op_minimum, &gckpti_op_prelu };
    for (int round = 0; round < 480; round++) {
        const gckpt_op *op = ops[round % 7];
        gckpt_call c = new_call(NULL);
        gckpt_shape all = any_shape((int)below(GCKPT_MAX_DIMS + 1), round % 24 == 0 ? 30000 : 3000);
        int whole = (int)below(3); /* index of an input that is not broadcast; if 2, both may be */
        c.inputs = 2;
        for (int i = 0; i < 2; i++) {
            int missing = i == whole || chance(50) ? 0 : (int)below(all.n + 1);
            c.in[i].shape.n = all.n - missing;
            for (int k = 0; k < all.n - missing; k++)
                c.in[i].shape.d[k] = i != whole && chance(40) ? 1 : all.d[k + missing];
        }
        forward(op, c);
        backward(op, c);
    }
    /* The gradient of a broadcast input is a sum: tests sums over few and many rows, of few and many columns. */
    static const int64_t sizes[][4] = { { 300, 3, 0, 1 }, { 64, 130, 0, 1 }, { 65, 33, 0, 1 }, { 40, 200, 0, 1 },
                                        { 3, 300, 1, 0 }, { 130, 64, 1, 0 }, { 1, 129, 1, 0 }, { 777, 1, 0, 0 } };
    for (int k = 0; k < 8; k++)
        for (int way = 0; way < 12; way++) {
            gckpt_call c = new_call(NULL);
            c.inputs = 2;
            c.in[way / 6].shape = gckpt_shape2(sizes[k][0], sizes[k][1]);
            c.in[1 - way / 6].shape = gckpt_shape2(sizes[k][2] ? sizes[k][0] : 1, sizes[k][3] ? sizes[k][1] : 1);
            backward(ops[way % 6], c);
        }
}

/* Tests gckpt_where. Each of its three inputs may be broadcast; the condition is f32 or i32 and has no gradient. */
static void test_where(void)
{
    for (int round = 0; round < 240; round++) {
        gckpt_call c = new_call(NULL);
        gckpt_shape all = any_shape((int)below(GCKPT_MAX_DIMS + 1), round % 24 == 0 ? 30000 : 3000);
        int whole = (int)below(4); /* index of an input that is not broadcast; if 3, all may be */
        c.inputs = 3;
        for (int i = 0; i < 3; i++) {
            int missing = i == whole || chance(50) ? 0 : (int)below(all.n + 1);
            c.in[i].shape.n = all.n - missing;
            for (int k = 0; k < all.n - missing; k++)
                c.in[i].shape.d[k] = i != whole && chance(40) ? 1 : all.d[k + missing];
        }
        forward(&gckpti_op_where, c);
        backward(&gckpti_op_where, c);
    }
}

static void test_shapes(void)
{
    for (int round = 0; round < 150; round++) {
        gckpti_permute p = { 0, { 0 } };
        gckpt_call c = new_call(&p);
        c.inputs = 1;
        c.in[0].shape = any_shape((int)below(GCKPT_MAX_DIMS + 1), round % 10 ? 3000 : 20000);
        if (round == 0) /* more tiles than thread blocks */
            c.in[0].shape = gckpt_shape3(2500, 3, 2);
        p.n = c.in[0].shape.n;
        for (int i = 0; i < p.n; i++)
            p.axes[i] = i;
        for (int i = p.n - 1; i > 0; i--) {
            int j = round ? (int)below(i + 1) : 1, t = p.axes[i];
            p.axes[i] = p.axes[j], p.axes[j] = t;
        }
        for (int i = 0; i < p.n; i++)
            p.axes[i] -= chance(20) ? p.n : 0;
        forward(&gckpti_op_permute, c);
        backward(&gckpti_op_permute, c);
    }
    for (int round = 0; round < 100; round++) {
        gckpti_slice o;
        gckpt_call c = new_call(&o);
        c.inputs = 1;
        c.in[0].shape = any_shape(1 + (int)below(4), 3000);
        memset(&o, 0, sizeof o);
        o.axis = (int)below(c.in[0].shape.n);
        int64_t size = c.in[0].shape.d[o.axis];
        o.begin[0] = below(size);
        o.end[0] = o.begin[0] + 1 + below(size - (int64_t)o.begin[0]);
        if (chance(30) && size % 4 == 0)
            o.begin[0] = o.begin[0] / 4 * 4, o.end[0] = (o.end[0] + 3) / 4 * 4;
        o.axis -= chance(30) ? c.in[0].shape.n : 0;
        if (c.in[0].shape.n == 3 && (o.axis == 1 || o.axis == -2)) { /* the latest rows of a cache */
            gckpti_slice latest = o;
            gckpt_call d = c;
            latest.relative = 1 + (int)below(size), latest.end[0] = (uint32_t)size;
            d.attributes = &latest, d.position = (int64_t)below(2 * (uint64_t)size);
            forward(&gckpti_op_slice, d);
        }
        forward(&gckpti_op_slice, c);
        backward(&gckpti_op_slice, c);
    }
    for (int round = 0; round < 80; round++) {
        gckpti_pad o = { 0, (int)below(9), (int)below(9), any_value(), (int)below(3) };
        gckpt_call c = new_call(&o);
        c.inputs = 1;
        c.in[0].shape = any_shape(1 + (int)below(4), 3000);
        o.axis = (int)below(c.in[0].shape.n);
        if (chance(30) && c.in[0].shape.d[o.axis] % 4 == 0)
            o.before = o.before / 4 * 4, o.after = o.after / 4 * 4;
        if (o.mode == GCKPT_PAD_REFLECT)
            o.before = o.after = (int)below((int)c.in[0].shape.d[o.axis] < 9 ? (int)c.in[0].shape.d[o.axis] : 9);
        o.axis -= chance(30) ? c.in[0].shape.n : 0;
        forward(&gckpti_op_pad, c);
        backward(&gckpti_op_pad, c);
    }
    for (int round = 0; round < 60; round++) {
        int axis = 0;
        gckpt_call c = new_call(&axis);
        gckpt_shape s = any_shape(1 + (int)below(4), 1000);
        c.inputs = 1 + (int)below(GCKPT_MAX_INPUTS);
        axis = (int)below(s.n);
        for (int i = 0; i < c.inputs; i++) {
            c.in[i].shape = s;
            c.in[i].shape.d[axis] = chance(50) ? s.d[axis] : 1 + (int64_t)below(s.d[axis]);
        }
        axis -= chance(30) ? s.n : 0;
        forward(&gckpti_op_concat, c);
        backward(&gckpti_op_concat, c);
    }
    for (int round = 0; round < 120; round++) {
        const gckpt_op *op = round % 2 ? &gckpti_op_sum : &gckpti_op_mean;
        int axis = 0;
        gckpt_call c = new_call(&axis);
        c.inputs = 1;
        c.in[0].shape = any_shape(1 + (int)below(4), round % 10 ? 3000 : 20000);
        if (round < 4)
            c.in[0].shape = gckpt_shape2(2, 8191 + 4097 * (round / 2));
        axis = round < 4 ? 1 : (int)below(c.in[0].shape.n);
        axis -= chance(30) ? c.in[0].shape.n : 0;
        forward(op, c);
        backward(op, c);
    }
}

/* Tests max, argmax and top_k on inputs in which many values are equal, NaN or infinite. */
static void test_greatest(void)
{
    static const gckpt_op *const ops[4] = { &gckpti_op_max, &gckpti_op_top_k, &gckpti_op_argmax,
                                            &gckpti_op_top_k_indices };
    for (int round = 0; round < 150; round++) {
        int o[2] = { 0, 1 };
        gckpt_call c = new_call(o);
        c.inputs = 1;
        c.in[0].shape = any_shape(1 + (int)below(4), round % 10 ? 3000 : 20000);
        const int axis = chance(40) ? c.in[0].shape.n - 1 : (int)below(c.in[0].shape.n);
        const int64_t size = c.in[0].shape.d[axis];
        int64_t inner = 1;
        for (int i = axis + 1; i < c.in[0].shape.n; i++)
            inner *= c.in[0].shape.d[i];
        o[0] = axis - (chance(30) ? c.in[0].shape.n : 0);
        o[1] = 1 + (int)below(size < 5 || chance(10) ? size : 5);
        for (int way = 0; way < 6; way++) { /* the forwards of ops, then the backwards of max and top_k */
            const gckpt_op *op = ops[way % 4];
            const int back = way >= 4, index = way / 2 == 1;
            const int64_t k = way % 2 ? o[1] : 1;
            gckpt_call d = c;
            operands(op, &d);
            const int64_t n = count_of(&d.in[0].shape), results = count_of(&d.shape);
            float *x = (float *)(uintptr_t)d.in[0].data;
            for (int64_t i = 0; i < n && chance(90); i++)
                x[i] = chance(30) ? x[below(n)] : x[i];
            d.out = back || (!index && chance(20)) ? NULL : operand(results);
            d.saved = back || (!index && (!d.out || chance(70))) ? operand(results) : NULL;
            const int64_t first = below(size); /* a line's k indices differ */
            for (int64_t i = 0; i < results && back; i++)
                ((int32_t *)d.saved)[i] = (int32_t)(k == 1 ? below(size) : (first + i / inner % k) % size);
            if (back)
                d.grad_out = operand(results), d.in[0].grad = operand(n);
            both(op, back ? GCKPT_BACKWARD : GCKPT_FORWARD, &d);
        }
    }
}

static void test_upsample(void)
{
    for (int round = 0; round < 120; round++) {
        gckpti_upsample o = { { 1 + (int)below(12), 1 + (int)below(24) }, round % 3 };
        gckpt_call c = new_call(&o);
        c.inputs = 1;
        c.in[0].shape = gckpt_shape4(1 + below(3), 1 + below(9), 1 + below(12), 1 + below(9));
        if (round < 6) /* sizes for which the source position of a pixel is rounded down */
            o.size[1] = round / 3 ? 166 : 22, c.in[0].shape.d[2] = round / 3 ? 4 : 26;
        forward(&gckpti_op_upsample, c);
        backward(&gckpti_op_upsample, c);
    }
}

static void test_rotary(void)
{
    static const int sizes[][4] = { { 1, 1, 1, 2 }, { 2, 3, 1, 6 }, { 3, 33, 2, 8 }, { 2, 17, 3, 32 }, { 1, 65, 2, 64 },
                                    { 2, 31, 5, 10 }, { 1, 7, 1, 130 } };
    static const float bases[] = { 10000.0f, 1.0f, 0.01f, 5e5f, 1e30f };
    for (int round = 0; round < 35; round++) {
        const int *z = sizes[round % 7];
        struct {
            gckpti_rotary o;
            float frequency[65];
        } with = { { z[2], bases[round / 7], round % 3, 0, 0, 0 }, { 0 } };
        if (round % 2) { /* some columns are rotated and scaled, by given frequencies or by a base */
            with.o.columns = z[3] > 2 ? z[3] / 2 / (1 + round % 2) * 2 : 2;
            with.o.scale = 1.125f;
            with.o.has_frequencies = round % 4 == 1;
        }
        for (int i = 0; i < 65; i++)
            with.frequency[i] = 1.0f / (float)(i + 1);
        gckpt_call c = new_call(&with);
        c.inputs = 1;
        c.in[0].shape = gckpt_shape3(z[0], z[1], z[2] * z[3]);
        forward(&gckpti_op_rotary, c);
        backward(&gckpti_op_rotary, c);
    }
}

/* Adds a weight for each element of the first axes as input 2; some weights are 0. */
static void weigh(gckpt_call *c)
{
    c->inputs = 3;
    c->in[2].shape = c->in[0].shape;
    c->in[2].shape.n = 1 + (int)below(c->in[0].shape.n);
}

/* Tests losses. A forward adds to existing sums; a recompute requests no sums. */
static void test_losses(void)
{
    static const gckpt_op *const ops[5] = { &gckpti_op_mean_squared_error, &gckpti_op_sum_loss,
                                            &gckpti_op_mean_squared_error_with, &gckpti_op_huber,
                                            &gckpti_op_binary_cross_entropy };
    static const float deltas[2] = { 0.7f, 3.0f };
    for (int round = 0; round < 200; round++) {
        const gckpt_op *op = ops[round % 5];
        gckpt_call c = new_call(round % 5 == 3 ? &deltas[round / 5 % 2] : NULL);
        c.inputs = 2 - (round % 5 == 1);
        c.in[0].shape = c.in[1].shape = any_shape((round % 5 == 2) + (int)below(4), round % 8 ? 2000 : 12000);
        if (round < 25) /* a few long rows */
            c.in[0].shape = c.in[1].shape = gckpt_shape2(1 + round % 2, 8190 + round * round * 20);
        if (round % 5 == 2 || (round % 5 > 2 && c.in[0].shape.n && chance(60)))
            weigh(&c);
        c.loss_scale = any_value();
        operands(op, &c);
        for (int64_t i = 0; c.inputs == 3 && i < count_of(&c.in[2].shape); i++)
            if (chance(20))
                ((float *)(uintptr_t)c.in[2].data)[i] = chance(50) ? 0.0f : -0.0f;
        for (int64_t i = 0; c.inputs > 1 && i < count_of(&c.in[0].shape); i++)
            if (chance(5)) /* some predictions equal their target */
                ((float *)(uintptr_t)c.in[1].data)[i] = c.in[0].data[i];
        double *sum = (double *)(void *)(host + (used + 7) / 4 * 4);
        int64_t *count = (int64_t *)(void *)(sum + 1);
        used = (used + 7) / 4 * 4 + 4;
        *sum = 0.1 * round;
        *count = 5 * round;
        c.loss_sum = chance(20) ? NULL : sum;
        c.loss_count = chance(20) ? NULL : count;
        both(op, GCKPT_FORWARD, &c);
        for (int i = 0; i < c.inputs; i++)
            c.in[i].grad = chance(20) ? NULL : operand(count_of(&c.in[i].shape));
        c.loss_sum = NULL;
        both(op, GCKPT_BACKWARD, &c);
    }
}

/* ---- functions that a backend runs between ops: fill, copy, add ---- */
static void test_between(void)
{
    gckpt_call h = new_call(NULL), d = h;
    d.backend = device->context;
    for (int round = 0; round < 60; round++) {
        int64_t n = round < 40 ? odd_size() : odd_size() * 61;
        start();
        float *a = operand(n), *b = operand(n);
        uint32_t word = round % 2 ? 0 : 0x7fc07fc0u;
        block_upload();
        gckpti_cpu_fill(&h, a, word, n);
        device->fill(&d, to_device(a), word, n);
        gckpti_cpu_add(&h, b, b + 0, n);
        device->add(&d, (float *)to_device(b), (float *)to_device(b), n);
        block_same("fill and add", NULL);
    }
    for (int round = 0; round < 200; round++) {
        gckpt_conversion c = { (gckpt_conversion_kind)(round % 4), NULL, NULL, NULL, 0 }, e;
        h.precision = d.precision = GCKPT_BF16;
        c.n = odd_size() * (1 + (int64_t)below(20));
        start();
        c.x = operand(c.n);
        uint16_t *half = (uint16_t *)(void *)operand(c.n / 2 + 1);
        half += aligned ? 0 : below(2);
        for (int64_t i = 0; i < c.n; i++)
            half[i] = (uint16_t)(special ? below(65536) : bits_of(any_value()) >> 16);
        c.from = c.kind <= GCKPT_WIDEN_ADD ? half : NULL;
        c.to = c.kind == GCKPT_NARROW ? half : NULL;
        e = c;
        e.x = (float *)to_device(c.x);
        e.from = (const uint16_t *)to_device(c.from);
        e.to = (uint16_t *)to_device(c.to);
        block_upload();
        device->convert(&d, &e);
        gckpti_cpu_convert(&h, &c);
        block_same("convert", NULL);
    }
}

/* Tests fills. The backend collects up to 64 of them for one launch. It launches them earlier if two fills would write
 * the same memory, or before any other request. */
static void test_fills(void)
{
    gckpt_call h = new_call(NULL), d = h;
    d.backend = device->context;
    for (int round = 0; round < 40; round++) {
        enum { PIECES = 150 };
        float *a[PIECES];
        int64_t n[PIECES];
        start();
        for (int i = 0; i < PIECES; i++)
            n[i] = chance(10) ? 8190 + (int64_t)below(5) : odd_size() % 200, a[i] = operand(n[i]);
        block_upload();
#ifdef GCKPT_CUDA_SHIM
        long launches = cuda_shim.launches;
#endif
        for (int i = 0; i < PIECES; i++) {
            int again = round % 4 == 1 && i ? (int)below((unsigned)i) : i;
            int64_t from = n[again] && chance(30) ? (int64_t)below((unsigned)n[again]) : 0;
            uint32_t word = below(2) ? 0 : 0x7fc07fc0u + (uint32_t)i;
            gckpti_cpu_fill(&h, a[again] + from, word, n[again] - from);
            device->fill(&d, to_device(a[again] + from), word, n[again] - from);
            if (round % 4 == 2 && i % 40 == 39 && n[i]) {
                gckpti_cpu_add(&h, a[i - 1], a[i - 2], gckpti_min(n[i - 1], n[i - 2]));
                device->add(&d, (float *)to_device(a[i - 1]), (float *)to_device(a[i - 2]),
                            gckpti_min(n[i - 1], n[i - 2]));
            } else if (round % 4 == 3 && i % 40 == 39) {
                memcpy(a[i - 1], a[i], (size_t)gckpti_min(n[i - 1], n[i]) * 4);
                device->copy(device->context, to_device(a[i - 1]), to_device(a[i]),
                             (size_t)gckpti_min(n[i - 1], n[i]) * 4);
            }
        }
        block_same("fills", NULL);
#ifdef GCKPT_CUDA_SHIM
        launches = cuda_shim.launches - launches;
        CHECK_MSG(round % 4 || launches == 3, "%d fills are %ld launches", PIECES, launches);
#endif
    }
}

/* Compares CUDA's update with gckpti_cpu_update. CUDA stores the gradient divided by the count only with write_back;
 * gckpti_cpu_update always does. Without write_back, the test therefore replaces the processor's gradient by the
 * undivided sum before it compares. */
static void test_update(void)
{
    static const int64_t sizes[] = { 1, 3, 4, 31, 33, 127, 1000, 4095, 4096, 4097, 4100, 8192, 9001 };
    for (int round = 0; round < 130; round++) {
        gckpt_call h = new_call(NULL), d = h;
        gckpt_update_pass p, q;
        size_t more[12], more_there[12];
        int64_t n = sizes[round % 13];
        memset(&p, 0, sizeof p);
        start();
        p.elements = n;
        p.gradient = operand(n);
        p.base = host;
        p.adds = chance(50) ? (int)below(4) : chance(20) ? 7 + (int)below(5) : 0;
        for (int i = 0; i < p.adds; i++)
            more[i] = more_there[i] = (size_t)((char *)operand(n) - (char *)host);
        p.more = more;
        p.count = chance(80) ? (float)(1 + below(50)) : 0;
        p.write_back = chance(50);
        p.squares = chance(70) ? operand((n + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK) : NULL;
        p.update = chance(80);
        p.optimiser = (gckpt_optimiser)below(3);
        if (p.update) {
            p.values = operand(n);
            p.state[0] = p.optimiser != GCKPT_SGD ? operand(n) : NULL;
            p.state[1] = p.optimiser == GCKPT_ADAMW ? operand(n) : NULL;
            for (int64_t i = 0; i < n && p.state[1]; i++)
                p.state[1][i] = fabsf(p.state[1][i]);
            p.momentum = 0.9f;
            gckpt_update_constants rates = {
                chance(50) ? 1.0f : 0.7f, 1e-3f, 0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 3e-3f, 1.7f
            };
            p.rates = rates;
        }
        q = p;
        d.backend = device->context;
        q.base = device_block;
        q.more = more_there;
        q.gradient = (float *)to_device(p.gradient);
        q.squares = (float *)to_device(p.squares);
        q.values = (float *)to_device(p.values);
        q.state[0] = (float *)to_device(p.state[0]);
        q.state[1] = (float *)to_device(p.state[1]);
        block_upload();
        device->update(&d, &q);
        static float sum[9001];
        memcpy(sum, p.gradient, (size_t)n * 4);
        for (int u = 0; u < p.adds; u++)
            gckpti_add_into(sum, (const float *)(const void *)((const char *)host + more[u]), n);
        gckpti_cpu_update(&h, &p);
        if (!p.write_back)
            memcpy(p.gradient, sum, (size_t)n * 4);
        block_same("update", NULL);
    }
}

/* ---- trainings of a graph that has each of these ops, on the device and on the processor ---- */
enum { B = 6, T = 5, C = 24 };
typedef struct {
    gckpt_mode mode;
    gckpt_optimiser optimiser;
    gckpt_precision precision;
    int64_t rows;
    float clip;
    int fetch, in_backward;
} training;

static uint64_t train(const training *o, const gckpt_backend *backend)
{
    static float x[B * T * C], y[B * T * 2 * C];
    const gckpt_init normal = { 0.3f, 0, 0 }, one = { 0.2f, 0, 1 };
    const gckpt_shape none = { 0, { 0 } };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(o->rows, T, C));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape3(o->rows, T, 2 * C));
    gckpt_tensor *place = gckpt_param(g, "place", gckpt_shape2(T + 2, C), normal);
    gckpt_tensor *gain = gckpt_param(g, "gain", gckpt_shape1(C), one);
    gckpt_tensor *time = gckpt_param(g, "time", gckpt_shape2(T, 1), normal);
    gckpt_tensor *all = gckpt_param(g, "all", none, one);
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(C, C), normal);
    gckpt_tensor *h = gckpt_positions(in, place, 0), *k, *parts[3];
    const int axes[3] = { 0, 2, 1 };
    h = gckpt_mul(h, gain);
    h = gckpt_sub(h, time);
    h = gckpt_mul(all, gckpt_linear(h, w, NULL));
    k = gckpt_relu(gckpt_rotary(h, &(gckpt_rotary_desc){ .heads = 3 }));
    h = gckpt_mul(gckpt_dropout(h, 0.3f), gckpt_scale(k, 0.7f));
    h = gckpt_add(h, gckpt_slice(gckpt_pad(gckpt_embed(w, gckpt_argmax(k, 2)), 1, 1, 1, GCKPT_PAD_VALUE, 0.1f), 1, 0, T));
    k = gckpt_upsample(gckpt_reshape(k, gckpt_shape4(o->rows, T, C, 1)), T + 2, C / 2, GCKPT_BILINEAR);
    k = gckpt_upsample(k, T, C, GCKPT_NEAREST);
    h = gckpt_sub(h, gckpt_mul(gckpt_reshape(k, gckpt_shape3(o->rows, T, C)),
                               gckpt_reshape(gckpt_max(h, 1), gckpt_shape3(o->rows, 1, C))));
    parts[0] = gckpt_permute(gckpt_gelu(gckpt_permute(h, axes, 3)), axes, 3);
    parts[1] = gckpt_slice(gckpt_tanh(h), 2, 3, 3 + C / 2);
    parts[2] = gckpt_mul(gckpt_slice(h, 2, 0, C / 2), gckpt_reshape(gckpt_mean(h, 2), gckpt_shape3(o->rows, T, 1)));
    parts[2] = gckpt_maximum(parts[2], gckpt_scale(gckpt_detach(parts[1]), 0.5f));
    parts[1] = gckpt_div(parts[1], gckpt_exp(gckpt_clamp(parts[2], -1.0f, 1.0f)));
    h = gckpt_add(parts[0], gckpt_reshape(gckpt_sum(h, 1), gckpt_shape3(o->rows, 1, C)));
    parts[0] = gckpt_mul(h, h);
    gckpt_term terms[4] = { { gckpt_mean_squared_error(gckpt_concat(parts, 3, 2), target, NULL), 1, 0 },
                            { gckpt_sum_loss(gckpt_sigmoid(parts[1])), 0.5f, 0 },
                            { gckpt_huber(parts[1], parts[2], gckpt_exp(gckpt_mean(target, 2)), 0.5f), 0.3f, 0 },
                            { gckpt_sum_loss(gckpt_mul(w, w)), 0.01f, 1 } };
    gckpt_fetch_spec fetches[2] = { { gain, 1 }, { parts[1], 1 } };
    gckpt_plan_desc d = { .mode = o->mode, .batch = B, .optimiser = o->optimiser, .bf16.precision = o->precision,
                          .fetch.specs = fetches, .fetch.count = o->fetch ? 2 : 0, .update_in_backward = o->in_backward,
                          .backend = backend };
    gckpt_plan *p = gckpt_plan_new(g, terms, 4, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    gckpt_exec_desc ed = { .backend = backend };
    gckpt_exec *e = gckpt_exec_new(p, s, &ed);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(s));
    uint64_t hash = 1;
    for (int step = 0; step < 3 && e; step++) {
        gckpt_report r = { 0 };
        gckpt_hyper hyper = { .lr = o->optimiser == GCKPT_ADAMW ? 0.01f : 1e-4f,
                              .weight_decay = 0.1f,
                              .clip = o->clip };
        gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
        for (int i = 0; i < B * T * C; i++)
            x[i] = (float)((i * 37 + step * 11) % 101 - 50) / 30;
        for (int i = 0; i < B * T * 2 * C; i++)
            y[i] = (float)((i * 53 + step * 7) % 89 - 44) / 40;
        CHECK_MSG(gckpt_step(e, feeds, 2, step == 1 ? B - 1 : B, &hyper, &r) == GCKPT_OK, "%s", gckpt_error_text(e));
        double two[2];
        two[0] = r.loss, two[1] = r.grad_norm;
        CHECK_MSG(two[1] > 0 && two[1] < 1e30, "the gradient's norm is %g", two[1]);
        hash = gckpti_fnv(hash, two, sizeof two);
        if (o->fetch)
            hash = gckpti_hash_floats(hash, gckpt_fetch(e, gckpt_id(gain), 1), C);
        hash ^= gckpt_store_hash(s);
    }
    util_free(e, p, g, s);
    return hash;
}

static void test_trainings(void)
{
    static const gckpt_mode modes[3] = { GCKPT_STORE_ALL, GCKPT_MEMORY_POOR, GCKPT_SQRT };
    for (int way = 0; way < 18; way++) {
        training o = { modes[way % 3], (gckpt_optimiser)(way / 3 % 3), (gckpt_precision)((way + way / 6) % 2),
                       way % 4 == 0 ? B : way % 4 == 1 ? 2 : way % 4 == 2 ? 4 : 1, way % 5 == 0 ? 1e-2f : 0.0f,
                       way % 7 == 0, 0 };
        o.in_backward = o.rows == B && !o.clip;
        uint64_t want = train(&o, NULL), got = train(&o, device);
        CHECK_MSG(got == want, "training %d: other bits", way);
    }
}

int main(int argc, char **argv)
{
    if (!block_open(argc, argv))
        return check_report("cuda elementwise");
    test_unary();
    test_broadcasting();
    test_where();
    test_shapes();
    test_greatest();
    test_upsample();
    test_rotary();
    test_losses();
    test_between();
    test_fills();
    test_update();
    test_trainings();
    block_close();
    return check_report("cuda elementwise");
}
