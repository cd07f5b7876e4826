/* test_convolutions.c - conv2d, conv1d and their transposes: values and gradients are compared with PyTorch's, and
 * bits with sums in the order that the manual (5o) defines. Wrong calls must be refused with the expected error
 * text. */
#include "gradckpt.h"
#include "ops/convolve.h"
#include "golden/convolutions.h"

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

/* ---- compared with PyTorch ---- */
static void test_golden(int number, gckpt_isa isa, int threads)
{
    static problem z;
    const int n = golden_convolutions[number].n;
    z.op = builder_of(golden_convolutions[number].axes, golden_convolutions[number].transposed);
    z.x = shape_of(golden_convolutions[number].x, n), z.w = shape_of(golden_convolutions[number].w, n);
    z.y = shape_of(golden_convolutions[number].y, n);
    z.o = golden_convolutions[number].o, z.window = golden_convolutions[number].window;
    fill_operands(&z);
    if (!convolve(&z, isa, threads))
        return;
    int wrong[4] = { differ(z.values, golden_convolutions[number].values, count_of(&z.y), 1),
                     differ(z.dx, golden_convolutions[number].dx, count_of(&z.x), 1),
                     differ(z.dw, golden_convolutions[number].dw, count_of(&z.w), z.count),
                     differ(z.db, golden_convolutions[number].db, z.o, z.count) };
    CHECK_MSG(!wrong[0] && !wrong[1] && !wrong[2] && !wrong[3],
              "case %d, %s, %d threads: %d values, %d of dx, %d of dw, %d of db", number, isa_name(isa), threads,
              wrong[0], wrong[1], wrong[2], wrong[3]);
}

/* ---- bits: the FMA chains that the manual (5o) defines, written from its text, for arbitrary floats ---- */
/* Returns channel c of the pixel in row i and column j of image b of t, or 0 if the pixel is outside the image. */
static float at(const gckpt_shape *s, const float *t, int64_t b, int64_t i, int64_t j, int64_t c)
{
    if (i < 0 || i >= s->d[1] || j < 0 || j >= s->d[2])
        return 0;
    return t[((b * s->d[1] + i) * s->d[2] + j) * s->d[3] + c];
}

/* The next three functions compute the three sums of a convolution term by term. down_chain returns an element of the
 * smaller image (y, or x of a transposed convolution) from its window of the larger image, up_chain an element of the
 * larger image from all windows that contain it, dw_chain an element of dw. */
static float down_chain(const problem *z, const gckpt_shape *s, const float *image, int64_t b, int64_t i, int64_t j,
                        int64_t o, float sum)
{
    const int64_t *w = z->w.d, each = w[3] / z->window.groups;
    for (int64_t k = 0; k < w[0] * w[1] * w[2]; k++) {
        int64_t y = i * z->window.stride[0] + k / w[2] / w[1] * z->window.dilation[0] - z->window.padding[0];
        int64_t x = j * z->window.stride[1] + k / w[2] % w[1] * z->window.dilation[1] - z->window.padding[1];
        sum = fmaf(at(s, image, b, y, x, o / each * w[2] + k % w[2]), z->w_data[k * w[3] + o], sum);
    }
    return sum;
}
static float up_chain(const problem *z, const gckpt_shape *s, const float *places, int64_t b, int64_t y, int64_t x,
                      int64_t c, float sum)
{
    const int64_t *w = z->w.d, each = w[3] / z->window.groups, stride[2] = { z->window.stride[0], z->window.stride[1] };
    for (int64_t k = 0; k < w[0] * w[1]; k++) {
        int64_t i = y + z->window.padding[0] - k / w[1] * z->window.dilation[0];
        int64_t j = x + z->window.padding[1] - k % w[1] * z->window.dilation[1];
        for (int64_t o = c / w[2] * each; i % stride[0] == 0 && j % stride[1] == 0 && o < (c / w[2] + 1) * each; o++)
            sum = fmaf(at(s, places, b, i < 0 ? -1 : i / stride[0], j < 0 ? -1 : j / stride[1], o),
                       z->w_data[(k * w[2] + c % w[2]) * w[3] + o], sum);
    }
    return sum;
}
static float dw_chain(const problem *z, const gckpt_shape *image_shape, const float *image, const gckpt_shape *s,
                      const float *places, int64_t k, int64_t o)
{
    const int64_t *w = z->w.d, each = w[3] / z->window.groups, tap = k / w[2];
    float sum = 0;
    for (int64_t p = 0; p < s->d[0] * s->d[1] * s->d[2]; p++) {
        int64_t i = p / s->d[2] % s->d[1], j = p % s->d[2], b = p / s->d[2] / s->d[1];
        int64_t y = i * z->window.stride[0] + tap / w[1] * z->window.dilation[0] - z->window.padding[0];
        int64_t x = j * z->window.stride[1] + tap % w[1] * z->window.dilation[1] - z->window.padding[1];
        sum = fmaf(at(image_shape, image, b, y, x, o / each * w[2] + k % w[2]), places[p * s->d[3] + o], sum);
    }
    return sum;
}

static int same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

static void test_chains(problem *z, const char *how)
{
    const int transposed = z->op == gckpt_conv2d_transposed;
    const gckpt_shape *image = transposed ? &z->y : &z->x, *places = transposed ? &z->x : &z->y;
    int wrong[3] = { 0, 0, 0 };
    for (int side = 0; side < 2; side++) { /* side 0 compares y, side 1 dx */
        const gckpt_shape *s = side ? &z->x : &z->y, *from = side ? &z->y : &z->x;
        const float *data = side ? z->target : z->x_data, *got = side ? z->dx : z->values;
        for (int64_t k = 0; k < count_of(s); k++) {
            int64_t c = k % s->d[3], j = k / s->d[3] % s->d[2], i = k / s->d[3] / s->d[2] % s->d[1];
            int64_t b = k / s->d[3] / s->d[2] / s->d[1];
            float start = side || !z->o ? 0.0f : z->b_data[c];
            wrong[side] += !same(got[k], (s == image ? up_chain : down_chain)(z, from, data, b, i, j, c, start));
        }
    }
    for (int64_t k = 0; k < count_of(&z->w); k++)
        wrong[2] += !same(z->dw[k], dw_chain(z, image, transposed ? z->target : z->x_data, places,
                                             transposed ? z->x_data : z->target, k / z->w.d[3], k % z->w.d[3]) /
                                        (float)z->count);
    CHECK_MSG(!wrong[0] && !wrong[1] && !wrong[2], "%s: %d values, %d of dx, %d of dw have other bits", how, wrong[0],
              wrong[1], wrong[2]);
}

enum { MOST_ELEMENTS = 8000 }; /* upper bound of an operand's elements in these tests */
static void some_floats(float *x, int wild)
{
    static const float rare[] = { 0.0f, -0.0f, 1e-42f, -1e-39f, 3e38f, INFINITY, -INFINITY, NAN };
    for (int i = 0; i < MOST_ELEMENTS; i++)
        x[i] = chance(15) ? rare[below(wild ? 8 : 5)] : ((float)below(2001) - 1000.0f) / 700.0f;
}

static void test_contract(int seed)
{
    static problem z;
    char how[200];
    random_state = (uint64_t)seed + 1;
    memset(&z, 0, sizeof z);
    const int transposed = seed % 2;
    z.op = builder_of(2, transposed);
    const int is_disjoint = seed % 5 == 2;
    z.window.groups = is_disjoint ? 1 : 1 + (int)below(3);
    const int64_t groups = z.window.groups, c = groups * between(1, 3), o = groups * between(1, 3);
    z.x = gckpt_shape4(between(1, 2), between(2, 4), between(2, 4), transposed ? o : c);
    z.w = gckpt_shape4(between(1, 3), between(1, 3), c / groups, o);
    z.o = chance(50) ? transposed ? c : o : 0;
    for (int i = 0; i < 2; i++) {
        z.window.stride[i] = between(1, 4), z.window.dilation[i] = between(1, 3);
        z.window.padding[i] = transposed ? (int)((z.w.d[i] - 1) * z.window.dilation[i] / 2) : (int)below(4);
        while (!transposed && z.x.d[1 + i] + 2 * z.window.padding[i] <= (z.w.d[i] - 1) * z.window.dilation[i])
            z.window.padding[i]++;
        z.window.output_padding[i] = transposed ? (int)below(z.window.stride[i]) : 0;
        if (is_disjoint) /* stride and taps are equal: each pixel is in one window */
            z.window.stride[i] = (int)z.w.d[i], z.window.dilation[i] = 1, z.window.padding[i] = 0,
            z.window.output_padding[i] = 0, z.x.d[1 + i] *= transposed ? 1 : z.w.d[i];
    }
    some_floats(z.x_data, seed % 3 == 0), some_floats(z.w_data, seed % 3 == 0);
    some_floats(z.b_data, 0), some_floats(z.target, seed % 3 == 0);
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
        if (gckpt_isa_available((gckpt_isa)isa) && convolve(&z, (gckpt_isa)isa, 2)) {
            snprintf(how, sizeof how, "seed %d, %s", seed, isa_name((gckpt_isa)isa));
            test_chains(&z, how);
        }
}

/* ---- refused calls: the error text must contain each of the parts of `words`, which '|' separates ---- */
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
    util_free(NULL, NULL, g, s);
}

static void test_refusals(void)
{
    const gckpt_shape x = gckpt_shape4(2, 5, 5, 6), w = gckpt_shape4(3, 3, 6, 4);
    const gckpt_window usual = { .groups = 0 };
    refused(2, 0, gckpt_shape3(2, 5, 6), w, 0, usual, GCKPT_E_SHAPE, "conv2d: x [2,5,6]|(B,H,W,I)|(KH,KW,I/groups,O)");
    refused(2, 1, x, gckpt_shape2(6, 4), 0, usual, GCKPT_E_SHAPE, "conv2d_transposed: |w [6,4]|(KH,KW,O/groups,I)");
    refused(1, 0, x, w, 0, usual, GCKPT_E_SHAPE, "conv1d: x [2,5,5,6]|(B,T,I)|(K,I/groups,O)");
    refused(1, 1, gckpt_shape3(2, 5, 6), w, 0, usual, GCKPT_E_SHAPE, "conv1d_transposed: |[3,3,6,4]|(K,O/groups,I)");
    refused(2, 0, x, gckpt_shape4(3, 3, 5, 4), 0, usual, GCKPT_E_SHAPE,
            "x [2,5,5,6] must be|w [3,3,5,4] (KH,KW,I/groups,O), with 1 groups");
    refused(2, 0, x, gckpt_shape4(3, 3, 3, 4), 0, (gckpt_window){ .groups = 4 }, GCKPT_E_SHAPE,
            "with 4 groups, which divide I and O|x [2,5,5,6]");
    refused(2, 0, x, gckpt_shape4(3, 3, 2, 4), 0, (gckpt_window){ .groups = 3 }, GCKPT_E_SHAPE,
            "with 3 groups, which divide I and O|w [3,3,2,4]");
    refused(2, 0, x, w, 0, (gckpt_window){ .groups = 2 }, GCKPT_E_SHAPE, "w [3,3,6,4] (KH,KW,I/groups,O), with 2 groups");
    refused(2, 1, x, w, 0, usual, GCKPT_E_SHAPE, "conv2d_transposed: |w [3,3,6,4] (KH,KW,O/groups,I)");
    refused(2, 0, x, w, 3, usual, GCKPT_E_SHAPE, "w [3,3,6,4] needs a bias of shape [4], not [3]");
    refused(2, 1, gckpt_shape4(1, INT64_C(1) << 40, 1, 6), gckpt_shape4(3, 3, 4, 6), 0,
            (gckpt_window){ .stride = { 1 << 30, 1 } }, GCKPT_E_SHAPE,
            "conv2d_transposed: |stride 1073741824: too large a result");
    refused(2, 1, x, gckpt_shape4(3, 3, 2, 6), 2, (gckpt_window){ .groups = 2 }, GCKPT_E_SHAPE,
            "bias of shape [4], not [2]");
    refused(2, 0, x, gckpt_shape4(3, 6, 6, 4), 0, usual, GCKPT_E_SHAPE,
            "w [3,6,6,4] reaches over 6 of axis 2|5 with padding 0|padding");
    refused(2, 0, x, w, 0, (gckpt_window){ .dilation = { 4, 1 }, .padding = { 1, 0 } }, GCKPT_E_SHAPE,
            "reaches over 9 of axis 1|7 with padding 1|dilation");
    const gckpt_shape signal = gckpt_shape3(2, 9, 6), taps = gckpt_shape3(3, 6, 6);
    refused(1, 0, signal, taps, 0, (gckpt_window){ .padding = { 1 } }, GCKPT_E_ARG,
            "conv1d: a signal's window is set at index [1]");
    refused(1, 0, signal, taps, 0, (gckpt_window){ .stride = { 2 } }, GCKPT_E_ARG, "conv1d: |at index [1]");
    refused(1, 1, signal, taps, 0, (gckpt_window){ .dilation = { 2 } }, GCKPT_E_ARG, "conv1d_transposed: |index [1]");
    refused(2, 0, x, w, 0, (gckpt_window){ .stride = { -1, 1 } }, GCKPT_E_ARG, "stride -1 x 1|negative");
    refused(2, 0, x, w, 0, (gckpt_window){ .padding = { 0, -2 } }, GCKPT_E_ARG, "padding 0 x -2");
    refused(2, 0, x, w, 0, (gckpt_window){ .dilation = { 1, -3 } }, GCKPT_E_ARG, "dilation 1 x -3");
    refused(2, 0, x, w, 0, (gckpt_window){ .groups = -1 }, GCKPT_E_ARG, "-1 groups");
    refused(2, 0, x, w, 0, (gckpt_window){ .size = { 3, 3 } }, GCKPT_E_ARG, "size, ceil and exclude_padding of a window are a pool's: leave them 0");
    refused(2, 0, x, w, 0, (gckpt_window){ .output_padding = { 0, 1 } }, GCKPT_E_ARG, "output_padding 0 x 1");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .stride = { 2, 3 }, .output_padding = { 2, 0 } },
            GCKPT_E_ARG, "output_padding 2 x 0|0 to 1");
    refused(2, 1, gckpt_shape4(2, 1, 5, 6), gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .padding = { 2, 0 } },
            GCKPT_E_SHAPE, "padding 2 removes all of axis 1 of x [2,1,5,6]|use less");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .stride = { 0x7fffffff, 0x7fffffff } }, GCKPT_E_SHAPE,
            "does not fit");
    refused(2, 1, x, gckpt_shape4(3, 3, 4, 6), 0, (gckpt_window){ .dilation = { 0x7fffffff, 0x7fffffff } },
            GCKPT_E_SHAPE, "does not fit");
    refused(2, 0, gckpt_shape4(1, 1, 1, 1), gckpt_shape4(1, (1 << 25) + 2, 1, 1), 0,
            (gckpt_window){ .dilation = { 1, 0x7fffffff } }, GCKPT_E_SHAPE, "reaches over");
}

int main(void)
{
    for (int i = 0; i < CASES; i++)
        for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
            for (int threads = 1; threads <= 3 && gckpt_isa_available((gckpt_isa)isa); threads++)
                test_golden(i, (gckpt_isa)isa, threads);
    for (int seed = 0; seed < 120; seed++)
        test_contract(seed);
    test_refusals();
    return check_report("convolutions");
}
