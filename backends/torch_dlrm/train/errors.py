"""What can go wrong while training."""


class NoDataError(Exception):
    """Say why the data cannot be had."""
