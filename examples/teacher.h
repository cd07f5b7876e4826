/* teacher.h - distillation (Hinton, Vinyals & Dean 2015): a model of model.h, the student, is
 * trained on the probabilities that another model, the teacher, computes. The teacher is frozen
 * and is in the same store and graph. To use it, copy it with preference.h.
 *
 *     model_any teacher;
 *     teacher_load(&teacher, store, "gpt2-large", NULL, &student);  // names "teacher.*", frozen
 *     gckpt_term terms[2];
 *     terms[0].loss = model_loss(&student, hidden, targets);
 *     terms[0].weight = 0.5f;                                       // alpha
 *     terms[1].loss = teacher_loss(&student, hidden, &teacher, tokens, targets, 2, rows);
 *     terms[1].weight = 0.5f;                                       // 1 - alpha
 *
 * The second loss is tau^2 sum_j p_j (log p_j - log q_j) per token, where p is the teacher's and
 * q the student's softmax(logits / tau). Both losses are sums over the tokens whose target is
 * not negative, divided once per step by the number of these tokens, whatever the micro-batch.
 * Logits are computed a few positions at a time (preference.h). C99 or C++11. */
#ifndef TEACHER_H
#define TEACHER_H
#include "preference.h"

#define TEACHER_PREFIX "teacher."

/* Loads the model in a folder, with TEACHER_PREFIX before the names of its parameters, and freezes
 * it. Call it after choosing which parameters of the student are trained, because adapters_begin
 * and adapters_load unfreeze parameters by patterns. If `source` is NULL, weights are stored as
 * floats. The teacher must have the vocabulary of the student. Returns 0, or -1 with
 * teacher->error. */
static inline int teacher_load(model_any *teacher, gckpt_store *store, const char *dir,
                               const model_source *source, const model_any *student)
{
    model_any sizes;
    memset(teacher, 0, sizeof *teacher);
    if (model_read_config(&sizes, dir) != 0)
        return model_fail(teacher, "%s", sizes.error);
    model_close(&sizes);
    if (sizes.config.vocabulary != student->config.vocabulary)
        return model_fail(teacher,
                          "%s has a vocabulary of %lld tokens, the model that learns one of %lld: "
                          "they must be the same",
                          dir, (long long)sizes.config.vocabulary,
                          (long long)student->config.vocabulary);
    if (model_load_prefixed(teacher, store, dir, source, TEACHER_PREFIX) != 0)
        return -1;
    if (gckpt_store_freeze(store, TEACHER_PREFIX "*", 1) != GCKPT_OK)
        return model_fail(teacher, "%s", gckpt_error_text(store));
    return 0;
}

/* Shape rule of the op `counted`. From x (N,T) and i32 targets (N,T) the op computes the sum of x
 * over targets that are not negative; the loss's count is the number of these targets. */
static inline gckpt_result teacher_counted_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *targets = &call->in[1].shape;
    if (x->n != 2 || targets->n != 2 || x->d[0] != targets->d[0] || x->d[1] != targets->d[1])
        return gckpt_fail(call, GCKPT_E_SHAPE, "counted: x %S, targets %S must be (N,T)", x,
                          targets);
    return GCKPT_OK;
}

static inline void teacher_counted_forward(const gckpt_call *call)
{
    const gckpt_shape *s = &call->in[0].shape;
    for (int64_t i = 0; call->loss_sum != NULL && i < s->d[0] * s->d[1]; i++)
        if (call->in[1].index[i] >= 0) {
            *call->loss_sum += (double)call->in[0].data[i];
            ++*call->loss_count;
        }
}

static inline void teacher_counted_backward(const gckpt_call *call)
{
    const gckpt_shape *s = &call->in[0].shape;
    float *grad = call->in[0].grad;
    for (int64_t i = 0; grad != NULL && i < s->d[0] * s->d[1]; i++) {
        const float g = call->in[1].index[i] >= 0 ? call->loss_scale : 0;
        grad[i] = call->in[0].accumulate ? grad[i] + g : g;
    }
}

static inline uint64_t teacher_counted_flops(const gckpt_call *call)
{
    return (uint64_t)(call->in[0].shape.d[0] * call->in[0].shape.d[1]);
}

static const gckpt_op teacher_counted = { "teacher_counted",
                                          teacher_counted_shape,
                                          teacher_counted_forward,
                                          teacher_counted_backward,
                                          teacher_counted_flops,
                                          NULL,
                                          { GCKPT_IN(1) },
                                          GCKPT_LOSS | GCKPT_INDEX(1) | GCKPT_COUNT_FROM_FEEDS,
                                          NULL,
                                          NULL };

/* Returns log softmax(z / tau), where z are the logits that model m computes from `hidden`. */
static inline gckpt_tensor *teacher_log_probs(const model_any *m, gckpt_tensor *hidden, double tau)
{
    gckpt_tensor *z = model_logits(m, hidden);
    return gckpt_log_softmax(tau != 1 ? gckpt_scale(z, (float)(1 / tau)) : z);
}

/* Returns the loss of distillation, the second loss in the head of this file. `hidden` (B,T,C) is
 * the student's; tokens and targets are i32 (B,T). Computes the logits of `rows` of the T positions
 * at a time. */
static inline gckpt_tensor *teacher_loss(const model_any *student, gckpt_tensor *hidden,
                                         const model_any *teacher, gckpt_tensor *tokens,
                                         gckpt_tensor *targets, double tau, int64_t rows)
{
    const int64_t T = gckpt_shape_of(targets).d[1];
    gckpt_tensor *t_hidden = model_hidden(teacher, tokens, NULL), *all[PREFERENCE_CHUNKS], *in[2];
    int64_t n = 0;
    if (hidden == NULL || t_hidden == NULL || rows < 1 || (T + rows - 1) / rows > PREFERENCE_CHUNKS)
        return NULL;
    for (int64_t first = 0; first < T; first += rows) {
        const int64_t end = first + rows < T ? first + rows : T;
        gckpt_segment_begin(gckpt_graph_of(targets));
        gckpt_tensor *p = teacher_log_probs(teacher, gckpt_slice(t_hidden, 1, first, end), tau);
        gckpt_tensor *q = teacher_log_probs(student, gckpt_slice(hidden, 1, first, end), tau);
        gckpt_tensor *diff = gckpt_sub(p, q);
        all[n++] = gckpt_sum(gckpt_mul(gckpt_exp(p), diff), 2);
        gckpt_segment_end(gckpt_graph_of(targets));
    }
    in[0] = gckpt_scale(preference_join(all, n), (float)(tau * tau));
    in[1] = targets;
    return gckpt_apply(&teacher_counted, in, 2, NULL, 0);
}
#endif
