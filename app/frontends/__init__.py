"""Transport processes that feed one engine process (docs/frontends.md)."""
