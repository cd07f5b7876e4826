/* A thread dequantises N values of BF16 or F16. */
struct Dequantise {
    gckpt_dequantisation u;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<uint16_t, N> from = load<N>((const uint16_t *)u.quantised + i);
        Vec<float, N> x;
        for (int k = 0; k < N; k++)
            x.v[k] = u.storage == GCKPT_STORAGE_BF16 ? gckpti_from_bf16(from.v[k])
                                                     : gckpti_from_f16(from.v[k]);
        store(u.to + i, x);
    }
};

/* Dequantises blocks of I8 or I4; a thread converts values k and k + 16 of a block, if any. */
__device__ void dequantise_block(int64_t i, const gckpt_dequantisation &u)
{
    const int int8 = u.storage == GCKPT_STORAGE_I8;
    const int64_t blocks = (u.row + GCKPTI_QUANT_BLOCK - 1) / GCKPTI_QUANT_BLOCK; /* of a row */
    const int64_t row = i / 16 / blocks, block = i / 16 % blocks, k = i % 16;
    const int64_t at = block * GCKPTI_QUANT_BLOCK + k;
    const uint8_t *b = (const uint8_t *)u.quantised;
    b += int8 ? row * (2 * blocks + u.row) + block * GCKPTI_INT8_BYTES
              : (row * blocks + block) * GCKPTI_INT4_BYTES;
    const float scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8)) / (int8 ? 1 : 16);
    const int zero = int8 ? 0 : b[GCKPTI_INT4_ZERO];
    float *to = u.to + row * u.row + at;
    if (at < u.row)
        to[0] = (float)(int8 ? (int8_t)b[2 + k] : (b[2 + k] & 15) * 16 - zero) * scale;
    if (at + 16 < u.row)
        to[16] = (float)(int8 ? (int8_t)b[18 + k] : (b[2 + k] >> 4) * 16 - zero) * scale;
}

void dequantise(const gckpt_call *call, const gckpt_dequantisation *request)
{
    const gckpt_dequantisation &u = *request;
    const int64_t blocks = (u.row + GCKPTI_QUANT_BLOCK - 1) / GCKPTI_QUANT_BLOCK;
    if (u.storage >= GCKPT_STORAGE_I8)
        for_each<dequantise_block>(call, u.n / u.row * blocks * 16, u);
    else
        for_each_vec<4>(call, Dequantise{ u }, u.n,
                        aligned(u.to) && (uintptr_t)u.quantised % 8 == 0);
}
