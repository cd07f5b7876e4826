struct Round { /* to bf16 */
    __device__ void operator()(float *d, float a, float, float, int) const
    {
        *d = gckpti_from_bf16(gckpti_to_bf16(a));
    }
};

/* The backend's conversion between f32 and bf16. */
void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    const Results f32 = { c->x, NULL }, bf16 = { NULL, c->to };
    const Values from = { NULL, c->from };
    if (c->kind == GCKPT_ROUND)
        map(call, dense(c->n), Round(), f32, f32);
    else if (c->kind == GCKPT_NARROW)
        map(call, dense(c->n), Copy(), bf16, f32);
    else
        map(call, dense(c->n), Copy(), f32, from, NONE, NONE, c->kind == GCKPT_WIDEN_ADD);
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { NULL, from });
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    map(call, dense(n), Copy(), { NULL, to }, { from, NULL });
}

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
