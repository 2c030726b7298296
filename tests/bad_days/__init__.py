"""What goes wrong around a server that does nothing wrong."""
