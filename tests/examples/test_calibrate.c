/* test_calibrate.c - calibrate.h: the sums of a layer's inputs, which layers share them, and the error of what layers
 * compute after rounding by them, compared with rounding one by one; I4 keeps the values that were chosen. */
#define _XOPEN_SOURCE 700
#include <math.h>

#include "gradckpt.h"
#include "check.h"
#include "examples/calibrate.h"

enum { ROWS = 160, WIDTH = 96, OUT = 24, BLOCK = 64 };

/* Returns numbers of -1 to 1, of a fixed sequence. */
static float random_number(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}

/* Fills x with inputs that depend on each other, of different sizes, as those of a language model do. */
static void make_inputs(float *x)
{
    for (int r = 0; r < ROWS; r++) {
        const float common = random_number();
        for (int i = 0; i < WIDTH; i++)
            x[r * WIDTH + i] =
                ((i % 8 == 0 ? 0 : x[r * WIDTH + i - 1]) + random_number() + common) *
                (i % 7 == 0 ? 2 : 0.7f);
    }
}

/* Builds two layers of x and one of the first one's result. */
static gckpt_tensor *build(calibration *c, gckpt_graph *g)
{
    const gckpt_init none = { 0.05f, 0, 0 };
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, ROWS, WIDTH));
    gckpt_tensor *a =
        gckpt_linear_transposed(calibrate_input(c, "a", x),
                                gckpt_param(g, "a.weight", gckpt_shape2(OUT, WIDTH), none), NULL);
    gckpt_tensor *b =
        gckpt_linear_transposed(calibrate_input(c, "b", x),
                                gckpt_param(g, "b.weight", gckpt_shape2(OUT, WIDTH), none), NULL);
    return gckpt_add(calibrate_input(c, "odd", a), b); /* 24 columns: not a multiple of 32 */
}

/* Runs the graph on two micro-batches of x with `threads` threads, and returns the sums in c. */
static void measure(calibration *c, gckpt_store *s, const float *x, int threads)
{
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_fetch_spec fetch = { build(c, g), 0 };
    const gckpt_plan_desc d = {
        .mode = GCKPT_INFERENCE, .threads = threads, .fetch.specs = &fetch, .fetch.count = 1
    };
    gckpt_plan *plan = gckpt_plan_new(g, NULL, 0, &d);
    gckpt_exec_desc how = { .allow_initial = 1 };
    gckpt_exec *e = gckpt_exec_new(plan, s, &how);
    const gckpt_feed feed = { .input = 0, .data = x };
    CHECK_MSG(e && gckpt_forward(e, &feed, 1, 1, NULL) == GCKPT_OK, "%s",
              e ? gckpt_error_text(e) : gckpt_error_text(g));
    gckpt_exec_free(e);
    gckpt_plan_free(plan);
    gckpt_graph_free(g);
}

/* Returns the sum of the squares of the outputs of x for the weights w - v, (out,in) or, if in_out,
 * (in,out). */
static double output_error(const float *x, const float *w, const float *v, int out, int in_out)
{
    double all = 0;
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < out; o++) {
            double y = 0;
            for (int i = 0; i < WIDTH; i++) {
                const int at = in_out ? i * out + o : o * WIDTH + i;
                y += (double)x[r * WIDTH + i] * ((double)w[at] - (double)v[at]);
            }
            all += y * y;
        }
    return all;
}

static void read_values(gckpt_store *s, const char *name, float *to)
{
    gckpt_parameter p;
    CHECK(gckpt_store_quantise(s, name, GCKPT_STORAGE_F32) == GCKPT_OK);
    CHECK(gckpt_store_get(s, gckpt_store_find(s, name), &p) == GCKPT_OK);
    memcpy(to, p.values, OUT * WIDTH * sizeof *to);
}

/* Checks weights (in,out) of layer a, as GPT-2 has them: 64 outputs in blocks of 32. The layer's
 * results have less error than after rounding one by one, and I4 keeps the chosen values. */
static void check_in_out(const calibration *c, const float *x, calibrate_scratch *scratch)
{
    enum { OUTPUTS = 64 };
    static float w[WIDTH * OUTPUTS], chosen[WIDTH * OUTPUTS], stored[3][WIDTH * OUTPUTS];
    static const gckpt_storage storages[] = { GCKPT_STORAGE_I8, GCKPT_STORAGE_I4,
                                              GCKPT_STORAGE_I8 };
    model_any m;
    memset(&m, 0, sizeof m);
    m.config.family = &gpt2_family;
    m.config.name_prefix = "teacher.";
    for (int i = 0; i < WIDTH * OUTPUTS; i++)
        w[i] = 0.05f * random_number();
    for (int k = 0; k < 3; k++) { /* as I8; I4 one by one; I4 by the inputs */
        gckpt_parameter p;
        gckpt_store *t = gckpt_store_new(NULL);
        CHECK(gckpt_store_external(t, "teacher.a.weight", gckpt_shape2(WIDTH, OUTPUTS), w, 0) ==
                  GCKPT_OK &&
              gckpt_store_quantise(t, "*", storages[k]) == GCKPT_OK);
        CHECK_MSG(k < 2 || calibrate_store(c, t, &m) == 0, "%s", m.error);
        CHECK(gckpt_store_peek(t, 0, &p) == GCKPT_OK &&
              p.storage == (k == 0 ? GCKPT_STORAGE_I8 : GCKPT_STORAGE_I4));
        CHECK(gckpt_store_quantise(t, "*", GCKPT_STORAGE_F32) == GCKPT_OK &&
              gckpt_store_get(t, 0, &p) == GCKPT_OK);
        memcpy(stored[k], p.values, sizeof stored[k]);
        gckpt_store_free(t);
    }
    const double by_one = output_error(x, w, stored[1], OUTPUTS, 1),
                 by_sums = output_error(x, w, stored[2], OUTPUTS, 1);
    CHECK_MSG(by_sums < 0.5 * by_one, "off by %g, rounded one by one by %g", by_sums, by_one);
    memcpy(chosen, stored[0], sizeof chosen);
    for (int at = 0; at < WIDTH; at += BLOCK)
        calibrate_columns(c->layers[0].input, at, WIDTH - at < BLOCK ? WIDTH - at : BLOCK, OUTPUTS,
                          0, chosen, scratch);
    CHECK(memcmp(stored[2], chosen, sizeof chosen) == 0);
}

int main(void)
{
    static float x[ROWS * WIDTH], w[OUT * WIDTH], plain[OUT * WIDTH], chosen[OUT * WIDTH],
        stored[OUT * WIDTH];
    static const char *const names[] = { "a.weight", "b.weight" };
    calibration c = { 0 };
    model_any m;
    gckpt_parameter p;
    memset(&m, 0, sizeof m);
    m.config.family = &llama_family;
    make_inputs(x);
    gckpt_store *s = gckpt_store_new(NULL);
    measure(&c, s, x, 1); /* finds the layers; without sums, nothing is measured */
    CHECK(calibrate_begin(&c, BLOCK) == 0);
    measure(&c, s, x, 1);
    /* the sums are those of x, in blocks of 64 and 32 columns; a and b share them */
    CHECK(c.count == 2 && c.layers[0].input == c.layers[1].input && c.layers[0].measures &&
          !c.layers[1].measures);
    CHECK(calibrate_bytes(&c, BLOCK) == WIDTH * BLOCK * sizeof(float) && !c.failed);
    const float *sums = c.layers[0].input->sums;
    for (int i = 0; i < WIDTH; i++)
        for (int k = i / BLOCK * BLOCK; k < WIDTH && k < (i / BLOCK + 1) * BLOCK; k++) {
            const int begin = i / BLOCK * BLOCK, n = WIDTH - begin < BLOCK ? WIDTH - begin : BLOCK;
            double sum = 0, size = 0;
            for (int r = 0; r < ROWS; r++) {
                sum += (double)x[r * WIDTH + i] * (double)x[r * WIDTH + k];
                size += fabs((double)x[r * WIDTH + i] * (double)x[r * WIDTH + k]);
            }
            CHECK_MSG(fabs((double)sums[begin * BLOCK + (i - begin) * n + k - begin] - sum) <=
                          1e-5 * size,
                      "%d, %d", i, k);
        }
    /* a second graph adds to the same sums; with other threads the bits are the same */
    static float once[WIDTH * BLOCK];
    memcpy(once, sums, sizeof once);
    for (int threads = 2; threads < 4; threads++) {
        CHECK(calibrate_begin(&c, BLOCK) == 0);
        measure(&c, s, x, threads);
        CHECK(c.count == 2 && memcmp(once, c.layers[0].input->sums, sizeof once) == 0);
    }
    /* the weights, as I8, become I4; others stay */
    gckpt_store_freeze(s, "*", 1);
    for (int k = 0; k < 2; k++) {
        CHECK(gckpt_store_get(s, gckpt_store_find(s, names[k]), &p) == GCKPT_OK);
        memcpy(w, p.values, sizeof w);
        gckpt_store *t = gckpt_store_new(NULL);
        CHECK(gckpt_store_external(t, names[k], gckpt_shape2(OUT, WIDTH), w, 0) == GCKPT_OK);
        CHECK(gckpt_store_quantise(t, "*", GCKPT_STORAGE_I4) == GCKPT_OK);
        read_values(t, names[k], plain);
        gckpt_store_free(t);
        if (k == 1) /* floats are trained, or saved: they stay */
            continue;
        CHECK(gckpt_store_quantise(s, names[0], GCKPT_STORAGE_I8) == GCKPT_OK);
        CHECK_MSG(calibrate_store(&c, s, &m) == 0, "%s", m.error);
        CHECK(gckpt_store_peek(s, gckpt_store_find(s, names[0]), &p) == GCKPT_OK &&
              p.storage == GCKPT_STORAGE_I4);
        CHECK(gckpt_store_peek(s, gckpt_store_find(s, names[1]), &p) == GCKPT_OK &&
              p.storage == GCKPT_STORAGE_F32);
        read_values(s, names[0], stored);
        const double by_one = output_error(x, w, plain, OUT, 0),
                     by_sums = output_error(x, w, stored, OUT, 0);
        CHECK_MSG(by_sums < 0.5 * by_one, "off by %g, rounded one by one by %g", by_sums, by_one);
    }
    /* I4 keeps the chosen values to the bit */
    static calibrate_scratch scratch;
    memcpy(chosen, w, sizeof chosen);
    for (int at = 0; at < WIDTH; at += BLOCK)
        calibrate_columns(c.layers[0].input, at, WIDTH - at < BLOCK ? WIDTH - at : BLOCK, OUT, 1,
                          chosen, &scratch);
    gckpt_store *t = gckpt_store_new(NULL);
    CHECK(gckpt_store_external(t, "w", gckpt_shape2(OUT, WIDTH), chosen, 0) == GCKPT_OK);
    CHECK(gckpt_store_quantise(t, "*", GCKPT_STORAGE_I4) == GCKPT_OK);
    read_values(t, "w", stored);
    CHECK(memcmp(stored, chosen, sizeof chosen) == 0);
    gckpt_store_free(t);
    check_in_out(&c, x, &scratch);
    /* inputs that are all 0 */
    CHECK(calibrate_begin(&c, BLOCK) == 0);
    memcpy(chosen, w, sizeof chosen);
    calibrate_columns(c.layers[0].input, 0, BLOCK, OUT, 1, chosen, &scratch);
    for (int i = 0; i < OUT * WIDTH; i++)
        CHECK(fabsf(chosen[i] - w[i]) < 0.05f);
    calibrate_end(&c);
    CHECK(c.count == 0 && c.layers == NULL && calibrate_bytes(&c, BLOCK) == 0);
    gckpt_store_free(s);
    return check_report("test_calibrate");
}
