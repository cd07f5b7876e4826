#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is never made ----
 * m results (places of all rows; of dw taps and channels) of n columns are chains of k links: taps
 * and channels (of dw places), 0 beyond the image. What the window meets is looked up as it is
 * read. The way up goes in phases (gckpti_conv_by), each of which is such a product. */
template <class I> struct Windows {
    const float *from, *w, *start;
    float *out;
    I size[2], results[2], taps[2];
    I step[2], tap[2], first[2];     /* result i and tap k read i * step + k * tap + first */
    I at[2], each[2], side[2];       /* result i is number at + i * each of `side` */
    I tap_at[2], tap_each[2], wide;  /* tap k is tap_at + k * tap_each of w, a line of which has so many */
    I source, all, o;                /* channels of a pixel there, of a result, of w */
    I depth, columns;                /* of a group: channels that are links, of results */
    I tap_step, link_step, column_step, group_step; /* in w */
    I m, k;
    int groups, accumulate;
    bool whole; /* results may be written 16 bytes at a time */
};

template <class I> Windows<I> windows_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_reach *r = s->r;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    Windows<I> q = {};
    q.from = s->from, q.w = s->w, q.start = s->start, q.out = s->out;
    for (int i = 0; i < 2; i++) {
        q.size[i] = (I)r[i].size, q.results[i] = (I)r[i].results, q.taps[i] = (I)r[i].taps;
        q.step[i] = (I)r[i].step, q.tap[i] = (I)r[i].tap, q.first[i] = (I)r[i].first;
        q.at[i] = (I)r[i].at, q.each[i] = (I)r[i].each;
        q.side[i] = (I)(up ? z->image[i] : z->places[i]);
        q.tap_at[i] = (I)r[i].tap_at, q.tap_each[i] = (I)r[i].tap_each;
    }
    q.wide = (I)z->taps[1], q.o = (I)z->o;
    q.source = (I)(up ? z->o : z->c), q.all = (I)(up ? z->c : z->o);
    q.depth = (I)(up ? z->group_o : z->group_c), q.columns = (I)(up ? z->group_c : z->group_o);
    q.tap_step = (I)(z->group_c * z->o), q.group_step = (I)z->group_o;
    q.link_step = up ? 1 : (I)z->o, q.column_step = up ? (I)z->o : 1;
    const int64_t places = z->rows * r[0].results * r[1].results;
    const int64_t links = r[0].taps * r[1].taps * (up ? z->group_o : z->group_c);
    q.m = (I)(dw ? links : places), q.k = (I)(dw ? places : links);
    if (links == 0) /* no tap meets this phase */
        q.taps[0] = 0, q.taps[1] = 1;
    q.groups = z->window.groups, q.accumulate = s->accumulate;
    q.whole = q.all % 4 == 0 && q.columns % 4 == 0 && wide(s->out);
    return q;
}

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Whether indexes and what they are made of fit 31 bits. */
bool windows_small(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    int64_t most = z->taps[0] * z->taps[1] * z->group_c * z->o;
    for (int side = 0; side < 2; side++) {
        const int64_t *d = side ? z->image : z->places;
        most = larger(most, z->rows * d[0] * d[1] * (side ? z->c : z->o));
    }
    for (int i = 0; i < 2; i++) {
        const gckpti_reach *r = &s->r[i];
        most = larger(most, r->results * r->step + llabs(r->first) + r->taps * llabs(r->tap));
    }
    return most < GCKPT_CUDA_WIDE;
}

/* A result: of which row, at which place; where it is. */
template <class I> struct Spotted {
    I row, i, j;
    __device__ __forceinline__ Spotted(const Windows<I> &s, I place)
    {
        const I line = place / s.results[1];
        j = place - line * s.results[1];
        row = line / s.results[0];
        i = line - row * s.results[0];
    }
    __device__ __forceinline__ I out(const Windows<I> &s) const
    {
        const I line = row * s.side[0] + i * s.each[0] + s.at[0];
        return (line * s.side[1] + j * s.each[1] + s.at[1]) * s.all;
    }
    __device__ __forceinline__ void next(const Windows<I> &s, I n)
    {
        for (j += n; j >= s.results[1];) {
            j -= s.results[1];
            if (++i == s.results[0])
                i = 0, row++;
        }
    }
};

/* A pixel of an image, or 0 beyond it. */
template <class I>
__device__ __forceinline__ float pixel(const Windows<I> &s, I row, I y, I x, I channel)
{
    const bool there = y >= 0 && y < s.size[0] && x >= 0 && x < s.size[1];
    return there ? s.from[((row * s.size[0] + y) * s.size[1] + x) * s.source + channel] : 0.0f;
}

template <class I> __device__ __forceinline__ I tap_of(const Windows<I> &s, I ky, I kx)
{
    return ((s.tap_at[0] + ky * s.tap_each[0]) * s.wide + s.tap_at[1] + kx * s.tap_each[1]) *
           s.tap_step;
}

template <class I>
__device__ __forceinline__ float chain_start(const Windows<I> &s, I at, I channel)
{
    return s.accumulate ? s.out[at] : s.start ? s.start[channel] : 0.0f;
}

/* Groups of few columns: a thread a result, neighbours in one place's channels. */
template <class I> __global__ void windows_each_kernel(const __grid_constant__ Windows<I> s)
{
    for (EACH(e, (int64_t)s.m * s.all)) {
        const I channel = (I)(e % s.all), group = channel / s.columns;
        const Spotted<I> here(s, (I)(e / s.all));
        const I at = here.out(s) + channel, first = group * s.depth;
        const float *w = s.w + group * s.group_step + (channel - group * s.columns) * s.column_step;
        float d = chain_start(s, at, channel);
        for (I ky = 0; ky < s.taps[0]; ky++)
            for (I kx = 0; kx < s.taps[1]; kx++) {
                const float *by = w + tap_of(s, ky, kx);
                const I y = here.i * s.step[0] + ky * s.tap[0] + s.first[0];
                const I x = here.j * s.step[1] + kx * s.tap[1] + s.first[1];
                for (I c = 0; c < s.depth; c++)
                    d = gckpti_fma(pixel(s, here.row, y, x, first + c), by[c * s.link_step], d);
            }
        s.out[at] = d;
    }
}

/* The same of dw. */
template <class I> __global__ void windows_each_dw_kernel(const __grid_constant__ Windows<I> s)
{
    for (EACH(e, (int64_t)s.m * s.o)) {
        const I channel = (I)(e % s.o), link = (I)(e / s.o), tap = link / s.depth;
        const I from = channel / s.columns * s.depth + link - tap * s.depth;
        const I ky = tap / s.taps[1], kx = tap - ky * s.taps[1];
        const I y0 = ky * s.tap[0] + s.first[0], x0 = kx * s.tap[1] + s.first[1];
        const float *by = s.w + channel;
        float d = chain_start(s, (I)e, channel);
        for (I line = 0, i = 0, row = 0; line < s.k / s.results[1]; line++) {
            const I y = i * s.step[0] + y0;
#pragma unroll 4
            for (I j = 0; j < s.results[1]; j++, by += s.o)
                d = gckpti_fma(pixel(s, row, y, j * s.step[1] + x0, from), *by, d);
            if (++i == s.results[0])
                i = 0, row++;
        }
        s.out[e] = d;
    }
}

/* All others: a block a tile of BM x BN, a thread TM x TN of it, each one chain in a register. DEEP
 * links at a time come through registers to shared memory while those before are worked on. Lanes
 * that read what the window meets have neighbouring channels of one tap or place, and count taps or
 * places as they go. */
enum { DEEP = 16 };

template <int KIND, class I, int BM, int THREADS> struct Met {
    enum { DW = KIND == GCKPTI_CONV_DW, EACH = BM * DEEP / THREADS, ROWS = DW ? 1 : EACH };
    float v[EACH];
    int p, r;         /* reads link p at rows r, ..; of dw links p, .. at row r */
    I channel, ky, kx; /* of the link */
    I y[ROWS], x[ROWS], row[ROWS];
    Spotted<I> place;

    __device__ __forceinline__ Met(const Windows<I> &s, int thread, I group, I m0)
        : p(DW ? thread / BM : thread % DEEP), r(DW ? thread % BM : thread / DEEP),
          place(s, DW ? p : 0)
    {
        I m = m0 + r < s.m ? m0 + r : 0; /* 0: of what is not written */
        const I tap = (DW ? m : p) / s.depth;
        channel = group * s.depth + (DW ? m : p) - tap * s.depth;
        ky = tap / s.taps[1], kx = tap - ky * s.taps[1];
        UNROLL for (int i = 0; i < ROWS && !DW; i++)
        {
            m = m0 + r + i * (THREADS / DEEP);
            const Spotted<I> its(s, m < s.m ? m : 0);
            row[i] = its.row;
            y[i] = its.i * s.step[0] + s.first[0], x[i] = its.j * s.step[1] + s.first[1];
        }
        if (DW)
            y[0] = ky * s.tap[0] + s.first[0], x[0] = kx * s.tap[1] + s.first[1];
    }
    /* The next links, of which there are so many. */
    __device__ __forceinline__ void read(const Windows<I> &s, I left)
    {
        UNROLL for (int i = 0; i < EACH; i++)
        {
            v[i] = 0.0f;
            if (DW && p + i * (THREADS / BM) < left)
                v[i] = pixel(s, place.row, place.i * s.step[0] + y[0],
                             place.j * s.step[1] + x[0], channel);
            else if (!DW && p < left)
                v[i] = pixel(s, row[DW ? 0 : i], y[DW ? 0 : i] + ky * s.tap[0],
                             x[DW ? 0 : i] + kx * s.tap[1], channel);
            if (DW)
                place.next(s, THREADS / BM);
        }
    }
    __device__ __forceinline__ void next(const Windows<I> &s, I end)
    {
        for (channel += DW ? 0 : DEEP; !DW && channel >= end;) {
            channel -= s.depth;
            if (++kx == s.taps[1])
                kx = 0, ky++;
        }
    }
    __device__ __forceinline__ void put(float *to) const
    {
        UNROLL for (int i = 0; i < EACH; i++)
            to[(DW ? p + i * (THREADS / BM) : p) * (BM + 4) +
               (DW ? r : r + i * (THREADS / DEEP))] = v[i];
    }
};

/* Where chains begin, and where they end: rows m.., columns n.. of a group. */
template <int KIND, class I, int TM, int TN>
__device__ __forceinline__ void windows_start(const Windows<I> &s, I m, I group, I n,
                                              float (*c)[TN])
{
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++)
    {
        c[i][j] = 0.0f;
        if ((s.accumulate || s.start) && m + i < s.m && n + j < s.columns) {
            const I at = KIND == GCKPTI_CONV_DW ? (m + i) * s.o : Spotted<I>(s, m + i).out(s);
            const I channel = group * s.columns + n + j;
            c[i][j] = chain_start(s, at + channel, channel);
        }
    }
}

template <int KIND, class I, int TM, int TN>
__device__ __forceinline__ void windows_end(const Windows<I> &s, I m, I group, I n,
                                            const float (*c)[TN])
{
    UNROLL for (int i = 0; i < TM; i++) if (m + i < s.m)
    {
        const I at = KIND == GCKPTI_CONV_DW ? (m + i) * s.o : Spotted<I>(s, m + i).out(s);
        write_run<TN>(Results{ s.out, NULL }, (int64_t)at + group * s.columns + n, s.columns - n,
                      s.whole, c[i]);
    }
}

template <int TM, int TN>
__device__ __forceinline__ void link_of(const float *x, const float *y, float (*c)[TN])
{
    const Pack<float, TM> a = load<TM>(x);
    const Pack<float, TN> b = load<TN>(y);
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++)
        c[i][j] = gckpti_fma(a.v[i], b.v[j], c[i][j]);
}

template <int KIND, class I, int BM, int BN, int TM, int TN>
__global__ void __launch_bounds__(BM *BN / (TM * TN))
    windows_kernel(const __grid_constant__ Windows<I> s)
{
    enum {
        THREADS = BM * BN / (TM * TN),
        UP = KIND == GCKPTI_CONV_UP,
        EACH = BN * DEEP / THREADS,
        STAGE = DEEP * (BM + BN + 8)
    };
    SHARED(float4, ring, [2 * STAGE / 4]);
    const int thread = (int)threadIdx.x;
    const I across = (s.columns + BN - 1) / BN, down = (s.m + BM - 1) / BM;
    const I tile = (I)blockIdx.x / across, n0 = ((I)blockIdx.x - tile * across) * BN;
    const I group = tile / down, m0 = (tile - group * down) * BM, end = (group + 1) * s.depth;
    const int mine = thread / (BN / TN) * TM, column = thread % (BN / TN) * TN;
    float c[TM][TN], b[EACH];
    windows_start<KIND, I, TM, TN>(s, m0 + mine, group, n0 + column, c);

    Met<KIND, I, BM, THREADS> met(s, thread, group, m0);
    const int n = UP ? thread / DEEP : thread % BN, p = UP ? thread % DEEP : thread / BN;
    const float *w = s.w + group * s.group_step + (n0 + n) * s.column_step;
    float *now = (float *)ring, *next = now + STAGE;
    for (I left = s.k + DEEP; left > 0; left -= DEEP) {
        const I unread = left - DEEP, at = s.k - unread;
        if (unread > 0) {
            met.read(s, unread);
            UNROLL for (int j = 0; j < EACH; j++)
            {
                const int link = UP ? p : p + j * (THREADS / BN), on = UP ? j * (THREADS / DEEP) : 0;
                b[j] = 0.0f;
                if (link < unread && n0 + n + on < s.columns)
                    b[j] = UP ? w[tap_of(s, met.ky, met.kx) + met.channel - (end - s.depth) +
                                  on * s.o]
                              : w[(at + link) * s.o];
            }
            met.next(s, end);
        }
        const float *rows = now + mine, *columns = now + DEEP * (BM + 4) + column;
        if (left <= s.k && left >= DEEP)
            UNROLL for (int l = 0; l < DEEP; l++)
                link_of<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        for (int l = 0; left <= s.k && left < DEEP && l < left; l++)
            link_of<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        if (unread > 0) {
            met.put(next);
            UNROLL for (int j = 0; j < EACH; j++)
                next[DEEP * (BM + 4) + (UP ? p : p + j * (THREADS / BN)) * (BN + 4) +
                     (UP ? n + j * (THREADS / DEEP) : n)] = b[j];
        }
        __syncthreads();
        float *other = now;
        now = next, next = other;
    }
    windows_end<KIND, I, TM, TN>(s, m0 + mine, group, n0 + column, c);
}

template <int KIND, class I, int BM, int BN, int TM, int TN>
void run_windows(const gckpt_call *call, const gckpti_conv *conv)
{
    const Windows<I> s = windows_of<I>(conv);
    const int64_t blocks = ((int64_t)s.m + BM - 1) / BM * (((int64_t)s.columns + BN - 1) / BN);
    RUN(call, (windows_kernel<KIND, I, BM, BN, TM, TN>), dim3((unsigned)(blocks * s.groups)),
        BM * BN / (TM * TN), 0, s);
}

template <class I> void run_each(const gckpt_call *call, const gckpti_conv *conv)
{
    const Windows<I> s = windows_of<I>(conv);
    if (conv->kind == GCKPTI_CONV_DW)
        RUN(call, windows_each_dw_kernel<I>, blocks_for((int64_t)s.m * s.o, 128), 128, 0, s);
    else
        RUN(call, windows_each_kernel<I>, blocks_for((int64_t)s.m * s.all, 256), 256, 0, s);
}

/* Large tiles where they fill the chip, small ones for few results of long chains. */
template <int KIND> void windows_by(const gckpt_call *call, const gckpti_conv *conv)
{
    const Windows<int64_t> s = windows_of<int64_t>(conv);
    const int64_t blocks = (s.m + 63) / 64 * ((s.columns + 63) / 64) * s.groups;
    if (!windows_small(conv))
        run_windows<KIND, int64_t, 64, 64, 4, 4>(call, conv);
    else if (blocks * 2 < processors_of(call))
        run_windows<KIND, int32_t, 16, 16, 1, 1>(call, conv);
    else if (s.columns <= 32)
        run_windows<KIND, int32_t, 64, 16, 4, 1>(call, conv);
    else
        run_windows<KIND, int32_t, 64, 64, 4, 4>(call, conv);
}

/* A gckpti_conv_run. */
void windows(const gckpt_call *call, gckpti_conv *conv)
{
    const gckpti_conv_sizes *z = conv->z;
    if ((conv->kind == GCKPTI_CONV_UP ? z->group_c : z->group_o) < 8)
        windows_small(conv) ? run_each<int32_t>(call, conv) : run_each<int64_t>(call, conv);
    else if (conv->kind == GCKPTI_CONV_DOWN)
        windows_by<GCKPTI_CONV_DOWN>(call, conv);
    else if (conv->kind == GCKPTI_CONV_UP)
        windows_by<GCKPTI_CONV_UP>(call, conv);
    else
        windows_by<GCKPTI_CONV_DW>(call, conv);
}

void conv2d_forward(const gckpt_call *call) { gckpti_conv_by(call, 0, windows, NULL); }

void conv2d_backward(const gckpt_call *call)
{
    gckpti_conv_by(call, 1, windows, NULL);
    if (call->inputs == 3 && call->in[2].grad)
        bias_gradient(call, &call->in[2], gckpti_rows(&call->shape), gckpti_last(&call->shape));
}
#endif
