/* word[i % 4], without an array that has an address. */
__device__ inline uint32_t word_at(const uint32_t word[4], uint64_t i)
{
    return i & 2 ? (i & 1 ? word[3] : word[2]) : (i & 1 ? word[1] : word[0]);
}

/* Random bits are drawn for 8 elements of the batch at a time; a pack's may begin among them. */
struct Converting {
    gckpt_conversion c;
    int64_t each;      /* elements of a row */
    const Moment *now; /* NULL: to nearest */
    template <int N> __device__ void at(int64_t i) const
    {
        Pack<float, N> x = {};
        Pack<uint16_t, N> half;
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
        uint64_t at = (uint64_t)(i + (now ? now->row * each : 0));
        uint32_t word[4];
        for (int k = 0; k < N; k++, at++) {
            if (now && (k == 0 || at % 8 == 0))
                gckpti_philox(now->seed, at / 8, c.stream, (uint32_t)now->step, word);
            uint32_t two = word_at(word, at / 2);
            half.v[k] = now ? gckpti_halve(gckpti_bits(x.v[k]), two >> 16 * (at % 2) & 0xffffu)
                            : gckpti_to_bf16(x.v[k]);
            x.v[k] = gckpti_from_bf16(half.v[k]);
        }
        if (c.kind == GCKPT_NARROW)
            store(c.to + i, half);
        else
            store(c.x + i, x);
    }
};

void convert_by(const gckpt_call *call, const Converting &o)
{
    packs<8>(call, o, o.c.n, wide(o.c.x, o.c.from, o.c.to));
}

void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    int by_chance = call->precision == GCKPT_BF16_STOCHASTIC;
    convert_by(call, { *c, by_chance ? c->n / call->rows : 0, by_chance ? moment_of(call) : NULL });
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    convert_by(call, { { GCKPT_WIDEN, to, from, NULL, n, 0 }, 0, NULL });
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    convert_by(call, { { GCKPT_NARROW, (float *)from, NULL, to, n, 0 }, 0, NULL });
}
