"""What needs a CUDA device: marked cuda, skipped where there is none."""
