"""DLRMs in ONNX files, computed by ONNX Runtime."""
