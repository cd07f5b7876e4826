/* weights.h - prints the parameters of a store as C constants, for programs that run plans printed by gckpt_plan_c. To
 * use it, copy it; C99 or C++11.
 *
 *     weights_print(s, "weights", write, user);              // on the host
 *     weights_bind(store), gckpt_plan_params(&plan, store);  // on the device, whose program includes the printed text
 *
 * The printed text is compiled in the file with the implementation of gradckpt.h, after the #include. Its function
 * `gckpt_result NAME_bind(gckpt_store *store)` adds the parameters to an empty store by gckpt_store_external, in their
 * order and storage, to the bit. Frozen ones stay in flash. Others are variables, which training changes in place. So a
 * store's block needs NAME_bytes less than NAME_store_bytes of a plan that reads all. Optimiser state, step count and
 * notes are not printed. After an error of NAME_bind, free the store. */
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
    weights_put(out,
                "static %sunion {\n    uint%d_t bits[%lu];\n    float first;\n} %s_value%d = { {",
                p->frozen ? "const " : "", (int)(8 * size), (unsigned long)n, name, i);
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

/* Prints a name as octal bytes, in quotes. */
static inline void weights_name(weights_sink *out, const char *name)
{
    weights_put(out, "\"");
    for (; *name; name++)
        weights_put(out, "\\%03o", (unsigned)(unsigned char)*name);
    weights_put(out, "\"");
}

/* Prints a parameter's entry in the table that NAME_bind reads. */
static inline void weights_entry(weights_sink *out, const char *name, int i,
                                 const gckpt_parameter *p)
{
    weights_put(out, "        { ");
    weights_name(out, p->name);
    weights_put(out, ", &%s_value%d, { %d, {", name, i, p->shape.n);
    for (int d = 0; d < GCKPT_MAX_DIMS; d++)
        weights_put(out, d ? ", %ld" : " %ld", d < p->shape.n ? (long)p->shape.d[d] : 0L);
    weights_put(out, " } }, %d, %d },\n", (int)p->storage, p->frozen == 0);
}

/* Returns whether a parameter has other factors of learning rate and weight decay than a new one. */
static inline int weights_has_factors(const gckpt_parameter *p)
{
    return p->lr_scale < 1 || p->lr_scale > 1 || p->decay_scale < (float)(p->shape.n > 1) ||
           p->decay_scale > (float)(p->shape.n > 1);
}

/* Returns whether a name is a C identifier of at most 60 letters and digits. */
static inline int weights_is_identifier(const char *name)
{
    size_t n = 0;
    while (name[n] == '_' || (name[n] >= 'a' && name[n] <= 'z') ||
           (name[n] >= 'A' && name[n] <= 'Z') || (n > 0 && name[n] >= '0' && name[n] <= '9'))
        n++;
    return n > 0 && n <= 60 && !name[n];
}

/* Returns the format of the #error that says why parameter p cannot be printed, or NULL. */
static inline const char *weights_problem(const gckpt_parameter *p)
{
    if (p->count < p->elements)
        return "#error \"weights %s: this process has only its shard of parameter %d (gckpt_store_ranks)\"\n";
    if (weights_has_factors(p) && strpbrk(p->name, "*?"))
        return "#error \"weights %s: the name of parameter %d is a pattern, and it has factors (gckpt_store_group)\"\n";
    return NULL;
}

/* Prints NAME_bind of n parameters. */
static inline void weights_function(weights_sink *out, gckpt_store *s, const char *name, int n,
                                    int quantised)
{
    gckpt_parameter p;
    weights_put(
        out, "static inline gckpt_result %s_bind(gckpt_store *s)\n{\n    static const struct {\n",
        name);
    weights_put(
        out, "        const char *name;\n        const void *values;\n        gckpt_shape shape;\n"
             "        unsigned char storage, trained;\n    } all[] = {\n");
    for (int i = 0; i < n; i++) {
        gckpt_store_get(s, i, &p);
        weights_entry(out, name, i, &p);
    }
    weights_put(out,
                "    };\n    gckpt_result result = GCKPT_OK;\n"
                "    for (int i = 0; i < %d && result == GCKPT_OK; i++)\n        result = ",
                n);
    if (quantised)
        weights_put(
            out, "all[i].storage ? gckpt_store_external_quantised(s, all[i].name, all[i].shape,\n"
                 "            (gckpt_storage)all[i].storage, all[i].values) :\n            ");
    weights_put(out, "gckpt_store_external(s, all[i].name, all[i].shape,\n"
                     "            (float *)(uintptr_t)all[i].values, all[i].trained);\n");
    for (int i = 0; i < n; i++) {
        gckpt_store_get(s, i, &p);
        if (!weights_has_factors(&p))
            continue;
        weights_put(out, "    if (result == GCKPT_OK)\n        result = gckpt_store_group(s, ");
        weights_name(out, p.name);
        weights_put(out, ", %.9ef, %.9ef);\n", (double)p.lr_scale, (double)p.decay_scale);
    }
    weights_put(out, "    return result;\n}\n");
}

/* Prints the store's parameters, whose values it initialises if they have none. If they cannot be printed, prints an
 * #error with the reason and returns GCKPT_E_ARG: `name` is no C identifier, the store has no parameters or is one of
 * several processes that share them, a parameter cannot be initialised (gckpt_error_text), or its name has '*' or '?'
 * and gckpt_store_group has set its factors. Returns GCKPT_E_FILE if `write` fails. */
static inline gckpt_result weights_print(gckpt_store *s, const char *name, gckpt_write_fn write,
                                         void *user)
{
    weights_sink out = { write, user, 0 };
    const char *problem = NULL;
    gckpt_parameter p;
    size_t bytes = 0;
    int quantised = 0, i = 0;
    if (!s || !name || !write)
        return GCKPT_E_ARG;
    const int n = gckpt_store_count(s);
    if (!weights_is_identifier(name))
        problem = "#error \"weights: their name must be a C identifier of at most 60 letters\"\n";
    else if (n == 0)
        problem = "#error \"weights %s: the store has no parameters\"\n";
    for (; i < n && !problem; i += !problem) {
        problem = gckpt_store_get(s, i, &p) == GCKPT_OK
                      ? weights_problem(&p)
                      : "#error \"weights %s: parameter %d has no values (gckpt_error_text)\"\n";
        quantised |= !problem && p.quantised;
        bytes += problem ? 0 : weights_bytes(&p);
    }
    if (problem) {
        weights_put(&out, problem, name, i);
        return GCKPT_E_ARG;
    }
    weights_put(&out,
                "/* Weights %s, printed by weights.h: compile them in the file that holds the\n"
                " * implementation of gradckpt.h, after the #include. Not to be edited. */\n",
                name);
    if (quantised)
        weights_put(&out,
                    "#ifdef GCKPT_NO_QUANT\n#error \"weights %s: some are quantised: compile "
                    "without GCKPT_NO_QUANT\"\n#endif\n",
                    name);
    weights_put(&out, "#define %s_bytes %lu\n", name, (unsigned long)bytes);
    for (i = 0; i < n; i++) {
        gckpt_store_get(s, i, &p);
        weights_values(&out, name, i, &p);
    }
    weights_function(&out, s, name, n, quantised);
    return out.failed ? GCKPT_E_FILE : GCKPT_OK;
}
#endif
