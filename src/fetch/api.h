/* A value or gradient that gckpt_fetch and gckpt_collect may return. For activations, gckpt_fetch
 * has the last micro-batch and gckpt_collect all rows; their gradients are those of the sum of
 * losses. Gradients of trained parameters are divided by the count, before clipping. A gradient
 * that training does not need (of an f32 input, a constant, a frozen parameter, a function of
 * these) is computed because it is fetched; it is the gradient of the sum of losses. Without a
 * batch axis it is summed over the batch, which must be one micro-batch if several ops read the
 * tensor. A plan that has only such gradients updates nothing. */
typedef struct {
    gckpt_tensor *tensor;
    int gradient; /* if nonzero, fetch its gradient; if 0, its value */
} gckpt_fetch_spec;

/* gckpt_plan_desc.fetch */
typedef struct {
    const gckpt_fetch_spec *specs; /* tensors for gckpt_fetch and gckpt_collect */
    int count;                     /* length of specs; 0 (default) fetches nothing */
} gckpt_fetch_options;

#ifndef GCKPT_NO_FETCH
/* Returns a tensor or gradient of desc.fetch, valid until the next call that runs on this executor
 * or on one that shares its arena. Returns NULL, with the executor's error text, if the tensor is
 * not in desc.fetch, or not computed: not yet in this micro-batch (gckpt_run_some), or because the
 * step ended early. A gradient is complete after its last contribution, a trained parameter's after
 * its update, any other without a batch axis at the end of the step. Values of i32 tensors
 * (gckpt_argmax) are int32_t: cast the pointer, for gckpt_collect as well. */
GCKPT_API const float *gckpt_fetch(gckpt_exec *exec, int id, int gradient);
/* Makes all later calls write this tensor (of desc.fetch, with a batch axis, no parameter) to `to`,
 * the rows of the whole batch in order; `to` NULL ends this. `size` is the number of floats (or
 * int32_t) at `to`; a call with more returns E_ARG before anything runs. Gradients are those of the
 * sum; divide them by report.count for those of report.loss. A call that fails has written the rows
 * of complete micro-batches. */
GCKPT_API gckpt_result gckpt_collect(gckpt_exec *exec, int id, int gradient, float *to,
                                     size_t size);
#endif
