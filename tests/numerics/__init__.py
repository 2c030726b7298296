"""Scores: batched, alone, golden, and what must not go unnoticed."""
