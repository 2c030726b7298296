"""The certificate for development, and certificates that are given."""

import base64
import datetime
import hashlib
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from transports.http3.certificate import (
    LIFETIME,
    RENEWED_BEFORE_END,
    certificate_files,
    development_certificate,
)

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def test_it_names_this_machine_and_is_valid_now(tmp_path: Path) -> None:
    files = development_certificate(tmp_path / "new" / "tls", NOW)
    leaf = x509.load_pem_x509_certificate(files.path.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    addresses = names.get_values_for_type(x509.IPAddress)
    assert [str(address) for address in addresses] == ["127.0.0.1", "::1"]
    assert leaf.not_valid_before_utc < NOW < leaf.not_valid_after_utc


def test_the_hash_is_that_of_the_public_key(tmp_path: Path) -> None:
    files = development_certificate(tmp_path, NOW)
    key = x509.load_pem_x509_certificate(files.path.read_bytes()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert files.spki_sha256 == base64.b64encode(hashlib.sha256(spki).digest()).decode()


def test_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    files = development_certificate(tmp_path / "tls", NOW)
    assert stat.S_IMODE(files.private_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.private_key.parent.stat().st_mode) == 0o700


def test_it_is_reused_while_it_lasts_and_renewed_before_it_ends(tmp_path: Path) -> None:
    first = development_certificate(tmp_path, NOW)
    last_day = NOW + LIFETIME - RENEWED_BEFORE_END - DAY
    assert development_certificate(tmp_path, last_day) == first
    renewed = development_certificate(tmp_path, last_day + DAY)
    assert renewed.spki_sha256 != first.spki_sha256
    assert renewed.not_after > first.not_after


@pytest.mark.parametrize("name", ["certificate.pem", "private_key.pem"])
@pytest.mark.parametrize("content", [b"", b"not PEM"])
def test_a_damaged_file_is_replaced(tmp_path: Path, name: str, content: bytes) -> None:
    development_certificate(tmp_path, NOW)
    (tmp_path / name).write_bytes(content)
    files = development_certificate(tmp_path, NOW)
    assert certificate_files(files.path, files.private_key) == files


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    one = development_certificate(tmp_path / "one", NOW)
    other = development_certificate(tmp_path / "other", NOW)
    with pytest.raises(OSError, match="is not the key of"):
        certificate_files(one.path, other.private_key)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.pem"):
        certificate_files(tmp_path / "absent.pem", tmp_path / "key.pem")


def test_a_file_that_is_not_pem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.pem"
    path.write_text("hello")
    with pytest.raises(OSError, match=r"text\.pem"):
        certificate_files(path, path)
