"""Writes tests/golden/npy with NumPy: arrays of each type that npy.h reads, whose element i in C order is i - 3 (bytes,
booleans: i % 2), of shape (2, 3, 2); and files that it must refuse. tests/examples/test_npy.c reads them.

    python tests/golden/make_npy.py"""
import numpy as np

OUT = "tests/golden/npy/"
x = np.arange(12).reshape(2, 3, 2) - 3
np.save(OUT + "f4.npy", x.astype("<f4"))
np.save(OUT + "i4.npy", x.astype("<i4"))
np.save(OUT + "one.npy", np.arange(5, dtype="<f4"))
np.save(OUT + "scalar.npy", np.float32(7))
np.save(OUT + "object.npy", np.array([1, "x"], dtype=object))
np.save(OUT + "complex.npy", x.astype("c8"))
np.save(OUT + "big.npy", np.array([1 << 40]))
signed = {t: x.astype(t) for t in ["<f2", ">f2", ">f4", "<f8", ">f8", "i1", "<i2", ">i2", ">i4", "<i8", ">i8"]}
unsigned = {t: (x % 2).astype(t) for t in ["?", "u1", "<u2", ">u4", "<u8"]}
arrays = {k.replace("<", "little.").replace(">", "big.").replace("?", "bool"): v for k, v in {**signed, **unsigned}.items()}
np.savez(OUT + "types.npz", fortran=np.asfortranarray(x.astype("<f4")), empty=np.zeros((0, 3), "<f4"), **arrays)
rng = np.random.default_rng(1)
text = np.frombuffer(("a tale of bits and bytes, " * 40).encode(), "u1").astype("<i4")
np.savez_compressed(OUT + "packed.npz", x=x.astype("<f4"), zeros=np.zeros(70000, "u1"), text=text,
                    noise=rng.integers(0, 256, 300).astype("u1"))
halves = np.array([0, 1, 65504, 6e-8, -2.5, np.inf, -np.inf, np.nan, 6.1e-5], "<f2")
np.savez(OUT + "halves.npz", halves=halves, floats=halves.astype("<f4"))
