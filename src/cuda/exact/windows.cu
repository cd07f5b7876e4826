#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is never made ----
 * m results (places of all rows; of dw taps and channels) of some columns are chains of k links:
 * taps and channels (of dw places), 0 beyond the image. The way up goes in phases (gckpti_conv_by),
 * each of which is such a product. Axes are shorter than 2^31, addresses of 64 bits throughout. */
struct Windows {
    gckpti_conv_sizes z;
    gckpti_reach r[2];
    const float *from, *w, *start;
    float *out;
    int64_t m, k;
    int source, all;            /* channels of a pixel, of a result */
    int depth, columns;         /* of a group: those that are links, those of results */
    int link_step, column_step; /* in w */
    int accumulate;
    bool up, whole; /* whole: results may be written 16 bytes at a time */
};

Windows windows_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int c = (int)z->c, o = (int)z->o, gc = (int)z->group_c, go = (int)z->group_o;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t places = z->rows * s->r[0].results * s->r[1].results;
    const int64_t links = s->r[0].taps * s->r[1].taps * (up ? go : gc);
    Windows q = { *z, { s->r[0], s->r[1] }, s->from, s->w, s->start, s->out };
    q.m = dw ? links : places, q.k = dw ? places : links;
    q.source = up ? o : c, q.all = up ? c : o;
    q.depth = up ? go : gc, q.columns = up ? gc : go;
    q.link_step = up ? 1 : o, q.column_step = up ? o : 1;
    q.accumulate = s->accumulate, q.up = up;
    q.whole = q.all % 4 == 0 && q.columns % 4 == 0 && wide(q.out);
    if (links == 0) /* no tap meets this phase */
        q.r[0].taps = 0, q.r[1].taps = 1;
    return q;
}

/* A result: of which row, at which place; where it is. */
struct Spotted {
    int64_t row;
    int i, j;
    __device__ __forceinline__ Spotted(const Windows &s, int64_t place)
    {
        const int64_t line = place / s.r[1].results;
        row = line / s.r[0].results;
        i = (int)(line - row * s.r[0].results), j = (int)(place - line * s.r[1].results);
    }
    __device__ __forceinline__ int64_t out(const Windows &s) const
    {
        const int64_t *side = s.up ? s.z.image : s.z.places;
        const int64_t line = row * side[0] + i * s.r[0].each + s.r[0].at;
        return (line * side[1] + j * s.r[1].each + s.r[1].at) * s.all;
    }
};

/* What result i meets by tap k of an axis. */
__device__ __forceinline__ int met_at(const gckpti_reach &r, int i, int k)
{
    return i * (int)r.step + k * (int)r.tap + (int)r.first;
}

__device__ __forceinline__ int64_t pixel(const Windows &s, int64_t row, int y, int x)
{
    return ((row * s.r[0].size + y) * s.r[1].size + x) * s.source;
}

/* A channel of a pixel, or 0 beyond the image. */
__device__ __forceinline__ float met(const Windows &s, int y, int x, int64_t at)
{
    const bool there = y >= 0 && y < (int)s.r[0].size && x >= 0 && x < (int)s.r[1].size;
    return there ? s.from[at] : 0.0f;
}

__device__ __forceinline__ int64_t tap_of(const Windows &s, int ky, int kx)
{
    const int64_t y = s.r[0].tap_at + ky * s.r[0].tap_each;
    return (y * s.z.taps[1] + s.r[1].tap_at + kx * s.r[1].tap_each) * s.z.group_c * s.z.o;
}

__device__ __forceinline__ float chain_start(const Windows &s, int64_t at, int channel)
{
    return s.accumulate ? s.out[at] : s.start ? s.start[channel] : 0.0f;
}

/* Groups of few columns: a thread a result, neighbours in one place's channels. */
__global__ void windows_each_kernel(const __grid_constant__ Windows s)
{
    for (EACH(e, s.m * s.all)) {
        const int64_t place = e / s.all;
        const int channel = (int)(e - place * s.all), group = channel / s.columns;
        const Spotted here(s, place);
        const float *w =
            s.w + group * s.z.group_o + (int64_t)(channel - group * s.columns) * s.column_step;
        float d = chain_start(s, here.out(s) + channel, channel);
        for (int ky = 0; ky < (int)s.r[0].taps; ky++)
            for (int kx = 0; kx < (int)s.r[1].taps; kx++) {
                const int y = met_at(s.r[0], here.i, ky), x = met_at(s.r[1], here.j, kx);
                const int64_t at = pixel(s, here.row, y, x) + group * s.depth;
                const float *by = w + tap_of(s, ky, kx);
                for (int c = 0; c < s.depth; c++)
                    d = gckpti_fma(met(s, y, x, at + c), by[(int64_t)c * s.link_step], d);
            }
        s.out[here.out(s) + channel] = d;
    }
}

/* All others: a block a tile of BM x BN, a thread TM x TN of it, each one chain in a register. DEEP
 * links at a time come through registers to shared memory while those before are worked on. Lanes
 * that read what the window meets have neighbouring channels of one tap or place, and count taps or
 * places as they go. */
enum { DEEP = 16 };

template <bool DW, int BM, int THREADS> struct Met {
    enum { EACH = BM * DEEP / THREADS, ROWS = DW ? 1 : EACH };
    float v[EACH];
    int p, r;            /* reads link p at rows r, ..; of dw links p, .. at row r */
    int channel, ky, kx; /* of the link */
    int64_t at[ROWS];    /* of what tap 0 meets, its channel 0 */
    int y[ROWS], x[ROWS];
    Spotted place;

    __device__ __forceinline__ Met(const Windows &s, int thread, int group, int64_t m0)
        : p(DW ? thread / BM : thread % DEEP), r(DW ? thread % BM : thread / DEEP),
          place(s, DW ? p : 0)
    {
        const int64_t link = !DW ? p : m0 + r < s.m ? m0 + r : 0; /* 0: of what is not written */
        const int tap = (int)(link / s.depth);
        channel = group * s.depth + (int)(link - (int64_t)tap * s.depth);
        ky = tap / (int)s.r[1].taps, kx = tap - ky * (int)s.r[1].taps;
        UNROLL for (int i = 0; i < ROWS && !DW; i++)
        {
            const int64_t m = m0 + r + i * (THREADS / DEEP);
            const Spotted its(s, m < s.m ? m : 0);
            y[i] = met_at(s.r[0], its.i, 0), x[i] = met_at(s.r[1], its.j, 0);
            at[i] = pixel(s, its.row, y[i], x[i]);
        }
    }
    /* The next links, of which there are so many. */
    __device__ __forceinline__ void read(const Windows &s, int64_t left)
    {
        const int down = ky * (int)s.r[0].tap, across = kx * (int)s.r[1].tap;
        const int64_t on = pixel(s, 0, down, across) + channel;
        EVERY(i, EACH) {
            v[i] = 0.0f;
            if (!DW && p < left)
                v[i] = met(s, y[DW ? 0 : i] + down, x[DW ? 0 : i] + across, at[DW ? 0 : i] + on);
            if (DW && p + i * (THREADS / BM) < left) {
                const int y1 = met_at(s.r[0], place.i, ky), x1 = met_at(s.r[1], place.j, kx);
                v[i] = met(s, y1, x1, pixel(s, place.row, y1, x1) + channel);
            }
            for (place.j += DW ? THREADS / BM : 0; DW && place.j >= (int)s.r[1].results;) {
                place.j -= (int)s.r[1].results;
                if (++place.i == (int)s.r[0].results)
                    place.i = 0, place.row++;
            }
        }
    }
    __device__ __forceinline__ void next(const Windows &s, int end)
    {
        for (channel += DW ? 0 : DEEP; !DW && channel >= end; channel -= s.depth)
            if (++kx == (int)s.r[1].taps)
                kx = 0, ky++;
    }
    __device__ __forceinline__ void put(float *to) const
    {
        UNROLL for (int i = 0; i < EACH; i++)
            to[(DW ? p + i * (THREADS / BM) : p) * (BM + 4) + (DW ? r : r + i * (THREADS / DEEP))] =
                v[i];
    }
};

template <int TM, int TN>
__device__ __forceinline__ void link_of(const float *x, const float *y, float (*c)[TN])
{
    const Pack<float, TM> a = load<TM>(x);
    const Pack<float, TN> b = load<TN>(y);
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN; j++) c[i][j] =
        gckpti_fma(a.v[i], b.v[j], c[i][j]);
}

/* Chains of rows m.., columns n.. of a group begin, or are written. */
template <bool DW, bool END, int TM, int TN>
__device__ __forceinline__ void chains(const Windows &s, int64_t m, int group, int n,
                                       float (*c)[TN])
{
    EVERY(i, TM) {
        const bool some = m + i < s.m && (END || s.accumulate || s.start);
        const int64_t row = !some ? 0 : DW ? (m + i) * s.all : Spotted(s, m + i).out(s);
        const int channel = group * s.columns + n;
        UNROLL for (int j = 0; j < TN && !END; j++) c[i][j] =
            some && n + j < s.columns ? chain_start(s, row + channel + j, channel + j) : 0.0f;
        if (END && some)
            write_run<TN>(Results{ s.out, NULL }, row + channel, s.columns - n, s.whole, c[i]);
    }
}

template <int KIND, int BM, int BN, int TM, int TN>
__global__ void __launch_bounds__(BM *BN / (TM * TN), TM * TN > 1 ? 2 : 3)
    windows_kernel(const __grid_constant__ Windows s)
{
    enum {
        THREADS = BM * BN / (TM * TN),
        DW = KIND == GCKPTI_CONV_DW,
        UP = KIND == GCKPTI_CONV_UP,
        EACH = BN * DEEP / THREADS,
        STAGE = DEEP * (BM + BN + 8)
    };
    SHARED(float4, ring, [2 * STAGE / 4]);
    const int thread = (int)threadIdx.x, across = (s.columns + BN - 1) / BN;
    const int tile = (int)blockIdx.x / across, n0 = ((int)blockIdx.x - tile * across) * BN;
    const int down = (int)((s.m + BM - 1) / BM), group = tile / down;
    const int mine = thread / (BN / TN) * TM, column = thread % (BN / TN) * TN;
    const int64_t m0 = (int64_t)(tile - group * down) * BM;
    float c[TM][TN], b[EACH];
    chains<DW, false, TM, TN>(s, m0 + mine, group, n0 + column, c);

    Met<DW, BM, THREADS> a(s, thread, group, m0);
    const int n = UP ? thread / DEEP : thread % BN, p = UP ? thread % DEEP : thread / BN;
    const float *w = s.w + group * s.z.group_o + (int64_t)(n0 + n) * s.column_step;
    float *now = (float *)ring, *next = now + STAGE;
    for (int64_t left = s.k + DEEP; left > 0; left -= DEEP) {
        const int64_t unread = left - DEEP;
        if (unread > 0) {
            a.read(s, unread);
            const int64_t at = UP ? tap_of(s, a.ky, a.kx) + a.channel - group * s.depth
                                  : (s.k - unread + p) * s.z.o;
            EVERY(j, EACH) {
                const int link = UP ? p : p + j * (THREADS / BN),
                          on = UP ? j * (THREADS / DEEP) : 0;
                const bool there = link < unread && n0 + n + on < s.columns;
                b[j] = there ? w[at + (UP ? on : link - p) * s.z.o] : 0.0f;
            }
            a.next(s, (group + 1) * s.depth);
        }
        const float *rows = now + mine, *columns = now + DEEP * (BM + 4) + column;
        if (left <= s.k && left >= DEEP)
            UNROLL for (int l = 0; l < DEEP; l++)
                link_of<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        for (int l = 0; left <= s.k && left < DEEP && l < left; l++)
            link_of<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        if (unread > 0)
            a.put(next);
        UNROLL for (int j = 0; j < EACH && unread > 0; j++)
            next[DEEP * (BM + 4) + (UP ? p : p + j * (THREADS / BN)) * (BN + 4) +
                 (UP ? n + j * (THREADS / DEEP) : n)] = b[j];
        __syncthreads();
        float *other = now;
        now = next, next = other;
    }
    chains<DW, true, TM, TN>(s, m0 + mine, group, n0 + column, c);
}

/* Large tiles where they fill the chip, small ones for few results of long chains. */
template <int KIND> void windows_by(const gckpt_call *call, const Windows &s)
{
    const int64_t groups = s.z.window.groups;
#define TILES(M, N) ((s.m + M - 1) / M * ((s.columns + N - 1) / N) * groups)
#define TILE(M, N, TM, TN)                                                                         \
    RUN(call, (windows_kernel<KIND, M, N, TM, TN>), dim3((unsigned)TILES(M, N)), 256, 0, s)
    if (TILES(64, 64) * 2 < processors_of(call))
        TILE(16, 16, 1, 1);
    else if (s.columns <= 32)
        TILE(64, 16, 4, 1);
    else
        TILE(64, 64, 4, 4);
#undef TILE
#undef TILES
}

/* A gckpti_conv_run. */
void windows(const gckpt_call *call, gckpti_conv *conv)
{
    const Windows s = windows_of(conv);
    if (conv->kind == GCKPTI_CONV_DW)
        windows_by<GCKPTI_CONV_DW>(call, s);
    else if (s.columns < 8)
        RUN_EACH(call, windows_each_kernel, s.m * s.all, s);
    else
        s.up ? windows_by<GCKPTI_CONV_UP>(call, s) : windows_by<GCKPTI_CONV_DOWN>(call, s);
}

void conv2d_by(const gckpt_call *call, bool backward)
{
    gckpti_conv_by(call, backward, windows, NULL);
    if (backward)
        bias_gradient(call);
}
BOTH_WAYS(conv2d, conv2d_by)
#endif
