#!/usr/bin/env python3
"""Writes windows/ and windows.h: models with sliding windows and capped scores (Gemma 2 and 3, and
windows for llama.py's Mistral, Qwen2, Qwen3 and SmolLM3), adapters for them, and the results of
transformers and peft in float64.

    python3 tests/golden/windows.py

Uses the functions of llama.py. Windows have 4 to 6 tokens, fewer than the rows of the logits (8), of
the trainings (16) and of the generated texts (38). A folder of VARIANTS contains only a config.json,
under which the weights of another folder give other results. expected.safetensors has every eighth
logit, and gradients as in llama.py."""
import json
import os
import shutil
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import save_file

import gpt2
import llama
from gpt2 import ADAPTER_LR, LR, generate, inputs, print_array, train

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "windows")
GIVEN = llama.FOLDER
EVERY = 8
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
BY_LAYER = {"full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
MODELS = {
    "gemma2": ("gemma2", dict(SMALL, num_hidden_layers=3, head_dim=12, query_pre_attn_scalar=20,
                              sliding_window=5, attn_logit_softcapping=1.5,
                              final_logit_softcapping=4.0)),
    "gemma3": ("gemma3_text", dict(SMALL, num_hidden_layers=4, head_dim=8, query_pre_attn_scalar=8,
                                   sliding_window=6, sliding_window_pattern=3,
                                   rope_parameters=BY_LAYER)),
}


def old_gemma2(config):
    """Removes caps; writes other keys in the form of transformers 4."""
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    config.update(rope_theta=2000.0, attn_logit_softcapping=None, final_logit_softcapping=None,
                  query_pre_attn_scalar=12)


def old_gemma3(config):
    for key in ("rope_parameters", "layer_types"):
        del config[key]
    config.update(rope_theta=50000.0, rope_local_base_freq=1000.0, sliding_window_pattern=3,
                  rope_scaling={"rope_type": "linear", "factor": 4.0})


def capped_gemma3(config):
    """Sets a cap of scores, which transformers' Gemma 3 reads but does not apply."""
    config.update(final_logit_softcapping=5.0, attn_logit_softcapping=1.0,
                  layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=4)
    del config["rope_parameters"]


def window_mistral(config):
    config.update(sliding_window=5)


def window_qwen2(config):
    del config["layer_types"]
    config.update(use_sliding_window=True, sliding_window=5, max_window_layers=1)


def window_qwen3(config):
    config.update(use_sliding_window=True, sliding_window=4,
                  layer_types=["sliding_attention", "full_attention"])


def window_smollm3(config):
    del config["layer_types"]
    config.update(use_sliding_window=True, sliding_window=4)


VARIANTS = {  # name: (folder of the weights, changes to config.json)
    "gemma2_old": ("windows/gemma2", old_gemma2),
    "gemma3_old": ("windows/gemma3", old_gemma3),
    "gemma3_capped": ("windows/gemma3", capped_gemma3),
    "mistral": ("llama/mistral", window_mistral),
    "qwen2": ("llama/qwen2", window_qwen2),
    "qwen3": ("llama/qwen3", window_qwen3),
    "smollm3": ("llama/smollm3", window_smollm3),
}
ADAPTERS = {
    "lora": ("gemma2", lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=8)),
    "all": ("gemma3", lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=1, lora_alpha=3,
                                              target_modules="all-linear")),
    "prefix": ("gemma2", lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM",
                                                         num_virtual_tokens=4)),
    "prompt": ("gemma3", lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM",
                                                         num_virtual_tokens=3)),
}
llama.FOLDER = FOLDER
llama.ADAPTERS = ADAPTERS
llama.random = torch.Generator().manual_seed(20261124)
folder = llama.folder


def logits_of(model, tokens):
    return gpt2.logits_of(model, tokens)[:, :, ::EVERY]


def make_model(name):
    """Like llama.make_model, but norms of Gemma begin at 0."""
    kind, differs = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{**llama.SIZES, **differs})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(llama.normal(p.shape, 0.3 if p.dim() > 1 else 0.1))
    return model


def save_models():
    for name in MODELS:
        made = False
        while not made:
            make_model(name).bfloat16().save_pretrained(folder(name))
            made = llama.steady(name)
        llama.keep_only(folder(name), ("config.json", ".safetensors"))
        os.remove(os.path.join(folder(name), "generation_config.json"))
    for name, (of, change) in VARIANTS.items():
        os.makedirs(folder(name))
        with open(os.path.join(FOLDER, "..", of, "config.json")) as file:
            config = json.load(file)
        change(config)
        with open(os.path.join(folder(name), "config.json"), "w") as file:
            json.dump(config, file, indent=2, sort_keys=True)


def load_variant(name):
    with tempfile.TemporaryDirectory() as both:
        shutil.copy(os.path.join(folder(name), "config.json"), both)
        shutil.copy(os.path.join(FOLDER, "..", VARIANTS[name][0], "model.safetensors"), both)
        return llama.load_model(both)


def load(name):
    if name in ADAPTERS:
        return llama.load_adapter(folder(name), ADAPTERS[name][0])
    return load_variant(name) if name in VARIANTS else llama.load_model(folder(name))


def load_saved(path, name):
    """Loads the model or adapter that test_windows saves (check_peft.py)."""
    if name in ADAPTERS:
        return llama.load_adapter(path, ADAPTERS[name][0])
    return llama.load_model(path)


def main():
    llama.MODELS = {name: (name, {}) for name in
                    ("gemma2", "gemma3", "mistral", "qwen2", "qwen3", "smollm3")}
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    save_models()
    for name in ADAPTERS:
        llama.save_adapter(name)
    tokens, batch, targets, prompt = inputs()
    expected, losses, generated = {}, {}, {}
    for name in (*MODELS, *VARIANTS, *ADAPTERS):
        model = load(name)
        with llama.wide():
            expected[name] = logits_of(model, tokens)
            generated[name] = generate(model, prompt)
            if name not in ADAPTERS:
                expected[name + ".gradients"] = llama.gradients(model, batch, targets)
            losses[name] = train(model, batch, targets, ADAPTER_LR if name in ADAPTERS else LR)
            expected[name + ".trained"] = logits_of(model, tokens)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    for other in ("gemma2_old", "gemma3_capped"):   # the variant must change the logits, or it would test nothing
        if float((expected[other] - expected[other.split("_")[0]]).abs().max()) < 1e-2:
            sys.exit(f"{other} changes nothing")
    with open(FOLDER + ".h", "w") as out:
        out.write("/* windows.h - written by windows.py with PyTorch, transformers and peft in "
                  "float64; do not\n * edit. */\n#ifndef GOLDEN_WINDOWS_H\n#define GOLDEN_WINDOWS_H"
                  f"\n#include \"gpt2.h\"\n\n#define GOLDEN_EVERY {EVERY}\n")
        for name, value in losses.items():
            print_array(out, "double", "windows_losses_" + name, value)
        for name, value in generated.items():
            print_array(out, "int32_t", "windows_generated_" + name, value.flatten().tolist())
        out.write("static const struct {\n    const char *name, *weights; /* the folder that has "
                  "them */\n    const char *base; /* of an adapter; NULL for a model */\n"
                  "    const double *losses;\n    const int32_t *made;\n} golden_windows[] = {\n")
        for name in losses:
            weights = VARIANTS[name][0] if name in VARIANTS else "windows/" + name
            base = f'"{ADAPTERS[name][0]}"' if name in ADAPTERS else "NULL"
            out.write(f"    {{ \"{name}\", \"{weights}\", {base}, windows_losses_{name},\n"
                      f"      windows_generated_{name} }},\n")
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
