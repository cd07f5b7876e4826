#ifndef GCKPT_NO_IMAGES
/* ---- conv2d and its transpose: products with a matrix that is not stored. It has a row for each
 * place (windows of all images or, for UP, which runs in phases, pixels) and a column for each
 * channel of each tap, which is 0 outside the image. DW multiplies its transpose. ---- */
struct Gather {
    struct Cursor {
        int group;
        Place place, tap;
    };
    const float *base;
    Grid places, taps; /* steps of the latter, by line, pixel and channel, are those in w */
    int stride[2], dilation[2], first[2], size[2]; /* of lines and pixels: see gckpti_axis_map */
    int flags;                                     /* ALONG: rows are places, else terms are */

    __device__ __forceinline__ Cursor cursor(int64_t group, int64_t x, int64_t k) const
    {
        const bool along = flags & ALONG;
        return { (int)group, places.at(along ? x : k), taps.at(along ? k : x) };
    }
    __device__ __forceinline__ void advance(Cursor *at) const
    {
        flags & ALONG ? taps.advance(&at->tap, DEPTH) : places.advance(&at->place, DEPTH);
    }
    /* Returns the address of a channel of a tap, or NULL outside the image. */
    __device__ __forceinline__ const float *address(const Cursor &at) const
    {
        const int y = at.place.line * stride[0] + at.tap.image * dilation[0] + first[0];
        const int x = at.place.column * stride[1] + at.tap.line * dilation[1] + first[1];
        const bool inside = y >= 0 && y < size[0] && x >= 0 && x < size[1];
        const int64_t channel = (int64_t)at.group * taps.columns + at.tap.column;
        return inside ? base + places.offset(at.place.image, y, x) + channel : NULL;
    }
    __device__ __forceinline__ float value(const Cursor &at) const
    {
        const float *x = address(at);
        return x ? *x : 0.0f;
    }
    template <bool> __device__ __forceinline__ float4 read(Cursor at, int n) const
    {
        float v[4] = {};
        const float *x = address(at);
        if (flags & ALIGNED)
            return x ? *(const float4 *)x : float4{ 0.0f, 0.0f, 0.0f, 0.0f };
        UNROLL for (int e = 0; e < 4; e++, taps.advance(&at.tap, 1)) v[e] =
            e < n ? value(at) : 0.0f;
        return { v[0], v[1], v[2], v[3] };
    }
};

Gather gather_of(const gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const bool up = s->kind == GCKPTI_CONV_UP;
    const int64_t channels = up ? z->o : z->c, line = r[1].size * channels, tap = z->group_c * z->o;
    Gather g = { s->from,
                 { (int)r[0].results, (int)r[1].results, { r[0].size * line, line, channels } },
                 { (int)r[1].taps, (int)(up ? z->group_o : z->group_c),
                   { r[0].tap_step * z->taps[1] * tap, r[1].tap_step * tap, up ? 1 : z->o } } };
    for (int i = 0; i < 2; i++) {
        g.stride[i] = (int)r[i].stride, g.dilation[i] = (int)r[i].dilation;
        g.first[i] = (int)r[i].first, g.size[i] = (int)r[i].size;
    }
    if (!g.taps.lines) /* no tap contributes to this phase */
        g.taps.lines = 1;
    const bool vecs = g.taps.columns % 4 == 0 && channels % 4 == 0 && aligned(g.base);
    g.flags = (s->kind == GCKPTI_CONV_DW ? 0 : ALONG) | (vecs ? ALIGNED : 0);
    return g;
}

/* Returns the w of UP as an operand: its places are columns, its lines and pixels are taps. */
Gather gather_taps(const Gather &image, const gckpti_conv *s, const float *w)
{
    Gather g = { w, { 1, 1, { s->z->o, image.taps.steps[0], image.taps.steps[1] } },
                 image.taps, {}, { 1, 1 } };
    for (int i = 0; i < 2; i++)
        g.size[i] = (int)s->r[i].taps;
    g.flags = ALONG | (g.taps.columns % 4 == 0 && s->z->o % 4 == 0 && aligned(w) ? ALIGNED : 0);
    return g;
}

/* For groups of few columns: a thread computes a result, adjacent threads adjacent channels. */
typedef Product<Gather, Gather> Scattered;
__global__ void conv_direct_kernel(const __grid_constant__ Scattered q, const float *w,
                                   int64_t w_group, int64_t w_column)
{
    const gckpti_product &t = q.t;
    const int64_t channels = t.n * t.batch;
    for (EACH(e, t.m * channels)) {
        const int64_t row = e / channels, channel = e - row * channels;
        const int group = (int)(channel / t.n);
        const float *weights = w + group * w_group + (channel - group * t.n) * w_column;
        Gather::Cursor at = q.a.cursor(group, row, 0);
        float *c = t.c + q.c_row(0, row) + channel;
        float d = t.accumulate ? *c : t.initial ? t.initial[channel] : 0.0f;
        for (int64_t k = 0; k < t.k; k++, q.a.taps.advance(&at.tap, 1)) {
            const int64_t term = q.a.taps.offset(at.tap.image, at.tap.line, at.tap.column);
            d = gckpti_fma(q.a.value(at), weights[term], d);
        }
        *c = d;
    }
}

/* Tiles of 64 x 16 are for few columns, of 16 x 16 for few results of long chains. */
template <class A, class B> void conv_by(const gckpt_call *call, const Product<A, B> &q)
{
    static const TileOf<Product<A, B>> TILES[] = {
        { 64, 64, 82, run_tile<64, 64, 4, 8, false, A, B> },
        { 64, 16, 60, run_tile<64, 16, 4, 2, false, A, B> },
        { 16, 16, 40, run_tile<16, 16, 2, 2, false, A, B> },
    };
    best_tile(TILES, 3, &q.t, sm_count(call))->run(call, &q);
}

/* Runs a convolution (a gckpti_conv_fn). */
void conv(const gckpt_call *call, gckpti_conv *s)
{
    const gckpti_conv_sizes *z = s->z;
    const gckpti_axis_map *r = s->r;
    const bool up = s->kind == GCKPTI_CONV_UP, dw = s->kind == GCKPTI_CONV_DW;
    const int64_t places = z->rows * r[0].results * r[1].results, all = up ? z->c : z->o;
    const int64_t terms = r[0].taps * r[1].taps * (up ? z->group_o : z->group_c);
    const float *w = s->w + (dw ? 0 : gckpti_conv_tap(z, r, 0, 0) * z->group_c * z->o);
    const gckpti_operand columns = { w, NULL, 1, z->o, z->group_o, NULL };
    gckpti_product t = gckpti_product_of(dw ? terms : places, up ? z->group_c : z->group_o,
                                         dw ? places : terms, {}, columns, s->out);
    t.batch = z->window.groups, t.c_stride = all;
    t.initial = s->start, t.accumulate = s->accumulate;
    t.c += up ? gckpti_conv_place_of(s, 0, 0, 0) * all : 0;
    const bool vecs = t.n % 4 == 0 && all % 4 == 0 && aligned(t.c);
    const int64_t *side = up ? z->image : z->windows;
    const Grid to = { (int)r[0].results, (int)r[1].results,
                      { side[0] * side[1] * all, r[0].out_step * side[1] * all,
                        r[1].out_step * all } };
    const Gather image = gather_of(s);
    const Scattered q = { t, image, gather_taps(image, s, w), vecs, t.n, to };
    if (t.n < 8 && !dw)
        run_each<conv_direct_kernel>(call, t.m * all, q, w, z->group_o, up ? z->o : 1);
    else if (up)
        conv_by(call, q);
    else
        conv_by(call, Product<Gather, Operand>{ t, image, operand_of(&columns, t.n, t.k, 0), vecs,
                                                t.n, {} });
}
#endif
