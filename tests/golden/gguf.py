#!/usr/bin/env python3
"""Writes gguf/ and gguf.h: GGUF files that llama.cpp converts from models and an adapter of this
folder, and the gguf package's values of random blocks of each type.

    LLAMA_CPP=path/to/llama.cpp python3 tests/golden/gguf.py

LLAMA_CPP is its source tree with build/bin/llama-quantize; torch and transformers are needed as well.
The models have no tokenizers, so the script gives the converter substitutes. gguf/llama-q8_0.gguf comes
from llama/gqa, gguf/gpt2-q4_0.gguf from gpt2/model, gguf/lora.gguf from llama/lora, quantised by the
converter and llama-quantize. gguf.h has random blocks with finite scales, and the bits of their
values."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LLAMA_CPP = os.environ["LLAMA_CPP"]
sys.path[:0] = [LLAMA_CPP, os.path.join(LLAMA_CPP, "gguf-py")]
import gguf
import numpy as np
import torch
from conversion import ModelBase, get_model_class
from conversion.base import ModelType, get_model_architecture
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

HERE = Path(os.path.dirname(os.path.abspath(__file__)))
FOLDER = HERE / "gguf"
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
HALVES = {"F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}  # offsets of binary16 numbers in a block


def vocabulary(model):
    n = model.hparams["vocab_size"]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_tokenizer_pre("default")
    model.gguf_writer.add_token_list([b"t%d" % i for i in range(n)])
    model.gguf_writer.add_token_types([1] * n)
    ends = model.hparams["eos_token_id"]
    model.gguf_writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)


def convert(source, target, kind):
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        folder = Path(folder) / "model"
        shutil.copytree(source, folder)
        config = json.loads((folder / "config.json").read_text())
        config.setdefault("n_ctx", config.get("n_positions"))
        (folder / "config.json").write_text(json.dumps(config))
        parameters = ModelBase.load_hparams(folder, False)
        model = get_model_class(get_model_architecture(parameters, ModelType.TEXT))
        model.set_vocab = vocabulary
        model(folder, kind, target, eager=True, model_name="golden").write()


def blocks(name, random):
    kind = GGMLQuantizationType[name]
    values, size = GGML_QUANT_SIZES[kind]
    rows = random.integers(0, 256, (1 if values == 256 else 2, max(size, 32)
                                    if values == 1 else size), dtype=np.uint8)
    rows = rows[:1] if values == 1 else rows
    for at in HALVES.get(name, []):  # exponents below 31 are finite
        step = 2 if values == 1 else rows.shape[1]
        for k in range(at, rows.shape[1], step):
            rows[:, k + 1] &= 0xbb
    if name in ("F32", "BF16"):
        rows[:, GGML_QUANT_SIZES[kind][1] - 1::GGML_QUANT_SIZES[kind][1]] &= 0xbf
    wanted = dequantize(rows, kind).astype(np.float32).reshape(-1)
    return rows.reshape(-1), wanted.view(np.uint32)


def put(out, kind, name, numbers, width, form):
    out.write("static const %s %s[] = {\n" % (kind, name))
    for i in range(0, len(numbers), width):
        out.write("    " + ", ".join(form % int(x) for x in numbers[i:i + width]) + ",\n")
    out.write("};\n")


def main():
    FOLDER.mkdir(exist_ok=True)
    convert(HERE / "llama" / "gqa", FOLDER / "llama-q8_0.gguf", gguf.LlamaFileType.MOSTLY_Q8_0)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "gpt2.gguf"
        convert(HERE / "gpt2" / "model", whole, gguf.LlamaFileType.ALL_F32)
        subprocess.run([os.path.join(LLAMA_CPP, "build/bin/llama-quantize"), whole,
                        FOLDER / "gpt2-q4_0.gguf", "Q4_0"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([sys.executable, os.path.join(LLAMA_CPP, "convert_lora_to_gguf.py"), "--base",
                    HERE / "llama" / "gqa", "--outfile", FOLDER / "lora.gguf",
                    HERE / "llama" / "lora"], check=True)
    random = np.random.default_rng(33)
    with open(HERE / "gguf.h", "w") as out:
        out.write("/* Made by gguf.py: bytes of blocks, and the bits of their values. */\n")
        for name in TYPES:
            raw, wanted = blocks(name, random)
            put(out, "unsigned char", "golden_%s" % name, raw, 20, "%d")
            put(out, "uint32_t", "golden_%s_values" % name, wanted, 8, "0x%x")


main()
