"""Servers from PyPI with the same artifact, beside Narsil."""
