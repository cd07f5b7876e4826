/* cache: x's rows behind those that are there, in each row of the batch; a window is a ring. */
__global__ void cache_kernel(gckpt_arg x, float *out, uint16_t *narrow, int64_t n, int64_t all,
                             int64_t c, int64_t each, const Moment *now)
{
    for (EACH(i, all))
        gckpti_cache_put(&x, i, out, narrow, i / n * each + (now->position * c + i % n) % each);
}

void cache_forward(const gckpt_call *call)
{
    int64_t c = call->shape.d[2], n = call->in[0].shape.d[1] * c, all = call->shape.d[0] * n;
    RUN_EACH(call, cache_kernel, all, call->in[0], call->out, call->out_bf16, n, all, c,
             call->shape.d[1] * c, moment_of(call));
}

/* What turns pairs: frequency i is ratio^i times the first, or as listed. */
struct Turns {
    double ratio;
    int listed;
    float scale, direction, frequency[GCKPTI_ROTARY_MOST];
};

/* rotary: the table (T,R/2,2) of cosines and sines, a thread a pair; from position `first` on, and
 * with `now` further. */
__global__ void rotary_table_kernel(float *table, uint64_t first, const Moment *now, Turns by,
                                    int64_t t, int half)
{
    uint64_t begin = first + (now ? (uint64_t)now->position : 0);
    for (EACH(at, t * half)) {
        int64_t position = at / half;
        int pair = (int)(at - position * half);
        double count = GCKPTI_ROTARY_FIRST;
        float sine, cosine;
        if (by.listed)
            count *= (double)by.frequency[pair];
        for (int i = by.listed ? 0 : pair; i > 0; i--)
            count *= by.ratio;
        uint64_t angle = (begin + (uint64_t)position) * gckpti_rotary_frequency(count);
        gckpti_sincos_of(gckpti_rotary_angle(angle), &sine, &cosine);
        table[2 * at] = gckpti_mul(cosine, by.scale);
        table[2 * at + 1] = gckpti_mul(by.direction < 0 ? -sine : sine, by.scale);
    }
}

/* A thread N pairs x_i, x_(i + half) of a head of d; `packs` of them in half of what is turned. */
template <int N>
__global__ void rotary_kernel(const float *x, float *y, const float *table, int64_t n, int64_t t,
                              int heads, int packs, int d, int accumulate)
{
    for (EACH(at, n)) {
        int64_t head = at / packs, place = head / heads % t;
        int i = (int)(at - head * packs) * N, half = packs * N;
        const float *from = x + head * d + i;
        float *to = y + head * d + i;
        Pack<float, N> a = load<N>(from), b = load<N>(from + half), c = {}, e = {};
        Pack<float, N> turn[2] = { load<N>(table + 2 * (place * half + i)),
                                   load<N>(table + 2 * (place * half + i) + N) };
        if (accumulate) {
            c = load<N>(to);
            e = load<N>(to + half);
        }
        for (int k = 0; k < N; k++) {
            float cosine = turn[2 * k / N].v[2 * k % N],
                  sine = turn[(2 * k + 1) / N].v[(2 * k + 1) % N];
            gckpti_put(&c.v[k], gckpti_fma(a.v[k], cosine, -(b.v[k] * sine)), accumulate);
            gckpti_put(&e.v[k], gckpti_fma(b.v[k], cosine, a.v[k] * sine), accumulate);
        }
        store(to, c);
        store(to + half, e);
    }
}

void rotary_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *in = &call->in[0];
    const float *x = backward ? call->grad_out : in->data;
    float *y = backward ? in->grad : call->out;
    const int accumulate = backward && in->accumulate;
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const float *listed = gckpti_rotary_listed(o);
    int64_t t = call->shape.d[1], d = call->shape.d[2] / o->heads;
    int64_t turned = gckpti_rotary_turned(o, d), half = turned / 2;
    int64_t all = gckpti_elements(&call->shape) / d, n = all * half;
    float *table = (float *)call->work;
    Turns by = { listed ? 1.0 : gckpti_rotary_ratio(o->base, half), listed != NULL,
                 o->turned ? o->scale : 1.0f, backward ? -1.0f : 1.0f, { 0 } };
    if (!y)
        return;
    if (listed)
        memcpy(by.frequency, listed, (size_t)half * sizeof *listed);
    RUN_EACH(call, rotary_table_kernel, t * half, table, (uint64_t)o->first,
             call->training ? NULL : moment_of(call), by, t, (int)half);
    if (half % 4 == 0 && d % 4 == 0 && wide(x, y, table))
        RUN_EACH(call, rotary_kernel<4>, n / 4, x, y, table, n / 4, t, o->heads, (int)half / 4,
                 (int)d, accumulate);
    else
        RUN_EACH(call, rotary_kernel<1>, n, x, y, table, n, t, o->heads, (int)half, (int)d,
                 accumulate);
    if (turned < d && (x != y || accumulate)) /* columns that pass */
        copy_part(call, { all, d, turned, d - turned }, FROM_PLACE | TO_PLACE, y, x, accumulate);
}
BOTH_WAYS(rotary, rotary_by)
