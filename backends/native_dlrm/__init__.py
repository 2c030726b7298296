"""DLRMs computed with NumPy and compiled kernels; no PyTorch in the process."""
