/* preference.h - direct preference optimisation (DPO, Rafailov et al. 2023) of models of
 * model.h, and the log-probabilities of tokens on which DPO and similar losses depend. To copy,
 * with model.h.
 *
 *     gckpt_tensor *tokens = gckpt_input(g, "tokens", GCKPT_I32, gckpt_shape2(B, 2 * T));
 *     gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, gckpt_shape2(B, 2 * T));
 *     gckpt_tensor *reference = gckpt_input(g, "reference", GCKPT_F32, gckpt_shape2(B, 2));
 *     gckpt_tensor *label = gckpt_input(g, "label", GCKPT_F32, gckpt_shape1(B));
 *     int64_t rows = preference_chunk_rows(&m, T, 0); // last argument: is the LM head trained
 *     gckpt_tensor *logps = preference_logps(&m, tokens, targets, NULL, rows);
 *     gckpt_term loss = { preference_loss(logps, reference, label, 0.1), 1, 0 };
 *
 * A row is a pair of sequences of T tokens: the prompt with the chosen answer, then the prompt
 * with the rejected one. Targets are -1 where nothing is trained (prompt, padding). Let l be the
 * sum of an answer's log-probabilities and l' the same sum for the reference model. Then the
 * loss is the mean of
 *     -log sigmoid(x), x = beta ((l_chosen - l'_chosen) - (l_rejected - l'_rejected)),
 * over pairs. `label` is 1, or 1 - e for label smoothing (Mitchell 2023), which gives -log
 * sigmoid(-x) the weight e. The l' are inputs, 4 bytes an answer: compute them before training,
 * with an inference plan of the same tensors. The reference's weights are not needed during
 * training.
 *
 * Logits are computed for a chunk of positions at a time, so that a plan with a budget never
 * keeps all logits (T,V) at once. Each chunk yields a log-probability per position; they are
 * joined to a row of T before they are summed. So the loss does not depend on the chunk size,
 * and with a frozen head neither does any bit of a gradient. C99 or C++11. */
#ifndef PREFERENCE_H
#define PREFERENCE_H
#include "model.h"

/* ---- chunks ---------------------------------------------------------------------------------- */
enum { PREFERENCE_CHUNKS = 512, PREFERENCE_LOGITS = 1 << 21, PREFERENCE_ROWS = 16 };

/* Returns how many positions of a sequence of T tokens form a chunk. If the LM head is frozen, a
 * chunk has at least 16 positions, and about 2^21 logits if these are more. If the head is trained,
 * each chunk needs a gradient of V times width floats. With n chunks, these gradients and a chunk's
 * logits, about 4 T / n rows of V floats, take least memory if n^2 is about 4 T / width. */
static inline int64_t preference_chunk_rows(const model_any *m, int64_t T, int trained)
{
    const model_config *c = &m->config;
    const int64_t least = PREFERENCE_ROWS, most = PREFERENCE_CHUNKS;
    int64_t n = 1, rows = PREFERENCE_LOGITS / c->vocabulary;
    rows = rows > least ? rows : least;
    if (trained)
        while ((n + 1) * (n + 1) * c->width <= 4 * T)
            n++;
    else
        n = (T + rows - 1) / rows;
    n = n < most ? n : most;
    return (T + n - 1) / n;
}

/* Concatenates `count` tensors (N,t) to one tensor (N,T). Overwrites the array `all`. */
static inline gckpt_tensor *preference_join(gckpt_tensor **all, int64_t count)
{
    while (count > 1) {
        int64_t joined = 0;
        for (int64_t i = 0; i < count; i += GCKPT_MAX_INPUTS) {
            const int64_t left = count - i < GCKPT_MAX_INPUTS ? count - i : GCKPT_MAX_INPUTS;
            all[joined++] = left > 1 ? gckpt_concat(all + i, (int)left, 1) : all[i];
        }
        count = joined;
    }
    return all[0];
}

/* ---- log-probabilities ----------------------------------------------------------------------- */
/* Shape rule of the op "taken": from x (N,t,V) and targets i32 (N,T), with T >= t, to (N,t).
 * out[i][j] is the element of x[i][j] at the target of position first + j, or 0 if that target is
 * negative or at least V. */
static inline gckpt_result preference_taken_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *targets = &call->in[1].shape;
    const int32_t first = *(const int32_t *)call->attributes;
    if (x->n != 3 || targets->n != 2 || x->d[0] != targets->d[0] || first < 0 ||
        first + x->d[1] > targets->d[1])
        return gckpt_fail(call, GCKPT_E_SHAPE, "taken: x %S must be (N,t,V) and targets %S (N,T), "
                                               "where T is at least %i + t", x, targets,
                          (int)first);
    call->shape.n = 2;
    call->shape.d[0] = x->d[0];
    call->shape.d[1] = x->d[1];
    return GCKPT_OK;
}

/* Returns the index in x of the element that becomes output i, or -1 if output i is 0. */
static inline int64_t preference_taken_at(const gckpt_call *call, int64_t i)
{
    const gckpt_shape *x = &call->in[0].shape;
    const int32_t first = *(const int32_t *)call->attributes;
    const int64_t t = x->d[1], T = call->in[1].shape.d[1];
    const int32_t target = call->in[1].index[i / t * T + first + i % t];
    return target >= 0 && target < x->d[2] ? i * x->d[2] + target : -1;
}

static inline void preference_taken_forward(const gckpt_call *call)
{
    for (int64_t i = 0; i < call->shape.d[0] * call->shape.d[1]; i++) {
        const int64_t at = preference_taken_at(call, i);
        call->out[i] = at >= 0 ? call->in[0].data[at] : 0;
    }
}

static inline void preference_taken_backward(const gckpt_call *call)
{
    const int64_t V = call->in[0].shape.d[2], rows = call->shape.d[0] * call->shape.d[1];
    float *grad = call->in[0].grad;
    if (grad == NULL)
        return;
    if (!call->in[0].accumulate)
        memset(grad, 0, (size_t)(rows * V) * sizeof *grad);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = preference_taken_at(call, i);
        if (at >= 0)
            grad[at] += call->grad_out[i];
    }
}

static inline uint64_t preference_taken_flops(const gckpt_call *call)
{
    return (uint64_t)(call->shape.d[0] * call->shape.d[1]);
}

static const gckpt_op preference_taken = { "preference_taken",
                                           preference_taken_shape,
                                           preference_taken_forward,
                                           preference_taken_backward,
                                           preference_taken_flops,
                                           NULL,
                                           { GCKPT_IN(1) },
                                           GCKPT_INDEX(1),
                                           NULL,
                                           NULL };

/* Returns the log-probability of each target, (N,T), from hidden (N,T,C) and targets i32 (N,T); 0
 * where the target is negative. Computes the logits of `rows` positions at a time. */
static inline gckpt_tensor *preference_token_logps(const model_any *m, gckpt_tensor *hidden,
                                              gckpt_tensor *targets, int64_t rows)
{
    const int64_t T = gckpt_shape_of(targets).d[1];
    gckpt_tensor *all[PREFERENCE_CHUNKS];
    int64_t n = 0;
    if (hidden == NULL || rows < 1 || (T + rows - 1) / rows > PREFERENCE_CHUNKS)
        return NULL;
    for (int64_t first = 0; first < T; first += rows) {
        const int64_t end = first + rows < T ? first + rows : T;
        const int32_t from = (int32_t)first;
        gckpt_tensor *in[2];
        gckpt_segment_begin(gckpt_graph_of(targets));
        in[0] = first == 0 && end == T ? hidden : gckpt_slice(hidden, 1, first, end);
        in[0] = gckpt_log_softmax(model_logits(m, in[0]));
        in[1] = targets;
        all[n++] = gckpt_apply(&preference_taken, in, 2, &from, sizeof from);
        gckpt_segment_end(gckpt_graph_of(targets));
    }
    return preference_join(all, n);
}

/* ---- DPO ------------------------------------------------------------------------------------- */
/* Returns for each pair the log-probabilities of the chosen and the rejected answer, (B,2), from
 * tokens and targets i32 (B,2T). Computes the logits of `rows` positions at a time. If options is
 * NULL, all options are 0. */
static inline gckpt_tensor *preference_logps(const model_any *m, gckpt_tensor *tokens,
                                             gckpt_tensor *targets, const model_options *options,
                                             int64_t rows)
{
    const gckpt_shape s = gckpt_shape_of(tokens);
    const gckpt_shape sequences = gckpt_shape2(2 * s.d[0], s.d[1] / 2);
    gckpt_tensor *hidden = model_hidden(m, gckpt_reshape(tokens, sequences), options);
    gckpt_tensor *x = preference_token_logps(m, hidden, gckpt_reshape(targets, sequences), rows);
    return gckpt_name(gckpt_reshape(gckpt_sum(x, 1), gckpt_shape2(s.d[0], 2)), "logps");
}

/* Returns the DPO loss, a mean over pairs, from logps and reference (B,2) and label (B). */
static inline gckpt_tensor *preference_loss(gckpt_tensor *logps, gckpt_tensor *reference,
                                            gckpt_tensor *label, double beta)
{
    gckpt_tensor *ratio = gckpt_sub(logps, reference);
    gckpt_tensor *chosen = gckpt_slice(ratio, 1, 0, 1), *rejected = gckpt_slice(ratio, 1, 1, 2);
    gckpt_tensor *x = gckpt_scale(gckpt_sub(chosen, rejected), (float)beta);
    return gckpt_binary_cross_entropy(gckpt_reshape(x, gckpt_shape_of(label)), label, NULL);
}

/* Results of an evaluation, with the names of TRL. They are sums over pairs until preference_mean
 * divides them. */
typedef struct {
    double loss;
    /* rewards beta (l - l') of the two answers; see the head of this file */
    double chosen, rejected;
    double margin;           /* reward of the chosen answer minus reward of the rejected answer */
    double accuracy;         /* fraction of pairs with a positive margin */
    double logps[2];
    int64_t count;
} preference_stats;

static inline void preference_add(preference_stats *s, const float logps[2],
                                  const float reference[2], double beta, double loss)
{
    const double chosen = beta * ((double)logps[0] - (double)reference[0]),
                 rejected = beta * ((double)logps[1] - (double)reference[1]);
    s->loss += loss;
    s->chosen += chosen;
    s->rejected += rejected;
    s->margin += chosen - rejected;
    s->accuracy += chosen > rejected;
    s->logps[0] += (double)logps[0];
    s->logps[1] += (double)logps[1];
    s->count++;
}

static inline void preference_mean(preference_stats *s)
{
    const double n = s->count > 0 ? (double)s->count : 1;
    double *const all[] = { &s->loss,     &s->chosen,   &s->rejected, &s->margin,
                            &s->accuracy, &s->logps[0], &s->logps[1] };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        *all[i] /= n;
}
#endif
