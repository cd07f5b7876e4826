/* gguf_adapter.h - saves and loads LoRA of adapters.h as GGUF, for llama.cpp's --lora. To copy,
 * with adapters.h, gguf_write.h and gguf_model.h.
 *
 *     gguf_adapter_save(&a, "adapter.gguf");
 *     gguf_adapter_load(&a, &model, store, "adapter.gguf"); // as adapters_load does
 *
 * The format is that of llama.cpp's convert_lora_to_gguf.py: general.type adapter, adapter.type
 * lora, adapter.lora.alpha, and F32 tensors NAME.lora_a (rank,in) and NAME.lora_b (out,rank).
 * NAME is the weight's name in a GGUF file of the model, and rows of lora_b are in the order of
 * that weight's rows. The format has one alpha: lora_b of modules with another scale (alphas,
 * rsLoRA) is multiplied. Other trained parameters (biases, DoRA, whole modules) do not fit the
 * format and are refused by name. Functions return 0, or -1 after writing the model's `error`. */
#ifndef GGUF_ADAPTER_H
#define GGUF_ADAPTER_H
#include "adapters.h"
#include "gguf_write.h"

/* ---- names ----------------------------------------------------------------------------------- */
/* Writes the name that the weight of a module has in GGUF: "blk.3.attn_q.weight" for
 * "layers.3.self_attn.q_proj". Returns 0 if GGUF has no such weight in its blocks. */
static inline int gguf_weight_of(const gguf_architecture *a, const model_config *c,
                                 const char *module, char *name)
{
    char parameter[MODEL_NAME];
    return gguf_tensor_of(a, c, model_join(parameter, module, ".weight"), name) &&
           strncmp(name, "blk.", 4) == 0;
}

/* ---- writing --------------------------------------------------------------------------------- */
/* Writes A or B with its rows and columns in these orders, multiplied by `scale`. */
static inline void gguf_put_rows(gguf_writer *w, const gckpt_parameter *p, gguf_order order,
                                 gguf_order column_order, double scale)
{
    const int64_t rows = p->shape.d[0], columns = p->shape.d[1];
    for (int64_t i = 0; i < rows; i++) {
        const int64_t row = gguf_param_row(order, i);
        for (int64_t k = 0; k < columns; k++) {
            const float x = p->values[row * columns + gguf_param_row(column_order, k)];
            gguf_put_float(w, scale == 1 ? x : (float)((double)x * scale));
        }
    }
    gguf_put_align(w);
}

/* If the parameter `name` is MODULE.lora_A.weight, writes the module's name and that of its weight
 * in GGUF, and returns 1. Returns 0 for other parameters, and -1 with the model's error. */
static inline int gguf_lora_of(const adapters *a, const gguf_architecture *arch, const char *name,
                               char *module, char *weight)
{
    static const char end[] = ".lora_A.weight";
    if (!adapters_ends_with(name, end))
        return 0;
    model_join(module, name, "");
    module[strlen(module) - strlen(end)] = 0;
    return gguf_weight_of(arch, &a->model->config, module, weight)
               ? 1
               : model_fail(a->model,
                            "\"%s\" has no counterpart in llama.cpp; save the adapter "
                            "as a folder",
                            module);
}

/* Checks that the adapter trains nothing but A and B of LoRA, since the format has nothing else.
 * Returns the number of modules, or -1 with the model's error. */
static inline int64_t gguf_adapter_check(const adapters *a, const gguf_architecture *arch)
{
    int64_t modules = 0;
    gckpt_parameter p;
    if (a->options.method != ADAPTERS_LORA || arch == NULL)
        return model_fail(a->model,
                          "%s of a %s cannot be saved as GGUF; supported is lora, of the model "
                          "types that --model X.gguf reads; save the adapter as a folder",
                          adapters_names[a->options.method], a->model->config.type);
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK; i++) {
        char module[MODEL_NAME], weight[MODEL_NAME];
        const int is_lora = p.frozen ? 0 : gguf_lora_of(a, arch, p.name, module, weight);
        if (is_lora < 0)
            return -1;
        if (!p.frozen && !is_lora && !adapters_ends_with(p.name, ".lora_B.weight"))
            return model_fail(a->model,
                              "\"%s\" is also trained, but a GGUF adapter holds only LoRA's A and "
                              "B: save the adapter as a folder",
                              p.name);
        modules += is_lora;
    }
    return modules;
}

/* Writes the adapter to `path`. An older file of this name is replaced after the new one is
 * complete. */
static inline int gguf_adapter_save(adapters *a, const char *path)
{
    char temporary[MODEL_PATH], module[MODEL_NAME], weight[MODEL_NAME], name[MODEL_NAME];
    const gguf_architecture *arch = gguf_architecture_of(&a->model->config);
    const int64_t modules = gguf_adapter_check(a, arch);
    gguf_writer w = { NULL, 0 };
    gckpt_parameter p, up;
    uint64_t offset = 0;
    const adapters_options *o = &a->options;
    const double scale = o->rslora ? model_sqrt((double)o->size) : 1;
    const float alpha = (float)(o->alpha * scale);
    if (modules < 0)
        return -1;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return model_fail(a->model, "%s: the path is too long", path);
    if ((w.f = fopen(temporary, "wb")) == NULL)
        return model_fail(a->model, "%s: %s", temporary, strerror(errno));
    gguf_put_begin(&w, 2 * (uint64_t)modules, 4);
    gguf_put_key(&w, "general.architecture", arch->name);
    gguf_put_key(&w, "general.type", "adapter");
    gguf_put_key(&w, "adapter.type", "lora");
    gguf_put_real(&w, "adapter.lora.alpha", (double)alpha);
    int failed = 0;
    /* pass 0 writes names and offsets, pass 1 the values */
    for (int pass = 0; pass < 2 && !failed; pass++) {
        for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK && !failed; i++) {
            if (gguf_lora_of(a, arch, p.name, module, weight) != 1)
                continue;
            const int b = gckpt_store_find(a->store, model_join(name, module, ".lora_B.weight"));
            if (gckpt_store_get(a->store, i, &p) != GCKPT_OK ||
                gckpt_store_get(a->store, b, &up) != GCKPT_OK) {
                failed = model_fail(a->model, "%s", gckpt_error_text(a->store));
            } else if (pass == 0) {
                gguf_put_tensor(&w, model_join(name, weight, ".lora_a"), GGUF_T_F32, p.shape.d[0],
                                p.shape.d[1], &offset);
                gguf_put_tensor(&w, model_join(name, weight, ".lora_b"), GGUF_T_F32, up.shape.d[0],
                                up.shape.d[1], &offset);
            } else {
                const double rank = (double)p.shape.d[0];
                const double ratio = adapters_scale(a, module, p.shape.d[0]) * rank / (double)alpha;
                const int same = ratio > 1 - 1e-6 && ratio < 1 + 1e-6;
                const model_config *c = &a->model->config;
                const gguf_order as_is = { 0, 0, 1, 0 };
                gguf_put_rows(&w, &p, as_is, gguf_column_order_of(c, module), 1);
                gguf_put_rows(&w, &up, gguf_order_of(arch, c, module, up.shape.d[0]), as_is,
                              same ? 1 : ratio);
            }
        }
        gguf_put_align(&w);
    }
    if (!failed)
        return model_end_file(a->model, w.f, temporary);
    fclose(w.f);
    remove(temporary);
    return -1;
}

/* ---- reading --------------------------------------------------------------------------------- */
/* Returns whether the path is a GGUF file that contains an adapter. */
static inline int gguf_is_adapter(const char *path)
{
    gguf g;
    if (!gguf_is_file(path))
        return 0;
    const char *type = gguf_open(&g, path) == 0 ? gguf_text(&g, "general.type", NULL) : NULL;
    const int is = type != NULL && strcmp(type, "adapter") == 0;
    gguf_close(&g);
    return is;
}

/* Returns tensor A or B of a module (`end` selects it), or NULL if the file does not have it. */
static inline const gguf_tensor *gguf_lora_tensor(const gguf *g, const char *weight,
                                                  const char *end)
{
    char name[MODEL_NAME];
    return gguf_find_tensor(g, model_join(name, weight, end));
}

typedef struct {
    /* lists for adapters_options; while they are written, a comma follows each item */
    char *targets, *ranks;
    int64_t rank; /* rank of the first module in the file */
    size_t pairs;
} gguf_targets;

/* Writes a list of the modules in the file, in the model's order, and a list of the ranks that
 * differ from the rank of the first module. */
static inline int gguf_adapter_targets(gguf *g, const gguf_architecture *arch,
                                       const model_config *c, gguf_targets *to)
{
    char *targets = to->targets, *ranks = to->ranks;
    for (int64_t i = 0; i < model_param_count(c); i++) {
        char weight[MODEL_NAME];
        model_parameter p;
        if (!model_module(c, i, &p) || !gguf_weight_of(arch, c, p.name, weight))
            continue;
        const gguf_tensor *a = gguf_lora_tensor(g, weight, ".lora_a");
        const gguf_tensor *b = gguf_lora_tensor(g, weight, ".lora_b");
        if (a == NULL && b == NULL)
            continue;
        const int64_t in = model_in_features(c, p.shape), out = model_out_features(c, p.shape);
        if (a == NULL || b == NULL)
            return gguf_fail(g,
                             "tensor %s: the file lacks the other tensor of the pair .lora_a "
                             "and .lora_b",
                             (a != NULL ? a : b)->name);
        if (a->d[0] != in || b->d[1] != out || a->d[1] != b->d[0] || a->axes > 2 || b->axes > 2 ||
            a->d[1] > in + out)
            return gguf_fail(
                g,
                "tensors %s and .lora_b have shapes (%lld,%lld) and (%lld,%lld), but the model "
                "needs (%lld,r) and (r,%lld)",
                a->name, (long long)a->d[0], (long long)a->d[1], (long long)b->d[0],
                (long long)b->d[1], (long long)in, (long long)out);
        to->rank = to->rank > 0 ? to->rank : a->d[1];
        targets += sprintf(targets, "%s,", p.name);
        if (a->d[1] != to->rank)
            ranks += sprintf(ranks, "%s=%lld,", p.name, (long long)a->d[1]);
        to->pairs++;
    }
    targets -= targets > to->targets;
    ranks -= ranks > to->ranks;
    *targets = *ranks = 0;
    for (size_t i = 0; i < g->tensor_count && 2 * to->pairs != g->tensor_count; i++) {
        const char *name = g->tensors[i].name;
        char weight[MODEL_NAME], part[MODEL_NAME];
        model_parameter p;
        int known = 0;
        for (int64_t k = 0; k < model_param_count(c) && !known; k++)
            if (model_module(c, k, &p) && gguf_weight_of(arch, c, p.name, weight))
                known = strcmp(name, model_join(part, weight, ".lora_a")) == 0 ||
                        strcmp(name, model_join(part, weight, ".lora_b")) == 0;
        if (!known)
            return gguf_fail(g, "tensor %s belongs to no layer of the model", name);
    }
    return to->pairs > 0 ? 0 : gguf_fail(g, "has no tensors of LoRA");
}

/* Loads the values of A and B of a module. */
static inline int gguf_adapter_values(adapters *a, gguf *g, const gguf_architecture *arch,
                                      const char *module, const char *weight)
{
    static const char *const ends[] = { ".lora_A.weight", ".lora_B.weight" };
    for (int i = 0; i < 2; i++) {
        const gguf_tensor *t = gguf_lora_tensor(g, weight, i ? ".lora_b" : ".lora_a");
        char name[MODEL_NAME];
        gckpt_parameter p;
        const int at = gckpt_store_find(a->store, model_join(name, module, ends[i]));
        if (t == NULL)
            continue;
        if (gckpt_store_get(a->store, at, &p) != GCKPT_OK)
            return gguf_fail(g, "%s", gckpt_error_text(a->store));
        const model_config *c = &a->model->config;
        const gguf_order order = gguf_order_of(arch, c, module, p.shape.d[0]),
                         as_is = { 0, 0, 1, 0 };
        const gguf_order column_order = i ? as_is : gguf_column_order_of(c, module);
        const int64_t columns = p.shape.d[1];
        float *values = (float *)malloc((size_t)columns * sizeof *values);
        int failed = values == NULL ? gguf_fail(g, "out of memory for a row of %s", name) : 0;
        for (int64_t row = 0; row < p.shape.d[0] && !failed; row++) {
            failed = gguf_read_floats(g, t, (i ? gguf_file_row(order, row) : row) * columns,
                                      columns, values) != 0;
            for (int64_t k = 0; k < columns && !failed; k++)
                p.values[row * columns + gguf_param_row(column_order, k)] = values[k];
        }
        free(values);
        if (failed)
            return -1;
        gckpt_store_push(a->store, name);
    }
    return 0;
}

/* Checks that the file is a LoRA adapter for the architecture of the model. */
static inline int gguf_adapter_begin(gguf *g, const gguf_architecture *arch, const model_config *c)
{
    const char *type = gguf_text(g, "general.type", NULL);
    const char *kind = gguf_text(g, "adapter.type", NULL);
    const char *name = gguf_text(g, "general.architecture", NULL);
    if (g->error[0] != 0)
        return -1;
    if (type == NULL ? kind == NULL : strcmp(type, "model") == 0)
        return gguf_fail(g, "is a model; an adapter is expected (--model takes models)");
    if (type == NULL || strcmp(type, "adapter") != 0 || kind == NULL || strcmp(kind, "lora") != 0)
        return gguf_fail(g,
                         "keys general.type and adapter.type are %.40s and %.40s: adapter and "
                         "lora are expected",
                         type != NULL ? type : "missing", kind != NULL ? kind : "missing");
    if (arch == NULL || name == NULL || strcmp(name, arch->name) != 0)
        return gguf_fail(g, "key general.architecture is %.40s; the model is a %s",
                         name != NULL ? name : "missing", arch != NULL ? arch->name : c->type);
    if (gguf_find(g, "adapter.alora.invocation_tokens") != NULL)
        return gguf_fail(g, "key adapter.alora.invocation_tokens: adapters that begin at a token "
                            "are not supported");
    return 0;
}

/* Creates LoRA adapters with the options of a GGUF adapter, and loads their values from it. Returns
 * as adapters_begin. */
static inline int gguf_adapter_load(adapters *a, model_any *m, gckpt_store *store, const char *path)
{
    gguf g;
    gguf_targets found;
    adapters_options o;
    const model_config *c = &m->config;
    const gguf_architecture *arch = gguf_architecture_of(c);
    const size_t size = (size_t)model_param_count(c) * (MODEL_NAME + 24) + 1;
    memset(a, 0, sizeof *a);
    memset(&o, 0, sizeof o);
    memset(&found, 0, sizeof found);
    found.targets = (char *)malloc(2 * size);
    found.ranks = found.targets != NULL ? found.targets + size : NULL;
    if (gguf_open(&g, path) == 0 && found.targets == NULL)
        gguf_fail(&g, "out of memory");
    if (g.error[0] == 0 && gguf_adapter_begin(&g, arch, c) == 0 &&
        gguf_adapter_targets(&g, arch, c, &found) == 0) {
        o.method = ADAPTERS_LORA;
        o.size = found.rank;
        o.alpha = gguf_real(&g, "adapter.lora.alpha", 0);
        /* llama.cpp would use no factor alpha / rank with such an alpha */
        if (g.error[0] == 0 && !(o.alpha > 0))
            gguf_fail(&g, "key adapter.lora.alpha is %g: a number above 0 is expected", o.alpha);
        o.targets = found.targets;
        o.rank_pattern = found.ranks;
    }
    int failed = g.error[0] != 0 || adapters_begin(a, m, store, &o) != 0;
    for (int64_t i = 0; i < model_param_count(c) && !failed; i++) {
        char weight[MODEL_NAME];
        model_parameter p;
        if (model_module(c, i, &p) && gguf_weight_of(arch, c, p.name, weight))
            failed = gguf_adapter_values(a, &g, arch, p.name, weight) != 0;
    }
    if (g.error[0] != 0)
        failed = model_fail(m, "%s", g.error);
    free(found.targets);
    gguf_close(&g);
    return failed ? -1 : 0;
}
#endif
