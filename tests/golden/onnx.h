/* Hashes of files that onnxruntime 1.32.0 ran with results equal within 9e-07 (tests/golden/make_onnx.py). */
    { "elementwise", 0x7bc9f0ddca021c85 },
    { "axes", 0x4fc41a00c6de85d4 },
    { "images", 0x800229c02619342c },
    { "attention", 0x91f7a711d423d79a },
    { "recurrent", 0x3fe602043c1d03ad },
