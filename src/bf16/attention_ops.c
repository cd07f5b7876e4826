#include "attention/attention.h"
#include "ops/internal.h"

#if !defined(GCKPT_NO_BF16) && !defined(GCKPT_NO_ATTENTION)
GCKPTI_FN int64_t gckpti_mixed_attention_workspace(const gckpt_call *call, int64_t t, int64_t s,
                                                   int64_t d, int backward)
{
    const int64_t block = GCKPTI_K_BLOCK, tile = GCKPTI_KEY_TILE;
    const int64_t multiple = gckpti_is_plain(call) ? block : tile;
    const int64_t operand = tile / 2 * gckpti_ceil_to(d, GCKPTI_K_BLOCK); /* packed operands */
    const int64_t keys = s ? gckpti_ceil_to(s, multiple) : multiple; /* rows of dk and dv, in f32 */
    const int64_t d_vec = gckpti_ceil_to(d, 16), along = tile * d_vec, scores = tile * tile;
    if (gckpti_is_plain(call))
        return backward ? (t + 2 * keys + 2) * d : d;
    return backward ? 2 * keys * d_vec + along / 2 + 3 * operand + 5 * scores / 2 +
                          gckpti_ceil_to(t, GCKPTI_KEY_TILE) * (d_vec + 1)
                    : along + 2 * operand + scores;
}

/* ---- attention (see attention/ops.c). A result that is a zero becomes +0, since a backend may add
 * masked terms as zeros. ---- */
GCKPTI_FN void gckpti_attn_load_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x,
                                     int64_t row)
{
    const gckpt_arg *arg = &h->call->in[i];
    for (int64_t r = 0; r < n; r++, at += arg->shape.d[2], x += row)
        if (!arg->accumulate)
            memset(x, 0, (size_t)row * sizeof *x);
        else if (arg->grad)
            memcpy(x, arg->grad + at, (size_t)h->d * sizeof *x);
        else
            gckpti_widen_row(h->call, arg->grad_bf16 + at, x, h->d);
}

GCKPTI_FN void gckpti_attn_store_grad(const gckpti_attn *h, int i, int64_t at, int64_t n,
                                      const float *x, int64_t row)
{
    const gckpt_arg *arg = &h->call->in[i];
    for (int64_t r = 0; r < n; r++, at += arg->shape.d[2], x += row)
        gckpti_store(h->call, gckpti_arg_gradient(arg), at, h->d, x);
}

GCKPTI_FN void gckpti_attn_end_grad(const gckpti_attn *h, int i, int64_t at, int64_t n, float *x)
{
    for (int64_t e = 0; x && e < n * h->d; e++)
        x[e] += 0.0f;
    if (x)
        gckpti_attn_store_grad(h, i, at, n, x, h->d);
}
#endif
