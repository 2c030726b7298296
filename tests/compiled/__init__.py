"""The compiled modules, and the suites over them."""
