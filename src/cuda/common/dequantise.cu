/* A thread dequantises four values of storage type T, which may lie in two rows. */
template <class T> struct Dequantise {
    gckpt_dequantisation u;
    template <int N> __device__ void at(int64_t i) const
    {
        Vec<T, N> from = load<N>((const T *)u.quantised + i);
        Vec<float, N> x;
        int64_t row = 0;
        if (u.storage == GCKPT_STORAGE_I8) /* only I8 needs this slow division */
            row = i / u.row;
        int64_t end = (row + 1) * u.row;
        for (int k = 0; k < N; k++) {
            if (i + k == end) {
                row++;
                end += u.row;
            }
            x.v[k] = u.storage == GCKPT_STORAGE_BF16  ? gckpti_from_bf16((uint16_t)from.v[k])
                     : u.storage == GCKPT_STORAGE_F16 ? gckpti_from_f16((uint16_t)from.v[k])
                                                     : (float)from.v[k] * u.scales[row];
        }
        store(u.to + i, x);
    }
};

template <class T> void dequantise_as(const gckpt_call *call, const gckpt_dequantisation &u)
{
    for_each_vec<4>(call, Dequantise<T>{ u }, u.n,
             aligned(u.to) && (uintptr_t)u.quantised % (4 * sizeof(T)) == 0);
}

/* Dequantises int4 blocks; a thread converts one byte (two values). */
__device__ void dequantise_int4(int64_t i, const gckpt_dequantisation &u)
{
    const int64_t block = i / 16, k = i % 16;
    const uint8_t *b = (const uint8_t *)u.quantised + block * GCKPTI_INT4_BYTES;
    const float scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8));
    float *to = u.to + block * GCKPTI_INT4_BLOCK + k;
    to[0] = (float)((b[2 + k] & 15) - 8) * scale;
    to[16] = (float)((b[2 + k] >> 4) - 8) * scale;
}

void dequantise(const gckpt_call *call, const gckpt_dequantisation *request)
{
    if (request->storage == GCKPT_STORAGE_I8)
        dequantise_as<int8_t>(call, *request);
    else if (request->storage == GCKPT_STORAGE_I4)
        for_each<dequantise_int4>(call, request->n / 2, *request);
    else
        dequantise_as<uint16_t>(call, *request);
}
