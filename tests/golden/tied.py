#!/usr/bin/env python3
"""Writes tied/ and tied.h: folders of models whose embeddings and head are one tensor, or should be,
and the logits that transformers computes with them.

    python3 tests/golden/tied.py

differs and gpt2 set tie_word_embeddings but have an lm_head.weight with other values. equal has the
same values in another type. shared is the file that safetensors.torch.save_model writes, reversed the
same with the other name kept. untied says that they are not tied, but has one tensor for both.
Versions: torch 2.15, transformers 5.24, safetensors 0.8."""
import os
import shutil

import torch
import transformers
from safetensors.torch import load_file, load_model, save_file, save_model

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "tied")
TOKENS = [3, 14, 1, 5]
random = torch.Generator().manual_seed(58)


def new_model(kind="llama"):
    sizes = (dict(n_embd=8, n_layer=1, n_head=2, n_positions=8) if kind == "gpt2" else
             dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                  num_key_value_heads=1, max_position_embeddings=8))
    config = transformers.AutoConfig.for_model(kind, vocab_size=16, bos_token_id=0, eos_token_id=0,
                                               tie_word_embeddings=True, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((torch.randn(p.shape, generator=random) * 0.5).bfloat16())
    return model


def write(name, model, change=None):
    """Saves a model's folder. `change` edits the tensors and returns the metadata."""
    path = os.path.join(FOLDER, name)
    model.save_pretrained(path)
    os.remove(os.path.join(path, "generation_config.json"))
    file = os.path.join(path, "model.safetensors")
    if change is not None:
        tensors = load_file(file)
        save_file(tensors, file, metadata=change(tensors) or {"format": "pt"})
    return path


def logits_of(model):
    with torch.no_grad():
        return model.double()(torch.tensor([TOKENS])).logits.reshape(-1).tolist()


def other_head(tensors):
    tensors["lm_head.weight"] = (torch.randn(16, 8, generator=random) * 0.5).bfloat16().float()


def equal_head(tensors):
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].bfloat16()


def reverse(kept):
    other = {"lm_head.weight": "model.embed_tokens.weight",
             "model.embed_tokens.weight": "lm_head.weight"}[kept]

    def change(tensors):
        values = tensors.pop(other, tensors.get(kept))
        tensors[kept] = values
        return {other: kept}
    return change


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    rows = []

    def row(name, tied, values):
        rows.append(f'    {{ "{name}", {tied}, {{ ' + ", ".join(f"{v:.6f}" for v in values) + " } },\n")

    for name, kind, change in (("differs", "llama", other_head), ("gpt2", "gpt2", other_head),
                               ("equal", "llama", equal_head)):
        path = write(name, new_model(kind), change)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        tied = int(loaded.get_input_embeddings().weight is loaded.lm_head.weight)
        row(name, tied, logits_of(loaded))
    model = new_model()
    path = write("shared", model)
    save_model(model, os.path.join(path, "model.safetensors"))
    kept = [k for k in load_file(os.path.join(path, "model.safetensors")) if "embed" in k or "head" in k]
    print("save_model keeps", kept)
    row("shared", 1, logits_of(model))
    model = new_model()
    others = {"lm_head.weight", "model.embed_tokens.weight"} - set(kept)
    path = write("reversed", model, reverse(others.pop()))
    load_model(model, os.path.join(path, "model.safetensors"))
    row("reversed", 1, logits_of(model))
    model = new_model()
    path = write("untied", model, reverse("lm_head.weight"))
    config = os.path.join(path, "config.json")
    with open(config) as file:
        text = file.read()
    with open(config, "w") as file:
        file.write(text.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    row("untied", 0, logits_of(model))
    with open(os.path.join(HERE, "tied.h"), "w") as out:
        out.write("/* tied.h - written by tied.py with transformers; do not edit. */\n"
                  "#ifndef GOLDEN_TIED_H\n#define GOLDEN_TIED_H\n#include <stdint.h>\n\n"
                  "enum { GOLDEN_TIED = 4, GOLDEN_TIED_VOCABULARY = 16 };\n"
                  f"static const int32_t golden_tied_tokens[] = {{ {', '.join(map(str, TOKENS))} }};\n\n"
                  "static const struct {\n    const char *name;\n    int tied;\n"
                  "    double logits[GOLDEN_TIED * GOLDEN_TIED_VOCABULARY];\n} golden_tied[] = {\n"
                  + "".join(rows) + "};\n#endif\n")


if __name__ == "__main__":
    main()
