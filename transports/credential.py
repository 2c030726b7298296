"""Where a client's API key stands, on every wire alike."""

from pathlib import Path

from scheduler.errors import Code, ServingError

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"


def credential_in(authorization: str, api_key: str) -> str:
    """Return the key in ``authorization: Bearer KEY``, else that in ``x-api-key``, "" for none."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":  # RFC 9110 11.1: in any case
        return token.strip()
    return api_key.strip()


def read_key(file: Path | None) -> str:
    """Return the key in a client's ``file``, less the white space around it; "" without a file.

    Raises ValueError, which names the file and does not repeat the key.
    """
    if file is None:
        return ""
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"--api-key-file {file}: {error.strerror}") from error
    if not key or any(not 0x20 < byte < 0x7F for byte in key):
        raise ValueError(f"--api-key-file {file}: one word of printable ASCII is expected in it")
    return key.decode("ascii")


def bearer(key: str) -> dict[str, str]:
    """Return the header, or gRPC metadata, that sends ``key``; nothing for an empty one."""
    return {AUTHORIZATION: f"Bearer {key}"} if key else {}


def not_allowed() -> ServingError:
    """Return the refusal of a key that is not for operators."""
    return ServingError(
        Code.PERMISSION_DENIED,
        "this API key may not load and unload models, nor register shared memory (control = true)",
    )
