/* Hashes of files that onnxruntime 1.32.0 ran with results equal within 9e-07 (tests/golden/make_onnx.py). */
    { "elementwise", 0x7bc9f0ddca021c85 },
    { "axes", 0xe47e5d7ef76bf9d4 },
    { "images", 0x800229c02619342c },
    { "attention", 0x8e21243d42fcd1a4 },
    { "recurrent", 0x3fe602043c1d03ad },
