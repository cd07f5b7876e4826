/* weights.h - prints the parameters of a store as C constants, for programs that run plans printed by gckpt_plan_c. To
 * use it, copy it; C99 or C++11.
 *
 *     weights_print(s, "weights", write, user);              // on the host
 *     weights_bind(store), gckpt_plan_params(&plan, store);  // on the device, which compiles what was printed
 *
 * The printed text is compiled in the file with the implementation of gradckpt.h, after the #include. Its function
 * `gckpt_result NAME_bind(gckpt_store *store)` adds the parameters to an empty store, in their order and storage, to the
 * bit. Frozen ones stay in flash, as those of gckpt_store_external; others are copied, so a store's block needs
 * NAME_flash_bytes (of frozen ones) less than NAME_store_bytes of a plan that reads all. Optimiser state, step count and
 * notes are not printed. */
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "gradckpt.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    gckpt_write_fn write;
    void *user;
    int failed;
} weights_sink;

/* Writes a formatted text of less than 320 bytes. */
static inline void weights_put(weights_sink *out, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    out->failed = out->failed || n < 0 || n >= (int)sizeof text ||
                  out->write(out->user, text, (size_t)n) != (size_t)n;
}

/* Returns the bytes of a parameter's values in their storage. */
static inline size_t weights_bytes(const gckpt_parameter *p)
{
    const size_t n = (size_t)p->elements,
                 row = p->shape.n > 0 ? (size_t)p->shape.d[p->shape.n - 1] : 1;
    return p->storage == GCKPT_STORAGE_F32  ? 4 * n
           : p->storage == GCKPT_STORAGE_I8 ? n + (row + 31) / 32 * (n / row) * 2
           : p->storage == GCKPT_STORAGE_I4 ? n / 32 * 19
                                            : 2 * n;
}

/* Prints a parameter's values as integers; in a union, from which floats are read. */
static inline void weights_values(weights_sink *out, const char *name, int i,
                                  const gckpt_parameter *p)
{
    const size_t size = p->storage == GCKPT_STORAGE_F32   ? 4
                        : p->storage <= GCKPT_STORAGE_F16 ? 2
                                                          : 1;
    const size_t n = weights_bytes(p) / size;
    const unsigned char *at =
        (const unsigned char *)(p->quantised ? p->quantised : (const void *)p->values);
    weights_put(
        out,
        "static const union {\n    uint%d_t bits[%lu];\n    float first;\n} gckpti_%s_value%d = { {",
        (int)(8 * size), (unsigned long)n, name, i);
    for (size_t k = 0; k < n; k++, at += size) {
        uint32_t word = *at;
        uint16_t half = 0;
        if (size == 2) {
            memcpy(&half, at, 2);
            word = half;
        } else if (size == 4) {
            memcpy(&word, at, 4);
        }
        weights_put(out, k % 8 ? " %luU," : "\n    %luU,", (unsigned long)word);
    }
    weights_put(out, "\n} };\n");
}

/* Prints a parameter's entry in the table that NAME_bind reads; the name as octal bytes. */
static inline void weights_entry(weights_sink *out, const char *name, int i,
                                 const gckpt_parameter *p)
{
    uint32_t lr, decay;
    memcpy(&lr, &p->lr_scale, 4);
    memcpy(&decay, &p->decay_scale, 4);
    weights_put(out, "    { \"");
    for (const char *c = p->name; *c; c++)
        weights_put(out, "\\%03o", (unsigned)(unsigned char)*c);
    weights_put(out, "\", &gckpti_%s_value%d, { %d, {", name, i, p->shape.n);
    for (int d = 0; d < GCKPT_MAX_DIMS; d++)
        weights_put(out, d ? ", %ld" : " %ld", d < p->shape.n ? (long)p->shape.d[d] : 0L);
    weights_put(out, " } }, { %luU, %luU }, %d, %d },\n", (unsigned long)lr, (unsigned long)decay,
                (int)p->storage, p->frozen != 0);
}

/* Returns whether a name is a C identifier of at most 60 letters and digits. */
static inline int weights_is_name(const char *name)
{
    size_t n = 0;
    while (name[n] == '_' || (name[n] >= 'a' && name[n] <= 'z') ||
           (name[n] >= 'A' && name[n] <= 'Z') || (n > 0 && name[n] >= '0' && name[n] <= '9'))
        n++;
    return n > 0 && n <= 60 && !name[n];
}

/* Prints the store's parameters, whose values it initialises if they have none. If they cannot be printed, prints an
 * #error with the reason and returns GCKPT_E_ARG: `name` is no C identifier, the store has no parameters or is one of
 * several processes that share them, or a parameter cannot be initialised (gckpt_error_text). Returns GCKPT_E_FILE if
 * `write` fails. */
static inline gckpt_result weights_print(gckpt_store *s, const char *name, gckpt_write_fn write,
                                         void *user)
{
    weights_sink out = { write, user, 0 };
    gckpt_parameter p;
    size_t flash = 0;
    int quantised = 0, i = 0;
    if (!s || !name || !write)
        return GCKPT_E_ARG;
    const int n = gckpt_store_count(s);
    const char *problem =
        !weights_is_name(name)
            ? "#error \"weights: their name must be a C identifier of at most 60 letters\"\n"
        : n == 0 ? "#error \"weights %s: the store has no parameters\"\n"
                 : NULL;
    for (; i < n && !problem; i += !problem) {
        if (gckpt_store_get(s, i, &p) != GCKPT_OK)
            problem = "#error \"weights %s: parameter %d has no values (gckpt_error_text)\"\n";
        else if (p.count < p.elements)
            problem =
                "#error \"weights %s: this process has only its shard of parameter %d (gckpt_store_ranks)\"\n";
        else if (p.frozen)
            flash += weights_bytes(&p);
        quantised |= !problem && p.quantised;
    }
    if (problem) {
        weights_put(&out, problem, name, i);
        return GCKPT_E_ARG;
    }
    weights_put(&out,
                "/* Weights %s, printed by weights.h: compile them in the file that holds the\n"
                " * implementation of gradckpt.h, after the #include. Not to be edited. */\n",
                name);
    weights_put(&out,
                "#if GCKPT_PLAN_FORMAT != %d\n#error \"weights %s: printed by another version of "
                "gradckpt.h: print them again (examples/weights.h)\"\n#endif\n",
                GCKPT_PLAN_FORMAT, name);
    for (i = 0; i < n; i++) {
        gckpt_store_get(s, i, &p);
        weights_values(&out, name, i, &p);
    }
    if (quantised)
        weights_put(&out,
                    "#ifdef GCKPT_NO_QUANT\n#error \"weights %s: some are quantised: compile "
                    "without GCKPT_NO_QUANT\"\n#endif\n",
                    name);
    weights_put(
        &out, "#define %s_flash_bytes %lu\nstatic const gckpti_exported gckpti_%s_weights[] = {\n",
        name, (unsigned long)flash, name);
    for (i = 0; i < n; i++) {
        gckpt_store_get(s, i, &p);
        weights_entry(&out, name, i, &p);
    }
    weights_put(&out, "};\nstatic inline gckpt_result %s_bind(gckpt_store *s)\n{\n    return ",
                name);
    weights_put(&out, "gckpti_bind_exported(s, gckpti_%s_weights, %d);\n}\n", name, n);
    return out.failed ? GCKPT_E_FILE : GCKPT_OK;
}
#endif
