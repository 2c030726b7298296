"""Cheap clients, one a wire, without an event loop of their own."""
