"""Compute plug-ins behind the Backend protocol."""
