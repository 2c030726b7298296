"""Adapters between a wire format and the one internal request type."""
