#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is not stored ---- m results (windows
 * of all rows; for dw: taps x channels) of some columns are chains of k terms (taps x channels; for
 * dw: windows), with 0 outside the image. UP, the transpose, runs in phases (gckpti_run_conv), each
 * such a product. Axes are shorter than 2^31; addresses have 64 bits. */
struct ConvGemm {
    gckpti_conv_sizes z;
    gckpti_axis_map r[2];
    const float *from, *w, *start;
    float *out;
    int64_t m, k;
    int source, all;            /* channels of a pixel; channels of a result */
    int depth, columns;         /* channels of a group: in the terms; in the results */
    int term_step, column_step; /* steps in w */
    int accumulate;
    bool up, aligned; /* aligned: results can be written 16 bytes at a time */
};

ConvGemm conv_gemm_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const int c = (int)z->c, o = (int)z->o, gc = (int)z->group_c, go = (int)z->group_o;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t places = z->rows * s->r[0].results * s->r[1].results;
    const int64_t terms = s->r[0].taps * s->r[1].taps * (up ? go : gc);
    ConvGemm q = { *z, { s->r[0], s->r[1] }, s->from, s->w, s->start, s->out };
    q.m = dw ? terms : places, q.k = dw ? places : terms;
    q.source = up ? o : c, q.all = up ? c : o;
    q.depth = up ? go : gc, q.columns = up ? gc : go;
    q.term_step = up ? 1 : o, q.column_step = up ? o : 1;
    q.accumulate = s->accumulate, q.up = up;
    q.aligned = q.all % 4 == 0 && q.columns % 4 == 0 && aligned(q.out);
    if (terms == 0) /* no tap contributes to this phase */
        q.r[0].taps = 0, q.r[1].taps = 1;
    return q;
}

/* Coordinates of a result: row of the batch, position (i, j) in the image; out() is its offset. */
struct ConvCoords {
    int64_t row;
    int i, j;
    __device__ __forceinline__ ConvCoords(const ConvGemm &s, int64_t place)
    {
        const int64_t line = place / s.r[1].results;
        row = line / s.r[0].results;
        i = (int)(line - row * s.r[0].results), j = (int)(place - line * s.r[1].results);
    }
    __device__ __forceinline__ int64_t out(const ConvGemm &s) const
    {
        const int64_t *side = s.up ? s.z.image : s.z.windows;
        const int64_t line = row * side[0] + i * s.r[0].out_step + s.r[0].out_first;
        return (line * side[1] + j * s.r[1].out_step + s.r[1].out_first) * s.all;
    }
};

/* Returns the position in the image, along an axis, that tap k of result i reads. */
__device__ __forceinline__ int src_pos(const gckpti_axis_map &r, int i, int k)
{
    return i * (int)r.stride + k * (int)r.dilation + (int)r.first;
}

__device__ __forceinline__ int64_t pixel(const ConvGemm &s, int64_t row, int y, int x)
{
    return ((row * s.r[0].size + y) * s.r[1].size + x) * s.source;
}

/* Returns element `at`, a channel of pixel (y, x), or 0 if the pixel is outside the image. */
__device__ __forceinline__ float src(const ConvGemm &s, int y, int x, int64_t at)
{
    const bool inside = y >= 0 && y < (int)s.r[0].size && x >= 0 && x < (int)s.r[1].size;
    return inside ? s.from[at] : 0.0f;
}

__device__ __forceinline__ int64_t tap_of(const ConvGemm &s, int ky, int kx)
{
    const int64_t y = s.r[0].tap_first + ky * s.r[0].tap_step;
    return (y * s.z.taps[1] + s.r[1].tap_first + kx * s.r[1].tap_step) * s.z.group_c * s.z.o;
}

__device__ __forceinline__ float chain_start(const ConvGemm &s, int64_t at, int channel)
{
    return s.accumulate ? s.out[at] : s.start ? s.start[channel] : 0.0f;
}

/* For groups of few columns: a thread computes a result, adjacent threads adjacent channels. */
__global__ void conv_direct_kernel(const __grid_constant__ ConvGemm s)
{
    for (EACH(e, s.m * s.all)) {
        const int64_t place = e / s.all;
        const int channel = (int)(e - place * s.all), group = channel / s.columns;
        const ConvCoords here(s, place);
        const float *w =
            s.w + group * s.z.group_o + (int64_t)(channel % s.columns) * s.column_step;
        float d = chain_start(s, here.out(s) + channel, channel);
        for (int ky = 0; ky < (int)s.r[0].taps; ky++)
            for (int kx = 0; kx < (int)s.r[1].taps; kx++) {
                const int y = src_pos(s.r[0], here.i, ky), x = src_pos(s.r[1], here.j, kx);
                const int64_t at = pixel(s, here.row, y, x) + (int64_t)group * s.depth;
                const float *tap_w = w + tap_of(s, ky, kx);
                for (int c = 0; c < s.depth; c++)
                    d = gckpti_fma(src(s, y, x, at + c), tap_w[(int64_t)c * s.term_step], d);
            }
        s.out[here.out(s) + channel] = d;
    }
}

/* For all other groups: a block computes a tile of BM x BN, a thread TM x TN elements of it, each
 * as one chain in a register. CONV_K terms at a time go through registers to shared memory while
 * the previous CONV_K are computed. Lanes that read the image have adjacent channels of one tap or
 * window, and advance to later taps or windows as they read. */
enum { CONV_K = 16 };

template <bool DW, int BM, int THREADS> struct PatchLoader {
    enum { EACH = BM * CONV_K / THREADS, ROWS = DW ? 1 : EACH };
    float v[EACH];
    int p, r; /* reads term p of rows r, r + THREADS / CONV_K, ..; DW: terms p, .. of row r */
    int channel, ky, kx; /* channel and tap of the term */
    int64_t at[ROWS];    /* offset of channel 0 at tap 0 */
    int y[ROWS], x[ROWS];
    ConvCoords place;

    __device__ __forceinline__ PatchLoader(const ConvGemm &s, int thread, int group, int64_t m0)
        : p(DW ? thread / BM : thread % CONV_K), r(DW ? thread % BM : thread / CONV_K),
          place(s, DW ? p : 0)
    {
        const int64_t term = !DW ? p : m0 + r < s.m ? m0 + r : 0; /* 0 if the row is not written */
        const int tap = (int)(term / s.depth);
        channel = group * s.depth + (int)(term - (int64_t)tap * s.depth);
        ky = tap / (int)s.r[1].taps, kx = tap - ky * (int)s.r[1].taps;
        UNROLL for (int i = 0; i < ROWS && !DW; i++)
        {
            const int64_t m = m0 + r + i * (THREADS / CONV_K);
            const ConvCoords coords(s, m < s.m ? m : 0);
            y[i] = src_pos(s.r[0], coords.i, 0), x[i] = src_pos(s.r[1], coords.j, 0);
            at[i] = pixel(s, coords.row, y[i], x[i]);
        }
    }
    /* Reads this thread's part of the next CONV_K terms, of which `left` exist. */
    __device__ __forceinline__ void read(const ConvGemm &s, int64_t left)
    {
        const int down = ky * (int)s.r[0].dilation, across = kx * (int)s.r[1].dilation;
        const int64_t off = pixel(s, 0, down, across) + channel;
        UNROLLED(i, EACH) {
            v[i] = 0.0f;
            if (!DW && p < left)
                v[i] = src(s, y[DW ? 0 : i] + down, x[DW ? 0 : i] + across, at[DW ? 0 : i] + off);
            if (DW && p + i * (THREADS / BM) < left) {
                const int y1 = src_pos(s.r[0], place.i, ky), x1 = src_pos(s.r[1], place.j, kx);
                v[i] = src(s, y1, x1, pixel(s, place.row, y1, x1) + channel);
            }
            for (place.j += DW ? THREADS / BM : 0; DW && place.j >= (int)s.r[1].results;) {
                place.j -= (int)s.r[1].results;
                if (++place.i == (int)s.r[0].results)
                    place.i = 0, place.row++;
            }
        }
    }
    __device__ __forceinline__ void next(const ConvGemm &s, int end)
    {
        for (channel += DW ? 0 : CONV_K; !DW && channel >= end; channel -= s.depth)
            if (++kx == (int)s.r[1].taps)
                kx = 0, ky++;
    }
    __device__ __forceinline__ void put(float *to) const
    {
        UNROLLED(i, EACH) to[(DW ? p + i * (THREADS / BM) : p) * (BM + 4) +
                                                 (DW ? r : r + i * (THREADS / CONV_K))] = v[i];
    }
};

template <int TM, int TN>
__device__ __forceinline__ void outer_product(const float *x, const float *y, float (*c)[TN])
{
    const Vec<float, TM> a = load<TM>(x);
    const Vec<float, TN> b = load<TN>(y);
    UNROLLED(i, TM) UNROLLED(j, TN) c[i][j] =
        gckpti_fma(a.v[i], b.v[j], c[i][j]);
}

/* Initialises the chains of rows m.., columns n.. of a group or (END) writes their results. */
template <bool DW, bool END, int TM, int TN>
__device__ __forceinline__ void init_or_store(const ConvGemm &s, int64_t m, int group, int n,
                                       float (*c)[TN])
{
    UNROLLED(i, TM) {
        const bool some = m + i < s.m && (END || s.accumulate || s.start);
        const int64_t row = !some ? 0 : DW ? (m + i) * s.all : ConvCoords(s, m + i).out(s);
        const int channel = group * s.columns + n;
        UNROLL for (int j = 0; j < TN && !END; j++) c[i][j] =
            some && n + j < s.columns ? chain_start(s, row + channel + j, channel + j) : 0.0f;
        if (END && some)
            write_vec<TN>(Results{ s.out, NULL }, row + channel, s.columns - n, s.aligned, c[i]);
    }
}

template <int KIND, int BM, int BN, int TM, int TN>
__global__ void __launch_bounds__(BM *BN / (TM * TN), TM * TN > 1 ? 2 : 3)
    conv_gemm_kernel(const __grid_constant__ ConvGemm s)
{
    enum {
        THREADS = BM * BN / (TM * TN),
        DW = KIND == GCKPTI_CONV_DW,
        UP = KIND == GCKPTI_CONV_UP,
        EACH = BN * CONV_K / THREADS,
        STAGE = CONV_K * (BM + BN + 8)
    };
    SHARED(float4, ring, [2 * STAGE / 4]);
    const int thread = (int)threadIdx.x, across = (s.columns + BN - 1) / BN;
    const int tile = (int)blockIdx.x / across, n0 = ((int)blockIdx.x - tile * across) * BN;
    const int down = (int)((s.m + BM - 1) / BM), group = tile / down;
    const int mine = thread / (BN / TN) * TM, column = thread % (BN / TN) * TN;
    const int64_t m0 = (int64_t)(tile % down) * BM;
    float c[TM][TN], b[EACH];
    init_or_store<DW, false, TM, TN>(s, m0 + mine, group, n0 + column, c);

    PatchLoader<DW, BM, THREADS> a(s, thread, group, m0);
    const int n = UP ? thread / CONV_K : thread % BN, p = UP ? thread % CONV_K : thread / BN;
    const float *w = s.w + group * s.z.group_o + (int64_t)(n0 + n) * s.column_step -
                     (UP ? (int64_t)group * s.depth : 0);
    float *now = (float *)ring, *next = now + STAGE;
    for (int64_t left = s.k + CONV_K; left > 0; left -= CONV_K) {
        const int64_t unread = left - CONV_K;
        if (unread > 0) {
            a.read(s, unread);
            const int64_t at =
                UP ? tap_of(s, a.ky, a.kx) + a.channel : (s.k - unread + p) * s.z.o;
            UNROLLED(j, EACH) {
                const int term = UP ? p : p + j * (THREADS / BN),
                          off = UP ? j * (THREADS / CONV_K) : 0;
                const bool inside = term < unread && n0 + n + off < s.columns;
                b[j] = inside ? w[at + (UP ? off : term - p) * s.z.o] : 0.0f;
            }
            a.next(s, (group + 1) * s.depth);
        }
        const float *rows = now + mine, *columns = now + CONV_K * (BM + 4) + column;
        if (left <= s.k && left >= CONV_K)
            UNROLLED(l, CONV_K)
                outer_product<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        for (int l = 0; left <= s.k && left < CONV_K && l < left; l++)
            outer_product<TM, TN>(rows + l * (BM + 4), columns + l * (BN + 4), c);
        if (unread > 0)
            a.put(next);
        UNROLL for (int j = 0; j < EACH && unread > 0; j++)
            next[CONV_K * (BM + 4) + (UP ? p : p + j * (THREADS / BN)) * (BN + 4) +
                 (UP ? n + j * (THREADS / CONV_K) : n)] = b[j];
        __syncthreads();
        float *other = now;
        now = next, next = other;
    }
    init_or_store<DW, true, TM, TN>(s, m0 + mine, group, n0 + column, c);
}

/* Uses large tiles if they fill the chip, small ones for few results of long chains. */
template <int KIND> void conv_gemm_by(const gckpt_call *call, const ConvGemm &s)
{
    const int64_t groups = s.z.window.groups;
    const auto tiles = [&](int m, int n) {
        return (unsigned)((s.m + m - 1) / m * ((s.columns + n - 1) / n) * groups);
    };
    if (tiles(64, 64) * 2 < (unsigned)sm_count(call))
        run<conv_gemm_kernel<KIND, 16, 16, 1, 1>>(call, tiles(16, 16), 256, 0, s);
    else if (s.columns <= 32)
        run<conv_gemm_kernel<KIND, 64, 16, 4, 1>>(call, tiles(64, 16), 256, 0, s);
    else
        run<conv_gemm_kernel<KIND, 64, 64, 4, 4>>(call, tiles(64, 64), 256, 0, s);
}

/* Runs a convolution (a gckpti_conv_fn). */
void conv_gemm(const gckpt_call *call, gckpti_conv *conv)
{
    const ConvGemm s = conv_gemm_of(conv);
    if (conv->kind == GCKPTI_CONV_DW)
        conv_gemm_by<GCKPTI_CONV_DW>(call, s);
    else if (s.columns < 8)
        run_each<conv_direct_kernel>(call, s.m * s.all, s);
    else
        s.up ? conv_gemm_by<GCKPTI_CONV_UP>(call, s) : conv_gemm_by<GCKPTI_CONV_DOWN>(call, s);
}

void conv2d_by(const gckpt_call *call, bool backward)
{
    gckpti_run_conv(call, backward, conv_gemm);
    if (backward)
        bias_gradient(call);
}
#endif
