"""Runs the files that tests/examples/test_onnx.c exports with onnxruntime, at the batch of the graph and with its first
row alone, compares the results with those of gckpt_forward, and records the files' hashes in tests/golden/onnx.h.

    make build/test_onnx && python tests/golden/make_onnx.py        (pip install onnx onnxruntime numpy)"""
import pathlib
import subprocess
import sys
import tempfile
import numpy as np
import onnx
import onnxruntime as ort

worst = 0.0
with tempfile.TemporaryDirectory() as folder:
    printed = subprocess.run(["build/test_onnx", folder], capture_output=True, text=True, check=True).stdout
    rows = [line for line in printed.splitlines() if line.startswith("    {")]
    for row in rows:
        name = row.split('"')[1]
        path = f"{folder}/{name}"
        onnx.checker.check_model(onnx.load(path + ".onnx"), full_check=True)
        session = ort.InferenceSession(path + ".onnx", providers=["CPUExecutionProvider"])
        given, wanted = dict(np.load(path + ".in.npz")), dict(np.load(path + ".out.npz"))
        batch = len(next(iter(given.values())))
        for n in [batch, 1]:
            got = session.run(None, {k: v[:n] for k, v in given.items()})
            for value, y in zip(session.get_outputs(), got):
                x = wanted[value.name]
                x = x[:n] if value.name != "constant" else x
                error = np.abs(x.astype(float) - y).max() / max(1, np.abs(x).max())
                worst = max(worst, error)
                print(f"{name:12} {value.name:12} {str(y.shape):18} error {error:.1e}")
                if not (x.shape == y.shape and x.dtype == y.dtype and error < 2e-6):
                    sys.exit(f"{name}: {value.name} differs: {x.shape} {x.dtype}, {y.shape} {y.dtype}")
pathlib.Path("tests/golden/onnx.h").write_text(
    f"/* Hashes of files that onnxruntime {ort.__version__} ran with results equal within {worst:.0e} (tests/golden/make_onnx.py). */\n"
    + "\n".join(rows) + "\n")
