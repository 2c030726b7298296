"""TLS around a client's connection, and what there is to say when it does not come about."""

import contextlib
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from loadtest.closed import NoServerError

# Raised instead of BlockingIOError.
WAIT = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def encrypted(plain: socket.socket, host: str, ca: str, protocol: str) -> ssl.SSLSocket:
    """Shake hands over ``plain`` as a client that trusts ``ca`` and speaks ``protocol`` (ALPN).

    Raises NoServerError; ``plain`` is closed then.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(plain.close)
        context = trusting(ca)
        context.set_alpn_protocols([protocol])
        try:
            made = context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise NoServerError(f"{error.verify_message}; trusted is {ca} (--ca)") from error
        except OSError as error:
            raise NoServerError(f"no TLS there: {reason(error)}") from error
        undo.callback(made.close)
        if made.selected_alpn_protocol() != protocol:
            raise NoServerError(f"in TLS the server does not offer {protocol} (ALPN)")
        undo.pop_all()
    return made


def trusting(ca: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates in the file ``ca``. Raises NoServerError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        problem = "not readable as PEM" if Path(ca).exists() else "not found"
        raise NoServerError(f"CA file {ca} {problem} (--ca)") from error


def own_signature(ca: str) -> str | None:
    """Return the SHA-256 of the one certificate in ``ca`` if it is a server's and an authority's.

    ``openssl req -x509`` makes such: it names a host, and is marked as an authority, which qh3 lets
    no server be. Whoever trusts it alone can expect exactly it.
    """
    found = x509.load_pem_x509_certificates(Path(ca).read_bytes())
    if len(found) != 1 or found[0].issuer != found[0].subject:
        return None
    kinds = {type(extension.value): extension.value for extension in found[0].extensions}
    authority = kinds.get(x509.BasicConstraints)
    if not isinstance(authority, x509.BasicConstraints) or not authority.ca:
        return None
    return found[0].fingerprint(SHA256()).hex() if x509.SubjectAlternativeName in kinds else None


def reason(error: OSError) -> str:
    """Return what ``error`` says, without its number."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error)
