/* Angles of `count` pairs of columns, in 2^-64 turns for each position. */
struct Angles {
    enum { MOST = 256 };
    uint64_t at[MOST];
    int count;
    float scale, direction;
};

/* Computes the pairs' columns of rotary's table (T,2,half) of cosines and sines, for positions from
 * `first` (plus the current position, if params is not NULL) on. */
__device__ void rotary_table_at(int64_t i, const Angles &a, float *table, int64_t half,
                                uint64_t first, const StepParams *params)
{
    const int64_t position = i / a.count, pair = i - position * a.count;
    float sine, cosine;
    first += (uint64_t)position + (params ? (uint64_t)params->position : 0);
    gckpti_sincos_of(gckpti_rotary_angle(first * a.at[pair]), &sine, &cosine);
    table += position * 2 * half + pair;
    table[0] = gckpti_mul(cosine, a.scale);
    table[half] = gckpti_mul(a.direction * sine, a.scale);
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
        const int64_t from = head * d + i, to = from + half;
        const float *angle = table + head / heads % t * 2 * half + i;
        Vec<float, N> a, b = load<N>(x, to), c, e;
        if (i >= half)
            return write_vec<N>(y, to, N, true, b.v, accumulate);
        a = load<N>(x, from);
        const Vec<float, N> cosine = load<N>(angle), sine = load<N>(angle + half);
        UNROLLED(k, N) {
            c.v[k] = gckpti_fma(a.v[k], cosine.v[k], -(b.v[k] * sine.v[k]));
            e.v[k] = gckpti_fma(b.v[k], cosine.v[k], a.v[k] * sine.v[k]);
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
    const double ratio = listed ? 1.0 : gckpti_rotary_ratio(o->base, half);
    double ticks = GCKPTI_TICKS_PER_RADIAN;
    Angles a = { {}, 0, o->columns ? o->scale : 1.0f, backward ? -1.0f : 1.0f };
    if (!wanted(y))
        return;
    for (int64_t pair = 1; pair <= half; pair++, ticks *= ratio) {
        a.at[a.count++] = gckpti_rotary_wrap(listed ? ticks * (double)listed[pair - 1] : ticks);
        if (a.count < Angles::MOST && pair < half)
            continue;
        for_each<rotary_table_at>(call, t * a.count, a, table + pair - a.count, half,
                                  (uint64_t)o->position, call->training ? NULL : params_of(call));
        a.count = 0;
    }
    const int add = backward && in.accumulate;
    const Rotate rotate = { x, y, table, t, o->heads, (int)half, (int)d, add };
    for_each_vec<8>(call, rotate, n, aligned(x, y, table) && half % 8 == 0 && d % 8 == 0);
}
