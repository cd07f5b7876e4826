/* peft.h - saves and loads adapters of adapters.h: adapter_config.json and
 * adapter_model.safetensors, in the format of Hugging Face's peft if peft has the method. To
 * copy with adapters.h.
 *
 *     adapters_save(&a, "adapter", "gpt2");
 *     adapters_load(&a, &model, store, "adapter"); // instead of adapters_begin
 *
 * Methods of peft: LORA (ranks, alphas and targets by pattern, rsLoRA, biases, use_dora,
 * modules_to_save, exclude_modules, ensure_weight_tying, layers_to_transform), ADAPTION_PROMPT,
 * PREFIX_TUNING and PROMPT_TUNING. Other options of peft (target_parameters, ..) are refused
 * with an error that names them; fan_in_fan_out is ignored. Files of the other methods have the
 * trained parameters under the store's names, and the method and its options in
 * "gradckpt_method". */
#ifndef PEFT_H
#define PEFT_H
#include "adapters.h"

static const char *const adapters_peft_types[ADAPTERS_METHODS] = {
    NULL, NULL, NULL, NULL, NULL, "LORA", NULL, "ADAPTION_PROMPT", "PREFIX_TUNING", "PROMPT_TUNING"
};
/* peft's names of the values of model_task */
static const char *const adapters_task_types[] = { "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS",
                                                   "FEATURE_EXTRACTION" };
static const char *const adapters_size_keys[] = { "token_dim", "num_transformer_submodules",
                                                  "num_attention_heads", "num_layers" };
static const char *const adapters_bias_names[] = { "none", "all", "lora_only" };

/* Creates a store in which prefix tuning has the layout of peft: one parameter prompt_embeddings
 * (P,2 layers K), with K = key_heads head_dim, in which each layer's keys are followed by its
 * values. Sets *all to that parameter. Returns NULL with the model's error on failure. */
static inline gckpt_store *adapters_prefix_store(adapters *a, gckpt_parameter *all)
{
    const gckpt_init none = { 0, 0, 0 };
    const model_config *c = &a->model->config;
    const int64_t columns = 2 * c->layers * c->key_heads * c->head_dim;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_param(g, "prompt_embeddings", gckpt_shape2(a->options.size, columns), none);
    gckpt_graph_free(g);
    if (gckpt_store_get(s, 0, all) == GCKPT_OK)
        return s;
    model_fail(a->model, "prefix: out of memory");
    gckpt_store_free(s);
    return NULL;
}

static inline int adapters_fill_prefix(adapters *a, float *to)
{
    const model_config *c = &a->model->config;
    const int64_t K = c->key_heads * c->head_dim, P = a->options.size, n = 2 * c->layers;
    gckpt_graph *g = gckpt_graph_new(a->store, NULL);
    gckpt_tensor **x = (gckpt_tensor **)calloc((size_t)n, sizeof *x);
    float *values = (float *)malloc((size_t)(n * P * K) * sizeof *values);
    int failed = x == NULL || values == NULL ? model_fail(a->model, "prefix: out of memory") : 0;
    a->mlp_hidden = adapters_prefix_mlp(a, g);
    for (int64_t i = 0; i < n && !failed; i++)
        x[i] =
            gckpt_scale(adapters_prefix_kv(a, g, i / 2, i % 2 ? "prefix_value" : "prefix_key"), 1);
    failed = failed || adapters_compute(a, g, x, (int)n, values) != 0;
    /* reorders (n,P,K) to (P,n,K), with n = 2 layers */
    for (int64_t i = 0; i < n * P && !failed; i++)
        memcpy(to + (i % P * n + i / P) * K, values + i * K, (size_t)K * sizeof *to);
    gckpt_graph_free(g);
    free(values);
    free(x);
    return failed ? -1 : 0;
}

typedef struct {
    adapters *a;
    unsigned char *found; /* for each parameter of the store, 1 if the file contains it */
    char name[MODEL_NAME + 32], unknown[MODEL_NAME + 32];
} adapters_files;

/* Returns whether files have the embedding table under two names, as peft writes it if the table is
 * trained and is also the LM head. */
static inline int adapters_saved_twice(const adapters *a)
{
    char table[MODEL_NAME];
    gckpt_parameter p;
    model_join(table, a->model->config.family->embeddings, ".weight");
    return a->options.tied && a->model->config.tied && *a->options.modules_to_save != 0 &&
           gckpt_store_peek(a->store, gckpt_store_find(a->store, table), &p) == GCKPT_OK &&
           !p.frozen;
}

/* Returns a store whose parameters share memory with the trained ones, and which has the embedding
 * table also as lm_head.weight. Returns NULL with the model's error on failure. */
static inline gckpt_store *adapters_tied_store(adapters *a)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_parameter p;
    char table[MODEL_NAME];
    model_join(table, a->model->config.family->embeddings, ".weight");
    int failed = s == NULL;
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK && !failed; i++) {
        if (p.frozen)
            continue;
        failed = gckpt_store_get(a->store, i, &p) != GCKPT_OK ||
                 gckpt_store_external(s, p.name, p.shape, p.values, 0) != GCKPT_OK ||
                 (strcmp(p.name, table) == 0 &&
                  gckpt_store_external(s, "lm_head.weight", p.shape, p.values, 0) != GCKPT_OK);
    }
    if (!failed)
        return s;
    model_fail(a->model, "out of memory");
    gckpt_store_free(s);
    return NULL;
}

/* A gckpt_file_desc.rename for saving: returns a parameter's name in the file, or NULL for a frozen
 * parameter, which is not saved. */
static inline const char *adapters_save_name(void *user, const char *name)
{
    adapters_files *f = (adapters_files *)user;
    const adapters_method method = f->a->options.method;
    gckpt_parameter p;
    if (strcmp(name, "lm_head.weight") == 0 && f->a->model->config.tied)
        return "base_model.model.lm_head.weight";
    if (gckpt_store_peek(f->a->store, gckpt_store_find(f->a->store, name), &p) != GCKPT_OK ||
        p.frozen)
        return NULL;
    if (method != ADAPTERS_LORA && method != ADAPTERS_LLAMA)
        return name;
    int n = (int)strlen(name);
    const char *bias = method == ADAPTERS_LORA && adapters_ends_with(name, ".bias") ? ".bias" : "";
    n -= (int)strlen(bias);
    snprintf(f->unknown, sizeof f->unknown, "%.*s.lora_A.weight", n, name);
    const int wrapped = bias[0] != 0 && gckpt_store_find(f->a->store, f->unknown) >= 0;
    snprintf(f->name, sizeof f->name, "base_model.model.%s%.*s%s%s",
             model_file_prefix(&f->a->model->config, name), n, name, wrapped ? ".base_layer" : "",
             bias);
    return f->name;
}

/* Returns the name of a file's tensor without the prefixes that peft and the model's family add. */
static inline const char *adapters_bare_name(const adapters *a, const char *name)
{
    static const char before[] = "base_model.model.";
    const size_t n = strlen(before);
    return model_bare_name(&a->model->config, name + (strncmp(name, before, n) == 0 ? n : 0));
}

/* A gckpt_file_desc.rename for loading: returns the name of the parameter that a file's tensor
 * belongs to, or NULL to skip the tensor. */
static inline const char *adapters_load_name(void *user, const char *name)
{
    adapters_files *f = (adapters_files *)user;
    gckpt_parameter p;
    const char *full = name;
    name = adapters_bare_name(f->a, name);
    if (strcmp(name, "lm_head.weight") == 0 && adapters_saved_twice(f->a))
        /* skips lm_head.weight: adapters_check_tied has found that it equals the embedding table */
        return NULL;
    if (adapters_ends_with(name, ".base_layer.bias"))
        snprintf(f->name, sizeof f->name, "%.*s.bias", (int)strlen(name) - 16, name);
    else
        snprintf(f->name, sizeof f->name, "%s", name);
    const int i = gckpt_store_find(f->a->store, f->name);
    if (gckpt_store_peek(f->a->store, i, &p) == GCKPT_OK && !p.frozen)
        return f->found[i] = 1, f->name;
    if (f->unknown[0] == 0)
        snprintf(f->unknown, sizeof f->unknown, "%s", full);
    return NULL;
}

/* Writes `targets` as value of `key`. A list of plain names becomes an array. Patterns become one
 * regular expression that matches whole names, because peft matches a single text in this way. */
static inline void adapters_put_targets(FILE *f, const char *key, const char *targets)
{
    const size_t n = strlen(targets);
    fprintf(f, ",\n  \"%s\": ", key);
    /* one pattern that matches whole names already */
    if (strncmp(targets, "(.*\\.)?", 7) == 0 && strchr(targets, ',') == NULL) {
        json_write_string(f, targets, n);
        return;
    }
    if (strncmp(targets, "^(", 2) == 0) { /* a text that adapters_read_regex has converted */
        json_write_string(f, targets + 2, n - 3);
        return;
    }
    const int names = targets[strspn(targets, "abcdefghijklmnopqrstuvwxyz_.,0123456789")] == 0;
    fputs(names ? "[" : "\"(.*\\\\.)?(", f);
    for (const char *p = targets; *p != 0;) {
        const char *end = p + strcspn(p, ",");
        if (names)
            json_write_string(f, p, (size_t)(end - p));
        for (; !names && p < end; p++)
            fprintf(f, *p == '\\' || *p == '"' ? "\\%c" : "%c", *p);
        p = end + (*end == ',');
        fputs(*p == 0 ? "" : names ? ", " : "|", f);
    }
    fputs(names ? "]" : ")\"", f);
}

static inline void adapters_put_patterns(FILE *f, const char *key, const char *list)
{
    fprintf(f, ",\n  \"%s\": {", key);
    for (const char *p = list; *p != 0;) {
        const char *end = p + strcspn(p, ","), *equals = end;
        while (*--equals != '=')
            ;
        json_write_string(f, p, (size_t)(equals - p));
        fprintf(f, ": %.*s", (int)(end - equals - 1), equals + 1);
        p = end + (*end == ',');
        fputs(*p == 0 ? "" : ", ", f);
    }
    fputs("}", f);
}

/* Sets sizes[] to the sizes of the model, in the order of adapters_size_keys. For prefix tuning,
 * key heads count instead of heads. */
static inline void adapters_sizes(const model_config *c, adapters_method method, int64_t *sizes)
{
    const int prefix = method == ADAPTERS_PREFIX;
    sizes[0] = prefix ? c->key_heads * c->head_dim : c->width;
    sizes[1] = 1;
    sizes[2] = prefix ? c->key_heads : c->heads;
    sizes[3] = c->layers;
}

/* Writes the options of LoRA that adapters_write_config does not write, if they differ from their
 * defaults. */
static inline void adapters_put_lora(FILE *f, const adapters_options *o)
{
    int64_t greatest = 0, written = 0;
    if (o->dora)
        fputs(",\n  \"use_dora\": true", f);
    for (const char *p = o->modules_to_save; *p != 0; p += *p == ',') {
        const size_t n = strcspn(p, ",");
        fputs(p == o->modules_to_save ? ",\n  \"modules_to_save\": [" : ", ", f);
        json_write_string(f, p, n);
        p += n;
        fputs(*p == 0 ? "]" : "", f);
    }
    if (*o->modules_to_save != 0 && o->tied)
        fputs(",\n  \"ensure_weight_tying\": true", f);
    if (*o->layers_to_transform == 0)
        return;
    adapters_in_layers(o->layers_to_transform, 0, &greatest);
    fputs(",\n  \"layers_to_transform\": [", f);
    for (int64_t i = 0; i <= greatest; i++)
        if (adapters_in_layers(o->layers_to_transform, i, NULL) > 0)
            fprintf(f, written++ > 0 ? ", %lld" : "%lld", (long long)i);
    fputs("]", f);
}

/* Writes adapter_config.json to a temporary file in DIR and closes it; `path` becomes the temporary
 * file's name. */
static inline int adapters_write_config(const adapters *a, const char *dir, const char *base,
                                        char *path)
{
    const adapters_options *o = &a->options;
    const model_config *c = &a->model->config;
    int64_t sizes[4];
    const long long size = (long long)o->size;
    const char *peft = adapters_peft_types[o->method];
    adapters_sizes(c, o->method, sizes);
    FILE *f = model_begin_file(a->model, path, dir, "adapter_config.json");
    if (f == NULL)
        return -1;
    fprintf(f, "{\n  \"%s\": \"%s\",\n  \"base_model_name_or_path\": ",
            peft ? "peft_type" : "gradckpt_method", peft ? peft : adapters_names[o->method]);
    if (base != NULL)
        json_write_string(f, base, strlen(base));
    else
        fputs("null", f);
    if (peft == NULL)
        fprintf(f, ",\n  \"layers\": %lld,\n  \"size\": %lld", (long long)o->layers, size);
    else
        fprintf(f, ",\n  \"task_type\": \"%s\",\n  \"inference_mode\": true",
                adapters_task_types[c->head.task]);
    if (o->method == ADAPTERS_LORA) {
        fprintf(f, ",\n  \"r\": %lld,\n  \"lora_alpha\": %.9g,\n  \"lora_dropout\": %.9g", size,
                o->alpha, o->dropout);
        adapters_put_targets(f, "target_modules", o->targets);
        if (*o->excluded != 0)
            adapters_put_targets(f, "exclude_modules", o->excluded);
        adapters_put_patterns(f, "rank_pattern", o->rank_pattern);
        adapters_put_patterns(f, "alpha_pattern", o->alpha_pattern);
        fprintf(f, ",\n  \"use_rslora\": %s,\n  \"fan_in_fan_out\": %s,\n  ",
                o->rslora ? "true" : "false", c->family->transposed ? "false" : "true");
        fprintf(f, "\"init_lora_weights\": true,\n  \"bias\": \"%s\"",
                adapters_bias_names[o->bias]);
        adapters_put_lora(f, o);
    } else if (o->method == ADAPTERS_LLAMA) {
        fprintf(f, ",\n  \"target_modules\": \"%s\",\n  \"adapter_len\": %lld",
                c->family->attention, size);
        fprintf(f, ",\n  \"adapter_layers\": %lld", (long long)o->layers);
    } else if (peft != NULL) {
        fprintf(f, ",\n  \"num_virtual_tokens\": %lld", size);
        for (int i = 0; i < 4; i++)
            fprintf(f, ",\n  \"%s\": %lld", adapters_size_keys[i], (long long)sizes[i]);
        if (o->method == ADAPTERS_PREFIX)
            fprintf(f, ",\n  \"encoder_hidden_size\": %lld,\n  \"prefix_projection\": false",
                    (long long)sizes[0]);
        else
            fputs(",\n  \"prompt_tuning_init\": \"RANDOM\"", f);
    }
    fputs("\n}\n", f);
    return model_close_json(a->model, f, path);
}

/* Writes DIR/adapter_config.json and DIR/adapter_model.safetensors; for the method FULL, calls
 * model_save instead. base is the name or path of the base model, or NULL. If prefix tuning has an
 * MLP, the file has the keys and values that the MLP computes but not the MLP, as in peft. */
static inline int adapters_save(adapters *a, const char *dir, const char *base)
{
    char path[MODEL_PATH];
    adapters_files files;
    gckpt_file_desc desc;
    gckpt_parameter all;
    gckpt_store *store = a->store;
    if (a->options.method == ADAPTERS_FULL)
        return model_save(a->model, store, dir, GCKPT_STORAGE_F32);
    memset(&desc, 0, sizeof desc);
    memset(&files, 0, sizeof files);
    desc.values_only = 1;
    desc.rename = adapters_save_name;
    desc.user = &files;
    files.a = a;
    if (model_make_folder(a->model, dir) != 0)
        return -1;
    if (a->options.method == ADAPTERS_PREFIX) {
        desc.rename = NULL;
        if ((store = adapters_prefix_store(a, &all)) == NULL)
            return -1;
    } else if (adapters_saved_twice(a) && (store = adapters_tied_store(a)) == NULL) {
        return -1;
    }
    int failed =
        (a->options.method == ADAPTERS_PREFIX && adapters_fill_prefix(a, all.values) != 0) ||
        adapters_write_config(a, dir, base, path) != 0 ||
        model_save_weights(a->model, store, dir, "adapter_model.safetensors", &desc, path) != 0;
    if (store != a->store)
        gckpt_store_free(store);
    return failed ? -1 : 0;
}

/* Appends value `at` to a list of names and, if number is not NULL, "=number". */
static inline void adapters_add_item(json *d, char **to, uint32_t at, const char *number)
{
    const char *text = json_text(d, at);
    if (text[0] == 0 || text[strcspn(text, ",=")] != 0)
        json_mismatch(d, at, "a pattern without , and =");
    *to += sprintf(*to, "%s%s%s,", text, number != NULL ? "=" : "", number != NULL ? number : "");
}

/* Reads layers_to_transform, a number or an array, as a list of indices. layers_pattern is only
 * accepted if it names the model's list of blocks. */
static inline const char *adapters_read_layers(json *d, const model_config *c, char **buffer)
{
    char *to = *buffer;
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, "layers_to_transform");
    const uint32_t pattern = json_find_nonnull(d, JSON_ROOT, "layers_pattern");
    const uint32_t first =
        json_kind_of(d, pattern) == JSON_ARRAY ? json_first(d, pattern) : pattern;
    const int list = json_kind_of(d, all) == JSON_ARRAY;
    char blocks[64];
    int named = first == 0 || json_text(d, first)[0] == 0;
    snprintf(blocks, sizeof blocks, "%s%s", c->family->prefix, c->family->blocks);
    for (uint32_t i = first; i != 0 && !named; i = i == pattern ? 0 : json_next(d, i))
        named = json_is(d, i, c->family->blocks) || json_is(d, i, blocks);
    if (!named)
        json_mismatch(d, pattern, c->family->blocks);
    *to = 0;
    for (uint32_t i = list ? json_first(d, all) : all; i != 0; i = list ? json_next(d, i) : 0) {
        const int64_t layer = json_int_of(d, i);
        if (layer < 0 || layer > 1 << 24)
            json_mismatch(d, i, "a number of at least 0");
        to += sprintf(to, "%s%lld", to > *buffer ? "," : "", (long long)layer % 100000000);
    }
    const char *layers = *buffer;
    *buffer = to + 1;
    return layers;
}

/* Reads the value of a key as a list of names: a text, an array of texts, or an object whose values
 * are numbers. The list is written to *buffer, which advances to its end. */
static inline const char *adapters_read_list(json *d, const char *key, char **buffer)
{
    char *to = *buffer, number[32];
    const uint32_t all = json_find_nonnull(d, JSON_ROOT, key);
    const json_kind kind = json_kind_of(d, all);
    if (kind == JSON_STRING)
        adapters_add_item(d, &to, all, NULL);
    else if (kind != JSON_NOTHING && kind != JSON_ARRAY && kind != JSON_OBJECT)
        json_mismatch(d, all, "names");
    for (uint32_t i = json_first(d, all); i != 0; i = json_next(d, i)) {
        const double x = kind == JSON_OBJECT ? json_real_of(d, i + 1) : 1;
        if (!(x > 0 && x <= ADAPTERS_MAX_ALPHA))
            json_mismatch(d, i + 1, "a number above 0 and at most 1e12");
        snprintf(number, sizeof number, "%.9g", x);
        adapters_add_item(d, &to, i, kind == JSON_OBJECT ? number : NULL);
    }
    const char *list = *buffer;
    to -= to > list; /* removes the comma after the last item */
    *to = 0;
    *buffer = to + 1;
    return list;
}

/* Reads a list like adapters_read_list. But a single text must match a whole name in peft, so it
 * becomes the pattern ^(TEXT). */
static inline const char *adapters_read_regex(json *d, const char *key, char **buffer)
{
    char *to = *buffer;
    const int is_text = json_kind_of(d, json_find(d, JSON_ROOT, key)) == JSON_STRING;
    memcpy(to, "^(", is_text ? 2 : 0);
    *buffer += is_text ? 2 : 0;
    adapters_read_list(d, key, buffer);
    if (is_text)
        *buffer += sprintf(*buffer - 1, ")");
    return to;
}

/* Returns an error for keys of adapter_config.json that are not supported, unless their value means
 * that they are off. */
static inline void adapters_refuse_others(json *d, const model_config *c, adapters_method method)
{
    static const char known[] =
        " base_model_name_or_path gradckpt_method layers size peft_type peft_version auto_mapping "
        "revision inference_mode task_type r lora_alpha lora_dropout target_modules rank_pattern "
        "alpha_pattern use_rslora bias fan_in_fan_out init_lora_weights megatron_core "
        "qalora_group_size adapter_len adapter_layers num_virtual_tokens token_dim num_layers "
        "num_attention_heads num_transformer_submodules encoder_hidden_size prefix_projection "
        "init_weights prompt_tuning_init prompt_tuning_init_text tokenizer_kwargs "
        "tokenizer_name_or_path ";
    static const char lora_keys[] =
        " use_dora exclude_modules modules_to_save ensure_weight_tying layers_to_transform "
        "layers_pattern ";
    static const char *const inits[] = { "gaussian", "orthogonal", "eva" };
    const uint32_t init = json_find(d, JSON_ROOT, "init_lora_weights");
    uint32_t at = json_find_nonnull(d, JSON_ROOT, "task_type");
    int allowed = json_kind_of(d, init) != JSON_STRING;
    for (int i = 0; i < 3; i++)
        allowed |= json_is(d, init, inits[i]);
    if (!allowed)
        json_mismatch(d, init,
                   "true, false, gaussian, orthogonal or eva: other methods change the base model");
    if (at && !json_is(d, at, adapters_task_types[c->head.task]))
        json_mismatch(d, at, adapters_task_types[c->head.task]);
    at = json_find_nonnull(d, JSON_ROOT, "target_modules");
    if (at && method == ADAPTERS_LLAMA && !json_is(d, at, c->family->attention))
        json_mismatch(d, at, c->family->attention);
    for (uint32_t k = json_first(d, JSON_ROOT); k != 0; k = json_next(d, k)) {
        const json_kind kind = json_kind_of(d, k + 1);
        const int is_off = kind == JSON_NULL || kind == JSON_FALSE ||
                       ((kind == JSON_ARRAY || kind == JSON_OBJECT) && json_size(d, k + 1) == 0);
        char key[64];
        snprintf(key, sizeof key, " %s ", json_text(d, k));
        if (!is_off && strstr(known, key) == NULL &&
            (method != ADAPTERS_LORA || strstr(lora_keys, key) == NULL))
            json_mismatch(d, k + 1, "null or false: this is not supported");
    }
}

/* Reads adapter_config.json into *o. Texts of the options are written to `buffer`. */
static inline void adapters_read_config(json *d, const model_config *c, adapters_options *o,
                                        char *buffer)
{
    const uint32_t peft = json_find_nonnull(d, JSON_ROOT, "peft_type");
    const char *const *names = peft ? adapters_peft_types : adapters_names;
    const uint32_t name = peft ? peft : json_require(d, JSON_ROOT, "gradckpt_method", JSON_STRING);
    int method = 0;
    memset(o, 0, sizeof *o);
    while (method < ADAPTERS_METHODS && (!names[method] || !json_is(d, name, names[method])))
        method++;
    if (method == ADAPTERS_METHODS) {
        json_mismatch(d, name, "LORA, ADAPTION_PROMPT, PREFIX_TUNING or PROMPT_TUNING");
        return;
    }
    o->method = (adapters_method)method;
    adapters_refuse_others(d, c, o->method);
    o->layers = json_int(d, JSON_ROOT, peft ? "adapter_layers" : "layers", 0);
    o->size = json_int(d, JSON_ROOT,
                       method == ADAPTERS_LORA    ? "r"
                       : method == ADAPTERS_LLAMA ? "adapter_len"
                       : peft                     ? "num_virtual_tokens"
                                                  : "size",
                       method == ADAPTERS_LORA ? 8 : 0);
    o->alpha = json_real(d, JSON_ROOT, "lora_alpha", 8);
    if (peft && (o->size < 1 || !(o->alpha > 0 && o->alpha <= ADAPTERS_MAX_ALPHA)))
        json_fail(d, 0,
                  "size %lld, lora_alpha %g: expected both above 0, and lora_alpha at most "
                  "1e12",
                  (long long)o->size, o->alpha);
    o->dropout = json_real(d, JSON_ROOT, "lora_dropout", 0);
    if (!(o->dropout >= 0 && o->dropout < 1))
        json_fail(d, 0, "lora_dropout %g: expected a number from 0 to below 1", o->dropout);
    o->rslora = json_bool(d, JSON_ROOT, "use_rslora", 0);
    o->lenient = 1;
    if (method == ADAPTERS_LORA) {
        const uint32_t bias = json_find_nonnull(d, JSON_ROOT, "bias");
        int which = 0;
        while (bias && which < 2 && !json_is(d, bias, adapters_bias_names[which]))
            which++;
        if (bias && !json_is(d, bias, adapters_bias_names[which]))
            json_mismatch(d, bias, "none, all or lora_only");
        o->bias = (adapters_bias)which;
        o->targets = adapters_read_list(d, "target_modules", &buffer);
        /* NULL selects the targets that peft has by default */
        o->targets = o->targets[0] != 0 ? o->targets : NULL;
        o->excluded = adapters_read_regex(d, "exclude_modules", &buffer);
        o->rank_pattern = adapters_read_list(d, "rank_pattern", &buffer);
        o->alpha_pattern = adapters_read_list(d, "alpha_pattern", &buffer);
        o->dora = json_bool(d, JSON_ROOT, "use_dora", 0);
        o->modules_to_save = adapters_read_list(d, "modules_to_save", &buffer);
        o->tied = json_bool(d, JSON_ROOT, "ensure_weight_tying", 0);
        o->layers_to_transform = adapters_read_layers(d, c, &buffer);
    } else if (peft) {
        int64_t sizes[4];
        adapters_sizes(c, o->method, sizes);
        for (int i = 0; i < 4; i++)
            if (json_int(d, JSON_ROOT, adapters_size_keys[i], sizes[i]) != sizes[i])
                json_fail(d, 0, "%s: the model has %lld", adapters_size_keys[i],
                          (long long)sizes[i]);
    }
}

/* Returns an error if the file has different values for LM head and embedding table although they
 * are trained as one tensor. */
static inline int adapters_check_tied(adapters *a, const char *path)
{
    model_tensor head, table;
    char name[MODEL_NAME];
    uint64_t data;
    json d;
    if (!adapters_saved_twice(a))
        return 0;
    memset(&head, 0, sizeof head);
    memset(&table, 0, sizeof table);
    model_join(name, a->model->config.family->embeddings, ".weight");
    if (model_read_header(path, &d, &data) == 0)
        for (uint32_t k = json_first(&d, JSON_ROOT); k != 0; k = json_next(&d, k)) {
            const char *bare = adapters_bare_name(a, json_text(&d, k));
            if (strcmp(bare, name) == 0)
                model_describe(&d, k + 1, data, path, &table);
            else if (strcmp(bare, "lm_head.weight") == 0)
                model_describe(&d, k + 1, data, path, &head);
        }
    json_free(&d);
    if (head.path[0] == 0 || table.path[0] == 0 || model_same_values(&head, &table))
        return 0;
    return model_fail(a->model,
                      "%s: lm_head.weight differs from %s, but ensure_weight_tying says that they "
                      "are equal: set it to false to load both",
                      path, name);
}

/* Loads the values of the parameters of an adapter from DIR/adapter_model.safetensors. */
static inline int adapters_load_values(adapters *a, const char *dir)
{
    char path[MODEL_PATH];
    adapters_files files;
    gckpt_file_desc desc;
    gckpt_parameter p;
    memset(&desc, 0, sizeof desc);
    memset(&files, 0, sizeof files);
    desc.values_only = desc.partial = 1;
    desc.rename = adapters_load_name;
    desc.user = &files;
    files.a = a;
    if (model_path(a->model, path, dir, "adapter_model.safetensors") != 0 ||
        adapters_check_tied(a, path) != 0)
        return -1;
    files.found = (unsigned char *)calloc((size_t)gckpt_store_count(a->store), 1);
    if (files.found == NULL)
        return model_fail(a->model, "%s: out of memory", path);
    int failed = gckpt_store_load(a->store, path, &desc) != GCKPT_OK
                     ? model_fail(a->model, "%s: %s", path, gckpt_error_text(a->store))
                     : 0;
    if (!failed && files.unknown[0] != 0)
        failed = model_fail(a->model, "%s: tensor \"%s\" is not trained by \"%s\"%s", path,
                            files.unknown, adapters_names[a->options.method],
                            model_tensor_hint(adapters_bare_name(a, files.unknown)));
    for (int i = 0; gckpt_store_peek(a->store, i, &p) == GCKPT_OK && !failed; i++)
        if (!p.frozen && !files.found[i])
            failed = model_fail(a->model, "%s: has no tensor for \"%s\"", path, p.name);
    free(files.found);
    return failed ? -1 : 0;
}

/* Loads the values of prefix tuning from DIR/adapter_model.safetensors. */
static inline int adapters_load_prefix(adapters *a, const char *dir)
{
    char path[MODEL_PATH];
    gckpt_file_desc desc;
    gckpt_parameter all, p;
    const model_config *c = &a->model->config;
    const int64_t K = c->key_heads * c->head_dim, P = a->options.size, n = 2 * c->layers;
    gckpt_store *store = adapters_prefix_store(a, &all);
    memset(&desc, 0, sizeof desc);
    desc.values_only = 1;
    int failed = store == NULL || model_path(a->model, path, dir, "adapter_model.safetensors") != 0;
    if (!failed && gckpt_store_load(store, path, &desc) != GCKPT_OK)
        failed = model_fail(a->model, "%s: %s", path, gckpt_error_text(store));
    for (int64_t i = 0; i < n && !failed; i++) {
        char name[MODEL_NAME];
        model_block_name(c, name, i / 2, c->family->attention);
        model_join(name, name, i % 2 ? ".prefix_value" : ".prefix_key");
        failed = gckpt_store_get(a->store, gckpt_store_find(a->store, name), &p) != GCKPT_OK
                     ? model_fail(a->model, "%s", gckpt_error_text(a->store))
                     : 0;
        for (int64_t k = 0; k < P && !failed; k++)
            memcpy(p.values + k * K, all.values + (k * n + i) * K, (size_t)K * sizeof *p.values);
        if (!failed)
            gckpt_store_push(a->store, name);
    }
    gckpt_store_free(store);
    return failed ? -1 : 0;
}

/* Sets o->file_bytes to the size of DIR/adapter_model.safetensors, or to 0 if that is too large for
 * a long. */
static inline int adapters_file_size(model_any *m, adapters_options *o, const char *dir)
{
    char path[MODEL_PATH];
    if (model_path(m, path, dir, "adapter_model.safetensors") != 0)
        return -1;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        char other[MODEL_PATH];
        const char *cause = strerror(errno);
        return model_fail(
            m, "%s: cannot open it: %s%s", path, cause,
            model_has_file(m, other, dir, "adapter_model.bin")
                ? "; adapter_model.bin is a pickle, which is not read: in Python, load "
                  "the adapter with peft, then save_pretrained writes this file"
                : "");
    }
    const long end = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    fclose(f);
    o->file_bytes = (int64_t)end + 1;
    return 0;
}

/* Creates an adapter with the options of DIR/adapter_config.json and loads its values from
 * DIR/adapter_model.safetensors. If `dir` is a GGUF file, loads the adapter from that file. Returns
 * 0, or -1 with the model's error. */
static inline int adapters_load(adapters *a, model_any *m, gckpt_store *store, const char *dir)
{
    char path[MODEL_PATH], *buffer = NULL;
    adapters_options o;
    json d;
    if (gguf_is_file(dir))
        return gguf_adapter_load(a, m, store, dir);
    memset(a, 0, sizeof *a);
    if (model_path(m, path, dir, "adapter_config.json") != 0)
        return -1;
    if (json_read_file(&d, path) == 0) {
        /* large enough: a number in the file takes at least two bytes, one of them a separator, and
         * is written to `buffer` with at most 16 characters */
        buffer = (char *)malloc(16 * (size_t)d.owned_capacity + 64);
        if (buffer == NULL)
            json_fail(&d, 0, "out of memory");
        else
            adapters_read_config(&d, &m->config, &o, buffer);
    }
    const int model =
        !model_has_file(m, path, dir, "adapter_config.json") && model_has_file(m, path, dir, "config.json");
    int failed = d.error[0]
                     ? model_fail(m, "%s%s", d.error,
                                  model ? "; config.json says that it is a model: give it as the "
                                          "model, not as an adapter"
                                        : "")
                     : adapters_file_size(m, &o, dir) != 0 || adapters_begin(a, m, store, &o) != 0;
    free(buffer);
    json_free(&d);
    if (failed)
        return -1;
    return o.method == ADAPTERS_PREFIX ? adapters_load_prefix(a, dir)
                                       : adapters_load_values(a, dir);
}
#endif
