"""A certificate for development, made once and renewed in time."""

import datetime
import fcntl
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from transports.tls import TlsFiles, read_identity

LIFETIME = datetime.timedelta(days=365)
RENEWED_BEFORE_END = datetime.timedelta(days=30)
# The clocks of clients differ from ours.
BACKDATED = datetime.timedelta(hours=1)


def development_certificate(directory: Path, now: datetime.datetime) -> TlsFiles:
    """Return a certificate for this machine; made when there is none that will last.

    The file also has the authority that signed it, so it is what clients can be told to trust;
    some refuse a certificate that signed itself. The authority's key is not kept.
    Raises OSError if ``directory`` cannot be written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = TlsFiles(directory / "certificate.pem", directory / "private_key.pem")
    with (directory / "lock").open("w") as lock:
        # Two servers that start at once must not mix one's key with the other's certificate.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _lasts(files, now):
            key, chain = _issue(now)
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            _write(files.private_key, pem, 0o600)
            certificates = b"".join(one.public_bytes(Encoding.PEM) for one in chain)
            _write(files.certificate, certificates, 0o644)
    return files


def _lasts(files: TlsFiles, now: datetime.datetime) -> bool:
    try:
        identity = read_identity(files, now)
    except OSError:
        return False
    return identity.not_after - now > RENEWED_BEFORE_END


def _issue(now: datetime.datetime) -> tuple[ec.EllipticCurvePrivateKey, list[x509.Certificate]]:
    """Return a new key, and its certificate followed by the authority's."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name("Narsil development authority")
    addresses = [ipaddress.ip_address(address) for address in ("127.0.0.1", "::1")]
    names = [x509.DNSName("localhost"), *map(x509.IPAddress, addresses)]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    root = (
        _builder(authority, authority, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    leaf = (
        _builder(_name("localhost"), authority, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signer, critical=False)
    )
    return key, [builder.sign(authority_key, hashes.SHA256()) for builder in (leaf, root)]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace ``path``; at no time can a wider circle than ``mode`` read it."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    draft.replace(path)
