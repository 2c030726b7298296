"""A TorchRec DLRM on one CUDA device; every call of CUDA itself is in ``hardware.py``."""
