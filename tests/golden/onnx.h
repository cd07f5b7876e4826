/* Hashes of files that onnxruntime 1.32.0 ran with results equal within 9e-07 (tests/golden/make_onnx.py). */
    { "elementwise", 0x8aa875c49fbfe6a2 },
    { "axes", 0xd180eabf8e05ca05 },
    { "images", 0xb0122704505f4254 },
    { "attention", 0xee2a53b3e6d7fdf6 },
    { "recurrent", 0x29f85a7b80968fba },
