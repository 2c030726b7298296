"""Fused kernels, each behind a seam with an always-available NumPy member."""
