/* test_weights.c - tests gckpt_store_c, which prints weights as C source: invalid names, a write callback that fails,
 * and that the store is unchanged. tests/firmware/weights.c compiles the printed weights and compares every bit. */
#include "gradckpt.h"
#include "util.h"

static gckpt_store *some(void)
{
    const gckpt_init normal = { 0.3f, 0, 0 };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "w", gckpt_shape2(4, 96), normal);
    gckpt_param(g, "b", gckpt_shape1(70), normal);
    gckpt_graph_free(g);
    return s;
}

/* Returns whether gckpt_store_c fails for this name with an error text that contains `reason`. */
static int refused(const gckpt_store *s, const char *name, const char *reason)
{
    file f = { 0 };
    const gckpt_result result = gckpt_store_c(s, name, file_write, &f);
    file_write(&f, "", 1);
    const int good = result == GCKPT_E_ARG && !memcmp(f.bytes, "#error", 6) && strstr((char *)f.bytes, reason);
    if (!good)
        printf("%s: %s\n", gckpt_result_text(result), (char *)f.bytes);
    free(f.bytes);
    return good;
}

static int prints(const gckpt_store *s, const char *what)
{
    file f = { 0 };
    const gckpt_result result = gckpt_store_c(s, "a", file_write, &f);
    file_write(&f, "", 1);
    const int good = result == GCKPT_OK && strstr((char *)f.bytes, what);
    free(f.bytes);
    return good;
}

static void refusals(void)
{
    static const char *const bad[] = { "", "9a", "a-b", "\xc3\xa4", "a b", "a:b", "a~b",
                                       "a234567890123456789012345678901234567890123456789012345678901" };
    gckpt_store *s = some(), *empty = gckpt_store_new(NULL);
    file f = { 0 };
    for (int i = 0; i < 8; i++)
        CHECK(refused(s, bad[i], "identifier"));
    CHECK(refused(empty, "a", "no parameters"));
    CHECK(gckpt_store_c(NULL, "a", file_write, &f) == GCKPT_E_ARG &&
          gckpt_store_c(s, NULL, file_write, &f) == GCKPT_E_ARG);
    CHECK(gckpt_store_c(s, "a", NULL, &f) == GCKPT_E_ARG && f.size == 0);
    gckpt_store_free(empty);
#ifndef GCKPT_NO_RANKS
    CHECK(gckpt_store_ranks(s, 1, 2, GCKPT_SHARD_NONE) == GCKPT_OK && refused(s, "a", "ranks"));
    CHECK(gckpt_store_ranks(s, 0, 1, GCKPT_SHARD_NONE) == GCKPT_OK && prints(s, "a_bind"));
#endif
#ifndef GCKPT_NO_QUANT
    gckpt_parameter p;
    gckpt_store_freeze(s, "b", 1);
    CHECK(gckpt_store_quantise(s, "b", GCKPT_STORAGE_F16) == GCKPT_OK && refused(s, "a", "parameter 1 has no values"));
    CHECK(gckpt_store_get(s, 1, &p) == GCKPT_OK && prints(s, "uint16_t bits[70]"));
#endif
    gckpt_store_free(s);
}

/* gckpt_store_c must return an error if the write callback fails at any byte. */
static void writing(void)
{
    gckpt_store *s = some();
    file f = { 0 };
    CHECK(gckpt_store_c(s, "a", file_write, &f) == GCKPT_OK);
    for (size_t limit = 1; limit < f.size; limit += 97) {
        file g = { .limit = limit };
        CHECK(gckpt_store_c(s, "a", file_write, &g) == GCKPT_E_FILE);
        free(g.bytes);
    }
    free(f.bytes);
    gckpt_store_free(s);
}

/* gckpt_store_c prints the initial values of parameters that are not initialised yet, and must leave these parameters
 * uninitialised. The bytes of frozen parameters count for `flash_bytes`, except external parameters. */
static void looking(void)
{
    static float mine[3] = { 1, 2, 3 };
    gckpt_store *s = some();
    gckpt_parameter p;
    file f = { 0 };
    file g = { 0 };
    /* The printed table has an entry for each parameter, in which the name is octal bytes; the call after the table
     * gets the number of parameters. The name given to gckpt_store_c may have digits. */
    CHECK(prints(s, "_weights[] = {\n    { \"\\167\", &gckpti_a_value0, "));
    CHECK(prints(s, " },\n    { \"\\142\", &gckpti_a_value1, ") && prints(s, "(s, gckpti_a_weights, 2);"));
    CHECK(gckpt_store_c(s, "_0Zz9Aa", file_write, &f) == GCKPT_OK);
    f.size = 0;
    CHECK(gckpt_store_c(s, "a", file_write, &f) == GCKPT_OK && prints(s, "#define a_flash_bytes 0\n"));
    CHECK(gckpt_store_peek(s, 0, &p) == GCKPT_OK && !p.values);
    CHECK(gckpt_store_get(s, 0, &p) == GCKPT_OK && gckpt_store_get(s, 1, &p) == GCKPT_OK);
    CHECK(gckpt_store_c(s, "a", file_write, &g) == GCKPT_OK && same_file(&f, &g));
    CHECK(gckpt_store_external(s, "mine", gckpt_shape1(3), mine, 0) == GCKPT_OK);
    CHECK(gckpt_store_freeze(s, "w", 1) == GCKPT_OK && prints(s, "#define a_flash_bytes 1536\n"));
#ifndef GCKPT_NO_QUANT
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I8) == GCKPT_OK && prints(s, "#define a_flash_bytes 408\n"));
    CHECK(gckpt_store_quantise(s, "w", GCKPT_STORAGE_I4) == GCKPT_OK && prints(s, "#define a_flash_bytes 228\n"));
#endif
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
        CHECK(gckpt_store_c(s, "a", file_write, &weights[k]) == GCKPT_OK &&
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
