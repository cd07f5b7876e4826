/* Copies the positions of x into the cache, in each row; a windowed cache is a ring. */
__device__ void cache_at(int64_t i, const gckpt_arg &x, float *out, uint16_t *narrow, int64_t n,
                         int64_t c, int64_t each, const StepParams *params)
{
    gckpti_put_element(&x, i, out, narrow, i / n * each + (params->position * c + i % n) % each);
}

void cache_by(const gckpt_call *call, bool)
{
    int64_t c = call->shape.d[2], n = call->in[0].shape.d[1] * c, all = call->shape.d[0] * n;
    for_each<cache_at>(call, all, call->in[0], call->out, call->out_bf16, n, c,
                       call->shape.d[1] * c, params_of(call));
}

/* Frequencies of the angles: number i is ratio^i radians a position or, if listed, frequency[i]. */
struct Rotation {
    double ratio;
    int listed;
    float scale, direction, frequency[GCKPTI_ROTARY_MAX];
};

/* Computes rotary's table (T,R/2,2), T positions of R rotated columns, of cosines and sines, a
 * thread a pair, from position `first` (plus the current position, if params is not NULL) on. */
__device__ void rotary_table_at(int64_t at, float *table, uint64_t first, const StepParams *params,
                                const Rotation &rotation, int half)
{
    uint64_t begin = first + (params ? (uint64_t)params->position : 0);
    int64_t position = at / half;
    int pair = (int)(at - position * half);
    double count = GCKPTI_TICKS_PER_RADIAN;
    float sine, cosine;
    if (rotation.listed)
        count *= (double)rotation.frequency[pair];
    for (int i = rotation.listed ? 0 : pair; i > 0; i--)
        count *= rotation.ratio;
    uint64_t angle = (begin + (uint64_t)position) * gckpti_rotary_wrap(count);
    gckpti_sincos_of(gckpti_rotary_angle(angle), &sine, &cosine);
    table[2 * at] = gckpti_mul(cosine, rotation.scale);
    table[2 * at + 1] = gckpti_mul(rotation.direction < 0 ? -sine : sine, rotation.scale);
}

/* Rotates N pairs x_i, x_(i + half) of a head of d columns, whose first 2 half are rotated, or
 * copies N of the other columns. */
struct Rotate {
    Values x;
    Results y;
    const float *table;
    int64_t t;
    int heads, half, d, accumulate;
    template <int N> __device__ void at(int64_t pair) const
    {
        const int64_t head = pair / (d - half);
        const int i = (int)(pair - head * (d - half));
        const int64_t from = head * d + i, to = from + half, angle = head / heads % t * half + i;
        Vec<float, N> a, b = load<N>(x, to), c, e;
        if (i >= half)
            return write_vec<N>(y, to, N, true, b.v, accumulate);
        a = load<N>(x, from);
        Vec<float, N> rotation[2] = { load<N>(table + 2 * angle), load<N>(table + 2 * angle + N) };
        UNROLLED(k, N) {
            const float cosine = rotation[2 * k / N].v[2 * k % N];
            const float sine = rotation[(2 * k + 1) / N].v[(2 * k + 1) % N];
            c.v[k] = gckpti_fma(a.v[k], cosine, -(b.v[k] * sine));
            e.v[k] = gckpti_fma(b.v[k], cosine, a.v[k] * sine);
        }
        write_vec<N>(y, from, N, true, c.v, accumulate);
        write_vec<N>(y, to, N, true, e.v, accumulate);
    }
};

void rotary_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg &in = call->in[0];
    const Values x = backward ? grad_out_of(call) : value_of(in);
    const Results y = backward ? grad_of(in) : out_of(call);
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const float *listed = gckpti_rotary_frequencies(o);
    int64_t t = call->shape.d[1], d = call->shape.d[2] / o->heads;
    int64_t half = gckpti_rotary_columns(o, d) / 2;
    int64_t n = gckpti_elements(&call->shape) / d * (d - half);
    float *table = (float *)call->workspace;
    Rotation rotation = { listed ? 1.0 : gckpti_rotary_ratio(o->base, half), listed != NULL,
                 o->columns ? o->scale : 1.0f, backward ? -1.0f : 1.0f, { 0 } };
    if (!wanted(y))
        return;
    if (listed)
        memcpy(rotation.frequency, listed, (size_t)half * sizeof *listed);
    for_each<rotary_table_at>(call, t * half, table, (uint64_t)o->position,
                              call->training ? NULL : params_of(call), rotation, (int)half);
    const int add = backward && in.accumulate;
    const Rotate rotate = { x, y, table, t, o->heads, (int)half, (int)d, add };
    for_each_vec<8>(call, rotate, n, aligned(x, y, table) && half % 8 == 0 && d % 8 == 0);
}
