"""What every DLRM backend's options refuse, before a port is opened or a file is read."""

from collections.abc import Sequence

# What to do about an artifact that is not there; {path} is where it was looked for.
MAKE_ONE = (
    "make one with: narsil export {path} --preset reference, or --from FILE for weights of your own"
)
MAKE_ONE_ONNX = "make one with: narsil export-onnx ARTIFACT {path}"


def check_least(options: object, name: str, least: int) -> None:
    """Raise ValueError naming the option unless it is ``least`` or more."""
    value = getattr(options, name)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_choice(options: object, name: str, choices: Sequence[str]) -> None:
    """Raise ValueError naming the option unless it is one of ``choices``."""
    value = getattr(options, name)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
