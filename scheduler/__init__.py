"""The contract (types, errors, Backend) and the core (queue, batching, engine)."""
