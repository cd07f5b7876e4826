#!/usr/bin/env python3
"""Writes llama/ and llama.h: small Llama-like models and adapters as transformers and peft save them,
with the results that PyTorch computes.

    python3 tests/golden/llama.py

Uses the tokens, trainings and generation of gpt2.py. The models have random weights, but real names,
types and files: most are BF16, mha is F32, bare is LlamaModel in F16 with the frequencies that old
files contain, sharded is gqa in several files. expected.safetensors has logits and, for each
parameter's gradient, the sum of squares and a sum with signs; llama.h has losses of trainings and
generated tokens. Everything is computed in float64, including norms, the softmax of attention and the
angles of positions, for which transformers requests float32 (see wide). Only the angles per position
are made in float32, as in transformers."""
import contextlib
import importlib
import json
import os
import shutil

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

import gpt2
from gpt2 import (ADAPTER_LR, LR, generate, inputs, keep_only, logits_of, print_array, train)

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama")
SIZES = dict(vocab_size=gpt2.VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=64, bos_token_id=0,
             eos_token_id=gpt2.VOCABULARY - 1, pad_token_id=None)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 256}
MODELS = {  # name: (model_type, differences from SIZES)
    "mha": ("llama", dict(num_key_value_heads=4)),
    "gqa": ("llama", dict(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=LLAMA3,
                          rms_norm_eps=1e-5, eos_token_id=[126, 127, 3],
                          max_position_embeddings=128)),
    "mqa": ("llama", dict(num_key_value_heads=1, head_dim=12, attention_bias=True, mlp_bias=True,
                          hidden_act="gelu")),
    "linear": ("llama", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "yarn": ("llama", dict(num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=YARN,
                           max_position_embeddings=1024)),
    "mistral": ("mistral", dict(num_key_value_heads=2, sliding_window=None,
                                rope_parameters={"rope_type": "default", "rope_theta": 1e6})),
    "qwen2": ("qwen2", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": ("qwen3", dict(num_key_value_heads=2, head_dim=16)),
    "smollm3": ("smollm3", dict(num_key_value_heads=2, num_hidden_layers=3,
                                no_rope_layer_interval=2)),
    "gemma": ("gemma", dict(num_key_value_heads=1, head_dim=16)),
}
ADAPTERS = {  # name: (model, keyword arguments of peft's config, ..)
    "lora": ("gqa", lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8)),
    "patterns": ("mqa", lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=6, use_rslora=True, target_modules="all-linear",
        rank_pattern={"layers.1.self_attn.q_proj": 5, "down_proj": 2},
        alpha_pattern={"layers.0.mlp.up_proj": 9, "o_proj": 4})),
    "biases": ("qwen2", lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, bias="all",
        target_modules=r".*\.layers\.[01]\.(self_attn\.k_proj|mlp.gate_proj)")),
    "gemma_lora": ("gemma", lambda: peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "down_proj"])),
    "prefix": ("gqa", lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)),
    "prompt": ("smollm3", lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM",
                                                          num_virtual_tokens=5)),
    "adaption": ("mistral", lambda: peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=5,
                                                              adapter_layers=1)),
}
POSITIONS = {  # settings of real models, for llama_frequencies
    "Llama 3.2": dict(head_dim=64, max_position_embeddings=131072, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "Qwen 2.5, yarn": dict(head_dim=128, max_position_embeddings=131072, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
        "original_max_position_embeddings": 32768}),
    "yarn, all that it has": dict(head_dim=64, max_position_embeddings=65536, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "beta_fast": 24, "beta_slow": 2,
        "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False,
        "original_max_position_embeddings": 4096}),
    "yarn, attention factor": dict(head_dim=32, max_position_embeddings=4096, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "attention_factor": 1.5,
        "original_max_position_embeddings": 2048}),
    "linear": dict(head_dim=16, rope_parameters={
        "rope_type": "linear", "rope_theta": 50000.0, "factor": 3.0}),
}
random = torch.Generator().manual_seed(20261123)


def normal(shape, scale):
    return (torch.randn(*shape, generator=random) * scale).float()


def folder(name):
    return os.path.join(FOLDER, name)


# ---- models --------------------------------------------------------------------------------------
def make_model(name):
    """Random weights, large enough that logits differ; also for biases and gains."""
    kind, differs = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **differs})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            gain = 1.0 if "norm" in parameter and kind != "gemma" else 0.0
            p.copy_(gain + normal(p.shape, 0.2 if p.dim() > 1 else 0.1))
    return model


def edit_config(name, change):
    path = os.path.join(folder(name), "config.json")
    with open(path) as file:
        config = json.load(file)
    change(config)
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def as_before(config):
    """Writes scaled positions in the form of transformers 4."""
    del config["rope_parameters"]
    config.update(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})


def save_bare(model):
    bare = model.model.half()
    bare.save_pretrained(folder("bare"))
    path = os.path.join(folder("bare"), "model.safetensors")
    tensors = load_file(path)
    for i in range(SIZES["num_hidden_layers"]):
        tensors[f"layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, path, metadata={"format": "pt"})


def steady(name):
    """Returns whether no gradient is almost 0. For such a gradient Adam's first updates are as large as
    for others, with a sign that depends on rounding, so the model must be made again. Gradients that are
    0 except for rounding belong to values without an effect, as biases of keys without rotary positions."""
    model = load_model(folder(name))
    _, batch, targets, _ = inputs()
    with wide():
        F.cross_entropy(logits_of(model, batch).flatten(0, 1), targets.flatten(),
                        ignore_index=-1).backward()
    grads = torch.cat([p.grad.flatten().abs() for p in model.parameters()])
    return bool(grads[grads > 1e-13].min() > 1e-7)


def save_models():
    for name in MODELS:
        made = False
        while not made:
            model = make_model(name)
            (model if name == "mha" else model.bfloat16()).save_pretrained(folder(name))
            made = steady(name)
        if name == "linear":
            edit_config(name, as_before)
        if name == "gqa":
            model.save_pretrained(folder("sharded"), max_shard_size="12KB")
            save_bare(model)
    for name in (*MODELS, "sharded", "bare"):
        keep_only(folder(name), ("config.json", ".safetensors", ".index.json"))
        generation = os.path.join(folder(name), "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)


def load_model(path):
    """Loads a model into float64. It is created in float32, so that constants which transformers
    computes first (scales of embeddings, frequencies) have that type whatever the file's type is."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager")
    return model.double().eval()


# ---- adapters ------------------------------------------------------------------------------------
def save_adapter(name):
    """Sets all trained values at random, including those that training starts at 0."""
    base, config = ADAPTERS[name]
    model = peft.get_peft_model(load_model(folder(base)).float(), config())
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(normal(p.shape, 1.0 if "adaption" in parameter else
                               0.1 if "lora_" in parameter else 0.3))
    model.peft_config["default"].base_model_name_or_path = f"tests/golden/{os.path.basename(FOLDER)}/{base}"
    model.save_pretrained(folder(name))
    keep_only(folder(name), ("config.json", ".safetensors"))
    path = os.path.join(folder(name), "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()         # peft's order changes from run to run
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def load_adapter(path, base):
    """Loads a model and the adapter of a folder; the adapter's values can be trained."""
    model = peft.PeftModel.from_pretrained(load_model(folder(base)), path)
    biases = getattr(model.peft_config["default"], "bias", "none") == "all"
    for name, p in model.named_parameters():    # peft creates a prefix in float32
        p.data = p.data.double()
        p.requires_grad_(any(part in name for part in ("lora_", "prompt_encoder", "adaption_"))
                         or (biases and name.endswith(".bias")))
    return model.eval()


def load_saved(path, name):
    """Loads the model or adapter that the tests save (check_peft.py)."""
    return load_adapter(path, ADAPTERS[name][0]) if name in ADAPTERS else load_model(path)


# ---- expected results ----------------------------------------------------------------------------
class Wide:
    """Replaces torch in modules of transformers: its float32 is float64."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def wide():
    kinds = sorted({kind.removesuffix("_text") for kind, _ in MODELS.values()})
    modules = [importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
               for kind in kinds]
    modules.append(importlib.import_module("peft.tuners.adaption_prompt.layer"))
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    for module in modules:
        module.torch = Wide()
    try:
        yield
    finally:
        torch.Tensor.float = narrow
        for module in modules:
            module.torch = torch


def gradients(model, tokens, targets):
    """Returns a row for each parameter, by name, about the gradient of the mean loss over all targets:
    the sum of squares, and a sum in which value i counts negative if bit 15 of i * 2654435761 is
    set."""
    model.zero_grad()
    loss = F.cross_entropy(logits_of(model, tokens).flatten(0, 1), targets.flatten(),
                           ignore_index=-1)
    loss.backward()
    rows = []
    for _, p in sorted((name.removeprefix("model."), p) for name, p in model.named_parameters()):
        g = p.grad.flatten()
        places = torch.arange(g.numel()) * 2654435761
        signs = 1.0 - 2.0 * ((places >> 15) & 1).double()
        rows.append([float((g * g).sum()), float((g * signs).sum())])
    model.zero_grad()
    return torch.tensor(rows)


def write_positions(out):
    """Writes config.json texts and the frequencies that transformers computes from them."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    rows = ""
    for i, (name, differs) in enumerate(POSITIONS.items()):
        config = {**SIZES, "model_type": "llama", "num_key_value_heads": 2, **differs}
        rotary = LlamaRotaryEmbedding(transformers.LlamaConfig(**config))
        print_array(out, "double", f"llama_frequencies_{i}", rotary.inv_freq.tolist())
        text = json.dumps(config)
        chunks = [text[k:k + 64].replace('"', '\\"') for k in range(0, len(text), 64)]
        lines = "\n".join(f'      "{chunk}"' for chunk in chunks)
        rows += (f'    {{ "{name}",\n{lines},\n      llama_frequencies_{i}, '
                 f'{rotary.inv_freq.numel()}, {rotary.attention_scaling:.9g} }},\n')
    out.write("static const struct {\n    const char *name, *config;\n    const double *angles;\n"
              "    int count;\n    double scale;\n} golden_positions[] = {\n" + rows + "};\n")


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    save_models()
    for name in ADAPTERS:
        save_adapter(name)
    tokens, batch, targets, prompt = inputs()
    expected, losses, generated = {}, {}, {}
    bare = load_model(folder("bare"))
    with wide():
        expected["bare"] = logits_of(bare, tokens)
    for name in (*MODELS, *ADAPTERS):
        base = ADAPTERS[name][0] if name in ADAPTERS else None
        model = load_adapter(folder(name), base) if base else load_model(folder(name))
        with wide():
            expected[name] = logits_of(model, tokens)
            generated[name] = generate(model, prompt)
            if not base:
                expected[name + ".gradients"] = gradients(model, batch, targets)
            losses[name] = train(model, batch, targets, ADAPTER_LR if base else LR)
            expected[name + ".trained"] = logits_of(model, tokens)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    with open(FOLDER + ".h", "w") as out:
        out.write("/* llama.h - written by llama.py with PyTorch, transformers and peft in float64; "
                  "do not\n * edit. */\n#ifndef GOLDEN_LLAMA_H\n#define GOLDEN_LLAMA_H\n"
                  "#include \"gpt2.h\"\n\n")
        for name, value in losses.items():
            print_array(out, "double", "llama_losses_" + name, value)
        for name, value in generated.items():
            print_array(out, "int32_t", "llama_generated_" + name, value.flatten().tolist())
        out.write("static const struct {\n    const char *name, *base; /* NULL for a model */\n"
                  "    const double *losses;\n    const int32_t *made;\n} golden_llama[] = {\n")
        for name in losses:
            base = f'"{ADAPTERS[name][0]}"' if name in ADAPTERS else "NULL"
            out.write(f"    {{ \"{name}\", {base}, llama_losses_{name}, llama_generated_{name} }},\n")
        out.write("};\n")
        write_positions(out)
        out.write("#endif\n")


if __name__ == "__main__":
    main()
