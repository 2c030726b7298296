"""Why a model is not computed by this backend."""

from scheduler.errors import LoadError


class UnknownModelError(LoadError):
    """The file is sound, but what it computes is not the DLRM that this backend knows."""
