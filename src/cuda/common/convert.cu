/* A conversion between f32 and bf16. */
struct Convert {
    gckpt_conversion c;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> x = {};
        Vec<uint16_t, N> half;
        if (c.kind != GCKPT_WIDEN)
            x = load<N>(c.x + i);
        if (c.kind == GCKPT_WIDEN || c.kind == GCKPT_WIDEN_ADD)
            half = load<N>(c.from + i);
        for (int k = 0; k < N; k++) {
            if (c.kind == GCKPT_NARROW || c.kind == GCKPT_ROUND)
                half.v[k] = gckpti_to_bf16(x.v[k]);
            const float f = gckpti_from_bf16(half.v[k]);
            x.v[k] = c.kind == GCKPT_WIDEN_ADD ? f + x.v[k] : f;
        }
        if (c.kind == GCKPT_NARROW)
            store(c.to + i, half);
        else
            store(c.x + i, x);
    }
};

void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    for_each_vec<8>(call, Convert{ *c }, c->n, aligned(c->x, c->from, c->to));
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    const gckpt_conversion c = { GCKPT_WIDEN, to, from, NULL, n };
    convert(call, &c);
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    const gckpt_conversion c = { GCKPT_NARROW, (float *)from, NULL, to, n };
    convert(call, &c);
}
