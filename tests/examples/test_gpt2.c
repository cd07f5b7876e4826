/* test_gpt2.c - GPT-2 in Hugging Face's files (golden/gpt2.py): logits, ten steps of fine-tuning and generated tokens
 * must equal those of transformers, both for files that transformers wrote and for files written here. A wrong file
 * must be refused with the name of the wrong key or tensor.
 *
 *     build/test_gpt2 [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "tuning.h"

static const model_source mapped = { .map = 1 };

static void test_loading(void)
{
    static const char *const models[] = { "model", "bare", "sharded" };
    for (int i = 0; i < 6; i++) {
        model_any m;
        char folder[64];
        snprintf(folder, sizeof folder, GOLDEN "%s", models[i % 3]);
        gckpt_store *s = tuning_load(&m, folder, i < 3 ? NULL : &mapped);
        tuning_logits(&m, s, NULL, models[i % 3], 1e-4);
        if (i % 3 == 0)
            tuning_generate(&m, s, NULL, "model", golden_generated_model);
        gckpt_store_free(s);
        model_close(&m);
    }
}

/* Returns whether the stores have the same parameters, by name, with the same bits. Their order may differ, as in a
 * mapped file. */
static int same_weights(gckpt_store *a, gckpt_store *b)
{
    gckpt_parameter p, q;
    int same = gckpt_store_count(a) == gckpt_store_count(b);
    for (int i = 0; same && gckpt_store_get(a, i, &p) == GCKPT_OK; i++)
        same = gckpt_store_get(b, gckpt_store_find(b, p.name), &q) == GCKPT_OK &&
               p.elements == q.elements &&
               !memcmp(p.values, q.values, (size_t)p.elements * sizeof *p.values);
    return same;
}

/* Every plan and split of the batch must give the same weights, also for a model that is mapped from its file. */
static void test_training(void)
{
    static const gckpt_mode modes[] = { GCKPT_STORE_ALL, GCKPT_SEGMENTS, GCKPT_MEMORY_POOR };
    static const int64_t rows[] = { GOLDEN_MICRO, GOLDEN_BATCH, 1 };
    model_any m[3];
    gckpt_store *s[3];
    char folder[96];
    for (int i = 0; i < 3; i++) {
        s[i] = tuning_load(&m[i], GOLDEN "model", i == 2 ? &mapped : NULL);
        tuning_train(&m[i], s[i], NULL, "full", golden_losses_model, golden_lr, modes[i], rows[i]);
        tuning_logits(&m[i], s[i], NULL, "model.trained", 1e-4);
        CHECK(same_weights(s[i], s[0]));
    }
    snprintf(folder, sizeof folder, "%s/model", tuning_folder);
    CHECK_MSG(model_save(&m[0], s[0], folder, GCKPT_STORAGE_F32) == 0, "%s", m[0].error);
    tuning_saved("model");
    for (int i = 0; i < 3; i++) {
        gckpt_store_free(s[i]);
        model_close(&m[i]);
    }
    gckpt_store *again = tuning_load(&m[0], folder, NULL);
    tuning_logits(&m[0], again, NULL, "model.trained", 1e-4);
    gckpt_store_free(again);
    model_close(&m[0]);
}

/* Saving must keep all keys of config.json, including unknown ones, except sizes and keys that the saved model itself
 * determines. */
static void test_config(void)
{
    static const tuning_edit edits[] = {
        { "model", "config.json", "\"resid_pdrop\": 0.1",
          "\"resid_pdrop\": 0.0, \"later\": {\"a\": [1e-3, null, \"\\u00e9\"]}", NULL, 0 },
        { "model", "config.json", "\"dtype\": \"float32\"", "\"torch_dtype\": \"float16\"", NULL,
          0 }
    };
    static const char *const says[][4] = { { "\"resid_pdrop\": 0.0",
                                             "\"later\": {\"a\": [1e-3, null, \"\xc3\xa9\"]}",
                                             "\"dtype\": \"bfloat16\"", "torch_dtype" },
                                           { "\"pad_token_id\": 127", "\"n_inner\": null",
                                             "\"torch_dtype\": \"bfloat16\"", " \"dtype" } };
    for (int i = 0; i < 2; i++) {
        model_any m;
        char folder[96], path[128];
        snprintf(folder, sizeof folder, "%s/config", tuning_folder);
        snprintf(path, sizeof path, "%s/config.json", folder);
        gckpt_store *s = tuning_load(&m, tuning_wrong(&edits[i]), NULL);
        CHECK_MSG(model_save(&m, s, folder, GCKPT_STORAGE_BF16) == 0, "%s", m.error);
        file b = tuning_read(path);
        file_write(&b, (const unsigned char *)"", 1);
        const char *text = (const char *)b.bytes;
        for (int k = 0; k < 4; k++)
            CHECK_MSG((strstr(text, says[i][k]) != NULL) == (k < 3), "%s in: %s", says[i][k], text);
        const char *first = strstr(text, "\"n_layer\": 2");
        CHECK(first != NULL && strstr(first + 9, "n_layer") == NULL);
        free(b.bytes);
        gckpt_store_free(s);
        model_close(&m);
    }
}

/* Saving as BF16 or F16 must round like PyTorch. */
static void test_rounding(void)
{
    static const gckpt_storage types[] = { GCKPT_STORAGE_BF16, GCKPT_STORAGE_F16 };
    static const char *const names[] = { "sharded", "bare" };
    for (int i = 0; i < 2; i++) {
        model_any m, again;
        char folder[96];
        snprintf(folder, sizeof folder, "%s/rounded", tuning_folder);
        gckpt_store *s = tuning_load(&m, GOLDEN "model", NULL);
        CHECK_MSG(model_save(&m, s, folder, types[i]) == 0, "%s", m.error);
        gckpt_store_free(s);
        model_close(&m);
        s = tuning_load(&again, folder, NULL);
        tuning_logits(&again, s, NULL, names[i], 1e-4);
        gckpt_store_free(s);
        model_close(&again);
    }
}

static void test_wrong(void)
{
    static const char weights[] = "model.safetensors", config[] = "config.json";
    static const char index[] = "model.safetensors.index.json";
    static const tuning_edit edits[] = {
        { "model", weights, NULL, NULL, "c_attn.weight", 60000 },
        { "model", weights, NULL, NULL, "cut off", 1000 },
        { "model", weights, NULL, NULL, "model.safetensors", 0 },
        { "model", weights, "\"shape\":[64,32]", "\"shape\":[32,64]", "wpe.weight", 0 },
        { "model", weights, "h.1.ln_2.bias", "h.1.ln_3.bias", "h.1.ln_3.bias", 0 },
        { "model", weights, "h.1.ln_2.bias", "h.1.attn.bias", "h.1.ln_2.bias", 0 },
        { "model", weights, "\"F32\"", "\"I32\"", "I32", 0 },
        { "model", config, "\"n_layer\": 2", "\"n_layer\": 3", "h.2.ln_1.weight", 0 },
        { "model", config, "\"n_layer\": 2", "\"n_layer\": 1", "h.1.", 0 },
        { "model", config, "\"n_positions\": 64", "\"n_positions\": 65", "wpe.weight", 0 },
        { "model", config, "\"n_head\": 4", "\"n_head\": 5", "n_head 5", 0 },
        { "model", config, "\"n_head\": 4", "\"n_head\": 0", "n_head: expected a number from 1 to", 0 },
        { "model", config, "\"n_positions\": 64", "\"n_positions\": 16777216",
          "config.json describes", 0 },
        { "model", config, "\"gelu_new\"", "\"quick_gelu\"", "quick_gelu", 0 },
        { "model", config, "layer_idx\": false", "layer_idx\": true", "inverse_layer_idx", 0 },
        { "model", config, "\"gpt2\"", "\"opt\"", "model_type", 0 },
        { "model", config, "\"n_embd\": 32", "\"n_embd\": -32", "n_embd", 0 },
        { "model", config, "1e-05", "1e-06", "layer_norm_epsilon", 0 },
        { "model", config, NULL, NULL, "config.json", 100 },
        { "model", config, NULL, NULL, "config.json", 0 },
        { "sharded", "model-00002-of-00004.safetensors", NULL, NULL, "00002", 0 },
        { "sharded", index, "00003-of", "00033-of", "00033", 0 },
        { "sharded", index, "weight_map", "weight_mob", "weight_map", 0 },
        { "sharded", index, NULL, NULL, "index.json", 300 },
        { "sharded", index, "\"model-00001", "\"../model-00001", "../model-00001", 0 }
    };
    const char *folder = NULL;
    for (size_t i = 0; i < 2 * (sizeof edits / sizeof edits[0]); i++) {
        const tuning_edit *t = &edits[i / 2];
        model_any m;
        gckpt_store *s = gckpt_store_new(NULL);
        folder = i % 2 ? folder : tuning_wrong(t);
        int failed = model_load(&m, s, folder, i % 2 ? &mapped : NULL);
        CHECK_MSG(failed && strstr(m.error, t->says), "%s, %s: \"%s\"", t->file,
                  t->from ? t->to : "cut off", failed ? m.error : "loaded");
        gckpt_store_free(s);
        model_close(&m);
    }
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    test_loading();
    test_training();
    if (argc == 1) {
        test_config();
        test_rounding();
        test_wrong();
    }
    tuning_close(argc);
    return check_report("gpt2");
}
