#ifndef GCKPT_NO_IMAGES
/* ---- upsample: a thread for each result (backward: each element of dx) ---- */
struct Image { /* sizes: rows and columns of x and of the result; channels */
    int64_t in[2], out[2], c;
    int mode;
};

__device__ void upsample_at(int64_t i, const Image &s, const float *x, float *out)
{
    const int64_t pixel = i / s.c, line = pixel / s.out[1], image = line / s.out[0];
    const gckpti_interp p = gckpti_interp_of(s.mode, s.in[0], s.out[0], line % s.out[0]);
    const gckpti_interp q = gckpti_interp_of(s.mode, s.in[1], s.out[1], pixel % s.out[1]);
    float y = 0.0f;
    for (int k = 0; k < p.n * q.n; k++) {
        const int a = k / q.n, b = k % q.n;
        const int64_t row = image * s.in[0] + p.index[a];
        const float v = x[(row * s.in[1] + q.index[b]) * s.c + i % s.c];
        y = s.mode == GCKPT_NEAREST ? v : gckpti_fma(p.weight[a] * q.weight[b], v, y);
    }
    out[i] = y;
}

/* Returns the first of n results that reads element `at` of `size`, or a later element. */
__device__ int64_t first_reader(int mode, int64_t size, int64_t n, int64_t at)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t i = (low + high) / 2;
        if (gckpti_interp_of(mode, size, n, i).index[0] < at)
            low = i + 1;
        else
            high = i;
    }
    return low;
}

/* Adds the gradients of the results that read an element, in the order of the results and taps. */
__device__ void upsample_gradient_at(int64_t i, const Image &s, float *dx, const float *g,
                                     int accumulate)
{
    const int64_t pixel = i / s.c, w = pixel % s.in[1], h = pixel / s.in[1] % s.in[0];
    const int64_t image = pixel / s.in[1] / s.in[0] * s.out[0];
    const int64_t left = first_reader(s.mode, s.in[1], s.out[1], w - 1);
    const int64_t right = first_reader(s.mode, s.in[1], s.out[1], w + 1);
    const int64_t bottom = first_reader(s.mode, s.in[0], s.out[0], h + 1);
    float d = accumulate ? dx[i] : 0.0f;
    for (int64_t y = first_reader(s.mode, s.in[0], s.out[0], h - 1); y < bottom; y++) {
        const gckpti_interp p = gckpti_interp_of(s.mode, s.in[0], s.out[0], y);
        for (int64_t z = left; z < right; z++) {
            const gckpti_interp q = gckpti_interp_of(s.mode, s.in[1], s.out[1], z);
            for (int k = 0; k < p.n * q.n; k++)
                if (p.index[k / q.n] == h && q.index[k % q.n] == w)
                    d = gckpti_fma(p.weight[k / q.n] * q.weight[k % q.n],
                                   g[((image + y) * s.out[1] + z) * s.c + i % s.c], d);
        }
    }
    dx[i] = d;
}

void upsample_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    const int64_t *in = x->shape.d, n = gckpti_elements(backward ? &x->shape : &call->shape);
    const gckpti_upsample *o = (const gckpti_upsample *)call->attributes;
    const Image s = { { in[1], in[2] }, { o->size[0], o->size[1] }, in[3], o->mode };
    if (!backward)
        for_each<upsample_at>(call, n, s, x->data, call->out);
    else if (x->grad)
        for_each<upsample_gradient_at>(call, n, s, x->grad, call->grad_out, x->accumulate);
}
#endif
