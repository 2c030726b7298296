"""Backend for TorchRec DLRM TorchScript artifacts on the FBGEMM kernels."""
