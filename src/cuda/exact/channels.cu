#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm ---- One thread adds up a channel of an image, pixels in order (manual,
 * 5e), so few channels of many pixels do not fill the chip. A warp computes a group's mean. */
struct Channels {
    const float *x, *g;
    int64_t images, places, channels, groups, m;
    float n; /* values of a group in an image: m channels of `places` pixels */
    const float *mean, *variance, *gain, *bias, *a, *b; /* a, b: means of g, g h (with gain) */
    float *to;
    int accumulate;
    float epsilon;
};

Channels channels_of(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    Channels s = { x->data, call->grad_out, o->center ? x->shape.d[0] : 1, 0,
                   gckpti_last(&x->shape) };
    s.places = gckpti_rows(&x->shape) / s.images;
    s.groups = o->center ? o->center : s.channels, s.m = s.channels / s.groups;
    s.n = (float)(s.places * s.m);
    s.gain = o->gain ? call->in[o->gain].data : NULL;
    s.bias = o->bias ? call->in[o->bias].data : NULL;
    s.to = call->grad_out ? x->grad : call->out, s.accumulate = x->accumulate;
    s.epsilon = gckpti_norm_epsilon(o);
    return s;
}

/* Terms of a channel's sum: x - mean (no mean yet: x - first x) or its square; BACK: g, g h. */
template <bool BACK> struct ChannelTerms : Terms {
    static constexpr bool FRESH = true;
    struct Column {
        float center, rstd;
        int64_t at;
    };
    Channels s;
    int squares;
    __device__ Column column_of(int64_t c, int64_t) const
    {
        const int64_t image = c / s.channels, channel = c - image * s.channels;
        const int64_t group = channel / s.m, first = image * s.places * s.channels;
        const int64_t of = image * s.groups + group;
        return { s.mean ? s.mean[of] : BACK ? 0.0f : s.x[first + group * s.m],
                 BACK && s.mean ? gckpti_rsqrt(s.variance[of] + s.epsilon) : 0.0f,
                 first + channel };
    }
    template <bool> __device__ void read(const Column &c, int64_t place, float *term) const
    {
        const int64_t i = c.at + place * s.channels;
        const float d = (BACK && !s.mean ? s.g : s.x)[i] - c.center; /* without mean: not used */
        term[0] = BACK ? s.g[i] : squares ? gckpti_mul(d, d) : d;
        term[1] = BACK ? gckpti_mul(term[0], d * c.rstd) : 0.0f;
    }
};

template <bool BACK>
void channel_sums(const gckpt_call *call, const Channels &s, int squares, float *first,
                  float *second)
{
    column_sums(call, ChannelTerms<BACK>{ {}, s, squares }, sum_to(first), sum_to(second), s.places,
                s.images * s.channels);
}

/* Computes means of `sums` or gain * sums by image and group, plus the first `from`, if set. */
__device__ void channel_mean(int64_t r, const Channels &s, const float *sums, const float *gain,
                             const float *from, float *to)
{
    const int64_t image = r / s.groups, channel = (r - image * s.groups) * s.m;
    const float *sum = sums + image * s.channels + channel;
    float mean = lanes_sum(s.m, [&](float lane, int64_t k) {
        return gain ? gckpti_fma(sum[k], gain[channel + k], lane) : lane + sum[k];
    });
    mean /= s.n;
    if (threadIdx.x % 32 == 0)
        to[r] = from ? from[image * s.places * s.channels + channel] + mean : mean;
}

void channel_means(const gckpt_call *call, const Channels &s, const float *sums, const float *gain,
                   const float *from, float *to)
{
    for_each_row<channel_mean>(call, s.images * s.groups, s, sums, gain, from, to);
}

/* Computes element i of the output or, if BACK, of dx. */
template <bool BACK> __device__ void channel_at(int64_t i, const Channels &s)
{
    const int64_t pixel = i / s.channels, c = i - pixel * s.channels;
    const int64_t group = pixel / s.places * s.groups + c / s.m;
    const float d = s.x[i] - s.mean[group], rstd = gckpti_rsqrt(s.variance[group] + s.epsilon);
    if (!BACK) {
        s.to[i] = norm_out(d, rstd, s.gain, s.bias, c);
        return;
    }
    const float u = s.gain ? gckpti_mul(s.g[i], s.gain[c]) : s.g[i];
    gckpti_put_product(&s.to[i], rstd, gckpti_fma(-(d * rstd), s.b[group], u - s.a[group]),
                       s.accumulate);
}

/* The terms that batchnorm adds to its running mean and variance: measured ones, times rows. */
struct RunningTerms : Terms {
    const float *mean, *variance;
    float unbiased, rows;
    template <bool> __device__ void read(int64_t channel, int64_t, float *term) const
    {
        term[0] = gckpti_mul(rows, mean[channel]);
        term[1] = gckpti_mul(rows, variance[channel] * unbiased);
    }
};

void groupnorm_forward(const gckpt_call *call)
{
    Channels s = channels_of(call);
    float *sums = (float *)call->workspace;
    float *stats[2] = { call->saved ? (float *)call->saved : sums + s.images * s.channels };
    stats[1] = stats[0] + s.images * s.groups;
    if (!*(const int *)call->attributes && !gckpti_is_training(call)) {
        s.mean = call->in[1].data, s.variance = call->in[2].data;
    } else {
        channel_sums<false>(call, s, 0, sums, NULL);
        channel_means(call, s, sums, NULL, s.x, stats[0]);
        s.mean = stats[0], s.variance = stats[1];
        channel_sums<false>(call, s, 1, sums, NULL);
        channel_means(call, s, sums, NULL, NULL, stats[1]);
    }
    if (s.to)
        for_each<channel_at<false>>(call, gckpti_elements(&call->shape), s);
}

void groupnorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    Channels s = channels_of(call);
    const int64_t n = s.images * s.channels, groups = s.images * s.groups;
    const float *saved = (const float *)call->saved;
    float *sums = (float *)call->workspace, *more = NULL, *a = sums + 2 * n, *b = a + groups;
    const float unbiased = s.n > 1 ? s.n / (s.n - 1) : 1.0f;
    const RunningTerms stats = { {}, saved, saved + s.channels, unbiased, (float)call->rows };
    if (!o->center)
        column_sums(call, stats, sum_of(call, 1), sum_of(call, 2), 1, s.channels);
    if (s.to || (o->gain && call->in[o->gain].grad)) /* only then are x and saved read */
        s.mean = saved, s.variance = saved + groups, more = sums + n;
    channel_sums<true>(call, s, 0, sums, more);
    const RowTerms<> images = { {}, { sums, NULL }, { more, NULL }, s.channels };
    column_sums(call, images, sum_of(call, o->bias), sum_of(call, o->gain), s.images, s.channels);
    if (!s.to)
        return;
    channel_means(call, s, sums, s.gain, NULL, a);
    channel_means(call, s, more, s.gain, NULL, b);
    s.a = a, s.b = b;
    for_each<channel_at<true>>(call, gckpti_elements(&call->shape), s);
}

int64_t groupnorm_workspace(const gckpt_call *call, bool)
{
    const Channels s = channels_of(call);
    return 2 * s.images * (s.channels + s.groups);
}
#endif
