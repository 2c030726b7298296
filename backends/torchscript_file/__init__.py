"""Read TorchScript files without PyTorch: a zip of tensors, a pickled tree and code as text."""
