"""Tracing with OpenTelemetry, which is imported only where it is asked for."""
