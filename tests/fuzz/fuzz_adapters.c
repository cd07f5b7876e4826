/* fuzz_adapters.c - reads any bytes as the folder of a peft adapter: adapter_config.json and the header of
 * adapter_model.safetensors.
 *
 * The input is these two texts with the byte 0x1e between them. The adapter is for a Llama-like model, or if the input
 * has a third part of any content, for a GPT-2. The values of tensors are added here. Each input is read by
 * adapters_load; for one input in four, the adapter is also saved and loaded again. The rules: a refused input has an
 * error text, and the saved adapter equals the loaded one. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "adapters.h"
#include "input_hash.h"
#include "memfs.h"
#include "once.h"
#include "reader.h"

enum { VALUES_MOST = 1 << 16 };
static model_any models[2];

static void put_weights(const char *head, size_t size)
{
    static float values[VALUES_MOST / sizeof(float)];
    memfs_file *f = memfs_new("adapter_model.safetensors");
    uint8_t length[8];
    size_t most = 0;
    /* position of the end of the last tensor's data, as far as the header can be read */
    for (size_t i = 0; i + 1 < size; i++)
        if (head[i] == ',' && head[i + 1] >= '0' && head[i + 1] <= '9') {
            const unsigned long end = strtoul(head + i + 1, NULL, 10);
            most = end > most && end <= VALUES_MOST ? end : most;
        }
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> 8 * i);
    memfs_write(f, length, 8);
    memfs_write(f, head, size);
    memfs_write(f, values, most);
}

/* Loads an adapter from a folder, and if `to` is not NULL, saves it there. Returns a hash of the adapter, or 0 if the
 * folder was refused. */
static uint64_t loaded(const model_any *model, const char *folder, const char *to)
{
    adapters a;
    uint64_t hash = 0;
    model_any m = *model;
    gckpt_store *s = gckpt_store_new(NULL);
    must(s != NULL);
    m.error[0] = 0;
    if (adapters_load(&a, &m, s, folder) != 0) {
        must(m.error[0] != 0);
    } else {
        must(m.error[0] == 0);
        hash = gckpt_store_hash(s) | 1;
        if (to != NULL)
            must(adapters_save(&a, reader_path(to), "base") == 0);
    }
    adapters_end(&a);
    gckpt_store_free(s);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const reader_parts p = reader_split(bytes, size);
    const uint64_t chosen = input_hash(bytes, size);
    const int saves = chosen % 4 == 0;
    char *head = (char *)malloc(p.size[1] + 1);
    if (models[0].config.layers == 0) {
        must(model_read_config(&models[0], "tests/golden/llama/gqa") == 0);
        must(model_read_config(&models[1], "tests/golden/gpt2/model") == 0);
    }
    must(head != NULL);
    if (p.size[1] > 0)
        memcpy(head, p.at[1], p.size[1]);
    head[p.size[1]] = 0;
    const model_any *model = &models[p.count > 2];
    memfs_put("adapter_config.json", p.at[0], p.size[0]);
    put_weights(head, p.size[1]);
    free(head);
    const uint64_t first = loaded(model, memfs_folder(chosen / 4), saves ? "saved" : NULL);
    if (first != 0 && saves) {
        must(loaded(model, reader_path("saved"), NULL) == first);
        reader_remove("saved/adapter_config.json");
        reader_remove("saved/adapter_model.safetensors");
        reader_remove("saved/README.md");
        reader_remove("saved");
    }
    memfs_end();
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const names[] = { "adapters/llama_dora",
                                         "adapters/llama_module",
                                         "adapters/llama_saved",
                                         "adapters/llama_tied",
                                         "llama/lora",
                                         "llama/adaption",
                                         "llama/biases",
                                         "llama/patterns",
                                         "llama/prefix",
                                         "llama/prompt",
                                         "adapters/gpt2_dora",
                                         "adapters/gpt2_saved",
                                         "gpt2/lora",
                                         "gpt2/adaption",
                                         "gpt2/biases",
                                         "gpt2/patterns",
                                         "gpt2/prefix",
                                         "gpt2/prompt" };
    reader_seed s = { NULL, 0 };
    char path[256];
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t size, n = 0;
        snprintf(path, sizeof path, "tests/golden/%s/adapter_config.json", names[i]);
        reader_add_file(&s, path);
        snprintf(path, sizeof path, "tests/golden/%s/adapter_model.safetensors", names[i]);
        char *text = reader_read(path, &size);
        for (int k = 7; k >= 0; k--)
            n = n << 8 | (unsigned char)text[k];
        must(n + 8 <= size);
        reader_add_part(&s, text + 8, n);
        if (strstr(names[i], "gpt2") != NULL)
            reader_add_part(&s, "", 0);
        free(text);
        reader_end_seed(&s, names[i]);
    }
    exit(0);
}

static const char *const words[] = { "\"LORA\"",
                                     "\"ADAPTION_PROMPT\"",
                                     "\"PREFIX_TUNING\"",
                                     "\"PROMPT_TUNING\"",
                                     "\"CAUSAL_LM\"",
                                     "\"all\"",
                                     "\"lora_only\"",
                                     "\"all-linear\"",
                                     "\"q_proj\"",
                                     "[\"q_proj\", \"v_proj\"]",
                                     "[\"lm_head\", \"embed_tokens\"]",
                                     "\".*\\\\.(q|v)_proj$\"",
                                     "\"model.layers.[0-9]*(a|b)+.*\"",
                                     "{\".*\": 3}",
                                     "[0, 1]",
                                     "[0, 99]",
                                     "4",
                                     NULL };

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    return reader_mutate_json(bytes, size, most, seed, words);
}
