"""Clients of other projects, unmodified."""
