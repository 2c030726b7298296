"""What can go wrong while exporting."""


class ExportError(Exception):
    """Say why an artifact cannot be made, and what to change."""
