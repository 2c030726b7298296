"""Ids as they come: what becomes of those that a table has no row for."""
