struct FromF16 { /* a: a word of an f16, read as a bf16 */
    __device__ void operator()(float *d, float a, float, float, int) const
    {
        *d = gckpti_from_f16((uint16_t)(gckpti_bits(a) >> 16));
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
    const Values from = { NULL, (const uint16_t *)u.quantised };
    if (u.storage >= GCKPT_STORAGE_I8)
        for_each<dequantise_block>(call, u.n / u.row * blocks * 16, u);
    else if (u.storage == GCKPT_STORAGE_BF16)
        map(call, dense(u.n), Copy(), { u.to, NULL }, from);
    else
        map(call, dense(u.n), FromF16(), { u.to, NULL }, from);
}
