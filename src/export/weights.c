#include "export/export.h"
#include "num/num.h"
#include "store/store.h"

#ifndef GCKPT_NO_EXPORT
/* ---- a store's parameters as C ---- */
/* Prints the begin of an array of n elements' bits; in a union, from which floats are read. */
static void gckpti_c_bits(gckpti_sink *out, int bytes, int64_t n, const char *name,
                          const char *what, size_t i)
{
    gckpti_print(out, "static const union {\n    uint%i_t bits[%I];\n    float first;\n} ",
                 8 * bytes, n);
    gckpti_print(out, "gckpti_%s_%s%z = { {", name, what, i);
}

/* Prints parameter i's values in their storage type. */
static void gckpti_c_values(gckpti_sink *out, const gckpt_store *s, const char *name, size_t i)
{
    const gckpti_param *q = &s->params[i];
    const void *raw = gckpti_is_compressed((int)q->p.storage) ? gckpti_stored(&q->p) : NULL;
    gckpt_shape shape = q->p.shape;
    const int64_t n = gckpti_pack_shape((int)q->p.storage, &shape);
    const int bytes = gckpti_kind_of((int)q->p.storage)->bytes;
    float buf[GCKPTI_CHUNK]; /* 64 values are whole lines */
    gckpti_c_bits(out, bytes, n, name, "value", i);
    for (int64_t at = 0, chunk; at < n && !raw; at += chunk) {
        const float *x = gckpti_floats_at(s, q, GCKPTI_VALUES, at, buf, &chunk);
        gckpti_c_words(out, x, (size_t)chunk);
    }
    for (int64_t at = 0; at < n && raw; at++)
        gckpti_print(out, at % 16 ? " %i," : "\n    %i,",
                     bytes == 2 ? ((const uint16_t *)raw)[at] : ((const unsigned char *)raw)[at]);
    gckpti_print(out, "\n} };\n");
}

/* Prints parameter i's gckpti_exported. */
static void gckpti_c_param(gckpti_sink *out, const gckpt_store *s, const char *name, size_t i)
{
    const gckpt_parameter *p = &s->params[i].p;
    gckpti_print(out, "    { \"");
    for (const unsigned char *c = (const unsigned char *)p->name; *c; c++)
        gckpti_print(out, "\\%i%i%i", *c >> 6, *c >> 3 & 7, *c & 7);
    gckpti_print(out, "\", &gckpti_%s_value%z, ", name, i);
    gckpti_c_shape(out, &p->shape);
    gckpti_print(out, ", { %zU, %zU }, %i, %i },\n", (size_t)gckpti_bits(p->lr_scale),
                 (size_t)gckpti_bits(p->decay_scale), (int)p->storage, p->frozen != 0);
}

GCKPT_API gckpt_result gckpt_store_c(const gckpt_store *store, const char *name,
                                     gckpt_write_fn write, void *user)
{
    gckpti_sink out = { write, user, 0, 0, 0, { 0 } };
    size_t i = 0, bytes = 0;
    int compressed = 0;
    if (!store || !name || !write)
        return GCKPT_E_ARG;
    const char *problem = NULL;
    if (!gckpti_c_identifier(name) || strlen(name) > 60)
        problem = "#error \"weights: their name must be a C identifier of at most 60 letters\"\n";
    else if (gckpti_has_peers(store))
        problem = "#error \"weights %s: the store " GCKPTI_IS_OF_SEVERAL "\"\n";
    else if (!store->count)
        problem = "#error \"weights %s: the store has no parameters\"\n";
    for (; i < store->count && !problem; i += !problem) { /* only floats can be computed here */
        const gckpti_param *q = &store->params[i];
        if (!gckpti_has_values(q) && (gckpti_is_compressed((int)q->p.storage) ||
                                      (!GCKPTI_RANDOM && gckpti_is_random(&q->init))))
            problem = "#error \"weights %s: parameter %z has no values yet (gckpt_store_get)\"\n";
    }
    if (problem) {
        gckpti_print(&out, problem, name, i);
        gckpti_sink_flush(&out);
        return GCKPT_E_ARG;
    }
    gckpti_print(
        &out,
        "/* Weights %s, printed by gckpt_store_c: compile them in the file that holds the\n"
        " * implementation of gradckpt.h, after the #include. Not to be edited. */\n"
        "#if GCKPT_PLAN_FORMAT != %i\n#error \"weights %s: printed by another version of "
        "gradckpt.h: print them again (gckpt_store_c)\"\n#endif\n",
        name, GCKPT_PLAN_FORMAT, name);
    for (i = 0; i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        compressed = compressed || gckpti_is_compressed((int)q->p.storage);
        bytes += q->p.frozen && !q->external ? gckpti_values_bytes(&q->p) : 0;
        gckpti_c_values(&out, store, name, i);
    }
    if (compressed)
        gckpti_print(&out,
                     "#ifdef GCKPT_NO_QUANT\n#error \"weights %s: some are quantised: compile "
                     "without GCKPT_NO_QUANT\"\n#endif\n",
                     name);
    gckpti_print(
        &out, "#define %s_flash_bytes %z\nstatic const gckpti_exported gckpti_%s_weights[] = {\n",
        name, bytes, name);
    for (i = 0; i < store->count; i++)
        gckpti_c_param(&out, store, name, i);
    gckpti_print(&out,
                 "};\nstatic inline gckpt_result %s_bind(gckpt_store *s)\n{\n    return "
                 "gckpti_bind_exported(s, gckpti_%s_weights, %z);\n}\n",
                 name, name, store->count);
    return gckpti_sink_flush(&out);
}
#endif
