"""Coverage-guided fuzzing of everything that reads a client's bytes: ``make fuzz``."""
