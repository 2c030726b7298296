"""MovieLens-100K: where it comes from, what it holds, features of it. NumPy only."""
