#!/usr/bin/env python3
"""Writes adapters/ and adapters.h: DoRA adapters and adapters with modules_to_save or
layers_to_transform, as peft saves them, for models of gpt2/ and llama/, with the results that PyTorch
computes.

    python3 tests/golden/adapters.py

Uses the models and helpers of gpt2.py and llama.py. Everything is computed in float64 with torch 2.15,
transformers 5.23 and peft 0.21. For the other direction, check_peft.py loads the adapters that gradckpt
saves."""
import json
import os
import shutil

import peft
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import gpt2
import llama
from gpt2 import ADAPTER_LR, generate, inputs, keep_only, logits_of, print_array, train

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapters")
ADAPTERS = {  # name: (model, keyword arguments of peft's config, ..)
    "gpt2_dora": ("gpt2/model", dict(
        r=3, lora_alpha=6, use_dora=True, use_rslora=True, fan_in_fan_out=True, bias="lora_only",
        target_modules=["c_attn", "mlp.c_proj"], rank_pattern={"c_attn": 2})),
    "gpt2_saved": ("gpt2/model", dict(
        r=2, fan_in_fan_out=True, target_modules=["c_fc"], modules_to_save=["wte", "ln_f"],
        layers_to_transform=1)),
    "llama_dora": ("llama/qwen2", dict(
        r=2, lora_alpha=5, lora_dropout=0.1, use_dora=True, layers_pattern="layers",
        layers_to_transform=[0], target_modules=[
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
    "llama_saved": ("llama/gqa", dict(
        r=2, use_dora=True, modules_to_save=["lm_head", "norm"], layers_to_transform=[1])),
    "llama_tied": ("llama/gqa", dict(
        r=2, modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "llama_module": ("llama/mha", dict(
        r=2, modules_to_save=["o_proj", "lm_head"], target_modules="all-linear")),
}
random = torch.Generator()


def folder(name):
    return os.path.join(FOLDER, name)


def load_base(base):
    kind, name = base.split("/")
    return gpt2.load_model(name) if kind == "gpt2" else llama.load_model(llama.folder(name))


def trains(name):
    return any(part in name for part in ("lora_", "modules_to_save."))


def save_adapter(name):
    """Sets all trained values at random, including those that training starts at 0."""
    base, options = ADAPTERS[name]
    config = peft.LoraConfig(task_type="CAUSAL_LM", **json.loads(json.dumps(options)))
    model = peft.get_peft_model(load_base(base).float(), config)
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            noise = torch.randn(*p.shape, generator=random)
            if p.requires_grad and ("magnitude" in parameter or "modules_to_save" in parameter):
                p.mul_(1 + 0.3 * noise)
            elif p.requires_grad:
                p.copy_(0.1 * noise)
    model.peft_config["default"].base_model_name_or_path = "tests/golden/" + base
    model.save_pretrained(folder(name))
    keep_only(folder(name), ("config.json", ".safetensors"))
    path = os.path.join(folder(name), "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    config["target_modules"].sort()             # peft's order changes from run to run
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def load_saved(path, name):
    """Loads a model and the adapter of a folder; the adapter's values can be trained."""
    model = peft.PeftModel.from_pretrained(load_base(ADAPTERS[name][0]), path)
    biases = ADAPTERS[name][1].get("bias") == "lora_only"
    for parameter, p in model.named_parameters():
        p.data = p.data.double()
        p.requires_grad_(trains(parameter) or
                         (biases and parameter.endswith("base_layer.bias")))
    return model.eval()


def file_name(parameter):
    """Returns the name of a parameter in peft's file."""
    return (parameter.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")
            .replace(".modules_to_save", ""))


def gradients(model, tokens, targets):
    """Returns sums over the gradients of trained parameters, as llama.gradients, by the names in peft's
    file. Returns None if a gradient is almost 0 somewhere: there Adam's first step has a sign that
    depends on rounding. (c_attn's bias may be such, since a bias of keys changes nothing.)"""
    model.zero_grad()
    F.cross_entropy(logits_of(model, tokens).flatten(0, 1), targets.flatten(),
                    ignore_index=-1).backward()
    rows = []
    for name, p in sorted((file_name(name), p) for name, p in model.named_parameters()
                          if p.requires_grad):
        g = p.grad.flatten()
        if "c_attn.base_layer" not in name and g[g != 0].abs().min() < 1e-7:
            return None
        places = torch.arange(g.numel()) * 2654435761
        signs = 1.0 - 2.0 * ((places >> 15) & 1).double()
        rows.append([float((g * g).sum()), float((g * signs).sum())])
    model.zero_grad()
    return torch.tensor(rows)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    tokens, batch, targets, prompt = inputs()
    expected, losses, generated = {}, {}, {}
    for name in ADAPTERS:
        for seed in range(1000):
            random.manual_seed(seed)
            save_adapter(name)
            model = load_saved(folder(name), name)
            with llama.wide():
                expected[name + ".gradients"] = gradients(model, batch, targets)
            if expected[name + ".gradients"] is not None:
                break
        with llama.wide():
            expected[name] = logits_of(model, tokens)
            generated[name] = generate(model, prompt)
            losses[name] = train(model, batch, targets, ADAPTER_LR)
            expected[name + ".trained"] = logits_of(model, tokens)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    with open(FOLDER + ".h", "w") as out:
        out.write("/* adapters.h - written by adapters.py with PyTorch, transformers and peft in "
                  "float64; do not\n * edit. */\n#ifndef GOLDEN_ADAPTERS_H\n"
                  "#define GOLDEN_ADAPTERS_H\n#include <stdint.h>\n\n")
        for name, value in losses.items():
            print_array(out, "double", "adapters_losses_" + name, value)
        for name, value in generated.items():
            print_array(out, "int32_t", "adapters_generated_" + name, value.flatten().tolist())
        out.write("static const struct {\n    const char *name, *base;\n    const double *losses;\n"
                  "    const int32_t *made;\n} golden_adapters[] = {\n")
        for name, (base, _) in ADAPTERS.items():
            out.write(f'    {{ "{name}", "tests/golden/{base}", adapters_losses_{name},\n'
                      f"      adapters_generated_{name} }},\n")
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
