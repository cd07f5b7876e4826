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
#endif
