#ifndef GCKPT_NO_IMAGES
/* ---- groupnorm, batchnorm ----
 * Sums of a channel go over an image's places in their order (manual, 5e), by one thread; few
 * channels of many places do not fill the chip. Means of groups, of channels' sums, are a warp's. */
struct Channels {
    const float *x, *g;
    int64_t images, places, channels, groups, m;
    float n; /* values of a group in an image */
};

Channels channels_of(const gckpt_call *call)
{
    const int groups = *(const int *)call->attributes;
    const gckpt_arg *x = &call->in[0];
    Channels s = { x->data, call->grad_out, groups ? x->shape.d[0] : 1, 0, gckpti_last(&x->shape) };
    s.places = gckpti_rows(&x->shape) / s.images;
    s.groups = groups ? groups : s.channels, s.m = s.channels / s.groups;
    s.n = (float)(s.places * s.m);
    return s;
}

int64_t channel_blocks(const Channels &s) { return (s.channels + 31) / 32; }

/* What a thread has of its channel, a lane's of 32, of an image. */
struct Channel {
    int64_t image, number, group, at; /* group: of all images'; at: at its image's first place */
    bool there;
    __device__ __forceinline__ Channel(const Channels &s, int64_t block)
    {
        const int64_t across = (s.channels + 31) / 32;
        image = block / across, number = (block - image * across) * 32 + threadIdx.x % 32;
        there = number < s.channels;
        group = image * s.groups + (there ? number / s.m : 0);
        at = image * s.places * s.channels + number;
    }
    __device__ __forceinline__ int64_t first(const Channels &s) const
    {
        return at - number + (there ? number / s.m * s.m : 0);
    }
};

/* s: sums of x - mean (mean NULL: of x - first), with a variance of its squares; BACK: of g, and t
 * of g h. As norm_sums_kernel. */
template <bool BACK>
__global__ void channel_sums_kernel(Channels s, const float *mean, const float *variance,
                                    int squares, float *to_s, float *to_t)
{
    enum { ROWS = 64 };
    SHARED(float, tile, [2][1 + BACK][ROWS][32]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const Channel c(s, blockIdx.x);
    float *to = warp ? to_t : to_s, sum = 0.0f, low = 0.0f, term[1 + BACK][ROWS / 8];
    const bool adds = warp < 1 + BACK && to && c.there;
    const float center = !c.there ? 0.0f : mean ? mean[c.group] : BACK ? 0.0f : s.x[c.first(s)];
    const float rstd = BACK && to_t && c.there ? gckpti_rsqrt(variance[c.group] + 1e-5f) : 0.0f;
    for (int64_t first = -ROWS; first < s.places; first += ROWS) {
        const int now = (int)(first / ROWS & 1);
        for (int k = 0; k < ROWS / 8; k++) { /* of the next places */
            const int64_t r = first + ROWS + 8 * k + warp, at = c.at + r * s.channels;
            const bool here = r < s.places && c.there;
            const float d = here && (!BACK || to_t) ? s.x[at] - center : 0.0f;
            term[0][k] = BACK ? (here ? s.g[at] : 0.0f) : squares ? gckpti_mul(d, d) : d;
            if (BACK)
                term[BACK][k] = gckpti_mul(term[0][k], d * rstd);
        }
        const int count = (int)(s.places - first < ROWS ? s.places - first : ROWS);
#pragma unroll 8
        for (int k = 0; k < count && adds && first >= 0; k++)
            gckpti_sum_add(&sum, &low, tile[now][BACK ? warp : 0][k][lane]);
        for (int k = 0; k < ROWS / 8; k++)
            for (int of = 0; of < 1 + BACK; of++)
                tile[!now][of][8 * k + warp][lane] = term[of][k];
        __syncthreads();
    }
    if (adds)
        to[c.image * s.channels + c.number] = sum;
}

/* Of each group of each image the mean of sums, or of gain sums; from: plus its first x. */
__global__ void channel_level_kernel(Channels s, const float *sums, const float *gain,
                                     const float *from, float *to)
{
    for (EACH_ROW(r, s.images * s.groups)) {
        const int64_t image = r / s.groups, channel = (r - image * s.groups) * s.m;
        const float *sum = sums + image * s.channels + channel;
        float lane = 0.0f;
        for (int64_t k = threadIdx.x % 32; k < s.m; k += 32)
            lane = gain ? gckpti_fma(sum[k], gain[channel + k], lane) : lane + sum[k];
        lane = warp_sum(lane) / s.n;
        if (threadIdx.x % 32 == 0)
            to[r] = from ? from[image * s.places * s.channels + channel] + lane : lane;
    }
}

/* y; BACK: dx, of a and b. A lane has a channel, warps share its places. */
template <bool BACK>
__global__ void channel_each_kernel(Channels s, const float *mean, const float *variance,
                                    const float *gain, const float *bias, const float *a,
                                    const float *b, float *to, int accumulate, int64_t shares)
{
    const int64_t unit = blockIdx.x / shares, share = blockIdx.x - unit * shares;
    const Channel c(s, unit);
    if (!c.there)
        return;
    const float center = mean[c.group], rstd = gckpti_rsqrt(variance[c.group] + 1e-5f);
    const float level = BACK ? a[c.group] : 0.0f, slope = BACK ? b[c.group] : 0.0f;
    const float factor = BACK && gain ? gain[c.number] : 0.0f;
    for (int64_t r = share * 8 + threadIdx.x / 32; r < s.places; r += shares * 8) {
        const int64_t at = c.at + r * s.channels;
        const float d = s.x[at] - center;
        if (!BACK) {
            to[at] = gckpti_norm_out(d, rstd, gain, bias, c.number);
        } else {
            const float u = gain ? gckpti_mul(s.g[at], factor) : s.g[at];
            gckpti_put_product(&to[at], rstd, gckpti_fma(-(d * rstd), slope, u - level),
                               accumulate);
        }
    }
}

/* Shares of places, so that there are some 16 blocks for each processor of a large chip. */
int64_t channel_shares(const Channels &s)
{
    const int64_t units = channel_blocks(s) * s.images, most = (s.places + 7) / 8;
    return units > 2112 ? 1 : gckpti_min(most, 2112 / units + 1);
}

/* Sums of images, one after the other, to the gradient of a gain or bias; rows: what was measured,
 * times `unbiased` and rows, to a running statistic. */
__global__ void channel_add_kernel(Channels s, const float *sums, Sum to, float unbiased, float rows)
{
    for (EACH(c, s.channels)) {
        float sum = to.accumulate ? to.at[c] : 0.0f, low = to.low ? to.low[c] : 0.0f;
        for (int64_t b = 0; b < s.images; b++) {
            const float x = sums[b * s.channels + c];
            gckpti_sum_add(&sum, to.low ? &low : NULL,
                           rows > 0.0f ? gckpti_mul(rows, x * unbiased) : x);
        }
        to.at[c] = sum;
        if (to.low)
            to.low[c] = low;
    }
}

const float *channel_factor(const gckpt_call *call, int input)
{
    return input ? call->in[input].data : NULL;
}

void groupnorm_forward(const gckpt_call *call)
{
    const gckpti_channel_norm *o = (const gckpti_channel_norm *)call->attributes;
    const Channels s = channels_of(call);
    const int64_t all = s.images * s.groups, blocks = channel_blocks(s) * s.images;
    float *sums = (float *)call->work, *aux = call->aux ? (float *)call->aux : NULL;
    const bool given = !o->groups && !gckpti_trains(call);
    float *mean = aux ? aux : sums + s.images * s.channels, *variance = mean + all;
    const dim3 grid((unsigned)blocks), levels = blocks_for(32 * all, 256);
    for (int i = 0; i < 2 && !given; i++) {
        RUN(call, channel_sums_kernel<false>, grid, 256, 0, s, i ? mean : NULL, nullptr, i, sums,
            nullptr);
        RUN(call, channel_level_kernel, levels, 256, 0, s, sums, nullptr, i ? NULL : s.x,
            i ? variance : mean);
    }
    const float *center = given ? call->in[1].data : mean;
    const float *spread = given ? call->in[2].data : variance;
    const int64_t shares = channel_shares(s);
    if (call->out)
        RUN(call, channel_each_kernel<false>, dim3((unsigned)(blocks * shares)), 256, 0, s, center,
            spread, channel_factor(call, o->gain), channel_factor(call, o->bias), nullptr,
            nullptr, call->out, 0, shares);
}

void channel_add(const gckpt_call *call, const Channels &s, const float *sums, int input,
                 float unbiased, float rows)
{
    const gckpt_arg *to = &call->in[input];
    if (input && to->grad)
        RUN(call, channel_add_kernel, blocks_for(s.channels, 32), 32, 0, s, sums,
            Sum{ to->grad, to->low, to->accumulate }, unbiased, rows);
}

void groupnorm_backward(const gckpt_call *call)
{
    const gckpti_channel_norm *o = (const gckpti_channel_norm *)call->attributes;
    const Channels s = channels_of(call);
    const gckpt_arg *x = &call->in[0], *gain = &call->in[o->gain];
    const int64_t all = s.images * s.groups, blocks = channel_blocks(s) * s.images;
    const float *mean = (const float *)call->aux, *variance = mean + all;
    const bool of_gain = o->gain && gain->grad;
    float *sums = (float *)call->work, *more = sums + s.images * s.channels;
    float *a = more + s.images * s.channels, *b = a + all;
    for (int i = 1; i < 3 && !o->groups; i++)
        channel_add(call, s, i == 1 ? mean : variance, i,
                    i == 2 && s.n > 1 ? s.n / (s.n - 1) : 1.0f, (float)call->rows);
    if (!x->grad && !of_gain)
        more = NULL; /* then x and aux need not be there */
    RUN(call, channel_sums_kernel<true>, dim3((unsigned)blocks), 256, 0, s, more ? mean : NULL,
        more ? variance : NULL, 0, sums, more);
    channel_add(call, s, sums, o->bias, 0, 0);
    channel_add(call, s, more, o->gain, 0, 0);
    if (!x->grad)
        return;
    const float *by = channel_factor(call, o->gain);
    const int64_t shares = channel_shares(s);
    for (int i = 0; i < 2; i++)
        RUN(call, channel_level_kernel, blocks_for(32 * all, 256), 256, 0, s, i ? more : sums, by,
            nullptr, i ? b : a);
    RUN(call, channel_each_kernel<true>, dim3((unsigned)(blocks * shares)), 256, 0, s, mean,
        variance, by, nullptr, a, b, x->grad, x->accumulate, shares);
}

/* Floats of scratch. */
int64_t channel_room(const gckpt_call *call)
{
    const Channels s = channels_of(call);
    return 2 * s.images * (s.channels + s.groups);
}

void batchnorm_forward(const gckpt_call *call) { groupnorm_forward(call); }
void batchnorm_backward(const gckpt_call *call) { groupnorm_backward(call); }
#endif
