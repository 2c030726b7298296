"""Composition root: command line, configuration, plug-ins, start and stop order, metrics."""
