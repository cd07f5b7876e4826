#!/usr/bin/env python3
"""Writes config_keys.h: every key of config.json that transformers reads for a model type of
examples/model.h, each with an unusual value and whether that value changes the logits. test_llama.c
reads the list.

    python3 tests/golden/config_keys.py

The keys of a type are: the fields of its config class and of the base classes, the names in its
attribute_map, the keys that configuration classes take from kwargs, and every attribute that is read
from the config while a model is built, run, trained and generates. If no unusual value can be derived
from a key's default, the script stops until the key has a row in VALUES. Versions: torch 2.15,
transformers 5.24."""
import dataclasses
import inspect
import json
import os
import re
import tempfile

import torch
import transformers
from transformers import configuration_utils, modeling_rope_utils

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
QWEN = dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)
FULL, SLIDING = "full_attention", "sliding_attention"
QUERIES = {"rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.5,
           "original_max_position_embeddings": 16}
BASES = {  # settings under which the other keys of a type take effect
    "gpt2": dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=1,
                 eos_token_id=2),
    "llama": dict(),
    "mistral": dict(sliding_window=4),
    "qwen2": QWEN,
    "qwen3": QWEN,
    "smollm3": dict(use_sliding_window=True, sliding_window=4, no_rope_layer_interval=2),
    "gemma": dict(),
    "gemma2": dict(sliding_window=4),
    "gemma3_text": dict(sliding_window=4),
    "phi3": dict(sliding_window=4),
    "granite": dict(),
    "olmo2": dict(),
    "glm": dict(),
    "glm4": dict(),
    "ministral3": dict(sliding_window=4, rope_parameters=QUERIES),
    "hunyuan_v1_dense": dict(),
    "ernie4_5": dict(),
    "gpt_neox": dict(),
    "gemma4_text": dict(sliding_window=4, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64,
                        attention_k_eq_v=True, global_head_dim=8, num_global_key_value_heads=2),
    "qwen3_5_text": dict(layer_types=["linear_attention", FULL, "linear_attention"], head_dim=8,
                         linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                         linear_value_head_dim=6),
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}
VALUES = {  # unusual values that cannot be derived from the default
    "n_inner": [48], "hidden_size": [40], "n_embd": [40], "head_dim": [16], "num_attention_heads": [8, 2],
    "n_head": [8], "num_key_value_heads": [4, 1, None], "activation_function": ["relu", "gelu"],
    "hidden_act": ["relu", "gelu"], "hidden_activation": ["relu", "silu"],
    "summary_type": ["first"], "summary_activation": ["tanh"], "eos_token_id": [3, [3, 4]],
    "bos_token_id": [3], "pad_token_id": [3], "sep_token_id": [3], "layer_types": [[FULL, SLIDING, FULL], [FULL] * 3],
    "no_rope_layers": [[0, 1, 1]], "sliding_window": [2, None], "use_sliding_window": [False],
    "final_logit_softcapping": [1.0, None], "attn_logit_softcapping": [0.5, None],
    "query_pre_attn_scalar": [64], "rope_theta": [500.0], "rope_local_base_freq": [500.0],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 500.0},
                        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, YARN,
                        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
                        {"rope_type": "default", "rope_theta": 10000.0,
                         "partial_rotary_factor": 0.5}],
    "rope_scaling": [{"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}],
    "partial_rotary_factor": [0.5], "rotary_pct": [0.5], "rotary_emb_base": [500.0], "sliding_window_pattern": [2],
    "original_max_position_embeddings": [16],
    "output_cross_attentions": [True], "use_bidirectional_attention": [True], "is_causal": [False], "dtype": ["bfloat16"],
    "torch_dtype": ["bfloat16"], "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0, "b": 1, "c": 2}], "problem_type": ["regression"], "num_labels": [3],
    "architectures": [["AnotherForSequenceClassification"]], "transformers_version": ["4.40.0"],
    "name_or_path": ["a/b"], "attn_implementation": ["eager"], "experts_implementation": ["eager"],
    "max_position_embeddings": [32], "n_positions": [32], "tie_last_hidden_states": [False],
    "attention_chunk_size": [2], "kv_sharing_modes": [["none"] * 3], "hidden_dropout": [0.5],
    "classifier_dropout": [0.5], "gradient_checkpointing": [True], "unpadded_vocab_size": [60],
    "token_classification_bias": [False], "mlp_layer_types": [["dense"] * 3],
    "first_k_dense_replace": [1], "tokenizer_class": ["AnotherTokenizer"],
    "auto_map": [{"AutoConfig": "configuration_other.OtherConfig"}],
    "initializer_range": [0.5], "max_window_layers": [0], "no_rope_layer_interval": [3], "reorder_and_upcast_attn": [True],
    "scale_attn_weights": [False], "add_cross_attention": [True], "rms_norm_eps": [0.1],
    "layer_norm_epsilon": [0.1], "vocab_size": [80], "num_hidden_layers": [2], "n_layer": [2],
}
GEMMA4 = {"layer_types": [[FULL, SLIDING, SLIDING], [SLIDING, FULL, FULL]], "global_head_dim": [16, None],
          "num_global_key_value_heads": [1, None], "use_bidirectional_attention": ["all", "vision"],
          "num_kv_shared_layers": [1, 2], "output_router_logits": [True], "hidden_size_per_layer_input": [0, 12],
          "vocab_size_per_layer_input": [80], "num_experts": [2], "top_k_experts": [1],
          "moe_intermediate_size": [16], "num_attention_heads": [8, 3], "enable_moe_block": [True]}
# Keys without an effect on the logits of a new model: they say which files from_pretrained reads and how, or are
# sizes that differ between layers.
FILES = {"transformers_weights": ["other.safetensors"],
         "per_layer_config": [{"1": {"intermediate_size": 40}}],
         "quantization_config": [{"quant_method": "awq", "bits": 4}]}
# Keys that belong to transformers in general and not to models: Python objects, and arguments of calls.
MACHINERY = re.compile(
    r"^(_.*|sub_configs.*|base_model_.*|model_type|attribute_map|get_.*|to_.*|from_.*|validate.*|"
    r"convert_.*|standardize_.*|is_heterogeneous|default_theta|nested_.*|base_config_key|"
    r"has_no_defaults_at_init|per_layer_attributes|allow_global_per_layer.*|serialize_.*|encoder|decoder|extra_.*|save_pretrained|update|keys_to_ignore.*|"
    r"distributed_config|fusion_config|register_for_auto_class|head_dim_key|text_config|"
    r".*mtp.*|text_encoder|generator|json|use_return_dict|push_to_hub|copy|"
    r"cache_dir|force_download|local_files_only|proxies|token|revision|trust_remote_code|subfolder|"
    r"repo_id|commit_message|gguf_file|return_unused_kwargs|vision_.*|default_rope_type|"
    r"ignore_keys_at_rope_validation|num_heads|number_of_conv_states)$")


def base_of(kind):
    return {"model_type": kind, **({} if kind == "gpt2" else LLAMA), **BASES[kind]}


def config_of(values):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(values, file)
        return transformers.AutoConfig.from_pretrained(folder)


def model_of(values):
    """Gives the same weights to parameters of the same name and shape."""
    model = transformers.AutoModelForCausalLM.from_config(config_of(values)).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            seed = torch.Generator().manual_seed(sum(map(ord, name)) * 7919)
            p.copy_(torch.randn(p.shape, generator=seed) * 0.3)
    return model


TOKENS = torch.randint(3, 60, (2, 24), generator=torch.Generator().manual_seed(1))


def logits_of(values):
    with torch.no_grad():
        return model_of(values)(TOKENS, use_cache=False).logits


def read_while_used(kind):
    """Returns the names of all attributes that are read from a config in use, whether they exist or
    not."""
    read = set()
    plain = transformers.PreTrainedConfig.__getattribute__

    def spy(self, name):
        read.add(name)
        return plain(self, name)

    transformers.PreTrainedConfig.__getattribute__ = spy
    try:
        model = model_of(base_of(kind)).train()
        model(TOKENS, labels=TOKENS).loss.backward()
        model.eval().generate(TOKENS, max_new_tokens=2, do_sample=False)
    finally:
        transformers.PreTrainedConfig.__getattribute__ = plain
    return read


def keys_of(kind):
    classes = [type(config_of(base_of(kind)))]
    if kind == "mistral":
        classes.append(transformers.MinistralConfig)  # AutoConfig chooses this class if there are layer_types
    keys = read_while_used(kind) | {"is_causal", "layer_types", "auto_map", "tokenizer_class"}
    for c in classes:
        keys |= {f.name for f in dataclasses.fields(c)} | set(c.attribute_map)
        for module in (inspect.getmodule(c), configuration_utils, modeling_rope_utils):
            keys |= set(re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", inspect.getsource(module)))
    if kind != "gpt2":
        keys.add("original_max_position_embeddings")
    fields = {f.name for c in classes for f in dataclasses.fields(c)}
    methods = {k for k in keys if callable(getattr(classes[0], k, None))}
    of_generation = set(transformers.GenerationConfig().to_dict()) - fields  # not read from config.json
    return sorted(k for k in keys - methods - of_generation - set(FILES) if not MACHINERY.match(k))


def values_of(kind, key, usual):
    if key == "sliding_window_pattern" and kind != "gemma3_text":
        return []
    if key == "full_attention_interval":
        return []  # layer_types replaces it
    if key == "original_max_position_embeddings":
        return []  # scaled positions use the values of rope_parameters
    if key == "rope_parameters" and kind == "gemma3_text":
        return [{FULL: v, SLIDING: {"rope_type": "default", "rope_theta": 300.0}}
                for v in VALUES[key]]
    if kind == "gemma4_text":
        if key == "rope_parameters":
            return [{FULL: v, SLIDING: {"rope_type": "default", "rope_theta": 300.0}}
                    for v in (*VALUES[key], {"rope_type": "proportional", "rope_theta": 1e6,
                                             "partial_rotary_factor": 0.5})]
        if key in GEMMA4:
            return GEMMA4[key]
    if key == "hidden_act" and kind == "gemma":
        return ["relu", "silu"]  # gelu is an alias of the default
    if key in VALUES:
        return [v for v in VALUES[key] if v != base_of(kind).get(key, usual)]
    if isinstance(usual, bool):
        return [not usual]
    if isinstance(usual, (int, float)):
        return [usual + 1 if isinstance(usual, int) else usual + 0.25]
    raise SystemExit(f"{kind}: no value to try for {key}, which is {usual!r}: add it to VALUES")


def changes(kind, key, value):
    """Returns 1 if transformers then computes other logits or shapes, 0 if the same or if it refuses
    the value."""
    if key in ("dtype", "torch_dtype"):
        return 0  # sets only the precision of computations, to which Gemma's constants are rounded
    try:
        other = logits_of({**base_of(kind), key: value})
    except Exception as error:  # transformers refuses the value
        print(f"{kind} {key} {value}: {type(error).__name__}: {str(error)[:70]}")
        return 0
    same = other.shape == PLAIN.shape and float((other - PLAIN).abs().max()) < 1e-4
    return int(not same)


def rows_of(kind):
    global PLAIN
    PLAIN = logits_of(base_of(kind))
    config = config_of(base_of(kind))
    for key in keys_of(kind):
        for value in values_of(kind, key, getattr(config, key, None)):
            yield key, value, changes(kind, key, value)
    for key, values in FILES.items():
        for value in values:
            yield key, value, 1


def text(value):
    return json.dumps(value).replace("\\", "\\\\").replace('"', '\\"')


def main():
    transformers.logging.set_verbosity(50)
    with open(os.path.join(HERE, "config_keys.h"), "w") as out:
        out.write("/* config_keys.h - written by config_keys.py with transformers: the keys of "
                  "config.json that it\n * reads, and whether the value changes logits there; do not "
                  "edit. */\n#ifndef GOLDEN_CONFIG_KEYS_H\n#define GOLDEN_CONFIG_KEYS_H\n\n"
                  "static const struct {\n    const char *type, *base;\n} golden_types[] = {\n")
        for kind in BASES:
            rest = {k: v for k, v in base_of(kind).items() if k != "model_type"}
            out.write(f'    {{ "{kind}", "{text(rest)}" }},\n')
        out.write("};\n\nstatic const struct {\n    const char *type, *key, *value;\n"
                  "    int changes;\n} golden_keys[] = {\n")
        for kind in BASES:
            for key, value, differs in rows_of(kind):
                out.write(f'    {{ "{kind}", "{key}", "{text(value)}", {differs} }},\n')
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
