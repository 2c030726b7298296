"""Signed artifacts: who vouches for a folder's files, checked before any of them is parsed.

SHA256SUMS       one line a file, "HASH  PATH", as sha256sum writes and checks them
SHA256SUMS.sig   the Ed25519 signature of that file's bytes, as openssl pkeyutl -rawin makes them
FILE.sig         the same of a lone file: a delta, or a repository's config.toml
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from scheduler.errors import LoadError

SUMS, SIGNATURE, SUFFIX = "SHA256SUMS", "SHA256SUMS.sig", ".sig"
SIGNATURE_BYTES = 64
MAX_SUMS_BYTES = 1 << 20
MAX_KEYS_BYTES = 1 << 16
_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\n\r]+)")
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


class SignError(Exception):
    """Say why a folder cannot be signed."""


def sign(folder: Path, key: Ed25519PrivateKey) -> int:
    """Write the sums of every file in ``folder`` and their signature; return how many files.

    Raises SignError, or OSError for what cannot be read or written.
    """
    try:
        sums = {name: _sha256(folder / name) for name in _files(folder)}
    except LoadError as error:
        raise SignError(str(error)) from error
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    for line in lines:
        if not _LINE.fullmatch(line[:-1]) or not _is_utf8(line):
            raise SignError(f"{folder}: {line[66:-1]!r}: such a file name cannot be signed")
    content = "".join(lines).encode()
    if len(content) > MAX_SUMS_BYTES or not lines:
        raise SignError(f"{folder} has {len(lines)} files; {SUMS} may have 1 to 1,048,576 bytes")
    (folder / SUMS).write_bytes(content)
    (folder / SIGNATURE).write_bytes(key.sign(content))
    return len(sums)


def sign_file(path: Path, key: Ed25519PrivateKey) -> None:
    """Write the signature of the file ``path`` beside it. Raises OSError."""
    signature = key.sign(path.read_bytes())
    path.with_name(path.name + SUFFIX).write_bytes(signature)


def private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in the PEM file ``path``. Raises SignError."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise SignError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise SignError(f"{path} is no PEM private key without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SignError(f"{path} is no Ed25519 key (openssl genpkey -algorithm ed25519)")
    return key


def trusted_keys(path: Path) -> list[Ed25519PublicKey]:
    """Return the keys in the PEM file ``path``, one after another. Raises LoadError."""
    content = _read(path, MAX_KEYS_BYTES, "artifact_keys: ")
    keys = []
    for pem in _PEM.findall(content):
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise LoadError(f"artifact_keys: {path} has a key that cannot be read") from error
        if not isinstance(key, Ed25519PublicKey):
            raise LoadError(f"artifact_keys: {path} has a key that is not of Ed25519")
        keys.append(key)
    if not keys:
        raise LoadError(f"artifact_keys: {path} has no PEM public key")
    return keys


def verify(path: Path, keys: Sequence[Ed25519PublicKey]) -> None:
    """Check the folder ``path``, or that of the file ``path``, against its signature.

    Every file must be listed and as it was signed. Reads all of them. Raises LoadError.
    """
    folder = path if path.is_dir() else path.parent
    content = _read(folder / SUMS, MAX_SUMS_BYTES, "artifact_keys are set and ")
    signature = _read(folder / SIGNATURE, SIGNATURE_BYTES, "artifact_keys are set and ")
    if not any(_signed(key, signature, content) for key in keys):
        raise LoadError(f"{folder / SIGNATURE} is of none of the {len(keys)} artifact_keys")
    sums = _parse(content, folder / SUMS)
    files = set(_files(folder))
    for name in sums:
        if name not in files:
            raise LoadError(f"{folder / name} is missing; {SUMS} lists it")
    for name in sorted(files):
        if name not in sums:
            raise LoadError(f"{folder / name} is not listed in {SUMS}")
        if _sha256(folder / name) != sums[name]:
            raise LoadError(f"{folder / name} is not as it was signed: its SHA-256 is another")


def verify_file(what: str, content: bytes, signature: bytes, keys_file: str) -> None:
    """Check the ``content`` of a lone file; ``keys_file`` is that of the keys, "" for no check.

    ``signature`` is b"" if there is none. Raises LoadError.
    """
    if not keys_file:
        return
    keys = trusted_keys(Path(keys_file))
    if not signature:
        raise LoadError(f"artifact_keys are set and there is no {what}{SUFFIX}")
    if not any(_signed(key, signature, content) for key in keys):
        raise LoadError(f"{what}{SUFFIX} is of none of the {len(keys)} artifact_keys")


def _signed(key: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _is_utf8(text: str) -> bool:
    """Return whether there are bytes for it; a file's name may have any."""
    return text.encode("utf-8", "replace").decode() == text


def _parse(content: bytes, path: Path) -> dict[str, str]:
    sums = {}
    # Not splitlines: a name may have what else Unicode calls the end of a line.
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise LoadError(f"{path}: line {number} is no 'HASH  PATH' of a file of its own")
        sums[match[2]] = match[1]
    return sums


def _files(folder: Path) -> Iterator[str]:
    """Yield every file below ``folder`` but ours, in order. Raises LoadError."""

    def fail(error: OSError) -> None:
        raise LoadError(f"{error.filename} cannot be read: {error.strerror}") from error

    for place, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in folders:
            if (Path(place) / name).is_symlink():
                raise LoadError(f"{Path(place) / name} is a link to a folder: it cannot be signed")
        for name in sorted(names):
            found = (Path(place) / name).relative_to(folder).as_posix()
            if found not in {SUMS, SIGNATURE}:
                yield found


def _sha256(path: Path) -> str:
    if not path.is_file():
        raise LoadError(f"{path} is no regular file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error


def _read(path: Path, limit_bytes: int, why: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise LoadError(f"{why}{path} cannot be read: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise LoadError(f"{path} has more than {limit_bytes} bytes")
    return content
