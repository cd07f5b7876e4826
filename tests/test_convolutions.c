/* test_convolutions.c - conv2d, conv1d and their transposes: values and gradients against PyTorch's, bits
 * against the chains that the manual (5o) writes down, what is refused and with which words. */
#include "gradckpt.h"
#include "rig.h"
#include "golden/convolutions.h"
#include <math.h>

enum { CASES = sizeof golden_convolutions / sizeof golden_convolutions[0] };

typedef gckpt_tensor *builder(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias, const gckpt_window *window);
static builder *builder_of(int axes, int transposed)
{
    static builder *const all[2][2] = { { gckpt_conv1d, gckpt_conv1d_transposed },
                                        { gckpt_conv2d, gckpt_conv2d_transposed } };
    return all[axes - 1][transposed];
}

static gckpt_shape shape_of(const int64_t *d, int n)
{
    gckpt_shape s = gckpt_shape4(d[0], d[1], d[2], n > 3 ? d[3] : 1);
    s.n = n;
    return s;
}

static float *parameter(gckpt_store *s, const char *name)
{
    gckpt_parameter p = { 0 };
    CHECK(gckpt_store_get(s, gckpt_store_find(s, name), &p) == GCKPT_OK);
    return p.values;
}

static void fill(float *x, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i * step % 23 - 11) / 8.0f;
}

/* ---- PyTorch's ---- */
static int differ(const float *got, const double *want, int64_t n, double by)
{
    int wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += fabs((double)got[i] * by - want[i]) > 2e-6 * fabs(want[i]);
    return wrong;
}

/* One forward and backward of sum(y * target): the gradient of y is the target. */
static void test_golden(int number, gckpt_isa isa, int threads)
{
    static float x_data[1000], target_data[1000];
    const gckpt_init none = { 0, 0, 0 };
    gckpt_shape xs = shape_of(golden_convolutions[number].x, golden_convolutions[number].n);
    gckpt_shape ws = shape_of(golden_convolutions[number].w, xs.n), ys;
    gckpt_shape want = shape_of(golden_convolutions[number].y, xs.n);
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, xs);
    gckpt_tensor *x = gckpt_mul(in, gckpt_param(g, "one", gckpt_shape1(1), none));
    gckpt_tensor *w = gckpt_param(g, "w", ws, none);
    gckpt_tensor *b = gckpt_param(g, "b", gckpt_shape1(golden_convolutions[number].o), none);
    gckpt_tensor *y = builder_of(golden_convolutions[number].axes, golden_convolutions[number].transposed)(
        x, w, b, &golden_convolutions[number].window);
    ys = gckpt_shape_of(y);
    if (!CHECK_MSG(ys.n == want.n && memcmp(ys.d, want.d, (size_t)ys.n * sizeof *ys.d) == 0, "case %d: shape %s", number,
                   gckpt_error_text(g))) {
        rig_free(NULL, NULL, g, s);
        return;
    }
    gckpt_tensor *target = gckpt_input(g, "target", GCKPT_F32, ys);
    gckpt_term loss = { gckpt_sum_loss(gckpt_mul(y, target)), 1, 0 };
    gckpt_pick picks[4] = { { y, 0 }, { x, 1 }, { w, 1 }, { b, 1 } };
    gckpt_plan_desc desc = { .fetch = picks, .fetches = 4, .threads = threads, .optimiser = GCKPT_SGD };
    gckpt_exec_desc run = { .isa = isa };
    gckpt_plan *p = gckpt_plan_new(g, &loss, 1, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, &run);
    gckpt_feed feeds[2] = { { gckpt_id(in), x_data }, { gckpt_id(target), target_data } };
    gckpt_hyper still = gckpt_hyper_lr(0);
    gckpt_report report = { 0 };
    fill(x_data, count_of(&xs), 37);
    fill(target_data, count_of(&ys), 31);
    fill(parameter(s, "w"), count_of(&ws), 29);
    fill(parameter(s, "b"), golden_convolutions[number].o, 5);
    *parameter(s, "one") = 1;
    CHECK_MSG(gckpt_step(e, feeds, 2, xs.d[0], &still, &report) == GCKPT_OK, "%s",
              gckpt_error_text(e ? (void *)e : (void *)g));
    const float *got[4];
    for (int i = 0; i < 4; i++)
        got[i] = gckpt_fetch(e, gckpt_id(picks[i].tensor), picks[i].gradient);
    if (CHECK(got[0] && got[1] && got[2] && got[3]))
        CHECK_MSG(!differ(got[0], golden_convolutions[number].values, count_of(&ys), 1) &&
                      !differ(got[1], golden_convolutions[number].dx, count_of(&xs), 1) &&
                      !differ(got[2], golden_convolutions[number].dw, count_of(&ws), (double)report.count) &&
                      !differ(got[3], golden_convolutions[number].db, golden_convolutions[number].o, (double)report.count),
                  "case %d, %s, %d threads: %d values, %d of dx, %d of dw", number, gckpt_isa_name(isa), threads,
                  differ(got[0], golden_convolutions[number].values, count_of(&ys), 1),
                  differ(got[1], golden_convolutions[number].dx, count_of(&xs), 1),
                  differ(got[2], golden_convolutions[number].dw, count_of(&ws), (double)report.count));
    rig_free(e, p, g, s);
}

/* ---- refusals: the text has all of `words`, apart by '|' ---- */
static void refused(int axes, int transposed, gckpt_shape xs, gckpt_shape ws, int bias, gckpt_window window,
                    gckpt_result result, const char *words)
{
    const gckpt_init none = { 0, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, xs), *w = gckpt_param(g, "w", ws, none);
    gckpt_tensor *b = bias ? gckpt_param(g, "b", gckpt_shape1(bias), none) : NULL;
    char word[64];
    CHECK(builder_of(axes, transposed)(x, w, b, &window) == NULL);
    CHECK_MSG(gckpt_error(g) == result, "%s: %s", words, gckpt_error_text(g));
    for (const char *at = words; *at; at += strlen(word) + (at[strlen(word)] == '|')) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
        CHECK_MSG(strstr(gckpt_error_text(g), word) != NULL, "'%s' is not in: %s", word, gckpt_error_text(g));
    }
    rig_free(NULL, NULL, g, s);
}

static void test_refusals(void)
{
    const gckpt_shape x = gckpt_shape4(2, 5, 5, 6), w = gckpt_shape4(3, 3, 6, 4);
    const gckpt_window usual = { .groups = 0 };
    refused(2, 0, gckpt_shape3(2, 5, 6), w, 0, usual, GCKPT_E_SHAPE, "conv2d: x [2,5,6]|(B,H,W,I)|(KH,KW,I/groups,O)");
    refused(2, 1, x, gckpt_shape2(6, 4), 0, usual, GCKPT_E_SHAPE, "conv2d_transposed: |w [6,4]|(KH,KW,O/groups,I)");
    refused(1, 0, x, w, 0, usual, GCKPT_E_SHAPE, "conv1d: x [2,5,5,6]|(B,T,I)|(K,I/groups,O)");
    refused(1, 1, gckpt_shape3(2, 5, 6), w, 0, usual, GCKPT_E_SHAPE, "conv1d_transposed: |[3,3,6,4]|(K,O/groups,I)");
    refused(2, 0, x, gckpt_shape4(3, 3, 5, 4), 0, usual, GCKPT_E_SHAPE, "x [2,5,5,6] in 1 groups|with 6 as axis 2|[3,3,5,4]");
    refused(2, 0, x, gckpt_shape4(3, 3, 3, 4), 0, (gckpt_window){ .groups = 4 }, GCKPT_E_SHAPE,
            "4 groups do not divide the 6 channels");
    refused(2, 0, x, gckpt_shape4(3, 3, 2, 4), 0, (gckpt_window){ .groups = 3 }, GCKPT_E_SHAPE, "3 groups do not divide|4 of w");
    refused(2, 0, x, w, 0, (gckpt_window){ .groups = 2 }, GCKPT_E_SHAPE, "in 2 groups needs a w with 3 as axis 2");
    refused(2, 1, x, w, 0, usual, GCKPT_E_SHAPE, "conv2d_transposed: |with 6 as axis 3, not [3,3,6,4]");
    refused(2, 0, x, w, 3, usual, GCKPT_E_SHAPE, "w [3,3,6,4] needs a bias of shape [4], not [3]");
    refused(2, 1, x, gckpt_shape4(3, 3, 2, 6), 2, (gckpt_window){ .groups = 2 }, GCKPT_E_SHAPE, "bias of shape [4], not [2]");
    refused(2, 0, x, gckpt_shape4(3, 6, 6, 4), 0, usual, GCKPT_E_SHAPE, "w [3,6,6,4] reaches over 6 of axis 2|5 with padding 0|padding");
    refused(2, 0, x, w, 0, (gckpt_window){ .dilation = { 4, 1 }, .padding = { 1, 0 } }, GCKPT_E_SHAPE,
            "reaches over 9 of axis 1|7 with padding 1|dilation");
    refused(2, 0, x, w, 0, (gckpt_window){ .stride = { -1, 1 } }, GCKPT_E_ARG, "stride -1 x 1|negative");
    refused(2, 0, x, w, 0, (gckpt_window){ .padding = { 0, -2 } }, GCKPT_E_ARG, "padding 0 x -2");
    refused(2, 0, x, w, 0, (gckpt_window){ .dilation = { 1, -3 } }, GCKPT_E_ARG, "dilation 1 x -3");
    refused(2, 0, x, w, 0, (gckpt_window){ .groups = -1 }, GCKPT_E_ARG, "-1 groups");
    refused(2, 0, x, w, 0, (gckpt_window){ .size = { 3, 3 } }, GCKPT_E_ARG, "window of size 3 x 3|leave it 0");
    refused(2, 0, x, w, 0, (gckpt_window){ .output_padding = { 0, 1 } }, GCKPT_E_ARG, "output_padding 0 x 1");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .stride = { 2, 3 }, .output_padding = { 2, 0 } },
            GCKPT_E_ARG, "output_padding 2 x 0|0 to 1");
    refused(2, 1, gckpt_shape4(2, 1, 5, 6), gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .padding = { 2, 0 } }, GCKPT_E_SHAPE,
            "padding 2 leaves nothing of axis 1 of x [2,1,5,6]|less");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .stride = { 0x7fffffff, 0x7fffffff } }, GCKPT_E_SHAPE,
            "does not fit");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .dilation = { 0x7fffffff, 0x7fffffff } }, GCKPT_E_SHAPE,
            "does not fit");
    refused(2, 0, gckpt_shape4(1, 1, 1, 1), gckpt_shape4(1, (1 << 25) + 2, 1, 1), 0,
            (gckpt_window){ .dilation = { 1, 0x7fffffff } }, GCKPT_E_SHAPE, "reaches over");
}

int main(void)
{
    for (int i = 0; i < CASES; i++)
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
            for (int threads = 1; threads <= 3 && gckpt_isa_available((gckpt_isa)isa); threads++)
                test_golden(i, (gckpt_isa)isa, threads);
    test_refusals();
    return check_report("convolutions");
}
