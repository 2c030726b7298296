"""FP32 checkpoints of DLRMs, whoever trained them: read without running what is pickled in them."""
