"""Tensors by torch.distributed point-to-point, each caller's in a process of its own."""
