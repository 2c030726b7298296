"""Bring your own: ``narsil inspect`` and ``narsil convert``."""
