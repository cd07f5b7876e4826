#!/usr/bin/env python3
"""rescale.py - writes a GGUF model of the same function whose matrices are off every grid of 4 bits.

    python3 tests/bench/rescale.py MODEL.gguf RESCALED.gguf [SEED]
    build/storage --model RESCALED.gguf

Each column of the matrices that read a norm is multiplied by a random number of 0.7 to 1.4, by which
the norm's gain is divided: those of queries, keys and values, of gate and up. (A GGUF file of a Gemma
has the gain as 1 + w, so that it is divided like any other.) These matrices become F32, or else the
file could not have the products. All others, such as the embeddings, keep their bytes. Needs gguf."""
import sys

import gguf
import numpy as np

NORMS = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_gate", "ffn_up")}


def rescale(tensors, seed):
    """Returns the new values by name."""
    random = np.random.default_rng(seed)
    new = {}
    for name, tensor in tensors.items():
        block, _, part = name.removesuffix(".weight").rpartition(".")
        if part not in NORMS:
            continue
        factors = random.uniform(0.7, 1.4, tensor.shape[0]).astype(np.float32)
        new[name] = tensor.data / factors
        for reader in NORMS[part]:
            matrix = tensors["%s.%s.weight" % (block, reader)]
            new[matrix.name] = gguf.dequantize(matrix.data, matrix.tensor_type) * factors
    return new


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    reader = gguf.GGUFReader(sys.argv[1])
    tensors = {t.name: t for t in reader.tensors}
    new = rescale(tensors, int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    writer = gguf.GGUFWriter(sys.argv[2], reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key == "general.architecture" or key.startswith("GGUF."):
            continue
        kind = field.types[0]
        writer.add_key_value(key, field.contents(), kind,
                             field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for name, tensor in tensors.items():
        values = new.get(name)
        if values is None:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
