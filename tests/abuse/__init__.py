"""Clients that mean harm: memory stays bounded, and the others are served."""
