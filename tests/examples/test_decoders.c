/* test_decoders.c - the model types of llama.h that test_llama.c and test_windows.c do not have, and LoRA on their fused
 * layers, in Hugging Face's files (golden/decoders.py). Logits, gradients, ten steps and generated tokens must equal
 * those of transformers and peft, both for files that these wrote and for files written here; logits also for GGUF
 * files. A wrong file must be refused with the name of the wrong key.
 *
 *     build/test_decoders [folder for saved files] */
#define _XOPEN_SOURCE 700
#include "gradckpt.h"
#include "check.h"
#include "examples/adapters.h"
#include "golden/decoders.h"
#define GOLDEN       "tests/golden/decoders/"
#define GOLDEN_SAVED "golden/decoders_saved.h"
#include "tuning.h"
#include "tuned.h"

enum { CASES = sizeof golden_decoders / sizeof golden_decoders[0] };

/* Opens a model with its own config.json and the weights of golden_decoders[].weights. */
static void open_base(tuned *t, const char *name, const model_source *source)
{
    char folder[96], command[400];
    int i = 0;
    while (i + 1 < CASES && strcmp(golden_decoders[i].name, name) != 0)
        i++;
    memset(t, 0, sizeof *t);
    snprintf(folder, sizeof folder, "%s/base", tuning_folder);
    snprintf(command, sizeof command,
             "rm -rf %s && mkdir %s && cp " GOLDEN "%s/model.safetensors " GOLDEN
             "%s/config.json %s",
             folder, folder, golden_decoders[i].weights, name, folder);
    CHECK(system(command) == 0);
    t->s = tuning_load(&t->m, folder, source);
    t->how.hooks = &t->a.hooks;
}

static const char config[] = "config.json", weights[] = "model.safetensors";
static const tuning_edit wrong[] = {
    { "gemma4", config, "\"enable_moe_block\": false", "\"enable_moe_block\": true",
      "enable_moe_block: expected false: mixtures of experts", 0 },
    { "gemma4", config, "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 4",
      "num_kv_shared_layers: expected a number of last layers", 0 },
    { "gemma4", config, "\"head_dim\": 16", "\"head_dim\": 12",
      "per_layer_config: expected null, or head_dim", 0 },
    { "gemma4", config, "\"vocab_size_per_layer_input\": 128",
      "\"vocab_size_per_layer_input\": 120", "vocab_size_per_layer_input: expected vocab_size, 128",
      0 },
    { "gemma4", config, "\"proportional\"", "\"yarn\"",
      "rope_type: expected default or proportional", 0 },
    { "gemma4_big", config, "\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false",
      "layers.1.self_attn.v_proj.weight", 0 },
    { "qwen35", config, "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 3",
      "linear_num_value_heads 4 is no multiple of linear_num_key_heads 3", 0 },
    { "qwen35", config, "\"linear_key_head_dim\": 16", "\"linear_key_head_dim\": 1026",
      "expected heads of at most 1024 columns", 0 },
    { "qwen35", config, "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 1",
      "and at least 2 taps", 0 },
    { "qwen35", weights, "layers.1.linear_attn.dt_bias", "layers.1.linear_attn.dt_cias",
      "layers.1.linear_attn.dt_cias", 0 },
    { "phi3_short", config, "1.25,", "", "short_factor: expected 3 numbers", 0 },
    { "phi3_short", config, "1.25", "0", "expected a number above 0 and at most", 0 },
    { "phi3_short", config, "\"long_factor\"", "\"longer\"",
      "rope_type: expected a list long_factor with longrope", 0 },
    { "phi3_short", config, "0.75", "0.4", "partial_rotary_factor: expected a part", 0 },
    { "phi3", weights, "layers.1.mlp.gate_up_proj", "layers.1.mlp.gate_yp_proj",
      "layers.1.mlp.gate_yp_proj", 0 },
};

static void test_wrong(void)
{
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        model_any m;
        gckpt_store *s = gckpt_store_new(NULL);
        const int failed = model_load(&m, s, tuning_wrong(&wrong[i]), NULL);
        CHECK_MSG(failed && strstr(m.error, wrong[i].says), "%s: \"%s\"", wrong[i].to,
                  failed ? m.error : "loaded");
        gckpt_store_free(s);
        model_close(&m);
    }
}

static void test_gguf(void)
{
    static const char *const names[] = { "phi3_long", "granite", "olmo2", "glm4", "qwen35" };
    for (int i = 0; i < 5; i++) {
        char path[96];
        model_any m;
        snprintf(path, sizeof path, GOLDEN "%s.gguf", names[i]);
        gckpt_store *s = tuning_load(&m, path, NULL);
        tuning_logits(&m, s, NULL, names[i], 1e-4);
        gckpt_store_free(s);
        model_close(&m);
    }
}

/* LoRA must have llama.cpp's names in GGUF and come back from there unchanged: of fused layers, also of GPT-NeoX, whose
 * rows have another order in GGUF, and of Gemma 4. */
static void test_export(void)
{
    static const struct {
        const char *base, *adapter, *tensors[2];
    } cases[] = {
        { "phi3", "phi3_lora", { "blk.1.attn_qkv.weight.lora_a", "blk.0.ffn_up.weight.lora_b" } },
        { "neox", "neox_lora", { "blk.0.attn_qkv.weight.lora_a", "blk.1.attn_qkv.weight.lora_b" } },
        { "gemma4_big",
          "gemma4_lora",
          { "blk.0.attn_q.weight.lora_a", "blk.4.ffn_down.weight.lora_b" } },
        { "qwen35", "qwen35_lora", { "blk.0.attn_qkv.weight.lora_a", "blk.1.ssm_out.weight.lora_b" } }
    };
    for (int k = 0; k < 4; k++) {
        char path[96], folder[96];
        tuned t;
        snprintf(path, sizeof path, "%s/lora.gguf", tuning_folder);
        snprintf(folder, sizeof folder, GOLDEN "%s", cases[k].adapter);
        open_base(&t, cases[k].base, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, folder) == 0, "%s", t.m.error);
        CHECK_MSG(gguf_adapter_save(&t.a, path) == 0, "%s", t.m.error);
        end(&t);
        open_base(&t, cases[k].base, NULL);
        CHECK_MSG(adapters_load(&t.a, &t.m, t.s, path) == 0, "%s", t.m.error);
        tuning_logits(&t.m, t.s, &t.how, cases[k].adapter, 1e-4);
        end(&t);
        gguf g;
        CHECK(gguf_open(&g, path) == 0);
        for (int i = 0; i < 2; i++)
            CHECK_MSG(gguf_find_tensor(&g, cases[k].tensors[i]) != NULL, "no %s",
                      cases[k].tensors[i]);
        gguf_close(&g);
    }
}

/* Gemma 4: methods that need equal layers must be refused, and no method may train the factors of the layers. */
static void test_uneven(void)
{
    static const adapters_method methods[] = { ADAPTERS_NEW_BLOCKS, ADAPTERS_LLAMA, ADAPTERS_PREFIX,
                                               ADAPTERS_PROMPT };
    tuned t;
    for (int i = 0; i < 4; i++) {
        const adapters_options o = { .method = methods[i], .layers = 1 };
        open_base(&t, "gemma4", NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &o) != 0 &&
                      strstr(t.m.error, "not for gemma4_text, whose layers differ in size"),
                  "%s", t.m.error);
        end(&t);
    }
    for (int i = 0; i < 2; i++) {
        const adapters_options o = { .method = ADAPTERS_LORA, .targets = "all-linear" };
        const char *name = i ? "gemma4" : "gemma4_big", *gate = "layers.4.per_layer_input_gate";
        char lora[MODEL_NAME];
        open_base(&t, name, NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &o) == 0, "%s", t.m.error);
        CHECK(gckpt_store_find(t.s, "layers.4.mlp.down_proj.lora_A.weight") >= 0);
        CHECK((gckpt_store_find(t.s, model_join(lora, gate, ".lora_B.weight")) >= 0) == i);
        CHECK(gckpt_store_find(t.s, "layers.1.self_attn.v_proj.lora_A.weight") >= 0 || !i);
        end(&t);
    }
    for (int i = 0; i < 2; i++) {
        const adapters_options o = { .method = i ? ADAPTERS_LAST : ADAPTERS_FULL, .layers = 1 };
        gckpt_parameter p;
        open_base(&t, "gemma4", NULL);
        CHECK_MSG(adapters_begin(&t.a, &t.m, t.s, &o) == 0, "%s", t.m.error);
        CHECK(gckpt_store_get(t.s, gckpt_store_find(t.s, "layers.4.layer_scalar"), &p) ==
                  GCKPT_OK &&
              p.frozen);
        CHECK(gckpt_store_get(t.s, gckpt_store_find(t.s, "layers.4.mlp.up_proj.weight"), &p) ==
                  GCKPT_OK &&
              !p.frozen);
        end(&t);
    }
}

int main(int argc, char **argv)
{
    tuning_open(argc, argv);
    for (int i = 0; i < CASES; i++)
        if (golden_decoders[i].base == NULL)
            tuned_model(open_base, golden_decoders[i].name, golden_decoders[i].losses,
                        golden_decoders[i].made);
        else
            tuned_adapter(open_base, golden_decoders[i].name, golden_decoders[i].base,
                          golden_decoders[i].losses, golden_decoders[i].made);
    if (argc == 1) {
        test_gguf();
        test_export();
        test_wrong();
        test_uneven();
    }
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s/base", tuning_folder);
    CHECK(system(command) == 0); /* so that check_peft.py finds only the saved files */
    tuning_close(argc);
    return check_report("decoders");
}
