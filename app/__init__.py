"""Composition root: command line, configuration, plug-in look-up, start and stop order, observability."""
