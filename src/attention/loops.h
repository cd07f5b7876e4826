#ifndef GCKPT_NO_ATTENTION
/* Computes row `row` of a rotary op, or of its gradient: see attention/rotary.c. */
GCKPTI_KERNEL void V(rotary_row)(const gckpt_call *call, int64_t row)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const int64_t n = gckpti_last(&call->shape), d = n / o->heads;
    const int64_t rotated = gckpti_rotary_columns(o, d), half = rotated / 2;
    const float *cosine = (const float *)call->workspace + row % call->shape.d[1] * rotated;
    const float *sine = cosine + half;
    const float *from = (call->grad_out ? call->grad_out : call->in[0].data) + row * n;
    float *to = (call->grad_out ? call->in[0].grad : call->out) + row * n; /* may equal `from` */
    const int accumulate = call->grad_out && call->in[0].accumulate;
    const FLOATS neg_zero = V(set1)(-0.0f);
    for (int head = 0; head < o->heads; head++, from += d, to += d) {
        for (int64_t i = 0; i < half; i += W) {
            const FLOATS a = V(load_n)(from + i, half - i), c = V(load_n)(cosine + i, half - i);
            const FLOATS b = V(load_n)(from + half + i, half - i);
            const FLOATS s = V(load_n)(sine + i, half - i);
            const FLOATS x = neg_zero - V(fma)(b, s, neg_zero), y = V(fma)(a, s, neg_zero);
            V(put_n)(to + i, V(fma)(a, c, x), accumulate, half - i);
            V(put_n)(to + half + i, V(fma)(b, c, y), accumulate, half - i);
        }
        for (int64_t i = rotated; i < d; i += W)
            V(put_n)(to + i, V(load_n)(from + i, d - i), accumulate, d - i);
    }
}
#endif
