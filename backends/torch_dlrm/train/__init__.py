"""``narsil train``: real models from public data, trained and exported."""
