"""``make gpu-check``: everything that needs a CUDA device, in one table."""
