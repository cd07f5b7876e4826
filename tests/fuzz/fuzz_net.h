/* fuzz_net.h - builds a graph from bytes: any op, with shapes that mostly fit and are sometimes wrong. With another
 * number of rows, the same bytes give the same net for another size of micro-batches. Also has the allocator of the
 * targets that use nets. Include after bytes.h. */
#ifndef FUZZ_NET_H
#define FUZZ_NET_H
#include "util.h"
#include <sanitizer/asan_interface.h>

typedef gckpt_tensor T;
enum { NET_TENSORS = 48, NET_TERMS = 3, NET_ROWS = 20, NET_ELEMENTS = 512, NET_FETCHES = 4 };

/* The data of every input: NET_ROWS rows of NET_ELEMENTS, beginning at one of 64 offsets. */
static float net_floats[NET_ROWS * NET_ELEMENTS + 64];
static int32_t net_indices[NET_ROWS * NET_ELEMENTS + 64], net_wild[NET_ROWS * NET_ELEMENTS + 64];
static uint8_t net_bytes[NET_ROWS * NET_ELEMENTS + 64];

static inline void net_data(void)
{
    for (int i = 0; i < NET_ROWS * NET_ELEMENTS + 64; i++) {
        net_floats[i] = (float)(i * 37 % 19 - 9) / 8;
        net_indices[i] = i * 5 % 7 % 2;
        net_wild[i] = i % 11 - 3;
        net_bytes[i] = (uint8_t)(i * 29);
    }
}

/* ---- memory: util.h's heap over one static buffer, which every input uses from the beginning, so that few pages are
 * touched. No byte is given out twice to one input, so that any use after free is found; the bytes between blocks are
 * poisoned. ---- */
enum { NET_HEAP_BYTES = 96 << 20, NET_BETWEEN = 32 };
static unsigned char net_heap_bytes[NET_HEAP_BYTES] __attribute__((aligned(64)));
static size_t net_used;

const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    /* sanitizers keep only a few MB of freed blocks of malloc, which temporary graphs and libFuzzer use */
    return "quarantine_size_mb=4:malloc_context_size=8";
}
/* Prepares the memory for an input; must come before the first allocation. */
static inline void net_memory(heap *h)
{
    memset(h, 0, sizeof *h);
    h->limit = 4 << 20;
    if (net_used == 0)
        ASAN_POISON_MEMORY_REGION(net_heap_bytes, NET_HEAP_BYTES);
    net_used = NET_BETWEEN;
}
static inline void *net_resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    heap *h = (heap *)user;
    unsigned char *fresh = NULL, *size_at = ptr ? (unsigned char *)ptr - 16 : NULL;
    size_t old = 0;
    if (ptr) {
        ASAN_UNPOISON_MEMORY_REGION(size_at, 16);
        memcpy(&old, size_at, sizeof old);
        ASAN_POISON_MEMORY_REGION(size_at, 16);
    }
    h->wrong_sizes += old != old_size;
    if (new_size) {
        if (++h->calls == h->fail_at || (h->fail_from && h->calls >= h->fail_from) ||
            new_size > h->limit || h->live + new_size > h->limit ||
            net_used + new_size + 2 * NET_BETWEEN > NET_HEAP_BYTES)
            return NULL;
        fresh = net_heap_bytes + net_used;
        ASAN_UNPOISON_MEMORY_REGION(fresh - 16, new_size + 16);
        memcpy(fresh - 16, &new_size, sizeof new_size);
        ASAN_POISON_MEMORY_REGION(fresh - 16, 16);
        memset(fresh, 0xee, new_size);
        net_used += ((new_size + 15) & ~(size_t)15) + NET_BETWEEN;
        if (ptr)
            memcpy(fresh, ptr, old < new_size ? old : new_size);
    }
    if (ptr)
        ASAN_POISON_MEMORY_REGION(ptr, old);
    h->live += new_size - old;
    h->peak = h->live > h->peak ? h->live : h->peak;
    h->blocks += (fresh != NULL) - (ptr != NULL);
    return fresh;
}
static inline gckpt_memory net_heap(heap *h)
{
    const gckpt_memory m = { .resize = net_resize, .user = h };
    return m;
}

typedef struct {
    gckpt_graph *g;
    T *t[NET_TENSORS];
    int count, params, inputs;
    int64_t rows;
    gckpt_term term[NET_TERMS];
    int terms;
    gckpt_fetch_spec fetch[NET_FETCHES]; /* tensors that plans may fetch */
    int fetches;
    int user_op; /* id of a user-defined op whose runs are counted */
    int caches, policies;
} fuzz_net;

/* ---- user-defined ops: y = 2 x with saved data, and ops that refuse their inputs ---- */
static gckpt_result user_op_shape(gckpt_call *call)
{
    const int mode = *(const int *)call->attributes;
    call->shape = call->in[0].shape;
    call->saved_bytes = (size_t)count_of(&call->shape) * sizeof(float);
    if (mode == 1)
        return gckpt_fail(call, GCKPT_E_ARG, "own: refused, %i %S", mode, &call->shape);
    call->workspace_forward = mode == 2 ? 64 : 0;
    call->mixes_rows = mode == 3;
    return GCKPT_OK;
}
static void user_op_forward(const gckpt_call *call)
{
    for (int64_t i = 0, n = count_of(&call->shape); i < n; i++) {
        const float x = call->in[0].data[i];
        if (call->out)
            call->out[i] = x * (0.5f + x);
        if (call->saved)
            ((float *)call->saved)[i] = 0.5f + 2 * x;
    }
    if (call->workspace && call->workspace_forward)
        memset(call->workspace, 0x55, call->workspace_forward);
}
static void user_op_backward(const gckpt_call *call)
{
    const float *deriv = (const float *)call->saved;
    float *grad = call->in[0].grad;
    for (int64_t i = 0, n = count_of(&call->shape); i < n && grad; i++)
        grad[i] = call->in[0].accumulate ? gckpt_fma(call->grad_out[i], deriv[i], grad[i])
                                         : call->grad_out[i] * deriv[i];
}
static const gckpt_op user_op = { .name = "own_op",
                                 .shape = user_op_shape,
                                 .forward = user_op_forward,
                                 .backward = user_op_backward,
                                 .needs = { GCKPT_SAVED },
                                 .flags = GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD };

static T *net_add(fuzz_net *n, T *t)
{
    if (t && n->count < NET_TENSORS)
        n->t[n->count++] = t;
    return t;
}
/* Returns a tensor of the net, mostly one of the newest; or NULL, to test a wrong argument. */
static T *net_any(fuzz_net *n, bytes *b)
{
    const unsigned x = byte(b);
    if (n->count == 0 || (b->odd && x >= 254))
        return NULL;
    return n
        ->t[n->count - 1 - (int)(x >= 128 ? x % 3 % (unsigned)n->count : x % (unsigned)n->count)];
}
/* Returns a tensor with `axes` axes (if 0, with any number) and, if `like` is not NULL, with the shape of `like`; or
 * `like` itself. */
static T *net_like(fuzz_net *n, bytes *b, int axes, T *like)
{
    const int from = byte(b);
    const gckpt_shape want = gckpt_shape_of(like);
    if (b->odd && from >= 250)
        return net_any(n, b);
    for (int i = 0; i < n->count; i++) {
        T *t = n->t[(from + i) % n->count];
        const gckpt_shape s = gckpt_shape_of(t);
        gckpt_node node;
        gckpt_graph_node(n->g, gckpt_id(t), &node);
        if (node.type == GCKPT_F32 && !node.loss && (axes == 0 || s.n == axes) &&
            (!like || (s.n == want.n && memcmp(s.d, want.d, sizeof(int64_t) * (size_t)s.n) == 0)))
            return t;
    }
    return like;
}
static gckpt_shape net_shape(bytes *b, int axes, int64_t rows)
{
    gckpt_shape s = gckpt_shape1(rows);
    s.n = axes;
    for (int i = 1; i < axes && i < GCKPT_MAX_DIMS; i++)
        s.d[i] = 1 + number(b, i > 2 ? 3 : 8);
    return s;
}
static void net_param_name(char *name, size_t size, int i, const gckpt_shape *s)
{
    unsigned h = (unsigned)s->n;
    for (int k = 0; k < s->n && k < GCKPT_MAX_DIMS; k++)
        h = h * 31 + (unsigned)s->d[k];
    snprintf(name, size, "p%d.%x", i, h);
}
static T *net_weight(fuzz_net *n, bytes *b, gckpt_shape s)
{
    char name[32];
    gckpt_init init = { 0.3f, 0, 0 };
    const unsigned x = byte(b);
    if (s.n > 0 && b->odd && x >= 250)
        s.d[s.n - 1] = number(b, 9);
    if (x % 16 == 1)
        init.constant = real(b);
    if (x % 16 == 2)
        init.uniform = real(b);
    const int i = x % 32 == 3 && n->params ? choose(b, n->params) : n->params++;
    /* parameters with the same name in one store are the same parameter, so their shapes must mostly agree */
    if (b->odd)
        snprintf(name, sizeof name, "p%d", i);
    else
        net_param_name(name, sizeof name, i, &s);
    return gckpt_param(n->g, name, s, init);
}
static T *net_input(fuzz_net *n, bytes *b, gckpt_type type, gckpt_shape s)
{
    char name[32];
    snprintf(name, sizeof name, "x%d", b->odd && byte(b) == 255 ? 0 : n->inputs++);
    return gckpt_input(n->g, name, type, s);
}
static T *net_constant(fuzz_net *n, bytes *b, gckpt_type type, gckpt_shape s)
{
    int64_t size = 1;
    for (int i = 0; i < s.n && i < GCKPT_MAX_DIMS; i++)
        size = s.d[i] > 0 && s.d[i] <= 16 ? size * s.d[i] : INT32_MAX;
    /* a constant larger than the data would be a mistake of the caller that the library cannot detect */
    if (size > NET_ROWS * NET_ELEMENTS)
        return NULL;
    char name[32];
    snprintf(name, sizeof name, "c%d", choose(b, 100));
    return gckpt_constant(n->g, name, type, s,
                          type == GCKPT_F32   ? (const void *)(net_floats + choose(b, 64))
                          : type == GCKPT_I32 ? (const void *)(net_indices + choose(b, 64))
                                              : (const void *)net_bytes);
}
static int64_t net_last(const T *x)
{
    const gckpt_shape s = gckpt_shape_of(x);
    return s.n > 0 ? s.d[s.n - 1] : 1;
}
static gckpt_shape net_rows_of(const T *x, int drop)
{
    gckpt_shape s = gckpt_shape_of(x);
    s.n = s.n > drop ? s.n - drop : 0;
    return s;
}
/* Returns indices of this shape: an input or, in one of four cases, a constant. */
static T *net_index(fuzz_net *n, bytes *b, gckpt_shape s)
{
    const int how = choose(b, 4);
    return how ? net_input(n, b, GCKPT_I32, s) : net_constant(n, b, GCKPT_I32, s);
}
static gckpt_window net_window(bytes *b, int pool)
{
    gckpt_window w;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < 2; i++) {
        w.size[i] = pool || (b->odd && byte(b) > 250) ? 1 + whole(b, 3) : 0;
        w.stride[i] = whole(b, 3);
        w.padding[i] = whole(b, 2);
        w.dilation[i] = whole(b, 2);
        w.output_padding[i] = b->odd ? whole(b, 2) : 0;
    }
    w.groups = whole(b, 2);
    w.ceil = pool && choose(b, 2), w.exclude_padding = pool && b->odd && choose(b, 2);
    return w;
}
static T *net_block(T *x, void *user) { return gckpt_tanh(gckpt_scale(x, *(const float *)user)); }

static T *net_unary(bytes *b, T *x)
{
#define UNARY(name, ...) gckpt_##name,
    static T *(*const ops[])(T *) = { UNARY_TESTS(UNARY) gckpt_softmax, gckpt_log_softmax, gckpt_detach };
#undef UNARY
    return ops[choose(b, sizeof ops / sizeof ops[0])](x);
}
static T *net_moved(fuzz_net *n, bytes *b, T *x)
{
    gckpt_shape s = gckpt_shape_of(x);
    const int axis = s.n > 1 ? 1 + whole(b, s.n - 1) : whole(b, 1);
    const int64_t size = axis > 0 && axis < s.n ? s.d[axis] : 1;
    int axes[GCKPT_MAX_DIMS];
    T *many[GCKPT_MAX_INPUTS + 1];
    (void)n;
    switch (choose(b, 11)) {
    case 0:
        if (s.n > 2)
            s.d[1] *= s.d[2], s.d[2] = s.n > 3 ? s.d[3] : 1, s.d[3] = s.n > 4 ? s.d[4] : 1, s.n--;
        else if (s.n == 2)
            s.d[2] = s.d[1], s.d[1] = 1, s.n = 3;
        if (b->odd && byte(b) > 240)
            s.d[choose(b, GCKPT_MAX_DIMS)] = number(b, 9);
        return gckpt_reshape(x, s);
    case 1:
        for (int i = 0; i < GCKPT_MAX_DIMS; i++)
            axes[i] = i == 0 || s.n < 2 ? i : 1 + (i - 1 + s.n - 2) % (s.n - 1);
        if (b->odd)
            axes[choose(b, GCKPT_MAX_DIMS)] = whole(b, 4);
        return gckpt_permute(x, axes, b->odd ? whole(b, s.n + 1) : s.n);
    case 2: {
        const int64_t begin = number(b, (int)(size < 9 ? size : 9));
        return gckpt_slice(x, axis, begin,
                           begin + 1 +
                               number(b, (int)(size - begin > 0 && size < 9 ? size - begin : 1)));
    }
    case 3: {
        const int k = b->odd ? whole(b, GCKPT_MAX_INPUTS) : 1 + choose(b, 3);
        for (int i = 0; i <= GCKPT_MAX_INPUTS; i++)
            many[i] = i == 0 ? x : net_like(n, b, 0, x);
        return gckpt_concat(many, k, axis);
    }
    case 4: return gckpt_pad(x, axis, number(b, 3), number(b, 3), (gckpt_pad_mode)choose(b, 3), real(b));
    case 5: return gckpt_sum(x, axis);
    case 6: return gckpt_mean(x, axis);
    case 7: return gckpt_max(x, axis);
    case 8:
        if (choose(b, 2) == 0)
            return net_add(n, gckpt_argmax(x, axis)) ? x : NULL;
        many[0] = gckpt_top_k(x, axis, (int)number(b, 3), &many[1]);
        return net_add(n, many[1]) ? many[0] : NULL;
    case 9: return gckpt_scale(x, real(b));
    default: return gckpt_dropout(x, real(b) < 1 ? 0.25f : real(b));
    }
}
static T *net_layer(fuzz_net *n, bytes *b, T *x)
{
    const int64_t c = net_last(x), wide = 1 + number(b, 6), o = wide > 1 << 20 ? 5 : wide;
    const gckpt_init one = { 0, 0, 1 }, zero = { 0, 0, 0 };
    const int bias = choose(b, 2);
    gckpt_shape s = gckpt_shape_of(x);
    gckpt_recurrent_desc recurrent;
    T *w, *v, *u;
    memset(&recurrent, 0, sizeof recurrent);
    switch (choose(b, 16)) {
    case 0:
    case 1:
        w = net_weight(n, b, gckpt_shape2(c, o));
        return gckpt_linear(x, w, bias ? net_weight(n, b, gckpt_shape1(o)) : NULL);
    case 2:
        w = net_weight(n, b, gckpt_shape2(o, c));
        return gckpt_linear_transposed(x, w, bias ? net_weight(n, b, gckpt_shape1(o)) : NULL);
    case 3:
        w = bias ? net_weight(n, b, gckpt_shape1(c)) : NULL;
        v = choose(b, 2) ? net_weight(n, b, gckpt_shape1(c)) : NULL;
        return choose(b, 2) ? gckpt_layernorm(x, w, v, 0) : gckpt_layernorm(x, w, v, real(b));
    case 4:
        w = bias ? net_weight(n, b, gckpt_shape1(c)) : NULL;
        return choose(b, 2) ? gckpt_rmsnorm(x, w, 0) : gckpt_rmsnorm(x, w, real(b));
    case 5:
        w = net_weight(n, b, gckpt_shape2(2 + number(b, 6), o));
        v = choose(b, 3) && s.n == 3 ? gckpt_argmax(x, 2) : net_index(n, b, net_rows_of(x, s.n > 1));
        return gckpt_embed(w, v);
    case 6: /* (B,N,C) */
        return gckpt_gather(x,
                            net_index(n, b, gckpt_shape2(s.n > 0 ? s.d[0] : 1, 1 + number(b, 4))));
    case 7: return gckpt_matmul(x, bias ? net_weight(n, b, gckpt_shape2(c, o)) : net_any(n, b));
    case 8: return gckpt_matmul_transposed(x, bias ? net_weight(n, b, gckpt_shape2(o, c)) : x);
    case 9:
    case 10: {
        gckpt_attention_desc d;
        memset(&d, 0, sizeof d);
        d.heads = c % 2 == 0 ? 2 : 1;
        if (b->odd)
            d.heads = whole(b, 4), d.key_heads = whole(b, 3), d.scale = real(b);
        d.causal = choose(b, 2);
        d.window = d.causal ? number(b, 3) : 0;
        d.cap = choose(b, 3) == 0 ? real(b) : 0;
        d.lengths = choose(b, 3) == 0 ? net_index(n, b, net_rows_of(x, 2)) : NULL;
        w = net_like(n, b, 3, x), v = net_like(n, b, 3, w);
        if (choose(b, 4) == 0)
            d.decay = gckpt_slice(v, 2, 0, d.heads), d.beta = choose(b, 4) ? d.decay : NULL;
        return bias ? gckpt_attention(x, w, v, &d)
                    : gckpt_attention(x, w, v, &(gckpt_attention_desc){ .heads = d.heads, .causal = d.causal });
    }
    case 11: {
        static const float angles[4] = { 1, 0.5f, 0.25f, 0.125f };
        gckpt_rotary_desc d;
        memset(&d, 0, sizeof d);
        d.heads = c % 4 == 0 ? 2 : 1;
        d.base = choose(b, 2) ? real(b) : 0;
        d.position = number(b, 5);
        d.columns = choose(b, 2) ? number(b, 5) : 0;
        d.frequencies = d.columns == 4 || d.columns == 2 ? angles : NULL;
        d.scale = choose(b, 2) ? real(b) : 0;
        if (!bias)
            d.columns = 0, d.frequencies = NULL, d.scale = 0, d.position = choose(b, 2) ? 0 : d.position;
        return gckpt_rotary(x, &d);
    }
    case 12:
        w = net_weight(n, b, gckpt_shape2(s.n == 3 ? s.d[1] + 9 : 9, c));
        return gckpt_positions(x, w, bias ? 0 : number(b, 9));
    case 13:
        w = net_weight(n, b, gckpt_shape2(c, 3 * o)), v = net_weight(n, b, gckpt_shape2(o, 3 * o));
        u = choose(b, 2) ? net_weight(n, b, gckpt_shape1(3 * o)) : NULL;
        recurrent.lengths = s.n == 3 && choose(b, 3) == 0 ? net_index(n, b, net_rows_of(x, 2)) : NULL;
        recurrent.reset_before = choose(b, 2);
        return gckpt_gru(x, w, u, v, bias ? net_weight(n, b, gckpt_shape1(3 * o)) : NULL, &recurrent);
    case 14:
        w = net_weight(n, b, gckpt_shape2(c, 4 * o)), v = net_weight(n, b, gckpt_shape2(o, 4 * o));
        u = net_input(n, b, GCKPT_F32, gckpt_shape2(n->rows, o));
        recurrent.h0 = choose(b, 2) ? u : NULL, recurrent.c0 = choose(b, 2) ? u : NULL;
        recurrent.lengths = s.n == 3 && choose(b, 3) == 0 ? net_index(n, b, net_rows_of(x, 2)) : NULL;
        return gckpt_lstm(x, w, v, bias ? net_weight(n, b, gckpt_shape1(4 * o)) : NULL, &recurrent);
    default:
        w = gckpt_running(n->g, bias ? "m0" : "m1", gckpt_shape1(c), zero, b->odd ? real(b) : 0.1f);
        v = gckpt_running(n->g, bias ? "v0" : "v1", gckpt_shape1(c), one, 0.1f);
        return gckpt_batchnorm(x, choose(b, 2) ? net_weight(n, b, gckpt_shape1(c)) : NULL, NULL, w,
                               v, 0);
    }
}
static T *net_image(fuzz_net *n, bytes *b, T *x)
{
    const int64_t c = net_last(x), o = 1 + number(b, 4);
    const gckpt_shape s = gckpt_shape_of(x);
    const int how = choose(b, 8), groups = 1 + whole(b, 2);
    gckpt_window w = net_window(b, how == 4 || how == 5);
    const int64_t g = w.groups > 1 && c % w.groups == 0 ? w.groups : 1;
    T *bias = choose(b, 2) ? net_weight(n, b, gckpt_shape1(o)) : NULL;
    switch (s.n != 4 && s.n != 3 ? 7 : how) {
    case 0:
    case 1:
        return s.n == 4
                   ? gckpt_conv2d(
                         x,
                         net_weight(n, b, gckpt_shape4(1 + choose(b, 3), 1 + choose(b, 3), c / g, o)),
                         bias, &w)
                   : gckpt_conv1d(x, net_weight(n, b, gckpt_shape3(1 + choose(b, 3), c / g, o)), bias,
                                  &w);
    case 2:
    case 3:
        return s.n == 4
                   ? gckpt_conv2d_transposed(
                         x,
                         net_weight(n, b, gckpt_shape4(1 + choose(b, 3), 1 + choose(b, 3), o / g, c)),
                         bias, &w)
                   : gckpt_conv1d_transposed(
                         x, net_weight(n, b, gckpt_shape3(1 + choose(b, 3), o / g, c)), bias, &w);
    case 4: return gckpt_max_pool(x, &w);
    case 5: return gckpt_average_pool(x, &w);
    case 6:
        return gckpt_upsample(x, 1 + number(b, 7), 1 + number(b, 7), (gckpt_upsampling)whole(b, 3));
    default:
        return choose(b, 2)
                   ? gckpt_global_average_pool(x)
                   : gckpt_groupnorm(x, groups,
                                     choose(b, 2) ? net_weight(n, b, gckpt_shape1(c)) : NULL, NULL, 0);
    }
}
static T *net_pair(fuzz_net *n, bytes *b, T *x)
{
    static T *(*const ops[])(T *, T *) = { gckpt_add, gckpt_sub,     gckpt_mul,
                                           gckpt_div, gckpt_maximum, gckpt_minimum, gckpt_prelu };
    const int how = choose(b, 9);
    T *y = choose(b, 3) ? net_like(n, b, 0, x) : net_weight(n, b, gckpt_shape1(net_last(x)));
    return how < 7 ? ops[how](x, y) : gckpt_where(net_like(n, b, 0, x), x, y);
}
static T *net_loss(fuzz_net *n, bytes *b, T *x)
{
    const gckpt_linear_loss_desc cap = { choose(b, 2) ? real(b) : 0 };
    const gckpt_shape rows = net_rows_of(x, 1);
    T *w = choose(b, 2) ? gckpt_sigmoid(x) : NULL, *y;
    switch (choose(b, 10)) {
    case 0: return gckpt_cross_entropy(x, net_index(n, b, rows), NULL, 0);
    case 1:
    case 2:
        y = net_weight(n, b, gckpt_shape2(2 + number(b, 6), net_last(x)));
        return choose(b, 2) ? gckpt_linear_cross_entropy(x, y, net_index(n, b, rows), NULL)
                          : gckpt_linear_cross_entropy(x, y, net_index(n, b, rows), &cap);
    case 3: return gckpt_mean_squared_error(x, net_like(n, b, 0, x), NULL);
    case 4:
        return gckpt_cross_entropy(x, net_index(n, b, rows), w ? gckpt_mean(w, -1) : NULL,
                                        real(b));
    case 5: return gckpt_soft_cross_entropy(x, gckpt_softmax(net_like(n, b, 0, x)), NULL);
    case 6: return gckpt_binary_cross_entropy(x, gckpt_sigmoid(net_like(n, b, 0, x)), w);
    case 7: return gckpt_huber(x, net_like(n, b, 0, x), w, real(b));
    case 8: return gckpt_mean_squared_error(x, net_like(n, b, 0, x), w);
    default: return gckpt_sum_loss(choose(b, 2) ? x : gckpt_mul(x, x));
    }
}
static void net_term(fuzz_net *n, bytes *b, T *loss)
{
    if (n->terms < NET_TERMS) {
        n->term[n->terms].loss = loss;
        n->term[n->terms].weight = choose(b, 2) ? 1 : real(b);
        n->term[n->terms++].regulariser = b->odd ? choose(b, 2) : 0;
    }
}

/* Returns whether tensor `to` depends on tensor `from` other than through gckpt_detach. */
static int net_leads(const gckpt_graph *g, int from, int to)
{
    unsigned char led[512] = { 0 };
    gckpt_node node;
    for (int i = from; i <= to && i < 512; i++) {
        led[i] = i == from;
        if (gckpt_graph_node(g, i, &node) == GCKPT_OK && strcmp(node.op, "detach") != 0)
            for (int k = 0; k < node.inputs; k++)
                led[i] |= node.input[k] >= 0 && node.input[k] < 512 && led[node.input[k]];
    }
    return to >= 0 && to < 512 && led[to];
}

enum { NET_OPS = 24, NET_OP_BYTES = 10 };
static int net_with_caches = 1; /* if nonzero, one net in eight has caches, and can only be used for inference */
/* Builds the net, except for the ops in `left_out`. Returns the number of the first op that was refused, or -1. */
static int net_built(fuzz_net *n, gckpt_graph *g, bytes all, int64_t rows, uint32_t left_out)
{
    bytes b = all;
    int segments = 0;
    memset(n, 0, sizeof *n);
    n->g = g, n->rows = rows;
    const unsigned first = byte(&b);
    const int caches = (int)(first / 8 % 8) < net_with_caches;
    b.odd = first % 8 == 7;
    T *begins =
        net_add(n, net_input(n, &b, GCKPT_F32, net_shape(&b, caches ? 3 : 2 + choose(&b, 3), rows)));
    if (!b.odd) { /* adds a linear layer, so that there is a parameter to train */
        T *w = net_weight(n, &b, gckpt_shape2(net_last(begins), 1 + choose(&b, 6)));
        begins = net_add(n, gckpt_linear(begins, w, NULL));
    }
    all = b, all.odd = b.odd;
    for (int i = 0; i < NET_OPS && all.left > 0; i++) {
        b = part(&all, NET_OP_BYTES);
        if (left_out >> i & 1)
            continue;
        T *x = net_any(n, &b), *t = NULL;
        float f = 0.5f;
        gckpt_node node;
        if (x && gckpt_graph_node(g, gckpt_id(x), &node) == GCKPT_OK &&
            (node.loss || node.type != GCKPT_F32) && !b.odd)
            x = net_like(n, &b, 0, NULL);
        const int op = choose(&b, 24);
        switch (caches && op >= 18 ? 22 : op) {
        case 0:
        case 1: t = net_unary(&b, x); break;
        case 2:
            switch (choose(&b, 5)) {
            case 0: t = gckpt_activation(x, (gckpt_activation_kind)choose(&b, 6), real(&b)); break;
            case 1: t = gckpt_pow(x, real(&b)); break;
            case 2: t = gckpt_clamp(x, -real(&b), real(&b)); break;
            case 3: t = gckpt_checkpoint(net_block, x, &f); break;
            default: {
                T *in[1];
                int mode = b.odd ? choose(&b, 4) : 0;
                in[0] = x;
                t = gckpt_apply(&user_op, in, 1, &mode, sizeof mode);
                pc_note_op(t, &user_op);
                n->user_op = 1;
            }
            }
            break;
        case 3:
        case 4: t = net_moved(n, &b, x); break;
        case 5:
        case 6:
        case 7:
        case 8:
        case 9: t = net_layer(n, &b, x); break;
        case 10:
        case 11: t = net_image(n, &b, x); break;
        case 12:
        case 13: t = net_pair(n, &b, x); break;
        case 14: net_term(n, &b, net_loss(n, &b, x)); break;
        case 15: { /* adds a regulariser, or a loss that is wrongly declared as one */
            T *w = net_weight(n, &b, gckpt_shape2(2, 2));
            const int was = n->terms;
            if (was > 0)
                net_term(n, &b, gckpt_sum_loss(gckpt_mul(w, w)));
            if (n->terms > was)
                n->term[n->terms - 1].regulariser = 1;
            break;
        }
        case 16: t = net_input(n, &b, GCKPT_F32, net_shape(&b, 2 + choose(&b, 3), rows)); break;
        case 17:
            t = gckpt_from_u8(net_input(n, &b, GCKPT_U8, net_shape(&b, 2 + choose(&b, 2), rows)),
                              real(&b), real(&b));
            break;
        case 18:
            t = net_constant(n, &b, GCKPT_F32, net_shape(&b, 1 + choose(&b, 3), 1 + choose(&b, 4)));
            break;
        case 19: t = net_weight(n, &b, net_shape(&b, 1 + choose(&b, 3), 1 + choose(&b, 4))); break;
        case 20:
            if (choose(&b, 2) && segments < 3)
                gckpt_segment_begin(g), segments++;
            else if (segments || b.odd)
                gckpt_segment_end(g), segments--;
            break;
        case 21:
            n->policies++;
            if (choose(&b, 2))
                pc_note_policy(gckpt_keep(x), 1);
            else
                pc_note_policy(gckpt_recompute(x), 0);
            if (b.odd)
                gckpt_name(x, choose(&b, 2) ? "named" : "");
            break;
        case 22:
            if (caches) {
                T *k = choose(&b, 2) ? gckpt_cache(x, 1 + number(&b, 16))
                                   : gckpt_cache_window(x, 1 + number(&b, 200), number(&b, 4));
                t = gckpt_attention(x, k, k,
                                    &(gckpt_attention_desc){ .heads = 1, .causal = b.odd ? choose(&b, 2) : 1 });
                n->caches += t != NULL;
            }
            break;
        default:
            if (n->fetches < NET_FETCHES && x) {
                n->fetch[n->fetches].tensor = x;
                n->fetch[n->fetches++].gradient = choose(&b, 2);
            }
        }
        net_add(n, t);
        if (!b.odd && gckpt_error(g) != GCKPT_OK)
            return i;
    }
    while (segments-- > 0)
        gckpt_segment_end(g);
    /* the first loss term determines the counts, so it must depend on an input and on a parameter */
    int counts = n->terms > 0;
    if (!b.odd && counts) {
        const int id = gckpt_id(n->term[0].loss);
        counts = net_leads(g, gckpt_id(begins), id);
        gckpt_node node;
        for (int i = 1; i < n->terms; i++)
            if (gckpt_graph_node(g, gckpt_id(n->term[i].loss), &node) == GCKPT_OK && node.batch_invariant)
                n->term[i].regulariser = 1;
    }
    if (!b.odd && n->fetches == 0) {
        n->fetch[0].tensor = begins, n->fetch[0].gradient = 0;
        n->fetch[1].tensor = begins, n->fetch[1].gradient = 1;
        n->fetches = 1 + (counts && !caches);
    }
    if (!b.odd && !counts) {
        T *loss = gckpt_sum_loss(gckpt_mul(begins, begins));
        if (n->terms < NET_TERMS)
            n->terms++;
        memmove(n->term + 1, n->term, sizeof n->term[0] * (size_t)(n->terms - 1));
        n->term[0].loss = loss, n->term[0].weight = 1, n->term[0].regulariser = 0;
    }
    for (int i = n->count; n->terms == 0 && i-- > 0;) {
        gckpt_node node;
        if (gckpt_graph_node(g, gckpt_id(n->t[i]), &node) == GCKPT_OK && node.type == GCKPT_F32 &&
            !node.loss) {
            T *loss = gckpt_sum_loss(gckpt_mul(n->t[i], n->t[i]));
            net_term(n, &b, loss);
        }
    }
    return -1;
}
/* Builds the net of these bytes in an empty graph. Unless odd numbers are allowed, first finds ops that do not fit by
 * building a temporary graph of 3 rows, and leaves these ops out. */
static void net_make(fuzz_net *n, gckpt_graph *g, bytes b, int64_t rows)
{
    static struct {
        uint64_t of; /* hash of a net's bytes, or 0 in an unused entry */
        uint32_t left_out;
    } known[4096];
    uint64_t of = 14695981039346656037u;
    for (size_t i = 0; i < b.left; i++)
        of = (of ^ b.at[i]) * 1099511628211u;
    const size_t at = (size_t)(of >> 52);
    uint32_t left_out = known[at].of == of ? known[at].left_out : 0;
    for (int refused = known[at].of == of ? -1 : 0; refused >= 0;) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *aside = gckpt_graph_new(s, NULL);
        refused = net_built(n, aside, b, 3, left_out);
        if (refused >= 0)
            left_out |= (uint32_t)1 << refused;
        gckpt_graph_free(aside);
        gckpt_store_free(s);
    }
    known[at].of = of, known[at].left_out = left_out;
    net_built(n, g, b, rows, left_out);
}

/* Makes feeds of `rows` rows for all inputs of a graph and returns their number, or -1 if an input is larger than the
 * data. */
static int net_feed_all(const gckpt_graph *g, bytes *b, gckpt_feed *feeds, int most)
{
    const int from = choose(b, 64), wild = b->odd && byte(b) > 200;
    int count = 0;
    for (int i = 0; i < gckpt_graph_size(g); i++) {
        gckpt_node node;
        if (gckpt_graph_node(g, i, &node) != GCKPT_OK || strcmp(node.op, "input") != 0)
            continue;
        int64_t row = 1;
        for (int k = 1; k < node.shape.n; k++)
            row = node.shape.d[k] > 0 && node.shape.d[k] <= NET_ELEMENTS ? row * node.shape.d[k]
                                                                         : NET_ELEMENTS + 1;
        if (row > NET_ELEMENTS || count == most)
            return -1;
        feeds[count].input = i;
        feeds[count++].data = node.type == GCKPT_F32  ? (const void *)(net_floats + from)
                              : node.type == GCKPT_U8 ? (const void *)(net_bytes + from)
                              : wild                  ? (const void *)(net_wild + from)
                                                      : (const void *)(net_indices + from);
    }
    return count;
}

/* A net with a separate store, its plan and its executor. */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    fuzz_net net;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_report report[2];
    gckpt_result result[2];
    uint64_t hash;
} net_run;

/* Opens store and graph; net_make must be called next. */
static inline void net_run_open(net_run *l, heap *memory)
{
    const gckpt_memory m = net_heap(memory);
    gckpt_store_desc d;
    memset(&d, 0, sizeof d);
    memset(l, 0, sizeof *l);
    d.memory = m, d.seed = 7;
    l->s = gckpt_store_new(&d);
    l->g = gckpt_graph_new(l->s, &m);
}
#endif
