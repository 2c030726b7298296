"""What is wrong with a TorchScript file."""

from scheduler.errors import LoadError


class TorchScriptFileError(LoadError):
    """Say why a file is no TorchScript file that can be read, and where in it."""


class DamagedFileError(TorchScriptFileError):
    """Say what of the file is missing or another than was written: nobody should serve it."""


class NoTorchScriptError(TorchScriptFileError):
    """Say what the file is instead: PyTorch would not load it as TorchScript either."""
