/* fuzz_config.c - reads any bytes as a model's folder: config.json, generation_config.json, the index of its weights
 * and the headers of one or two weight files.
 *
 * The input is these texts with the byte 0x1e between them. Without an index, the first header is that of
 * model.safetensors; with an index, the headers are those of a.safetensors and b.safetensors. Values are added
 * here, as many as a header claims, up to a limit. Each input is read by model_load; one input in sixteen is
 * mapped, and one in sixteen with few layers is quantised. One loaded model in four generates a text and, unless it
 * is mapped or quantised, is saved and loaded again. The rules: a refusal has an error text, tokens are in the
 * vocabulary, and the saved model equals the loaded one. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "generate.h"
#include "input_hash.h"
#include "memfs.h"
#include "once.h"
#include "reader.h"

enum { VALUES_MOST = 1 << 18 };

/* Writes a weight file: the header's length, the header, and small numbers as values. */
static void put_weights(const char *name, const char *head, size_t size)
{
    static float values[VALUES_MOST / sizeof(float)];
    const uint64_t n = size;
    int64_t most = 0;
    json d;
    char *text = (char *)malloc(size + 1);
    must(text != NULL);
    memcpy(text, head, size);
    text[size] = 0;
    json_init(&d, "head");
    for (uint32_t k = json_parse(&d, text, size) == 0 ? json_first(&d, JSON_ROOT) : 0; k != 0;
         k = json_next(&d, k)) {
        const uint32_t places = json_find(&d, k + 1, "data_offsets");
        const int64_t end = json_size(&d, places) == 2 ? json_int_of(&d, places + 2) : 0;
        most = end > most && end <= VALUES_MOST ? end : most;
    }
    json_free(&d);
    free(text);
    for (size_t i = 0; values[1] == 0 && i < sizeof values / sizeof values[0]; i++)
        values[i] = (float)((int)(i * 7 % 31) - 15) / 64;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(n >> 8 * i);
    memfs_file *f = memfs_new(name);
    memfs_write(f, length, 8);
    memfs_write(f, head, size);
    memfs_write(f, values, (size_t)most);
}

static void try_text(model_any *m, gckpt_store *s)
{
    const sample_options how = { 0.8, 4, 0, 1 };
    const int64_t C = m->config.context;
    const generator_desc desc = { 2, 4, 1, NULL, NULL, C < 8 ? C : 8 };
    const int32_t last = (int32_t)m->config.vocabulary - 1;
    const int32_t prompt[3] = { 0, last, 0 };
    int32_t out[2][8];
    generator g;
    if (generator_new(&g, m, s, &desc) != 0) {
        must(m->error[0] != 0);
        return;
    }
    const int64_t made = generator_text(&g, prompt, desc.capacity < 3 ? 1 : 3, &how, 8,
                                        m->config.eos, out[0], NULL, NULL);
    must(made > 0);
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < made; k++)
            must(out[i][k] >= 0 && out[i][k] <= last);
    generator_free(&g);
}

static void try_saved(model_any *m, gckpt_store *s)
{
    model_any again;
    gckpt_store *other = gckpt_store_new(NULL);
    must(model_save(m, s, reader_path("saved"), GCKPT_STORAGE_F32) == 0);
    if (model_load(&again, other, reader_path("saved"), NULL) != 0) {
        fprintf(stderr, "%s\n", again.error);
        abort();
    }
    must(again.config.layers == m->config.layers && again.config.family == m->config.family);
    must(gckpt_store_hash(other) == gckpt_store_hash(s));
    gckpt_store_free(other);
    model_close(&again);
    reader_remove("saved/config.json");
    reader_remove("saved/model.safetensors");
    reader_remove("saved");
}

/* Returns whether quantising the model is quick enough; the time grows with the square of the number of parameters. */
static int is_shallow(const char *folder)
{
    model_any m;
    const int is = model_read_config(&m, folder) == 0 && m.config.layers <= 8;
    model_close(&m);
    return is;
}

static void try_load(const char *folder, const model_source *source, int deep)
{
    model_any m;
    gckpt_store *s = gckpt_store_new(NULL);
    must(s != NULL);
    if (model_load(&m, s, folder, source) != 0) {
        must(m.error[0] != 0);
    } else {
        must(m.error[0] == 0 && m.config.layers > 0 && m.config.vocabulary > 0);
        if (deep)
            try_text(&m, s);
        if (deep && source == NULL)
            try_saved(&m, s);
    }
    gckpt_store_free(s);
    model_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const names[] = {
        "config.json",       "generation_config.json", "model.safetensors.index.json",
        "model.safetensors", "a.safetensors",          "b.safetensors"
    };
    static const model_source packed = { GCKPT_STORAGE_BF16, 0, NULL, 0 },
                              mapped = { GCKPT_STORAGE_F32, 1, NULL, 0 };
    const reader_parts p = reader_split(bytes, size);
    const uint64_t chosen = input_hash(bytes, size);
    const int sharded = p.size[2] > 0;
    for (int i = 0; i < 3 && i < p.count; i++)
        if (i == 0 || p.size[i] > 0)
            memfs_put(names[i], p.at[i], p.size[i]);
    for (int i = 3; i < 5 && i < p.count; i++)
        if (sharded || i == 3)
            put_weights(names[i + sharded], p.at[i], p.size[i]);
    /* a mapped file must be on disk */
    const char *folder = memfs_folder(chosen % 16 == 1 ? 0 : chosen / 64);
    const model_source *source = chosen % 16 == 1                          ? &mapped
                                 : chosen % 16 == 0 && is_shallow(folder) ? &packed
                                                                           : NULL;
    try_load(folder, source, chosen / 16 % 4 == 0);
    memfs_end();
    return 0;
}

/* Adds the header of a weight file to a seed. */
static void add_head(reader_seed *s, const char *path)
{
    size_t size, n = 0;
    char *text = reader_read(path, &size);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | (unsigned char)text[i];
    must(n + 8 <= size);
    reader_add_part(s, text + 8, n);
    free(text);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const models[] = { "gpt2/model",    "gpt2/bare",      "llama/gqa",
                                          "llama/linear",  "llama/qwen2",    "llama/qwen3",
                                          "llama/smollm3", "llama/yarn",     "llama/gemma",
                                          "llama/mistral", "windows/gemma2", "windows/gemma3",
                                          "tied/differs",  "tied/gpt2",      "tied/equal",
                                          "tied/shared",   "tied/reversed",  "tied/untied" };
    static const char ends[] = "{\"eos_token_id\": [1, 2]}";
    reader_seed s = { NULL, 0 };
    char path[256];
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        snprintf(path, sizeof path, "tests/golden/%s/config.json", models[i]);
        reader_add_file(&s, path);
        reader_add_part(&s, ends, i % 2 == 0 ? sizeof ends - 1 : 0);
        reader_add_part(&s, "", 0);
        snprintf(path, sizeof path, "tests/golden/%s/model.safetensors", models[i]);
        add_head(&s, path);
        reader_end_seed(&s, models[i]);
    }
    /* with an index of two weight files: the second has the whole header, the first an empty one */
    reader_add_file(&s, "tests/golden/llama/gqa/config.json");
    reader_add_part(&s, "", 0);
    const char index[] = "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"}}";
    reader_add_part(&s, index, sizeof index - 1);
    reader_add_part(&s, "{}", 2);
    add_head(&s, "tests/golden/llama/gqa/model.safetensors");
    reader_end_seed(&s, "sharded");
    exit(0);
}

static const char *const words[] = { "\"gpt2\"",
                                     "\"llama\"",
                                     "\"mistral\"",
                                     "\"qwen2\"",
                                     "\"qwen3\"",
                                     "\"smollm3\"",
                                     "\"gemma\"",
                                     "\"gemma2\"",
                                     "\"gemma3_text\"",
                                     "\"yarn\"",
                                     "\"linear\"",
                                     "\"llama3\"",
                                     "{\"rope_type\": \"yarn\", \"factor\": 4}",
                                     "{\"rope_type\": \"yarn\", \"beta_fast\": 1e999}",
                                     "\"silu\"",
                                     "\"gelu_new\"",
                                     "\"relu\"",
                                     "\"full_attention\"",
                                     "\"sliding_attention\"",
                                     "\"a.safetensors\"",
                                     "\"../model.safetensors\"",
                                     "\"F32\"",
                                     "\"F16\"",
                                     "\"BF16\"",
                                     "[1, 0]",
                                     "[-1, 5]",
                                     "1e-6",
                                     "12",
                                     "24",
                                     "4",
                                     NULL };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    return reader_mutate_json(bytes, size, most, seed, words);
}
