#!/usr/bin/env python3
"""Writes gpt2/ and gpt2.h: small GPT-2 models and adapters as transformers and peft save them, with the
results that PyTorch computes.

    python3 tests/golden/gpt2.py

The models have random weights, but real names, types and files: model/ is GPT2LMHeadModel in F32, bare/
is GPT2Model in F16 with the masks that old files contain, sharded/ is BF16 in several files.
expected.safetensors has logits; gpt2.h has tokens, losses of trainings and generated tokens. Weights
are rounded to their type first; everything else is computed in float64. Seeds are fixed: the files
change only with this script and the versions of its imports (torch 2.15, transformers 5.23, peft 0.21).
For the other direction, check_peft.py loads the files that gradckpt saves."""
import json
import math
import os
import shutil
import sys

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpt2")
LAYERS, DIM, HEADS, VOCABULARY, POSITIONS = 2, 32, 4, 128, 64
ROWS, CONTEXT = 2, 8                            # for the logits
BATCH, LENGTH, MICRO, STEPS = 8, 16, 3, 10      # for the trainings, with micro-batches of 3, 3 and 2 rows
PROMPT, NEW = 6, 32                             # tokens of prompt and generation
LR, ADAPTER_LR, DECAY, CLIP = 2e-3, 5e-3, 0.1, 1.0
VIRTUAL = 5
random = torch.Generator().manual_seed(20240701)


def normal(shape, scale):
    return (torch.randn(*shape, generator=random) * scale).float()


def folder(name):
    return os.path.join(FOLDER, name)


def keep_only(path, suffixes):
    for name in os.listdir(path):
        if not name.endswith(suffixes):
            os.remove(os.path.join(path, name))


# ---- models --------------------------------------------------------------------------------------
def make_model():
    """Random weights, large enough that logits differ; also for biases and gains."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=DIM, n_layer=LAYERS, n_head=HEADS,
        bos_token_id=VOCABULARY - 1, eos_token_id=VOCABULARY - 1, pad_token_id=VOCABULARY - 1)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            gain = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            p.copy_(gain + normal(p.shape, 0.2 if p.dim() > 1 else 0.1))
    return model


def save_models(model):
    model.save_pretrained(folder("model"))
    model.bfloat16().save_pretrained(folder("sharded"), max_shard_size="20KB")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder("model"))
    bare = model.transformer.half()
    bare.save_pretrained(folder("bare"))
    path = os.path.join(folder("bare"), "model.safetensors")
    tensors = load_file(path)
    for i in range(LAYERS):
        ones = torch.ones(1, 1, POSITIONS, POSITIONS)
        tensors[f"h.{i}.attn.bias"] = ones.tril().float()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-10000.0)
    save_file(tensors, path, metadata={"format": "pt"})
    for name in ("model", "sharded", "bare"):
        keep_only(folder(name), ("config.json", ".safetensors", ".index.json"))
        generation = os.path.join(folder(name), "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)


def load_model(name):
    """Loads a model of any type into float64, without dropout."""
    model = transformers.GPT2LMHeadModel.from_pretrained(folder(name), dtype="auto")
    model = model.double().eval()
    model.config._attn_implementation = "eager"
    return model


# ---- adapters ------------------------------------------------------------------------------------
ADAPTERS = {
    "lora": peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["c_attn"],
                            fan_in_fan_out=True),
    "patterns": peft.LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=6, use_rslora=True, fan_in_fan_out=True,
        target_modules=["c_attn", "c_proj", "c_fc"],
        rank_pattern={"h.1.attn.c_attn": 5, "mlp.c_proj": 2},
        alpha_pattern={"h.0.mlp.c_fc": 9, "attn.c_proj": 4}),
    "biases": peft.LoraConfig(task_type="CAUSAL_LM", r=2, bias="all", fan_in_fan_out=True,
                              target_modules=r".*\.h\.[01]\.(attn\.c_attn|mlp.c_fc)"),
    "prefix": peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL),
    "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL),
    "adaption": peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=VIRTUAL,
                                          adapter_layers=LAYERS - 1),
}


def save_adapter(name):
    """Sets all trained values at random, including those that training starts at 0."""
    model = peft.get_peft_model(transformers.GPT2LMHeadModel.from_pretrained(folder("model")),
                                ADAPTERS[name])
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(normal(p.shape, 1.0 if "adaption" in parameter else
                               0.1 if "lora_" in parameter else 0.3))
    model.peft_config["default"].base_model_name_or_path = "tests/golden/gpt2/model"
    model.save_pretrained(folder(name))
    keep_only(folder(name), ("config.json", ".safetensors"))
    path = os.path.join(folder(name), "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()         # peft's order changes from run to run
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def load_adapter(path):
    """Loads the adapter of a folder on top of load_model("model"); its values can be trained."""
    model = peft.PeftModel.from_pretrained(load_model("model"), path)
    biases = getattr(model.peft_config["default"], "bias", "none") == "all"
    for name, p in model.named_parameters():    # peft creates a prefix in float32
        p.data = p.data.double()
        p.requires_grad_(any(part in name for part in ("lora_", "prompt_encoder", "adaption_"))
                         or (biases and name.endswith(".bias")))
    return model.eval()


def load_saved(path, name):
    """Loads the model or adapter that the tests save (check_peft.py)."""
    if name != "model":
        return load_adapter(path)
    return transformers.GPT2LMHeadModel.from_pretrained(path).double().eval()


# ---- expected results ------------------------------------------------------------------------------
def logits_of(model, tokens):
    return model(input_ids=tokens).logits[:, -tokens.shape[1]:]     # without a prompt adapter's own positions


def train(model, tokens, targets, lr):
    """Trains with torch.optim.AdamW; losses are summed over micro-batches and divided once. Clips by
    hand, because torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW([
        {"params": [p for p in weights if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in weights if p.dim() < 2], "weight_decay": 0.0}], lr=lr, eps=1e-8)
    count = int((targets >= 0).sum())
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        total = 0.0
        for row in range(0, BATCH, MICRO):
            logits = logits_of(model, tokens[row:row + MICRO])
            loss = F.cross_entropy(logits.flatten(0, 1), targets[row:row + MICRO].flatten(),
                                   ignore_index=-1, reduction="sum")
            loss.backward()
            total += loss.item()
        for p in weights:
            p.grad /= count
        norm = math.sqrt(sum(float((p.grad ** 2).sum()) for p in weights))
        for p in weights:
            p.grad *= min(1.0, CLIP / norm)
        optimiser.step()
        losses.append(total / count)
    return losses


def generate(model, prompt):
    """Generates greedily with the key/value cache. Checks that the same tokens come without a cache,
    and that no choice is close."""
    made = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                          max_new_tokens=NEW, min_new_tokens=NEW, use_cache=True, eos_token_id=None)
    made = made[:, -NEW:]
    whole = torch.cat([prompt, made], 1)
    with torch.no_grad():
        best = logits_of(model, whole)[:, PROMPT - 1:-1].topk(2)
    if not torch.equal(best.indices[:, :, 0], made):
        sys.exit("the cache changes what is generated")
    gap = float((best.values[:, :, 0] - best.values[:, :, 1]).min())
    if gap < 1e-4:
        sys.exit(f"two tokens are {gap:g} apart: take another seed")
    return made


def print_array(out, kind, name, values):
    out.write(f"static const {kind} {name}[{len(values)}] = {{\n")
    line = ""
    for word in (f"{v:.17g}" if kind == "double" else str(v) for v in values):
        if len(line) + len(word) > 92:
            out.write("    " + line.rstrip() + "\n")
            line = ""
        line += word + ", "
    out.write("    " + line.rstrip(", ") + "\n};\n")


def inputs():
    """Returns the tokens of the logits, those of the trainings with their targets, and the prompt."""
    numbers = torch.Generator().manual_seed(20240702)
    tokens = torch.randint(0, VOCABULARY - 1, (ROWS, CONTEXT), generator=numbers)
    batch = torch.randint(0, VOCABULARY - 1, (BATCH, LENGTH), generator=numbers)
    targets = torch.roll(batch, -1, 1)
    targets[torch.rand(BATCH, LENGTH, generator=numbers) < 0.4] = -1
    targets[2] = -1                             # a row without any target
    targets[5, 1:] = -1
    prompt = torch.randint(0, VOCABULARY - 1, (1, PROMPT), generator=numbers)
    return tokens, batch, targets, prompt


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.set_num_threads(1)
    save_models(make_model())
    for name in ADAPTERS:
        save_adapter(name)
    tokens, batch, targets, prompt = inputs()
    expected, losses, generated = {}, {}, {}
    for name in ("bare", "sharded"):
        expected[name] = logits_of(load_model(name), tokens)
    for name in ("model", *ADAPTERS):
        model = load_model(name) if name == "model" else load_adapter(folder(name))
        expected[name] = logits_of(model, tokens)
        generated[name] = generate(model, prompt)
        losses[name] = train(model, batch, targets, LR if name == "model" else ADAPTER_LR)
        expected[name + ".trained"] = logits_of(model, tokens)
    save_file({name: value.detach().float().contiguous() for name, value in expected.items()},
              folder("expected.safetensors"))
    with open(FOLDER + ".h", "w") as out:
        out.write("/* gpt2.h - written by gpt2.py with PyTorch, transformers and peft in float64; "
                  "do not edit. */\n#ifndef GOLDEN_GPT2_H\n#define GOLDEN_GPT2_H\n"
                  "#include <stdint.h>\n\n"
                  f"enum {{ GOLDEN_LAYERS = {LAYERS}, GOLDEN_DIM = {DIM}, GOLDEN_HEADS = {HEADS},\n"
                  f"       GOLDEN_VOCABULARY = {VOCABULARY}, GOLDEN_POSITIONS = {POSITIONS},\n"
                  f"       GOLDEN_ROWS = {ROWS}, GOLDEN_CONTEXT = {CONTEXT},\n"
                  f"       GOLDEN_BATCH = {BATCH}, GOLDEN_LENGTH = {LENGTH},\n"
                  f"       GOLDEN_MICRO = {MICRO},\n"
                  f"       GOLDEN_STEPS = {STEPS}, GOLDEN_COUNT = {int((targets >= 0).sum())},\n"
                  f"       GOLDEN_PROMPT = {PROMPT}, GOLDEN_NEW = {NEW} }};\n"
                  f"static const float golden_lr = {LR}f, golden_adapter_lr = {ADAPTER_LR}f;\n"
                  f"static const float golden_decay = {DECAY}f, golden_clip = {CLIP}f;\n")
        for name, value in (("tokens", tokens), ("batch", batch), ("targets", targets),
                            ("prompt", prompt)):
            print_array(out, "int32_t", "golden_" + name, value.flatten().tolist())
        for name, value in losses.items():
            print_array(out, "double", "golden_losses_" + name, value)
        for name, value in generated.items():
            print_array(out, "int32_t", "golden_generated_" + name, value.flatten().tolist())
        out.write("#endif\n")


if __name__ == "__main__":
    main()
