"""Where a client's API key stands, on every wire alike."""

from scheduler.errors import Code, ServingError

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"


def credential_in(authorization: str, api_key: str) -> str:
    """Return the key in ``authorization: Bearer KEY``, else that in ``x-api-key``, "" for none."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":  # RFC 9110 11.1: in any case
        return token.strip()
    return api_key.strip()


def not_allowed() -> ServingError:
    """Return the refusal of a key that is not for operators."""
    return ServingError(
        Code.PERMISSION_DENIED,
        "this API key may not load and unload models, nor register shared memory (control = true)",
    )
