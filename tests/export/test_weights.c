/* test_weights.c - tests weights_print (examples/weights.h), which prints weights as C source: invalid names, a write
 * callback that fails, and the printed text of parameters. tests/firmware/weights.c compiles the printed weights and compares every bit. */
#include "gradckpt.h"
#include "examples/weights.h"
#include "util.h"

static gckpt_store *store_of(int64_t rows)
{
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", gckpt_shape2(rows, 96), normal);
    gckpt_param(g, "b", gckpt_shape1(70), normal);
    gckpt_graph_free(g);
    return s;
}

/* Returns whether weights_print fails for this name with an error text that contains `reason`. */
static int refused(gckpt_store *s, const char *name, const char *reason)
{
    file f = { 0 };
    const gckpt_result result = weights_print(s, name, file_write, &f);
    file_write(&f, "", 1);
    const int good = result == GCKPT_E_ARG && !memcmp(f.bytes, "#error", 6) && strstr((char *)f.bytes, reason);
    if (!good)
        printf("%s: %s\n", gckpt_result_text(result), (char *)f.bytes);
    free(f.bytes);
    return good;
}

static int prints(gckpt_store *s, const char *what)
{
    file f = { 0 };
    const gckpt_result result = weights_print(s, "a", file_write, &f);
    file_write(&f, "", 1);
    const int good = result == GCKPT_OK && strstr((char *)f.bytes, what);
    free(f.bytes);
    return good;
}

static void refusals(void)
{
    static const char *const bad[] = { "", "9a", "a-b", "\xc3\xa4", "a b", "a:b", "a~b",
                                       "a234567890123456789012345678901234567890123456789012345678901" };
    gckpt_store *s = store_of(4), *empty = gckpt_store_new(NULL);
    file f = { 0 };
    for (int i = 0; i < 8; i++)
        CHECK(refused(s, bad[i], "identifier"));
    CHECK(refused(empty, "a", "no parameters"));
    CHECK(weights_print(NULL, "a", file_write, &f) == GCKPT_E_ARG &&
          weights_print(s, NULL, file_write, &f) == GCKPT_E_ARG);
    CHECK(weights_print(s, "a", NULL, &f) == GCKPT_E_ARG && f.size == 0);
    gckpt_store_free(empty);
#ifndef GCKPT_NO_RANKS
    gckpt_store *cut = store_of(96); /* more than 4096 elements */
    CHECK(gckpt_store_ranks(s, 1, 2, GCKPT_SHARD_VALUES) == GCKPT_OK && prints(s, "a_bind"));
    CHECK(gckpt_store_ranks(cut, 1, 2, GCKPT_SHARD_VALUES) == GCKPT_OK && refused(cut, "a", "ranks"));
    gckpt_store_free(cut);
#endif
#ifndef GCKPT_NO_QUANT
    gckpt_store_freeze(s, "b", 1);
    CHECK(gckpt_store_quantise(s, "b", GCKPT_STORAGE_F16) == GCKPT_OK && prints(s, "uint16_t bits[70]"));
#endif
    gckpt_store_free(s);
}

/* weights_print must return an error if the write callback fails at any byte. */
static void writing(void)
{
    gckpt_store *s = store_of(4);
    file f = { 0 };
    CHECK(weights_print(s, "a", file_write, &f) == GCKPT_OK);
    for (size_t limit = 1; limit < f.size; limit += 97) {
        file g = { .limit = limit };
        CHECK(weights_print(s, "a", file_write, &g) == GCKPT_E_FILE);
        free(g.bytes);
    }
    free(f.bytes);
    gckpt_store_free(s);
}

/* weights_print prints the initial values of parameters that are not initialised yet. Only frozen ones are constant.
 * Factors of learning rate and decay are printed if they are not those of a new parameter. */
static void looking(void)
{
    static float mine[3] = { 1, 2, 3 };
    gckpt_store *s = store_of(4);
    file f = { 0 };
    file g = { 0 };
    /* The printed table has an entry for each parameter, in which the name is octal bytes. The name given to
     * weights_print may have digits. */
    CHECK(prints(s, "all[] = {\n        { \"\\167\", &a_value0, ") && prints(s, "i < 2 &&"));
    CHECK(prints(s, " },\n        { \"\\142\", &a_value1, ") && prints(s, "\nstatic union {\n    uint32_t bits[384];"));
    CHECK(weights_print(s, "_0Zz9Aa", file_write, &f) == GCKPT_OK);
    f.size = 0;
    CHECK(weights_print(s, "a", file_write, &f) == GCKPT_OK && prints(s, "#define a_bytes 1816\n"));
    CHECK(weights_print(s, "a", file_write, &g) == GCKPT_OK && same_file(&f, &g));
    CHECK(gckpt_store_external(s, "mine", gckpt_shape1(3), mine, 0) == GCKPT_OK);
    CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK && prints(s, "\nstatic const union {\n    uint32_t bits[384];"));
#ifndef GCKPT_NO_QUANT
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I8) == GCKPT_OK && prints(s, "#define a_bytes 700\n"));
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK && prints(s, "#define a_bytes 520\n"));
#endif
    CHECK(gckpt_store_group(s, "?", 2, 0.1f) == GCKPT_OK);
    CHECK(prints(s, "gckpt_store_group(s, \"\\142\", 2.000000000e+00f, 1.000000015e-01f);"));
    static float star[1];
    CHECK(gckpt_store_external(s, "a*", gckpt_shape1(1), star, 1) == GCKPT_OK && prints(s, "a_value3"));
    CHECK(gckpt_store_group(s, "a?", 2, 0) == GCKPT_OK && refused(s, "a", "is a pattern"));
    free(f.bytes);
    free(g.bytes);
    gckpt_store_free(s);
}

/* Sizes beyond the rank of a shape are not printed, neither for weights nor for plans. */
static void shapes(void)
{
    const gckpt_init one = { 0, 0, 1 };
    file weights[2] = { { 0 }, { 0 } }, plans[2] = { { 0 }, { 0 } };
    for (int k = 0; k < 2; k++) {
        gckpt_shape in = gckpt_shape2(2, 3), of = gckpt_shape1(3);
        in.d[2] = of.d[1] = of.d[GCKPT_MAX_DIMS - 1] = k ? INT64_MIN : INT64_MAX;
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, in);
        const gckpt_term term = { gckpt_sum_loss(gckpt_mul(x, gckpt_param(g, "w", of, one))), 1, 0 };
        const gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .kernels.plain = 1 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &desc);
        CHECK(weights_print(s, "a", file_write, &weights[k]) == GCKPT_OK &&
              gckpt_plan_c(p, "a", file_write, &plans[k]) == GCKPT_OK);
        gckpt_plan_free(p);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
    CHECK(same_file(&weights[0], &weights[1]) && same_file(&plans[0], &plans[1]));
    for (int k = 0; k < 2; k++) {
        free(weights[k].bytes);
        free(plans[k].bytes);
    }
}

int main(void)
{
    shapes();
    refusals();
    writing();
    looking();
    return check_report("test_weights");
}
