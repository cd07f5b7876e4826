#pragma once
#include "base/base.h"
#include "num/num.h"
#include "store/store.h"

GCKPTI_COLD_END

/* =================================================================================================
 * >>ops: what each op is: shape rule, forward, backward, descriptor, builder
 *
 * An op is one block: formula; shape rule (from in[].shape to shape, pure); forward; backward; the
 * descriptor (gckpt_op): what each input's gradient reads (needs), which buffers may share bytes
 * (flags); the public builder, which only calls gckpt_apply: that checks NULL and calls shape().
 *
 * A gradient element that is a product, g * derivative, is stored rounded if it is the first
 * contribution and is one fma if it is added: no product feeds an addition (manual, 5a and 5f).
 *
 * GCKPTI_OPS lists all ops. The kernels here are plain C, and the definition of the numbers
 * (manual, 5); those of cpu return the same bits faster. This header also declares their data:
 * sizes of convolutions, tiles of attention, rows of losses.
 * ============================================================================================== */

/* ---- the list of ops; flags of their descriptors ---- */
/* clang-format off */
/* All ops: fast(name) also has kernels in cpu; plain(name) has none; recurrent, image and loss
 * have, and can be left out. */
#define GCKPTI_ALL_OPS(fast, plain, recurrent, image, loss)                                        \
    fast(relu) fast(gelu) fast(gelu_erf) fast(silu) fast(tanh) fast(sigmoid) fast(softmax)         \
    fast(log_softmax) fast(exp) fast(log) fast(sqrt) fast(abs) fast(reciprocal) fast(pow)          \
    fast(clamp) fast(leaky_relu) fast(softplus) fast(sin) fast(cos) plain(detach) plain(scale)     \
    fast(dropout) plain(from_u8) fast(add) fast(sub) fast(mul) fast(div) fast(maximum)            \
    fast(minimum) fast(where)                                                                      \
    plain(permute) plain(slice) plain(concat) plain(pad) plain(sum) plain(mean) plain(max)         \
    plain(argmax) plain(cache)                                                                     \
    fast(embed) fast(matmul) fast(linear) fast(layernorm) fast(rmsnorm) fast(attention)            \
    fast(rotary) fast(cross_entropy) fast(linear_cross_entropy)                                   \
    loss(cross_entropy_with) loss(soft_cross_entropy) fast(mean_squared_error)                     \
    loss(mean_squared_error_with) loss(huber) loss(binary_cross_entropy) fast(sum_loss)            \
    fast(gather) recurrent(gru) recurrent(lstm)                                                    \
    image(max_pool) image(average_pool) image(upsample) image(groupnorm) image(batchnorm)          \
    image(conv2d)
/* clang-format on */

/* The ops of this build, from which their fast kernels and printed C (gckpt_plan_c) follow. */
#define GCKPTI_OPS(fast, plain)                                                                    \
    GCKPTI_ALL_OPS(fast, plain, GCKPTI_RECURRENT(fast), GCKPTI_IMAGES(fast), GCKPTI_LOSSES(fast))
#define GCKPTI_LEFT_OUT(name)
#ifndef GCKPT_NO_RECURRENT
#define GCKPTI_RECURRENT(fast) fast
#else
#define GCKPTI_RECURRENT(fast) GCKPTI_LEFT_OUT
#endif
#ifndef GCKPT_NO_IMAGES
#define GCKPTI_IMAGES(fast) fast
#else
#define GCKPTI_IMAGES(fast) GCKPTI_LEFT_OUT
#endif
#ifndef GCKPT_NO_LOSSES
#define GCKPTI_LOSSES(fast) fast
#else
#define GCKPTI_LOSSES(fast) GCKPTI_LEFT_OUT
#endif

/* A table entry that only training needs. */
#define GCKPTI_IF_TRAINING(x) (GCKPTI_WITH_TRAINING ? (x) : NULL)

/* Returns whether the plan trains: dropout masks are random, statistics are the batch's. */
static inline int gckpti_is_training(const gckpt_call *call)
{
    return GCKPTI_WITH_TRAINING && call->training;
}

/* The flag of the built-in ops. */
#define GCKPTI_BUILTIN(name) GCKPTI_BUILTIN_##name = 1 << 20,
enum { GCKPTI_OPS(GCKPTI_BUILTIN, GCKPTI_BUILTIN) GCKPTI_BUILTIN_OP = 1 << 20 };
#undef GCKPTI_BUILTIN

#ifdef GCKPTI_SEPARATE_TU
#define GCKPTI_DECLARE(name)                                                                       \
    GCKPTI_FN void gckpti_##name##_forward(const gckpt_call *call);                                \
    GCKPTI_FN void gckpti_##name##_backward(const gckpt_call *call);                               \
    extern GCKPTI_DATA const gckpt_op gckpti_op_##name;
GCKPTI_OPS(GCKPTI_DECLARE, GCKPTI_DECLARE)
#undef GCKPTI_DECLARE
#endif

#if GCKPTI_HAS_FAST /* in cpu */
#define GCKPTI_DECLARE(name)                                                                       \
    GCKPTI_FN void gckpti_fast_##name##_forward(const gckpt_call *call);                           \
    GCKPTI_FN void gckpti_fast_##name##_backward(const gckpt_call *call);
GCKPTI_OPS(GCKPTI_DECLARE, GCKPTI_LEFT_OUT)
#undef GCKPTI_DECLARE
#endif

/* A loss whose backward, when it has attributes, adds to the loss's sum; its forward counts. */
enum { GCKPTI_BACKWARD_LOSS = 1 << 21 };

/* Like GCKPT_TAKES_BF16 for all inputs, but only in CPU kernels; backends get f32 copies. This
 * flag and the next two reuse the GCKPT_INDEX bits of inputs 4 to 6, which these ops lack. */
enum { GCKPTI_TAKES_ALL_BF16 = 1 << 30 };

/* Ops that work element by element (if no input is repeated) or row by row: in bf16 plans the CPU
 * runs their kernels in strips, with f32 copies on the stack. They use no workspace. */
enum { GCKPTI_IS_ELEMENTWISE = 1 << 29, GCKPTI_IS_ROWWISE = 1 << 28 };

/* The cost of a product's gradients: each as much as the forward; no op has more than two. */
GCKPTI_FN uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward);

GCKPTI_INLINE void gckpti_put_product(float *d, float a, float b, int accumulate)
{
    *d = accumulate ? gckpti_fma(a, b, *d) : a * b;
}

GCKPTI_INLINE void gckpti_put_quotient(float *d, float a, float b, int accumulate)
{
    gckpti_put(d, a / b, accumulate);
}

GCKPTI_INLINE void gckpti_put_masked(float *d, float g, float mask, int accumulate)
{
    gckpti_put(d, mask > 0.0f ? g : 0.0f, accumulate);
}

/* A linear op's backward is its forward on g. n is 0 if no gradient is required. */
typedef struct {
    const float *from;
    float *to;
    int64_t n;
    int accumulate;
} gckpti_io;

static inline gckpti_io gckpti_io_of(const gckpt_call *call, int backward)
{
    const gckpt_arg *x = &call->in[0];
    gckpti_io p = { x->data, call->out, gckpti_elements(&call->shape), 0 };
    if (backward)
        p.from = call->grad_out, p.to = x->grad, p.accumulate = x->accumulate;
    p.n = p.to ? p.n : 0;
    return p;
}

/* dropout: element i is x times `scale` if 24 bits of its random word (number offset + i, four
 * to a block) are at least `threshold`; else it is +0. */
typedef struct {
    gckpti_io io;
    float scale;
    uint32_t threshold;
    uint64_t offset;
    gckpti_random random;
} gckpti_dropout;

/* u >= p in integers: u is one of 2^24. */
static inline gckpti_dropout gckpti_dropout_of(const gckpt_call *call, int backward)
{
    const float p = *(const float *)call->attributes, limit = p > 0.0f ? p * 16777216.0f : 0.0f;
    gckpti_dropout d = { gckpti_io_of(call, backward),
                         1.0f / (1.0f - p),
                         (uint32_t)limit,
                         0,
                         { call->seed, (uint32_t)call->id, (uint32_t)call->step } };
    d.threshold += (float)d.threshold < limit;
    d.offset = call->first_row ? (uint64_t)call->first_row * (uint64_t)(d.io.n / call->rows) : 0;
    return d;
}

/* Defines an op's kernels by one expression, `run`, which uses `backward`. */
#define GCKPTI_OP_KERNELS(name, run)                                                               \
    GCKPTI_FN void gckpti_##name##_forward(const gckpt_call *call)                                 \
    {                                                                                              \
        const int backward = 0;                                                                    \
        run;                                                                                       \
    }                                                                                              \
    GCKPTI_FN void gckpti_##name##_backward(const gckpt_call *call)                                \
    {                                                                                              \
        const int backward = 1;                                                                    \
        run;                                                                                       \
    }

/* Adds x to element i of a gradient, compensated if the plan says so. */
GCKPTI_INLINE void gckpti_add_to_grad(const gckpt_arg *arg, int64_t i, float x)
{
    gckpti_sum_add(&arg->grad[i], arg->compensation ? arg->compensation + i : NULL, x);
}

/* ---- ops/broadcast.c ---- */
typedef struct {
    int n;
    int64_t size[GCKPT_MAX_DIMS], step[2][GCKPT_MAX_DIMS], index[GCKPT_MAX_DIMS];
    int64_t offset[2]; /* where the current run begins */
} gckpti_iter;

GCKPTI_FN void gckpti_iter_begin(gckpti_iter *it);

/* Adds the next axis, from the innermost outwards. */
GCKPTI_FN void gckpti_iter_add_axis(gckpti_iter *it, int64_t size, int64_t step0, int64_t step1);

/* Iterates over the output; offset[0] follows input 0, offset[1] input i. The innermost step is 1,
 * or 0 for a repeated input. */
GCKPTI_FN void gckpti_broadcast_iter(gckpti_iter *it, const gckpt_call *call, int i);

GCKPTI_INLINE float gckpti_binary_maximum(float a, float b) { return a < b || b != b ? b : a; }
GCKPTI_INLINE float gckpti_binary_minimum(float a, float b) { return b < a || b != b ? b : a; }

/* The gradients of the binary ops, in the order of the formulas of gckpti_binary_gradient. */
GCKPTI_INLINE float gckpti_grad_identity(float g, float self, float other, float *factor)
{
    return (void)self, (void)other, (void)factor, g;
}

GCKPTI_INLINE float gckpti_grad_negate(float g, float self, float other, float *factor)
{
    return (void)self, (void)other, (void)factor, -g;
}

GCKPTI_INLINE float gckpti_grad_product(float g, float self, float other, float *factor)
{
    return (void)self, *factor = other, g;
}

GCKPTI_INLINE float gckpti_grad_numerator(float g, float a, float b, float *factor)
{
    return (void)a, (void)factor, g / b;
}

GCKPTI_INLINE float gckpti_grad_denominator(float g, float b, float a, float *factor)
{
    return *factor = a / b / b, -g;
}

GCKPTI_INLINE float gckpti_grad_maximum(float g, float self, float other, float *factor)
{
    *factor = self == other ? 0.5f : 1.0f;
    return self < other ? 0.0f : g;
}

GCKPTI_INLINE float gckpti_grad_minimum(float g, float self, float other, float *factor)
{
    return gckpti_grad_maximum(g, other, self, factor);
}

/* Iterates over the output; offset[0] follows x, which forward reads and backward adds to. */
GCKPTI_FN void gckpti_permute_iter(gckpti_iter *it, const gckpt_call *call);

/* ---- ops/axis.c ---- */
typedef struct {
    int64_t outer, size, inner;
} gckpti_axis_split;

/* A negative axis counts from the last. */
GCKPTI_FN gckpti_axis_split gckpti_split_at(const gckpt_shape *s, int axis);

typedef struct {
    uint32_t begin[2], end[2]; /* low word, high word: attributes are words (gckpt_apply) */
    int axis;
    int relative; /* omitted if 0, since zeros pad the attributes of a node to 16 bytes */
} gckpti_slice;

GCKPTI_INLINE int64_t gckpti_join_words(const uint32_t *words)
{
    return (int64_t)((uint64_t)words[1] << 32 | words[0]);
}

typedef struct {
    int axis, before, after;
    float value;
} gckpti_pad;

typedef struct {
    int capacity;
    int window; /* omitted if 0, which keeps all rows */
} gckpti_cache;

/* Rows of a cache: a window, and the rows that a call may add before the oldest is overwritten. */
enum { GCKPTI_CACHE_STEP = 64 };
static inline int64_t gckpti_cache_rows(const gckpti_cache *o)
{
    const int64_t rows = (int64_t)o->window + GCKPTI_CACHE_STEP - 1;
    return o->window ? (rows + GCKPTI_CACHE_STEP - 1) / GCKPTI_CACHE_STEP * GCKPTI_CACHE_STEP
                     : o->capacity;
}

GCKPTI_INLINE void gckpti_cache_put(const gckpt_arg *x, int64_t i, float *out, uint16_t *narrow,
                                    int64_t to)
{
    if (gckpti_has_f32(out))
        out[to] = x->data[i];
    else
        narrow[to] = gckpti_has_bf16(x->bf16) ? x->bf16[i] : gckpti_to_bf16(x->data[i]);
}

/* ---- ops/embed.c ---- */
/* Returns the table row that is row r of the output. */
GCKPTI_INLINE int64_t gckpti_source_row(const gckpt_call *call, int64_t r)
{
    const gckpt_shape *table = &call->in[0].shape;
    int64_t first = table->n == 3 ? r / call->shape.d[1] * table->d[1] : 0;
    return first + call->in[1].index[r];
}

GCKPTI_FN void gckpti_take_row(const gckpt_call *call, int64_t r);

/* ---- ops/products.c ---- */
enum {
    GCKPTI_KEY_TILE = 64,     /* keys in a step of attention: part of the contract */
    GCKPTI_K_BLOCK = 32,      /* terms of a block in bf16 plans: part of the contract */
    GCKPTI_LOSS_CHUNK = 1024, /* classes in a step of cross-entropy: part of the contract */
#ifndef GCKPT_NO_FAST
    GCKPTI_LOSS_ROWS = 256,     /* rows per pass over a chunk of w: speed only */
    GCKPTI_LOSS_MAX_ROWS = 1024 /* in bf16 plans, which pack w's chunk each time; without w */
#else
    GCKPTI_LOSS_ROWS = 1, /* plain plans take one row at a time: less stack */
    GCKPTI_LOSS_MAX_ROWS = GCKPTI_WITH_BF16 ? GCKPTI_K_BLOCK : 1
#endif
};

/* Scratch of the fast kernels, for all instruction sets, in floats per thread. */
enum {
    GCKPTI_KC = 384,         /* terms of a chain at a time; in between it is kept in c */
    GCKPTI_KC_STRIDED = 256, /* the same if each term is in another line of a */
    GCKPTI_NC = 192,         /* columns at a time: with KC, a third of a 1 MB L2 */
    GCKPTI_PANEL = 48,       /* columns of a panel of packed b, at most */
    GCKPTI_STRIP = 16,       /* rows of packed a at a time: a cache line */
    GCKPTI_GATHER_ROWS = 64, /* rows of a at a time of a convolution's dw: a pixel's channels */
    GCKPTI_STACK_FLOATS = 128 * (GCKPTI_PANEL + GCKPTI_STRIP), /* 32 KiB: on the stack */
    GCKPTI_MIXED_MC = 256, /* of bf16 plans: rows of c per packed panel of b, twice as */
    GCKPTI_MIXED_KC = 256  /* many if a is not packed; terms at a time */
};

GCKPTI_FN int64_t gckpti_ceil_to(int64_t n, int64_t step);

/* Floats for a product of m rows, n columns and k terms: 320 KiB at most. Less is allowed, down
 * to 16 terms: 16 * (GCKPTI_PANEL + GCKPTI_STRIP). Returns 0 if the stack suffices. */
GCKPTI_FN int64_t gckpti_product_workspace(int64_t m, int64_t n, int64_t k);

/* The same for a bf16 plan (344 KiB at most, at least a block of terms): some terms of a's rows
 * and of a panel of b as bf16; if k is larger, also rows x GCKPTI_NC partial results. */
GCKPTI_FN int64_t gckpti_mixed_workspace(int64_t m, int64_t n, int64_t k);

/* Workspace of attention, for heads of d columns, t queries: blocks of 64 queries or keys, rows in
 * whole vectors. In bf16 plans it has packed operands, dq, and, if heads share keys (s > 0), dk and
 * dv of s keys. Plain kernels need only f32 copies of bf16 rows. */
GCKPTI_FN int64_t gckpti_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                             int64_t d, int backward);

/* Zeroes d, or the gradients of inputs first..end-1, unless they accumulate. */
GCKPTI_FN void gckpti_zero_unless(float *d, int64_t n, int accumulate);
GCKPTI_FN void gckpti_zero_gradients(const gckpt_call *call, int first, int end);

typedef struct {
    int64_t matrices, m, n, k;
} gckpti_sizes;

GCKPTI_FN gckpti_sizes gckpti_matmul_sizes(const gckpt_call *call); /* linear: a is x, b is w */
typedef void (*gckpti_product_fn)(const gckpt_call *call, const gckpti_product *t);

/* Whether t's elements are one chain each; the terms of the block (or of the chain) at term p. */
GCKPTI_INLINE int gckpti_is_chain(const gckpti_product *t)
{
    return t->k_period > 0 && t->k_period < GCKPTI_K_BLOCK;
}
GCKPTI_INLINE int64_t gckpti_block_terms(const gckpti_product *t, int64_t p)
{
    const int one_period = !t->k_period || gckpti_is_chain(t);
    const int64_t left = one_period ? t->k : t->k_period - (t->k_offset + p) % t->k_period;
    return gckpti_min(gckpti_min(left, t->k - p), GCKPTI_K_BLOCK);
}

/* Returns the rows of a sample of x, which are a gradient's terms (manual, 5l); and how many rows,
 * at most `most`, a call may take from `row` on. */
GCKPTI_INLINE int64_t gckpti_sample_rows(const gckpt_shape *x)
{
    return x->n > 1 && x->d[0] > 0 ? gckpti_rows(x) / x->d[0] : 1;
}
GCKPTI_FN int64_t gckpti_loss_block_rows(const gckpt_call *call, int64_t row, int64_t most);

/* arg's values from `at` on. */
GCKPTI_FN gckpti_operand gckpti_arg_operand(const gckpt_arg *arg, int64_t at, int64_t row,
                                            int64_t step, int64_t next);
GCKPTI_FN gckpti_operand gckpti_transpose(const gckpti_operand *x);

/* Computes c (m,n) = a b, or +=; a, b, k_period and k_offset of t are set. */
GCKPTI_FN void gckpti_gemm(const gckpt_call *call, gckpti_product_fn run, gckpti_product *t,
                           int64_t m, int64_t n, int64_t k, float *c, int accumulate);

/* In f32 plans: a row of c term by term if b's columns are adjacent, else chain by chain. */
GCKPTI_FN void gckpti_fp32_plain(const gckpt_call *call, const gckpti_product *t);

/* Forward of matmul and linear: out = a b + bias. */
GCKPTI_FN void gckpti_linear_output(const gckpt_call *call, gckpti_product_fn run);

/* Backward: da = g b', db = a' g, or (g' a) where b is transposed. */
GCKPTI_FN void gckpti_linear_gradients(const gckpt_call *call, gckpti_product_fn run);

/* ---- ops/mixed.c ---- */
/* Returns whether a built-in op has a flag. */
#ifndef GCKPT_NO_BF16
GCKPTI_FN int gckpti_has_builtin_flag(const gckpt_op *op, int flag);
GCKPTI_FN void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t);

/* The terms of an element in order: floats, which are rounded, or bf16. */
typedef struct {
    const float *f32;
    const uint16_t *bf16;
    int64_t step;
} gckpti_terms;

GCKPTI_FN gckpti_terms gckpti_terms_of(const gckpti_operand *x, int64_t at, int64_t step);

/* Return the element after: a block of terms, of which first..end-1 take part; such terms of all
 * blocks; all terms of an element d of t, whose operands begin at elements a and b. */
GCKPTI_FN float gckpti_mixed_block(const gckpti_terms *a, const gckpti_terms *b, int64_t first,
                                   int64_t end, float element);
GCKPTI_FN float gckpti_mixed_blocks(const gckpti_terms *a, const gckpti_terms *b, int64_t first,
                                    int64_t end, float element);
GCKPTI_FN float gckpti_mixed_element(const gckpti_product *t, int64_t a, int64_t b, float d);
#else
static inline void gckpti_mixed_plain(const gckpt_call *call, const gckpti_product *t)
{
    (void)call, (void)t;
}
#endif

/* ---- ops/norms.c ---- */
typedef struct {
    int center, gain, bias; /* gain, bias: which input, 0 means none */
    float epsilon;          /* omitted if it is 1e-5 */
} gckpti_norm;

static inline float gckpti_norm_epsilon(const gckpti_norm *o)
{
    return o->epsilon > 0.0f ? o->epsilon : 1e-5f;
}

/* d; rmsnorm has c = mean = 0. */
GCKPTI_INLINE float gckpti_centered(float x, float c, float mean) { return (x - c) - mean; }

/* Returns y. gain and bias may be NULL. */
GCKPTI_INLINE float gckpti_norm_out(float d, float rstd, const float *gain, const float *bias,
                                    int64_t i)
{
    float y = gain ? d * rstd : d, factor = gain ? gain[i] : rstd;
    return bias ? gckpti_fma(y, factor, bias[i]) : y * factor;
}

/* ---- ops/attention.c ---- */
typedef struct {
    int heads;
    int causal;    /* 0, or 1 + how many of the S keys are missing at position 0 (gckpt_cache) */
    int key_heads; /* 0 means as many as heads; then all that follows is omitted, as in a slice */
    int extras;    /* 0 if all that follows is 0, and omitted; 2 if a call fills a ring of keys */
    int window;    /* keys that a query sees at most; 0 means all */
    float cap, scale;
} gckpti_attention;

/* The keys 0..keys-1 exist; query t sees those below t + 1 + ahead. */
typedef struct {
    int64_t keys, ahead;
} gckpti_visible;

/* Returns whether the visible keys depend on the position. */
static inline int gckpti_uses_position(const gckpti_attention *o)
{
    return o->causal > 1 || o->extras > 1;
}

/* Returns the complete attributes, with the scale resolved. */
GCKPTI_FN gckpti_attention gckpti_attention_of(const gckpt_call *call);

/* Returns the visible keys; all kernels use it, and read no other keys. Not causal: all keys. */
GCKPTI_FN gckpti_visible gckpti_visible_keys(const gckpt_call *call);

typedef struct { /* the state of an attention call */
    const gckpt_call *call;
    int64_t t, s, c, d, heads, blocks; /* blocks: of 64 queries */
    int64_t d_vec, d_block;            /* D rounded up to whole vectors; to whole blocks of terms */
    gckpti_visible visible;            /* of the current row: see gckpti_attn_set_row */
    int mixed;
    float scale, dot_scale, cap; /* of gradients, of dots; cap of scaled dots, 0 means none */
    int64_t kv_c;                /* columns of k and v */
    int64_t group;               /* heads per key head */
    int64_t shared_keys;         /* S if heads share keys, else 0 */
    int64_t window;              /* keys that a query sees at most */
} gckpti_attn;

/* Return: the first key of query i's window; the start of its tile; how many of the n keys from j
 * on are before the window; the offset of key j (rows may be a ring). */
static inline int64_t gckpti_attn_first_key(const gckpti_attn *h, int64_t i)
{
    const int64_t first = i + 1 + h->visible.ahead - h->window;
    return first < 0 ? 0 : first;
}
static inline int64_t gckpti_attn_first_tile(const gckpti_attn *h, int64_t i)
{
    return gckpti_attn_first_key(h, i) / GCKPTI_KEY_TILE * GCKPTI_KEY_TILE;
}
static inline int64_t gckpti_attn_masked(const gckpti_attn *h, int64_t i, int64_t j, int64_t n)
{
    const int64_t first = gckpti_attn_first_key(h, i) - j;
    return first < 0 ? 0 : gckpti_min(first, n);
}
static inline int64_t gckpti_attn_offset(const gckpti_attn *h, int64_t j)
{
    return (j % h->s) * h->kv_c;
}

/* A valid cap's inverse and results keep their digits. */
static inline int gckpti_is_valid_cap(float cap)
{
    return cap >= 1e-30f ? cap <= 1e30f : cap >= 0.0f && cap <= 0.0f;
}

/* cap tanh(x scale), and its derivative; a score from q k; ds from p and dp - delta. */
GCKPTI_INLINE float gckpti_softcap(float x, float scale, float cap)
{
    return gckpti_mul(cap, gckpti_tanh(gckpti_mul(x, scale)));
}
GCKPTI_INLINE float gckpti_softcap_deriv(float score, float cap)
{
    const float y = score * (1.0f / cap);
    return gckpti_fma(-y, y, 1.0f);
}
static inline float gckpti_attn_score(const gckpti_attn *h, float x)
{
    return h->cap > 0.0f ? gckpti_softcap(x, h->dot_scale, h->cap) : gckpti_mul(x, h->dot_scale);
}
/* Returns the factor from softcapped or raw dots to scores. */
static inline float gckpti_attn_post_scale(const gckpti_attn *h)
{
    return h->cap > 0.0f ? 1.0f : h->scale;
}
static inline float gckpti_attn_ds(const gckpti_attn *h, float p, float dp, float score)
{
    return p * (h->cap > 0.0f ? dp * gckpti_softcap_deriv(score, h->cap) : dp) * h->scale;
}

/* Begins a call. Zeroes gradients that no query adds to, unless they accumulate. */
GCKPTI_FN gckpti_attn gckpti_attention_begin(const gckpt_call *call, int backward);

/* Selects a row and returns its number of keys, or 0 if it is finished. */
GCKPTI_FN int64_t gckpti_attn_set_row(gckpti_attn *h, int64_t row);

#ifndef GCKPT_NO_BF16
/* Where the rows of a gradient are; x is NULL if it is not required. */
typedef struct {
    float *x;
    int64_t row, step;
} gckpti_grad_rows;

/* m queries from i on and n keys from j on of a head, each at most GCKPTI_K_BLOCK: their rows; p
 * and ds, [query][key]; and the gradients of gckpti_attn_tile_add. */
typedef struct {
    const gckpti_attn *h;
    gckpti_operand q, k, v, g, p, ds;
    gckpti_grad_rows dq, dk, dv;
    int64_t head, i, m, j, n;
} gckpti_attn_tile;

GCKPTI_FN void gckpti_attn_tile_add(const gckpti_attn_tile *s);
#endif

/* ---- ops/rotary.c ---- */
typedef struct {
    int heads;
    float base;
    int position; /* omitted if 0, as in a slice, and all that follows is the default */
    int columns;  /* columns of each head; 0 means all, and the rest is omitted */
    float scale;
    int has_frequencies; /* columns / 2 floats follow */
} gckpti_rotary;

enum { GCKPTI_ROTARY_MAX = 512 }; /* frequencies */

/* Returns the columns of a head of d that are rotated. */
static inline int64_t gckpti_rotary_columns(const gckpti_rotary *o, int64_t d)
{
    return o->columns ? o->columns : d;
}

static inline const float *gckpti_rotary_frequencies(const gckpti_rotary *o)
{
    return o->columns && o->has_frequencies ? (const float *)(const void *)(o + 1) : NULL;
}

/* r = base^(-1/n), in binary64: Newton's method on r^n = 1 / base, three times from
 * gckpti_pow(base, -1.0f / n): r = r - r (r^n - 1/base) / (n r^n), r^n by gckpti_powi. */
GCKPTI_FN double gckpti_rotary_ratio(float base, int64_t n);

/* Writes cos and sin (with a grad_out: -sin) of rows begin..end-1 of each sample to workspace. */
GCKPTI_FN void gckpti_rotary_table(const gckpt_call *call, int64_t begin, int64_t end);

/* Returns the angle p / 2^64 of a turn to 5e-8: q = (p + 2^61) >> 62 quadrants, and, m being
 * |p - 2^62 q|, with its sign: fma(m >> 38, pi/2 2^-24, mul(next 24 bits of m, pi/2 2^-48)). */
GCKPTI_INLINE gckpti_angle gckpti_rotary_angle(uint64_t p)
{
    gckpti_angle r = { (uint32_t)((p + (UINT64_C(1) << 61)) >> 62), 0.0f, 0.0f };
    p -= (uint64_t)r.quadrant << 62;
    uint64_t size = p >> 63 ? 0 - p : p;
    float low = gckpti_mul((float)(int32_t)(size >> 14 & 0xffffffu), 5.5805896e-15f);
    r.hi = gckpti_fma((float)(int32_t)(size >> 38), 9.36267571e-08f, low);
    r.hi = p >> 63 ? -r.hi : r.hi;
    return r;
}

#define GCKPTI_TICKS_PER_RADIAN 2935890503282001226.0 /* 2^64 / 2 pi */

/* Returns x >= 0, in 2^-64 of a turn, modulo whole turns; the fraction is cut. */
GCKPTI_INLINE uint64_t gckpti_rotary_wrap(double x)
{
    const double turn = 18446744073709551616.0;
    if (!(x < turn * 4503599627370496.0)) /* then x is a multiple of a turn */
        return 0;
    x -= turn * (double)(uint64_t)(x / turn); /* exact */
    uint64_t half = x < 0.5 * turn ? 0 : UINT64_C(1) << 63;
    return half + (uint64_t)(half ? x - 0.5 * turn : x);
}

/* ---- ops/losses.c ---- */
/* Returns w x, or w where w is 0 (or NaN), whatever x is. (-0 adds nothing to a sum from +0.) */
GCKPTI_INLINE float gckpti_weighted(float w, float x) { return w > 0.0f || w < 0.0f ? w * x : w; }

/* What a loss sums: losses of elements, or of rows over classes. */
typedef enum {
    GCKPTI_LOSS_SUM,
    GCKPTI_LOSS_SQUARED,
    GCKPTI_LOSS_HUBER,
    GCKPTI_LOSS_BINARY,
    GCKPTI_LOSS_CLASSES
} gckpti_loss_kind;

/* Returns kind == is; constant 0 for kinds that this build lacks. */
GCKPTI_INLINE int gckpti_loss_is(gckpti_loss_kind kind, gckpti_loss_kind is)
{
    return kind == is && (GCKPTI_WITH_LOSSES || is == GCKPTI_LOSS_SUM || is == GCKPTI_LOSS_SQUARED);
}

typedef struct gckpti_element_loss {
    const gckpt_call *call;
    gckpti_loss_kind kind;
    int64_t n, per_weight;        /* elements of a sample; elements per weight */
    const float *x, *y, *weights; /* y, weights: NULL if none */
    float delta;
} gckpti_element_loss;

GCKPTI_FN gckpti_element_loss gckpti_element_loss_of(const gckpt_call *call, gckpti_loss_kind kind);

/* Returns the factor a of an element's loss, and sets b. */
GCKPTI_INLINE float gckpti_element_factors(gckpti_loss_kind kind, float x, float y, float delta,
                                           float *b)
{
    float d = x - y, size = gckpti_abs(d);
    int linear = gckpti_loss_is(kind, GCKPTI_LOSS_HUBER) && !(size < delta);
    *b = linear ? size - 0.5f * delta : d;
    if (gckpti_loss_is(kind, GCKPTI_LOSS_BINARY))
        *b = gckpti_fma(-x, y, x > 0.0f ? x : 0.0f) + gckpti_log1p(gckpti_exp(-gckpti_abs(x)));
    if (gckpti_loss_is(kind, GCKPTI_LOSS_SUM) || gckpti_loss_is(kind, GCKPTI_LOSS_BINARY))
        return 1.0f;
    return linear ? delta : gckpti_loss_is(kind, GCKPTI_LOSS_HUBER) ? 0.5f * d : d;
}

/* Returns the derivative by x. */
GCKPTI_INLINE float gckpti_element_deriv(gckpti_loss_kind kind, float x, float y, float delta)
{
    float d = x - y;
    if (gckpti_loss_is(kind, GCKPTI_LOSS_SUM) || gckpti_loss_is(kind, GCKPTI_LOSS_SQUARED))
        return gckpti_loss_is(kind, GCKPTI_LOSS_SUM) ? 1.0f : 2.0f * d;
    if (gckpti_loss_is(kind, GCKPTI_LOSS_BINARY))
        return gckpti_sigmoid(x) - y;
    return d < -delta ? -delta : d > delta ? delta : d;
}

GCKPTI_INLINE float gckpti_element_weight(const gckpti_element_loss *e, int64_t i)
{
    return GCKPTI_WITH_LOSSES && e->weights ? e->weights[i / e->per_weight] : 1.0f;
}

/* What the loss and the gradient of a row of logits depend on. */
typedef struct gckpti_class_row {
    float max, log_sum;
    const float *targets;      /* of the classes; NULL means each is `uniform` */
    float uniform, target_sum; /* target_sum: over all classes */
    float scale;
    int accumulate;
    float cap; /* already applied to the logits; 0 means none */
} gckpti_class_row;

/* A loss processes blocks of rows: samples or, over classes, rows of logits that exist or are
 * computed by a product. The function reads each row (forward) or replaces it by its gradient. */
typedef void gckpti_loss_row_fn(void *context, int64_t i, int64_t worker);
typedef struct { /* of a sample: its sum; its gradients */
    float (*sum)(const gckpti_element_loss *e, int64_t row);
    void (*gradients)(const gckpti_element_loss *e, int64_t row);
} gckpti_element_kernels;

typedef struct {
    gckpti_element_kernels element; /* over classes: none */
    gckpti_product_fn product;      /* of linear_cross_entropy; NULL means the plain one */
    float (*online)(const float *x, float *p, int64_t n, int first, float *max, float *sum);
    float (*surprisal)(const float *x, int64_t n, const gckpti_class_row *c); /* targets NULL: 1 */
    void (*gradient)(const float *x, float *d, int64_t n, const gckpti_class_row *c);
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
    float (*exp)(float x), (*log)(float x);
    void (*cap)(float *x, int64_t n, float scale, float cap); /* gckpti_softcap */
} gckpti_loss_kernels;
typedef gckpti_loss_kernels (*gckpti_loss_fn)(const gckpt_call *call);

GCKPTI_FN void gckpti_run_element_loss(const gckpt_call *call, int backward, gckpti_loss_kind kind,
                                       gckpti_element_kernels kernels);
GCKPTI_FN void gckpti_run_cross_entropy(const gckpt_call *call, int backward, gckpti_loss_fn fn);

/* ---- ops/linear_loss.c ---- */
typedef struct {
    int block_rows; /* 0, or the lowering: rows at a time (see there) */
    float cap;      /* omitted if 0, as in a slice */
} gckpti_linear_loss;

static inline int gckpti_linear_loss_block(const gckpt_call *call)
{
    return call->attributes ? ((const gckpti_linear_loss *)call->attributes)->block_rows : 0;
}
static inline float gckpti_linear_loss_cap(const gckpt_call *call)
{
    return call->attributes ? ((const gckpti_linear_loss *)call->attributes)->cap : 0.0f;
}

GCKPTI_FN void gckpti_run_linear_cross_entropy(const gckpt_call *call, int backward,
                                               gckpti_loss_fn fn);

#ifndef GCKPT_NO_IMAGES
/* ---- ops/pools.c ---- */
typedef struct {
    int size[2], stride[2], padding[2];
} gckpti_pool;

struct gckpti_pool_state;
/* Computes all channels of a window of image x: y, and the index of its tap. Either may be NULL. */
typedef void (*gckpti_max_window)(const struct gckpti_pool_state *s, const float *x, int64_t p,
                                  int64_t q, float *y, uint16_t *tap);

typedef struct { /* elements before an image of x and before a row of windows of y; the row */
    int64_t x, y, p;
} gckpti_window_row;

/* A pool's sizes, of x and y: rows and columns; channels; the functions of the kernels. */
typedef struct gckpti_pool_state {
    gckpti_pool o;
    int64_t images, in[2], out[2], channels;
    const gckpt_call *call;
    int backward;
    void (*windows)(const struct gckpti_pool_state *s, const gckpti_window_row *at, int64_t worker);
    gckpti_max_window max_window;
    void (*add)(float *to, const float *from, int64_t n);
    void (*divide)(float *x, float divisor, int64_t n);
} gckpti_pool_state;

GCKPTI_FN void gckpti_run_max_pool(const gckpt_call *call, int backward, gckpti_max_window window);
GCKPTI_FN void gckpti_run_average_pool(const gckpt_call *call, int backward,
                                       void (*add)(float *to, const float *from, int64_t n),
                                       void (*divide)(float *x, float divisor, int64_t n));

/* Returns how many taps begin..end-1 of window `at` are within x; the first is at *first. */
GCKPTI_FN int64_t gckpti_valid_taps(const gckpti_pool_state *s, int axis, int64_t at,
                                    int64_t *first, int64_t *end);

/* ---- ops/upsample.c ---- */
typedef struct {
    int size[2]; /* of the result: rows, columns */
    int mode;
} gckpti_upsample;

typedef struct { /* of one axis: n (1 or 2) source positions and their weights */
    int64_t index[2];
    float weight[2];
    int n;
} gckpti_interp;

/* Returns the sources of result i of n, in a source of `size`. */
GCKPTI_INLINE gckpti_interp gckpti_interp_of(int mode, int64_t size, int64_t n, int64_t i)
{
    const int aligned = mode == GCKPT_BILINEAR_ALIGNED && n > 1;
    const float half = mode == GCKPT_BILINEAR ? 0.5f : 0.0f;
    const float ratio = (float)(size - aligned) / (float)(n - aligned);
    const float p = gckpti_mul(ratio, (float)i + half) - half;
    const int64_t at = gckpti_min((int64_t)p, size - 1), next = gckpti_min(at + 1, size - 1);
    const float fraction = mode == GCKPT_NEAREST || p < 0.0f ? 0.0f : p - (float)at;
    const gckpti_interp x = { { at, next }, { 1.0f - fraction, fraction }, 1 + (fraction > 0.0f) };
    return x;
}

typedef void (*gckpti_scaled_add)(float *to, float factor, const float *from, int64_t n);
GCKPTI_FN void gckpti_run_upsample(const gckpt_call *call, gckpti_scaled_add add);

/* ---- ops/channels.c ---- */
typedef struct {
    int groups;     /* 0 means batchnorm */
    int gain, bias; /* which input, 0 means none */
} gckpti_channel_norm;

typedef struct gckpti_channel_pass { /* over an image's pixels; unused fields are NULL */
    const float *x, *g;
    const float *gain, *bias; /* by channel, as all that follow */
    float *mean, *rstd;
    float *s, *t; /* sums: of x - mean, its squares, or g and g h; or their means */
    float *to;    /* y or dx */
    int64_t pixels, channels;
    int squares, accumulate;
} gckpti_channel_pass;

/* Kernels over channels first..end-1 of a pass. */
typedef void (*gckpti_channel_fn)(const gckpti_channel_pass *p, int64_t first, int64_t end);
typedef struct {
    gckpti_channel_fn sums, out, dx;
} gckpti_channel_kernels;

GCKPTI_FN void gckpti_run_channels(const gckpt_call *call, int backward,
                                   const gckpti_channel_kernels *kernels);

/* ---- ops/conv.c ---- */
typedef struct { /* [0]: rows, [1]: columns */
    gckpt_window window;
    int64_t rows, image[2], windows[2], taps[2];
    int64_t c, o, group_c, group_o;
} gckpti_conv_sizes;

/* One axis. Result i and tap k read element i * stride + k * dilation + first of `size`. It
 * is result out_first + i * out_step of its side, and tap tap_first + k * tap_step of w. */
typedef struct {
    int64_t size, results, taps;
    int64_t stride, dilation, first;
    int64_t out_first, out_step, tap_first, tap_step;
} gckpti_axis_map;

enum { GCKPTI_CONV_DOWN, GCKPTI_CONV_UP, GCKPTI_CONV_DW };

/* Like gckpti_product_workspace, for a convolution, which gathers some of a's rows at a time. */
GCKPTI_FN int64_t gckpti_conv_workspace(int64_t m, int64_t n, int64_t k);

/* Returns the tap's index in w. */
GCKPTI_FN int64_t gckpti_conv_tap(const gckpti_conv_sizes *z, const gckpti_axis_map *r, int64_t ky,
                                  int64_t kx);

/* Adds a term to n chains: d[i] += x[i] y[i]; x NULL stands for zeros. */
typedef void (*gckpti_multiply_add)(float *d, const float *x, const float *y, int64_t n);

/* One kind; for UP one phase. For dw, `from` is the image, w has the windows, out is dw. */
typedef struct {
    const gckpti_conv_sizes *z;
    gckpti_axis_map r[2];
    int kind, accumulate;
    const float *from, *start, *w;
    float *out;
    gckpti_multiply_add run;
} gckpti_conv;

/* Computes results begin..end-1 of all rows, whose chains begin at `start`, the old value, or +0;
 * or these windows' terms of dw. For groups of one channel: only channels c..c+n-1. */
GCKPTI_FN void gckpti_conv_results(const gckpti_conv *s, int64_t begin, int64_t end, int64_t c,
                                   int64_t n);

/* Computes all results, phase by phase, then dw, by `run`, which reads the kind from s. */
typedef void (*gckpti_conv_fn)(const gckpt_call *call, gckpti_conv *s);
GCKPTI_FN void gckpti_run_conv(const gckpt_call *call, int backward, gckpti_conv_fn run,
                               gckpti_multiply_add multiply_add);
#endif

/* ---- ops/recurrent.c ---- */
#ifndef GCKPT_NO_RECURRENT
/* A row at a step. Pointers are NULL where not required.
 * forward   reads p, a; updates state: h [and c] of the previous step to this one's; writes saved
 * backward  reads saved, g, out, h and c of the previous step; updates d: D [and E] of the next
 *           step to this one's, without its chains; writes da, dp */
typedef struct gckpti_cell {
    int64_t units;
    const float *p, *a, *g, *out, *h, *c;
    float *state, *saved, *d, *da, *dp;
    int accumulate;
} gckpti_cell;
typedef void (*gckpti_cell_fn)(const gckpti_cell *cell);

/* The functions of the kernels. p, da: of the first of m rows, T apart. */
struct gckpti_sequence;
typedef struct {
    gckpti_cell_fn gates, gate_grads;
    void (*transpose)(struct gckpti_sequence *s); /* makes wh'; NULL means one row at a time */
    void (*forward)(const struct gckpti_sequence *s, const float *p, int64_t m, const float *state,
                    float *a); /* a = chains of h wh */
    void (*backward)(const struct gckpti_sequence *s, const float *da, int64_t m,
                     float *d);                         /* D += chains of da wh */
    void (*add_grads)(const struct gckpti_sequence *s); /* dwh and dbias of a block's rows */
} gckpti_cell_kernels;

/* An item is some rows. A block is all rows (forward), one per thread's item, or one. */
typedef struct gckpti_sequence {
    const gckpt_call *call;
    const gckpti_cell_kernels *kernels;
    int64_t rows, steps, units, gates, state; /* B, T, H, G, columns of the output */
    const gckpt_arg *p, *wh, *bias, *h0, *c0; /* the last three: NULL means none */
    int64_t first, block, item_rows;          /* rows of a block, of an item */
    float *wh_t, *zero, *d;                   /* wh' (G,H); H zeros; of the block D [and E], */
    float *h, *da, *pack;                     /* h of the previous step (rows,T,H), da (rows,T,G) */
} gckpti_sequence;

GCKPTI_FN void gckpti_run_sequence(const gckpt_call *call, int backward,
                                   const gckpti_cell_kernels *kernels);
#endif
