/* underflow.h - a bf16 plan in which sums (of a layer's output, of its gradients and of attention) are less than half
 * a unit in the last place below the smallest normal number. Such a result must be 0 on every backend. The two terms
 * of each sum are two places apart, so that both belong to the same chain. */
#ifndef TESTS_UNDERFLOW_H
#define TESTS_UNDERFLOW_H
#include <math.h>

#include "util.h"

static void check_underflow(const gckpt_backend *backend, gckpt_isa isa, int plain)
{
    enum { R = 16, N = 16, K = 3 };
    static const char *const names[5] = { "x", "z", "q", "k", "v" };
    static const char *const what[5] = { "h", "dx", "dw", "attention", "h alone" };
    const float least = ldexpf(1, -126);
    const gckpt_init init = { 0, 0, 0 };
    float x[R * K], z[R * N], one[R * K], keys[R * K], values[R * K];
    float *const data[5] = { x, z, one, keys, values };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in[5];
    gckpt_feed feeds[5];
    gckpt_parameter q[2];
    for (int i = 0; i < 5; i++) {
        in[i] = gckpt_input(g, names[i], GCKPT_F32,
                            i == 0   ? gckpt_shape2(R, K)
                            : i == 1 ? gckpt_shape2(R, N)
                                     : gckpt_shape3(R, K, 1));
        feeds[i].input = gckpt_id(in[i]), feeds[i].data = data[i];
    }
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(K, N), init);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(N), init);
    gckpt_tensor *h = gckpt_linear(in[0], w, b);
    gckpt_tensor *attended =
        gckpt_attention(gckpt_slice(in[2], 1, 0, 1), in[3], in[4], &(gckpt_attention_desc){ .heads = 1 });
    gckpt_term terms[2] = { { NULL, 1, 0 }, { NULL, 1, 0 } };
    terms[0].loss = gckpt_sum_loss(gckpt_mul(h, in[1]));
    terms[1].loss = gckpt_sum_loss(gckpt_reshape(attended, gckpt_shape2(R, 1)));
    const gckpt_fetch_spec fetches[4] = { { h, 0 }, { in[0], 1 }, { w, 1 }, { attended, 0 } };
    gckpt_plan_desc desc;
    gckpt_exec_desc how;
    memset(&desc, 0, sizeof desc), memset(&how, 0, sizeof how);
    desc.optimiser = GCKPT_SGD, desc.bf16.precision = GCKPT_BF16, desc.kernels.plain = plain;
    desc.fetch.specs = fetches, desc.fetch.count = 4, desc.backend = how.backend = backend, how.isa = isa;
    gckpt_hyper still = gckpt_hyper_lr(0);
    gckpt_plan *p = gckpt_plan_new(g, terms, 2, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &how);
    if (!CHECK_MSG(e != NULL, "%s %s", gckpt_error_text(g), gckpt_error_text(s)))
        return;
    gckpt_store_get(s, 0, &q[0]), gckpt_store_get(s, 1, &q[1]);
    for (int j = 0; j < N; j++) {
        q[0].values[j] = ldexpf(1, -63), q[0].values[N + j] = 0, q[0].values[2 * N + j] = -ldexpf(1, -76);
        q[1].values[j] = 0;
    }
    for (int i = 0; i < R; i++) {
        /* each row of the output is 2^-126 - 1.5 2^-151, except row 5, which is 2^-126; z is the gradient of the
         * output */
        x[K * i] = ldexpf(1, -63), x[K * i + 1] = 0, x[K * i + 2] = i == 5 ? 0 : ldexpf(1.5f, -75);
        for (int j = 0; j < N; j++)
            z[i * N + j] = 0;
        for (int j = 0; j < K; j++)
            one[K * i + j] = 1;
        keys[K * i] = 0, keys[K * i + 1] = keys[K * i + 2] = -17; /* exp(-17): 1.39 2^-25 */
        values[K * i] = least, values[K * i + 1] = 0, values[K * i + 2] = -least;
    }
    /* dx[2][2] gets the same two terms over columns 0 and 2, and dw[2][5] over rows 3 and 4, which are in one chain */
    z[2 * N] = -ldexpf(1, -50), z[2 * N + 2] = ldexpf(1.5f, -75);
    z[3 * N + 5] = ldexpf(1, -51), z[4 * N + 5] = -ldexpf(1, -76);
    x[3 * K + 2] = ldexpf(1, -75);
    CHECK_MSG(gckpt_step(e, feeds, 5, R, &still, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    for (int k = 0; k < 5; k++) {
        const gckpt_fetch_spec *of = &fetches[k % 4];
        const float *f = gckpt_fetch(e, gckpt_id(of->tensor), of->gradient);
        const int at = k == 1 ? 2 * K + 2 : k == 2 ? 2 * N + 5 : k == 4 ? 5 * N : 0;
        CHECK_MSG(f && f[at] == (k == 4 ? least : 0), "%s, %s, plain %d: %s ends at %g",
                  backend ? "backend" : "processor", isa_name(isa), plain, what[k],
                  f ? (double)f[at] : -1);
    }
    util_free(e, p, g, s);
}
#endif
