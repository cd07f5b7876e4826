/* Hashes of files that onnxruntime 1.32.0 ran with results equal within 9e-07 (tests/golden/make_onnx.py). */
    { "elementwise", 0x7bc9f0ddca021c85 },
    { "axes", 0x4e6e00993b2938bf },
    { "images", 0x800229c02619342c },
    { "attention", 0x405e4940f64a0898 },
    { "recurrent", 0xf04b8bd887e25cc6 },
