#!/usr/bin/env python3
"""Writes decoders/ and decoders.h: a small model of each type that llama.h builds and llama.py and
windows.py do not have, adapters for fused layers, and the results of transformers and peft in float64.

    python3 tests/golden/decoders.py

Uses the functions of llama.py. A folder of VARIANTS contains only a config.json, under which the
weights of another folder give other results. expected.safetensors has every eighth logit, and gradients
as in llama.py. The files of GGUF are written with the gguf package's names of keys and tensors, as
llama.cpp's converter writes them. Positions that change with the length of the text (longrope) have no generated text,
because transformers changes them within a text, and the library builds a graph for one length."""
import json
import os
import shutil
import sys
import tempfile
import zlib

import peft
import torch
import transformers
from safetensors.torch import save_file

import gpt2
import llama
from gpt2 import ADAPTER_LR, LR, generate, inputs, print_array, train

HERE = os.path.dirname(os.path.abspath(__file__))
path, sys.path = sys.path, [folder for folder in sys.path if os.path.abspath(folder) != HERE]
import gguf  # the package, not gguf.py in this folder
sys.path = path
FOLDER = os.path.join(HERE, "decoders")
EVERY = 8
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2)
FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA4 = dict(SMALL, num_hidden_layers=5, head_dim=8, global_head_dim=16, sliding_window=5,
              layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
              vocab_size_per_layer_input=gpt2.VOCABULARY, rope_parameters={
                  FULL: {"rope_type": "proportional", "rope_theta": 1000.0, "factor": 2.0,
                         "partial_rotary_factor": 0.5},
                  SLIDING: {"rope_type": "default", "rope_theta": 100.0}})
QWEN35 = {"conv1d": 1.5, "out_proj": 0.1, "embed_tokens": 0.3, "in_proj_qkv": 0.3}  # sizes of weights
MODELS = {
    "phi3": ("phi3", dict(SMALL, num_attention_heads=2, num_key_value_heads=1)),
    "granite": ("granite", dict(SMALL, attention_bias=True, mlp_bias=True, embedding_multiplier=3.0,
                                residual_multiplier=0.4, attention_multiplier=0.3,
                                logits_scaling=0.5)),
    "olmo2": ("olmo2", dict(SMALL)),
    "glm": ("glm", dict(SMALL, head_dim=8)),
    "glm4": ("glm4", dict(SMALL, head_dim=8)),
    "ministral3": ("ministral3", dict(SMALL, head_dim=8, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7,
        "original_max_position_embeddings": 7})),
    "hunyuan": ("hunyuan_v1_dense", dict(SMALL, head_dim=8, tie_word_embeddings=True,
                                         rope_parameters={
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0})),
    "ernie": ("ernie4_5", dict(SMALL, head_dim=8, use_bias=True)),
    "neox": ("gpt_neox", dict(SMALL, num_attention_heads=2, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    "gemma4": ("gemma4_text", dict(GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True,
                                   hidden_size_per_layer_input=16, attention_bias=True)),
    "gemma4_big": ("gemma4_text", dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1,
                                       hidden_size_per_layer_input=0, final_logit_softcapping=4.0,
                                       tie_word_embeddings=False)),
    "qwen35": ("qwen3_5_text", dict(SMALL, num_hidden_layers=4, head_dim=8, linear_num_key_heads=2,
                                    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=8,
                                    rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                     "partial_rotary_factor": 0.5})),
}


def one_after_the_other(config):
    """Makes the branches of GPT-NeoX sequential, and removes keys that old files do not have."""
    del config["rope_parameters"]
    config.update(use_parallel_residual=False, rotary_pct=0.25, rotary_emb_base=50)


def longrope(original, **factor):
    def change(config):
        config.update(original_max_position_embeddings=original)
        config["rope_parameters"] = {
            **factor, "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.25, 2.0], "long_factor": [1.5, 2.5, 5.0]}
    return change


VARIANTS = {  # name: (folder of the weights, changes to config.json)
    "phi3_short": ("phi3", longrope(64, factor=2.0)),
    "phi3_long": ("phi3", longrope(4)),
    "phi3_both": ("phi3", longrope(12)),
    "neox_old": ("neox", one_after_the_other),
}
UNMADE = ["phi3_both", "glm4_prefix"]
ADAPTERS = {
    "phi3_lora": ("phi3", lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8,
                                                  target_modules=["qkv_proj", "gate_up_proj"])),
    "neox_lora": ("neox", lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8)),
    "gemma4_lora": ("gemma4_big", lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=8,
        target_modules=["q_proj", "v_proj", "down_proj"])),
    "qwen35_lora": ("qwen35", lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=8,
        target_modules=["q_proj", "in_proj_qkv", "in_proj_a", "out_proj"])),
    "glm4_prefix": ("glm4", lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM",
                                                            num_virtual_tokens=3)),
}
llama.FOLDER = FOLDER
llama.ADAPTERS = ADAPTERS
folder = llama.folder
GGUF = {"phi3_long": ("PHI3", 6), "granite": ("GRANITE", 4), "olmo2": ("OLMO2", 4), "glm4": ("GLM4", 4),
        "qwen35": ("QWEN35", 4)}


def seed(name):
    """Gives each model its own random values, so that a new one does not change the others."""
    llama.random = torch.Generator().manual_seed(zlib.crc32(name.encode()))


def logits_of(model, tokens):
    return gpt2.logits_of(model, tokens)[:, :, ::EVERY]


def make_model(name):
    kind, differs = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{**llama.SIZES, **differs})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            gain = 1.0 if p.dim() == 1 and parameter.endswith(".weight") else 0.0
            # gates of large numbers are almost 0, and so are gradients behind them; Gemma 4's scores
            # have no other factor than these gains, and with large scores rounding grows in ten steps
            scale = 0.05 if "input_gate" in parameter else 0.3 if p.dim() > 1 else 0.1
            if kind == "qwen3_5_text":  # most norms multiply by 1 + weight
                gain = 1.0 if parameter.endswith("linear_attn.norm.weight") else 0.0
                # results of a query near 0 of all keys are normalised, so their gradients are large: here queries
                # and keys are large before the activation, so that they have few negative columns
                scale = next((s for part, s in QWEN35.items() if part in parameter), 0.15) if p.dim() > 1 else scale
            gain *= 0.3 if kind == "gemma4_text" and parameter.endswith(("q_norm.weight", "k_norm.weight")) else 1
            p.copy_(gain + llama.normal(p.shape, scale))
        for buffer, p in model.named_buffers():
            if buffer.endswith(".layer_scalar"):
                p.copy_(1 + llama.normal(p.shape, 0.3))
    return model


def write_config(path, config):
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def save_models():
    for name in MODELS:
        seed(name)
        made = False
        while not made:
            make_model(name).bfloat16().save_pretrained(folder(name))
            made = llama.steady(name)
        llama.keep_only(folder(name), ("config.json", ".safetensors"))
        os.remove(os.path.join(folder(name), "generation_config.json"))
    for name, (of, change) in VARIANTS.items():
        os.makedirs(folder(name))
        with open(os.path.join(folder(of), "config.json")) as file:
            config = json.load(file)
        change(config)
        write_config(os.path.join(folder(name), "config.json"), config)


def pairs_together(w, heads):
    """Puts the two rows of each rotated pair of a head next to each other."""
    return w.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def net_in_gguf(name, p, c):
    """Changes a parameter of Qwen 3.5 as llama.cpp's converter does: decays, norms, and heads of values, of which
    those of one key are neighbours here, and those of one number within a key's heads in GGUF."""
    def tiled(x, each):
        return x.unflatten(0, (c.linear_num_key_heads, -1, each)).transpose(0, 1).flatten(0, 2)
    values = c.linear_value_head_dim
    keys = 2 * c.linear_num_key_heads * c.linear_key_head_dim
    if ".in_proj_qkv." in name or ".conv1d." in name:
        p = p[:, 0] if p.dim() == 3 else p
        return torch.cat([p[:keys], tiled(p[keys:], values)])
    if ".out_proj." in name:
        return tiled(p.T, values).T
    if ".in_proj_z." in name:
        return tiled(p, values)
    if ".A_log" in name:
        return tiled(-torch.exp(p), 1)
    if ".linear_attn." in name and ".norm." not in name:
        return tiled(p, 1)
    return p + 1 if name.endswith("norm.weight") and ".linear_attn." not in name else p


def save_gguf(name):
    """Writes NAME.gguf: the architecture and the rotated columns of a head are in GGUF."""
    kind, rotated = GGUF[name]
    model, arch = load(name), gguf.MODEL_ARCH[kind]
    c, rope = model.config, model.config.rope_parameters
    out = gguf.GGUFWriter(folder(name) + ".gguf", gguf.MODEL_ARCH_NAMES[arch])
    out.add_block_count(c.num_hidden_layers)
    out.add_embedding_length(c.hidden_size)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_context_length(c.max_position_embeddings)
    out.add_head_count(c.num_attention_heads)
    out.add_head_count_kv(c.num_key_value_heads)
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    out.add_rope_freq_base(rope["rope_theta"])
    out.add_rope_dimension_count(rotated)
    if kind == "QWEN35":
        out.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
        out.add_ssm_state_size(c.linear_key_head_dim)
        out.add_ssm_group_count(c.linear_num_key_heads)
        out.add_ssm_time_step_rank(c.linear_num_value_heads)
        out.add_ssm_inner_size(c.linear_num_value_heads * c.linear_value_head_dim)
        out.add_full_attention_interval(4)
        out.add_rope_dimension_sections([11, 11, 10, 0])
    if kind in ("GLM4", "QWEN35"):
        out.add_key_length(c.head_dim)
        out.add_value_length(c.head_dim)
    if kind == "GRANITE":
        out.add_embedding_scale(c.embedding_multiplier)
        out.add_residual_scale(c.residual_multiplier)
        out.add_attention_scale(c.attention_multiplier)
        out.add_logit_scale(c.logits_scaling)
    if rope["rope_type"] == "longrope":
        out.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
        out.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for which in ("long", "short"):
            out.add_tensor(f"rope_factors_{which}.weight",
                           torch.tensor(rope[which + "_factor"]).float().numpy())
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    for parameter, p in model.float().state_dict().items():
        if kind == "GRANITE" and (".q_proj." in parameter or ".k_proj." in parameter):
            p = pairs_together(p, c.num_attention_heads if ".q_proj." in parameter
                               else c.num_key_value_heads)
        if kind == "QWEN35":
            p, parameter = net_in_gguf(parameter, p, c), parameter.replace(".dt_bias", ".dt_proj.bias")
        half = p.dim() > 1 and ".conv1d." not in parameter
        if not (parameter == "lm_head.weight" and c.tie_word_embeddings):
            out.add_tensor(names.get_name(parameter, try_suffixes=(".weight", ".bias")),
                           (p.half() if half else p).contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def load(name):
    if name in ADAPTERS:
        return llama.load_adapter(folder(name), ADAPTERS[name][0])
    with tempfile.TemporaryDirectory() as both:
        shutil.copy(os.path.join(folder(name), "config.json"), both)
        shutil.copy(os.path.join(folder(VARIANTS.get(name, [name])[0]), "model.safetensors"), both)
        return llama.load_model(both)


def load_saved(path, name):
    """Loads the model or adapter that test_decoders saves (check_peft.py)."""
    return llama.load_adapter(path, ADAPTERS[name][0]) if name in ADAPTERS else llama.load_model(path)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    llama.MODELS = MODELS
    save_models()
    for name in ADAPTERS:
        seed(name)
        llama.save_adapter(name)
    for name in GGUF:
        save_gguf(name)
    tokens, batch, targets, prompt = inputs()
    expected, losses, generated = {}, {}, {}
    for name in (*MODELS, *VARIANTS, *ADAPTERS):
        model = load(name)
        with llama.wide():
            expected[name] = logits_of(model, tokens)
            generated[name] = None if name in UNMADE else generate(model, prompt)
            if name not in ADAPTERS:
                expected[name + ".gradients"] = llama.gradients(model, batch, targets)
            losses[name] = train(model, batch, targets, ADAPTER_LR if name in ADAPTERS else LR)
            expected[name + ".trained"] = logits_of(model, tokens)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    for name, (of, _) in VARIANTS.items():   # a variant must change results, or it would test nothing
        if abs(losses[name][0] - losses[of][0]) < 1e-3:
            sys.exit(f"{name} changes nothing")
    with open(FOLDER + ".h", "w") as out:
        out.write("/* decoders.h - written by decoders.py with PyTorch, transformers and peft in "
                  "float64; do not\n * edit. */\n#ifndef GOLDEN_DECODERS_H\n#define GOLDEN_DECODERS_H"
                  f"\n#include \"gpt2.h\"\n\n#define GOLDEN_EVERY {EVERY}\n")
        for name in losses:
            print_array(out, "double", "decoders_losses_" + name, losses[name])
            if generated[name] is not None:
                print_array(out, "int32_t", "decoders_generated_" + name,
                            generated[name].flatten().tolist())
        out.write("static const struct {\n    const char *name, *weights; /* the folder that has "
                  "them */\n    const char *base; /* of an adapter; NULL for a model */\n"
                  "    const double *losses;\n    const int32_t *made; /* NULL for none */\n"
                  "} golden_decoders[] = {\n")
        for name in losses:
            base = f'"{ADAPTERS[name][0]}"' if name in ADAPTERS else "NULL"
            made = "NULL" if generated[name] is None else "decoders_generated_" + name
            out.write(f"    {{ \"{name}\", \"{VARIANTS.get(name, [name])[0]}\", {base}, "
                      f"decoders_losses_{name},\n      {made} }},\n")
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
