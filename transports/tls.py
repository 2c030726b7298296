"""Certificates from files: checked by name before they serve, and read anew once they change.

    files -> read_identity (checked) -> Renewed: what a server makes of it, kept up to date

The files are looked at whenever a client connects, a few microseconds beside a handshake of about
a millisecond: no timer and no signal, and a pair that is only half replaced is never served.
"""

import base64
import datetime
import errno
import hashlib
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from transports.files import stamp

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files lie; ``client_ca`` has who may sign the clients' certificates."""

    certificate: Path
    private_key: Path
    client_ca: Path | None = None

    def stamps(self) -> tuple[object, ...]:
        """Return what differs once a file has been replaced or written to."""
        files = (self.certificate, self.private_key, self.client_ca)
        return tuple(None if path is None else stamp(path) for path in files)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, known to be a pair and valid.

    ``spki_sha256`` is the base64 hash of the public key that Chromium's
    ``--ignore-certificate-errors-spki-list`` takes. ``client_ca_pem`` is empty without a file.
    """

    path: Path
    private_key: Path
    chain_pem: bytes
    key_pem: bytes
    client_ca_pem: bytes
    spki_sha256: str
    not_after: datetime.datetime


def read_identity(files: TlsFiles, now: datetime.datetime) -> Identity:
    """Read the files and check that they will serve at ``now``.

    Raises OSError that names the setting (certificate, private_key, client_ca), the file and why.
    """
    chain_pem = _read("certificate", files.certificate)
    key_pem = _read("private_key", files.private_key)
    leaf = _certificates("certificate", files.certificate, chain_pem)[0]
    spki = _spki(leaf.public_key())
    try:
        key = load_pem_private_key(key_pem, None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        message = f"private_key: {files.private_key} is no PEM key without a password: {error}"
        raise OSError(errno.EINVAL, message) from error
    if spki != _spki(key.public_key()):
        message = f"private_key: {files.private_key} is not the key of {files.certificate}"
        raise OSError(errno.EINVAL, message)
    _check_dates("certificate", files.certificate, leaf, now)
    digest = base64.b64encode(hashlib.sha256(spki).digest()).decode("ascii")
    return Identity(
        files.certificate, files.private_key, chain_pem, key_pem,
        _client_ca(files.client_ca, now), digest, leaf.not_valid_after_utc,
    )  # fmt: skip


class Renewed(Generic[T]):
    """What ``make`` gave for the files as they are. Raises OSError if they cannot serve at first.

    Later ones that cannot serve are logged, and those before them stay.
    """

    def __init__(self, files: TlsFiles, make: Callable[[Identity], T]) -> None:
        self._files = files
        self._make = make
        self._stamps = files.stamps()
        self.identity, self.value = self._made()

    def refresh(self) -> bool:
        """Look at the files; return whether ``identity`` and ``value`` are new."""
        stamps = self._files.stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.identity, self.value = self._made()
        except OSError as error:
            logger.error("new certificate not taken, the one before serves on: %s", error)  # noqa: TRY400
            return False
        logger.info(
            "new certificate %s, valid until %s", self.identity.path, self.identity.not_after
        )
        return True

    def _made(self) -> tuple[Identity, T]:
        identity = read_identity(self._files, datetime.datetime.now(datetime.UTC))
        return identity, self._make(identity)


def server_context(
    identity: Identity, alpn: Sequence[str], client_certificates: ssl.VerifyMode
) -> ssl.SSLContext:
    """Return the context of a server that speaks ``alpn``. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.path, identity.private_key)
    context.set_alpn_protocols(alpn)
    if identity.client_ca_pem:
        context.load_verify_locations(cadata=identity.client_ca_pem.decode("ascii"))
        context.verify_mode = client_certificates
    return context


class RenewedContext(ssl.SSLContext):
    """Give each new connection the context for the files as they are; old ones keep theirs."""

    renewed: Renewed[ssl.SSLContext]

    @classmethod
    def of(
        cls,
        files: TlsFiles,
        alpn: Sequence[str],
        client_certificates: ssl.VerifyMode = ssl.CERT_REQUIRED,
    ) -> "RenewedContext":
        """Return the context of a server that speaks ``alpn``. Raises OSError."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.renewed = Renewed(
            files, lambda identity: server_context(identity, alpn, client_certificates)
        )
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection, as the event loop does."""
        self.renewed.refresh()
        return self.renewed.value.wrap_bio(*args, **options)


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{setting}: {path} cannot be read: {error.strerror}"
        raise OSError(error.errno, message) from error


def _certificates(setting: str, path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        message = f"{setting}: {path} has no PEM certificate that can be read: {error}"
        raise OSError(errno.EINVAL, message) from error


def _check_dates(
    setting: str, path: Path, certificate: x509.Certificate, now: datetime.datetime
) -> None:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if last < now:
        raise OSError(errno.EINVAL, f"{setting}: {path} expired on {last:%Y-%m-%d %H:%M} UTC")
    if first > now:
        raise OSError(
            errno.EINVAL, f"{setting}: {path} is not valid before {first:%Y-%m-%d %H:%M} UTC"
        )


def _client_ca(path: Path | None, now: datetime.datetime) -> bytes:
    if path is None:
        return b""
    pem = _read("client_ca", path)
    authorities = _certificates("client_ca", path, pem)
    # Of several, as while one takes over from another, one that is valid will do.
    _check_dates("client_ca", path, max(authorities, key=lambda ca: ca.not_valid_after_utc), now)
    # Again from what was understood: a bundle may hold remarks that are no ASCII.
    return b"".join(authority.public_bytes(Encoding.PEM) for authority in authorities)


def _spki(key: Any) -> bytes:
    spki: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return spki
