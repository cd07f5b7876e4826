#!/usr/bin/env python3
"""Writes gguf/decoders/: a small model of each architecture that gguf.py and decoders.py have no GGUF file of,
as llama.cpp converts it to F16, and their logits from transformers in float64.

    LLAMA_CPP=path/to/llama.cpp python3 tests/golden/gguf_decoders.py

LLAMA_CPP is its source tree; torch and transformers are needed as well. The models are those of decoders.py
with changes that the converter requires: no biases that llama.cpp does not read, a context that Hunyuan's
models have, heads of width / heads columns and an epsilon for GLM; for Gemma 4, no factor of positions, and
keys that are shared by the layers after one with full attention. Made with llama.cpp of llama-cpp-python
0.3.36."""
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path[:0] = [os.environ["LLAMA_CPP"], os.path.join(os.environ["LLAMA_CPP"], "gguf-py")]
import decoders
import llama
from gpt2 import inputs

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
FOLDER = HERE / "gguf" / "decoders"
GEMMA4 = {kind: {key: value for key, value in rope.items() if key != "factor"}
          for kind, rope in decoders.GEMMA4["rope_parameters"].items()}
CHANGES = {
    "glm": dict(head_dim=4, rms_norm_eps=1e-5),
    "ministral3": {},
    "hunyuan": dict(max_position_embeddings=32768),
    "ernie": dict(use_bias=False),
    "neox": {},
    "gemma4": dict(attention_bias=False, num_kv_shared_layers=3, rope_parameters=GEMMA4),
    "gemma4_big": dict(rope_parameters=GEMMA4),
}


def converter():
    """Returns gguf.py of this folder without its main(); the package has the same name."""
    text = (HERE / "gguf.py").read_text()
    spec = importlib.util.spec_from_loader("convert", loader=None)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(HERE / "gguf.py")
    exec(text[:text.rindex("main()")], module.__dict__)
    from conversion.mistral3 import Mistral3Model
    Mistral3Model.Ministral3Model.set_vocab = module.vocabulary
    load = module.ModelBase.load_hparams

    def load_all(*arguments, **options):
        """Adds a key of Pythia's files, which transformers 5 renames."""
        config = load(*arguments, **options)
        rope = config.get("rope_parameters") or {}
        return {"rotary_pct": rope.get("partial_rotary_factor"), **config}

    module.ModelBase.load_hparams = staticmethod(load_all)
    return module


def main():
    torch.set_num_threads(1)
    convert = converter()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    expected, tokens = {}, inputs()[0]
    for name, changes in CHANGES.items():
        kind, differs = decoders.MODELS[name]
        decoders.MODELS[name] = (kind, {**differs, **changes})
        decoders.seed(name)
        with tempfile.TemporaryDirectory() as folder:
            decoders.make_model(name).bfloat16().save_pretrained(folder)
            model = llama.load_model(folder)
            with llama.wide():
                expected[name] = decoders.logits_of(model, tokens).detach()
            names = {f"t{i}": i for i in range(model.config.vocab_size)}   # counted for Gemma
            decoders.write_config(os.path.join(folder, "tokenizer.json"),
                                  {"model": {"vocab": names}, "added_tokens": []})
            convert.convert(folder, FOLDER / (name + ".gguf"), convert.gguf.LlamaFileType.MOSTLY_F16)
    expected = {name: value.float().contiguous() for name, value in expected.items()}
    save_file({name: value.float().contiguous() for name, value in expected.items()},
              FOLDER / "expected.safetensors")


main()
