"""Who may ask: API keys, and how much each key may ask for."""
