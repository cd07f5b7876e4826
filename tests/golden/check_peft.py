#!/usr/bin/env python3
"""Loads the models and adapters that test_gpt2 and test_adapters, test_llama, test_windows or
test_decoders save, with transformers and peft; compares the logits; writes the hashes of accepted files
into gpt2_saved.h, llama_saved.h, windows_saved.h or decoders_saved.h. The tests compare the hashes of
their files with these.

    mkdir build/saved; build/test_gpt2 build/saved; build/test_adapters build/saved
    python3 tests/golden/check_peft.py build/saved gpt2
    mkdir build/llamas; build/test_llama build/llamas
    python3 tests/golden/check_peft.py build/llamas llama
    mkdir build/windows; build/test_windows build/windows
    python3 tests/golden/check_peft.py build/windows windows
    mkdir build/decoders; build/test_decoders build/decoders
    python3 tests/golden/check_peft.py build/decoders decoders

If the library changes how it writes a file, the tests fail until this script has accepted the new
file."""
import importlib
import os
import sys

from safetensors.torch import load_file


def fnv(path):
    """Returns the FNV-1a 64 hash of a file."""
    with open(path, "rb") as file:
        value = 0xcbf29ce484222325
        for byte in file.read():
            value = (value ^ byte) * 0x100000001b3 % 2 ** 64
        return value


def check(golden, saved, name, expected, tokens):
    path = os.path.join(saved, name)
    model = golden.load_saved(path, name)
    trained = expected[name + ".trained"]
    apart = float((golden.logits_of(model, tokens).detach() - trained).abs().max())
    print(f"{name}: logits are {apart:.1e} apart")
    if not apart <= 1e-4:
        sys.exit(f"{path} is not what was trained")


def main():
    saved, kind = sys.argv[1], sys.argv[2]
    golden = importlib.import_module(kind)
    expected = load_file(golden.folder("expected.safetensors"))
    tokens = golden.inputs()[0]
    rows = []
    for name in sorted(os.listdir(saved)):
        check(golden, saved, name, expected, tokens)
        rows += [f"    {{ \"{name}/{file}\", "
                 f"0x{fnv(os.path.join(saved, name, file)):016x}u }},\n"
                 for file in sorted(os.listdir(os.path.join(saved, name)))]
    with open(golden.FOLDER + "_saved.h", "w") as out:
        out.write(f"/* {kind}_saved.h - written by check_peft.py: FNV-1a 64 of files that gradckpt "
                  "saved\n * and transformers and peft loaded, with the right logits; do not edit. */\n"
                  f"#ifndef GOLDEN_{kind.upper()}_SAVED_H\n#define GOLDEN_{kind.upper()}_SAVED_H\n"
                  "#include <stdint.h>\n\n"
                  "static const struct {\n    const char *file;\n    uint64_t hash;\n"
                  "} golden_saved[] = {\n" + "".join(rows) + "};\n#endif\n")


if __name__ == "__main__":
    main()
