#include "recurrent/recurrent.h"
#include "ops/internal.h"
#include "graph/graph.h"

#ifndef GCKPT_NO_RECURRENT
/* ---- delta_rule: q and k (B,T,key_heads K), v (B,T,heads D), decay and beta (B,T,heads) ->
 * (B,T,heads D). A head has a state S (K,D), at first +0. For t ascending, e = exp(decay), P = e S:
 *   r = v - k P (chains over K), w = beta r, S = fma(k, w, P), out = scale (q S)
 * Backward, t descending; G is the gradient of S, at first +0, and g that of out; dots by lanes:
 *   u = scale g, dq = dot(S, u), G = fma(q, u, G), x = k G (chains), dk = dot(G, w),
 *   dbeta = dot(x, r), dv = put(x, beta), y = -beta x, dk += dot(P, y), G = fma(k, y, G),
 *   ddecay = dot(G, P) of each row of the state, added in order, then G = e G
 * Heads that share q and k add their dq and dk, head by head. The backward computes states again:
 * those before chunks of about sqrt(T) steps, then, chunk by chunk, those of each step.
 *
 * delta_state (B,heads,(K + 1) D), the last input with caches: the state before the first query,
 * then its position, D times. From call to call it takes the steps that caches have held since; a
 * call may go back to where the one before began or, if caches hold all rows, to any position, from
 * 0 again. Yang 2024 (Gated Delta Networks); Schlag 2021. */
typedef struct {
    gckpti_delta o;
    int64_t queries, rows, steps;    /* T; rows of k; steps to compute */
    int64_t first;                   /* position of the first step; it reads row first % rows */
    int64_t keys, values, group;     /* columns of a head; heads per key head */
    int64_t chunk, chunks;           /* steps of a chunk; chunks */
    const float *in[5], *before, *g; /* before: of each head, the state before the first step */
    float *grad[5], *out, *workspace;
    float *state; /* of each head, the state to advance to position `first`, or NULL */
    int add[5];   /* nonzero if a gradient is added to */
    gckpti_delta_fn step, grads;
} gckpti_delta_call;

static gckpti_delta_call gckpti_delta_of(const gckpt_call *call)
{
    gckpti_delta_call s;
    memset(&s, 0, sizeof s);
    s.o = *(const gckpti_delta *)call->attributes;
    s.queries = s.steps = call->in[0].shape.d[1], s.rows = call->in[1].shape.d[1];
    s.first = s.o.capacity ? call->position : 0;
    s.keys = call->in[1].shape.d[2] / s.o.key_heads, s.values = call->in[2].shape.d[2] / s.o.heads;
    s.group = s.o.heads / s.o.key_heads;
    if (!(s.o.scale > 0.0f))
        s.o.scale = 1.0f / gckpti_sqrt((float)s.keys);
    for (s.chunk = 1; s.chunk * s.chunk < s.queries;)
        s.chunk++;
    s.chunks = (s.queries - 1) / s.chunk + 1;
    for (int i = 0; i < 5; i++)
        s.in[i] = call->in[i].data, s.grad[i] = call->in[i].grad, s.add[i] = call->in[i].accumulate;
    s.before = call->inputs > 5 ? call->in[5].data : NULL;
    s.state = s.o.capacity && call->inputs == 5 ? call->out : NULL;
    s.g = call->grad_out, s.out = s.state ? NULL : call->out;
    s.workspace = (float *)call->workspace;
    return s;
}

/* Returns floats of workspace of an item: a state; backward, the states before all chunks and after
 * the steps of one, the gradient of the state, r of a chunk's steps, and four rows. */
static int64_t gckpti_delta_workspace(const gckpti_delta_call *s, int backward)
{
    const int64_t state = s->keys * s->values;
    return backward ? (s->chunks + s->chunk + 1) * state + (s->chunk + 4) * s->values : state;
}

static gckpt_result gckpti_delta_rule_shape(gckpt_call *call)
{
    const gckpti_delta *o = (const gckpti_delta *)call->attributes;
    const gckpt_shape *q = &call->in[0].shape, *k = &call->in[1].shape, *v = &call->in[2].shape;
    const gckpt_shape *decay = &call->in[3].shape, *beta = &call->in[4].shape;
    const int is_state = o->capacity && call->inputs == 5;
    const int64_t threads = is_state ? 0 : gckpti_is_plain(call) ? 1 : call->threads;
    const gckpt_shape factors = gckpt_shape3(v->d[0], v->d[1], o->heads);
    if (q->n != 3 || k->n != 3 || v->n != 3 || q->d[0] != k->d[0] || q->d[2] != k->d[2] ||
        (q->d[1] != k->d[1] && !o->capacity) || v->d[0] != k->d[0] || v->d[1] != k->d[1] ||
        !gckpti_same_shape(decay, &factors) || !gckpti_same_shape(beta, &factors) || o->heads < 1 ||
        o->key_heads < 1 || o->heads % o->key_heads || v->d[2] % o->heads ||
        k->d[2] % o->key_heads || k->d[2] / o->key_heads > GCKPTI_DELTA_COLUMNS ||
        v->d[2] / o->heads > GCKPTI_DELTA_COLUMNS)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention with decay, %i heads, key_heads %i, which must divide them: "
                          "q %S and k %S must be (B,T,key_heads K), v %S (B,T,heads D), decay %S "
                          "and beta %S (B,T,heads), with K and D at most %i",
                          o->heads, o->key_heads, q, k, v, decay, beta, GCKPTI_DELTA_COLUMNS);
    const gckpti_delta_call s = gckpti_delta_of(call);
    call->shape = is_state ? gckpt_shape3(q->d[0], o->heads, (s.keys + 1) * s.values)
                           : gckpt_shape3(q->d[0], q->d[1], v->d[2]);
    call->workspace_forward = (size_t)(threads * gckpti_delta_workspace(&s, 0)) * sizeof(float);
    call->workspace_backward = (size_t)(threads * gckpti_delta_workspace(&s, 1)) * sizeof(float);
    return GCKPT_OK;
}

/* Returns step t of a head of a row, from one state to another. */
GCKPTI_INLINE gckpti_delta_step gckpti_delta_step_of(const gckpti_delta_call *s, int64_t row,
                                                     int64_t head, int64_t t, const float *from,
                                                     float *to)
{
    const int64_t step = row * s->rows + (s->first + t) % s->rows, query = row * s->queries + t;
    const int64_t at = step * s->o.heads + head, key = head / s->group;
    const int64_t shared = step * s->o.key_heads + key;
    gckpti_delta_step x;
    memset(&x, 0, sizeof x);
    x.keys = s->keys, x.values = s->values, x.scale = s->o.scale, x.from = from, x.to = to;
    x.k = s->in[1] + shared * s->keys, x.v = s->in[2] + at * s->values;
    x.decay = gckpti_exp(s->in[3][at]), x.beta = s->in[4][at];
    x.q = s->state ? NULL : s->in[0] + (query * s->o.key_heads + key) * s->keys;
    x.out = s->out ? s->out + (query * s->o.heads + head) * s->values : NULL;
    x.g = s->g ? s->g + at * s->values : NULL;
    x.dq = s->grad[0] ? s->grad[0] + shared * s->keys : NULL;
    x.dk = s->grad[1] ? s->grad[1] + shared * s->keys : NULL;
    x.dv = s->grad[2] ? s->grad[2] + at * s->values : NULL;
    x.ddecay = s->grad[3] ? s->grad[3] + at : NULL;
    x.dbeta = s->grad[4] ? s->grad[4] + at : NULL;
    for (int k = 0; k < 5; k++)
        x.add[k] = s->add[k] || (k < 2 && head % s->group);
    return x;
}

/* Returns the position of a state, which is 0 if it begins again, and changes it to `to`. */
GCKPTI_INLINE int64_t gckpti_delta_resume(float *word, int64_t to)
{
    const int32_t position = (int32_t)to;
    int32_t held;
    memcpy(&held, word, sizeof held);
    memcpy(word, &position, sizeof position);
    return to > 0 && held <= position ? held : 0;
}

static void gckpti_delta_forward_item(void *context, int64_t i, int64_t worker)
{
    gckpti_delta_call s = *(const gckpti_delta_call *)context;
    const int64_t n = s.keys * s.values, at = i * (n + s.values), position = s.first;
    float *state = s.state ? s.state + at : s.workspace + worker * n;
    const float *from = s.before ? s.before + at : state;
    for (int64_t j = 0; s.state && j < s.values; j++)
        s.first = gckpti_delta_resume(state + n + j, position), s.steps = position - s.first;
    if (!s.before)
        gckpti_zero_unless(state, n, s.first > 0);
    for (int64_t t = 0; t < s.steps; t++, from = state) {
        const gckpti_delta_step x =
            gckpti_delta_step_of(&s, i / s.o.heads, i % s.o.heads, t, from, state);
        s.step(&x);
    }
}

/* Computes the backward of a head, in the order of the comment above. starts: workspace, zeros. */
GCKPTI_INLINE void gckpti_delta_backward_steps(const gckpti_delta_call *s, int64_t row,
                                               int64_t head, float *starts)
{
    const int64_t n = s->keys * s->values;
    float *states = starts + s->chunks * n, *d = states + s->chunk * n, *r = d + n;
    for (int64_t t = 0; t < (s->chunks - 1) * s->chunk; t++) {
        float *to = starts + (t / s->chunk + 1) * n;
        const gckpti_delta_step x =
            gckpti_delta_step_of(s, row, head, t, t % s->chunk ? to : to - n, to);
        s->step(&x);
    }
    for (int64_t c = s->chunks; c-- > 0;) {
        const int64_t first = c * s->chunk, count = gckpti_min(s->steps - first, s->chunk);
        for (int64_t i = 0; i < 2 * count; i++) { /* its steps ascending, then descending */
            const int64_t k = i < count ? i : 2 * count - 1 - i;
            float *to = states + k * n;
            gckpti_delta_step x =
                gckpti_delta_step_of(s, row, head, first + k, k ? to - n : starts + c * n, to);
            x.r = r + k * s->values, x.d = d, x.scratch = r + s->chunk * s->values;
            i < count ? s->step(&x) : s->grads(&x);
        }
    }
}

static void gckpti_delta_backward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_delta_call *s = (const gckpti_delta_call *)context;
    const int64_t row = i / s->o.key_heads, first = i % s->o.key_heads * s->group;
    const int64_t floats = gckpti_delta_workspace(s, 1);
    for (int64_t head = first; head < first + s->group; head++) {
        gckpti_zero_unless(s->workspace + worker * floats, floats, 0);
        gckpti_delta_backward_steps(s, row, head, s->workspace + worker * floats);
    }
}

static void gckpti_compute_delta_rule(const gckpt_call *call, int backward)
{
    gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t items = call->shape.d[0] * (backward ? s.o.key_heads : s.o.heads);
    const int64_t cost = s.steps * s.keys * s.values * (backward ? 28 * s.group : 8);
    s.step = GCKPTI_KERNEL_OF(call, recurrent->delta_update, gckpti_delta_update);
    s.grads = GCKPTI_KERNEL_OF(call, recurrent->delta_grads, gckpti_delta_grads);
    s.out = backward ? NULL : s.out;
    /* plain kernels: the workspace is that of one thread */
    gckpt_parallel(call->kernels ? call : NULL, items, cost,
                   backward ? gckpti_delta_backward_item : gckpti_delta_forward_item, &s);
}
GCKPTI_OP_KERNELS(delta_rule, gckpti_compute_delta_rule(call, backward))

static uint64_t gckpti_delta_rule_flops(const gckpt_call *call)
{
    const gckpti_delta_call s = gckpti_delta_of(call);
    return (uint64_t)(call->shape.d[0] * s.o.heads * s.queries) * (uint64_t)(8 * s.keys * s.values);
}

/* States are computed twice again, without the output. */
static uint64_t gckpti_delta_rule_flops_backward(const gckpt_call *call)
{
    return gckpti_delta_rule_flops(call) / 2 * 7;
}

#define GCKPTI_READS GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_IN(3) | GCKPT_IN(4)
GCKPTI_DESC_WITH(delta_rule, gckpti_delta_rule_shape, gckpti_delta_rule_flops,
                 gckpti_delta_rule_flops_backward, NULL, 0, GCKPTI_READS, GCKPTI_READS,
                 GCKPTI_READS, GCKPTI_READS, GCKPTI_READS);
#undef GCKPTI_READS

GCKPTI_FN void gckpti_delta_state_forward(const gckpt_call *c) { gckpti_delta_rule_forward(c); }
GCKPTI_DESC_ALL(delta_state, NULL, gckpti_delta_rule_shape, gckpti_delta_rule_flops, NULL, NULL,
                NULL, GCKPTI_VARIABLE | GCKPT_SIDE_EFFECT, 0);
#endif
