"""Measure the scheduler in one process, without transports: its cost, limits and steadiness."""
