"""A DLRM as plain nouns, and its whole forward in C, for every backend that has the weights."""
