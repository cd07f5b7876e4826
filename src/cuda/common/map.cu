/* ---- elementwise kernels: d = f(a, b, c), in the order of d; these are tensors 0 to 3 of an
 * iterator of gradckpt.h ---- */
/* Iterates over `axes` of four tensors of these shapes. */
gckpti_iter iterate(const gckpt_shape &axes, const gckpt_shape &d, const gckpt_shape &a,
                    const gckpt_shape &b, const gckpt_shape &c)
{
    const gckpt_shape *const shapes[4] = { &d, &a, &b, &c };
    gckpti_iter it;
    gckpti_iter_over(&it, &axes, shapes);
    return it;
}

/* Iterates over n elements, which all tensors have in the same order. */
gckpti_iter dense(int64_t n)
{
    const gckpt_shape s = gckpt_shape1(n);
    return iterate(s, s, s, s, s);
}

int64_t count_of(const gckpti_iter &it)
{
    int64_t all = 1;
    for (int k = 0; k < it.n; k++)
        all *= it.size[k];
    return all;
}

/* Returns each tensor's element number i. Each axis except the last costs a division, of 32 bits
 * where the numbers are that small. */
struct Places {
    int64_t at[4];
};
__device__ inline Places places_of(const gckpti_iter &it, int64_t i)
{
    Places p;
    UNROLLED(t, 4) p.at[t] = it.offset[t];
    for (int k = 0; k < it.n; k++) {
        const int64_t next = k + 1 < it.n ? i / it.size[k] : 0, j = i - next * it.size[k];
        UNROLLED(t, 4) p.at[t] += j * it.step[t][k];
        i = next;
    }
    return p;
}

/* Returns true if the innermost axis can be read and written by whole vectors of N. Only if it is
 * the only axis may the last vector be shorter. */
bool in_vecs(const gckpti_iter &it, int N)
{
    bool vecs = it.n && it.step[0][0] == 1 && (it.n == 1 || it.size[0] % N == 0);
    for (int t = 0; t < 4; t++) {
        const bool repeated = it.step[t][0] == 0;
        vecs = vecs && (repeated || (it.step[t][0] == 1 && it.offset[t] % N == 0));
        for (int k = 1; k < it.n; k++)
            vecs = vecs && (repeated || it.step[t][k] % N == 0);
    }
    return vecs;
}

/* A thread computes N elements of d; elements that are repeated come from caches. b and c may be
 * NONE. A thread reads an element of d's layout before it writes that element, and no other thread
 * does, so d may be such an operand. */
template <int N, class F>
__global__ void map_kernel(const __grid_constant__ gckpti_iter it, F f, Results d, Values a,
                           Values b, Values c, int64_t n, int accumulate)
{
    for (EACH(vec, (n + N - 1) / N)) {
        const int64_t left = n - vec * N;
        const Places p = places_of(it, vec * N);
        float x[N], y[N], w[N], z[N] = {};
        const auto read = [&](const Values &of, int t, float *v) {
            if (it.step[t][0])
                return read_vec<N>(of, p.at[t], left, true, v);
            UNROLLED(k, N) v[k] = value_at(of, p.at[t]);
        };
        read(a, 1, x), read(b, 2, y), read(c, 3, w);
        if (accumulate)
            read(d, 0, z);
        UNROLLED(k, N) f(&z[k], x[k], y[k], w[k], accumulate);
        write_vec<N>(d, p.at[0], left, true, z);
    }
}

/* Runs map_kernel, by vectors of N if all tensors are aligned. */
template <int N, class F>
void map_vecs(const gckpt_call *call, const gckpti_iter &it, F f, const Results &d, const Values &a,
              const Values &b, const Values &c, int accumulate)
{
    const int64_t n = count_of(it);
    if (N > 1 && !(in_vecs(it, N) && aligned(a, b, c, d)))
        return map_vecs<1>(call, it, f, d, a, b, c, accumulate);
    run_each<map_kernel<N, F>>(call, (n + N - 1) / N, it, f, d, a, b, c, n, accumulate);
}

/* Computes d, or nothing if d is NULL. */
template <class F>
void map(const gckpt_call *call, const gckpti_iter &it, F f, const Results &d, const Values &a,
         const Values &b = NONE, const Values &c = NONE, int accumulate = 0)
{
    if (!wanted(d) || count_of(it) == 0)
        return;
    map_vecs<8>(call, it, f, d, a, b, c, accumulate);
}

struct Copy {
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, a, accumulate);
    }
};

void add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { from, NULL }, NONE, NONE, 1);
}

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
