"""``narsil export-onnx``: an artifact as an ONNX file."""
