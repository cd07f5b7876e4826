#ifndef GCKPT_NO_ACTIVATIONS
/* where: a bit mask of the elements that are taken: those whose condition is not 0 (-0 is 0) or,
 * for the gradient of b, is 0. Moves bits, so NaN stay as they are. */
GCKPTI_INLINED INTS V(where_mask)(FLOATS condition, int shift, int second)
{
    return GCKPTI_MASK_OF(V(bits)(condition) << shift != 0) ^ (0u - (uint32_t)second);
}
GCKPTI_KERNEL void V(where_values)(const gckpti_loop *loop)
{
    const gckpti_loop s = *loop;
    for (int64_t j = 0; j < s.n; j += W) {
        const INTS taken = V(where_mask)(GCKPTI_OPERAND(0), s.shift, 0);
        const INTS a = V(bits)(GCKPTI_OPERAND(1)), b = V(bits)(GCKPTI_OPERAND(2));
        V(store_n)(s.to + j, V(floats)((taken & a) | (~taken & b)), W);
    }
}
GCKPTI_KERNEL void V(where_gradient)(const gckpti_loop *loop)
{
    const gckpti_loop s = *loop;
    for (int64_t j = 0; j < s.n; j += W) {
        const INTS taken = V(where_mask)(GCKPTI_OPERAND(0), s.shift, s.second);
        const FLOATS g = V(floats)(taken & V(bits)(GCKPTI_OPERAND(2)));
        if (GCKPTI_ISA < 0 && s.comp)
            gckpti_sum_add(&s.to[j * s.steps[3]], &s.comp[j * s.steps[3]], GCKPTI_LANE(g, 0));
        else
            V(put_n)(s.to + j, g, s.accumulate, W);
    }
}

GCKPTI_KERNEL void V(log_softmax_row)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *x = call->in[0].data + r * n;
    float max, sum, *y = call->out + r * n;
    V(online)(x, NULL, n, 1, &max, &sum);
    gckpti_softmax_end(&max, &sum);
    const FLOATS top = V(set1)(max), rest = V(set1)(V(log_scalar)(sum));
    for (int64_t j = 0; j < n; j += W)
        V(store_n)(y + j, V(load_n)(x + j, n - j) - top - rest, n - j);
}

GCKPTI_KERNEL void V(log_softmax_row_grad)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *y = call->out + r * n, *g = call->grad_out + r * n;
    float *d = call->in[0].grad + r * n;
    const FLOATS sum = V(set1)(V(sum_from)(g, n, 0.0f));
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS p = V(exp)(V(load_n)(y + j, n - j));
        V(put_n)(d + j, V(fnma)(p, sum, V(load_n)(g + j, n - j)), call->in[0].accumulate, n - j);
    }
}
#endif
