/* Returns word[i % 4]; indexing by a variable would put the array into local memory. */
__device__ inline uint32_t word_at(const uint32_t word[4], uint64_t i)
{
    return i & 2 ? (i & 1 ? word[3] : word[2]) : (i & 1 ? word[1] : word[0]);
}

/* A conversion between f32 and bf16. Stochastic rounding draws bits for 8 elements at once. */
struct Convert {
    gckpt_conversion c;
    int64_t each;      /* elements of a row */
    const StepParams *params; /* NULL: rounds to nearest; otherwise rounds stochastically */
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<float, N> x = {};
        Vec<uint16_t, N> half;
        if (c.kind != GCKPT_WIDEN)
            x = load<N>(c.x + i);
        if (c.kind == GCKPT_WIDEN || c.kind == GCKPT_WIDEN_ADD) {
            half = load<N>(c.from + i);
            for (int k = 0; k < N; k++) {
                float f = gckpti_from_bf16(half.v[k]);
                x.v[k] = c.kind == GCKPT_WIDEN ? f : f + x.v[k];
            }
            store(c.x + i, x);
            return;
        }
        uint64_t at = (uint64_t)(i + (params ? params->first_row * each : 0));
        uint32_t word[4];
        for (int k = 0; k < N; k++, at++) {
            if (params && (k == 0 || at % 8 == 0))
                gckpti_philox(params->seed, at / 8, c.stream, (uint32_t)params->step, word);
            uint32_t two = word_at(word, at / 2);
            half.v[k] =
                params ? gckpti_bits_to_bf16(gckpti_bits(x.v[k]), two >> 16 * (at % 2) & 0xffffu)
                       : gckpti_to_bf16(x.v[k]);
            x.v[k] = gckpti_from_bf16(half.v[k]);
        }
        if (c.kind == GCKPT_NARROW)
            store(c.to + i, half);
        else
            store(c.x + i, x);
    }
};

void convert_by(const gckpt_call *call, const Convert &o)
{
    for_each_vec<8>(call, o, o.c.n, aligned(o.c.x, o.c.from, o.c.to));
}

void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    int stochastic = call->precision == GCKPT_BF16_STOCHASTIC;
    convert_by(call,
               { *c, stochastic ? c->n / call->rows : 0, stochastic ? params_of(call) : NULL });
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    convert_by(call, { { GCKPT_WIDEN, to, from, NULL, n, 0 }, 0, NULL });
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    convert_by(call, { { GCKPT_NARROW, (float *)from, NULL, to, n, 0 }, 0, NULL });
}
