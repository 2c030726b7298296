"""The collective transport, with callers in real processes."""
