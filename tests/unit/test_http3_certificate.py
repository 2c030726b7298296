"""The certificate for development."""

import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509

from transports.http3.certificate import (
    LIFETIME,
    RENEWED_BEFORE_END,
    development_certificate,
)
from transports.tls import Identity, read_identity

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def issued(directory: Path, now: datetime.datetime) -> Identity:
    return read_identity(development_certificate(directory, now), now)


def test_it_names_this_machine_and_is_valid_now(tmp_path: Path) -> None:
    files = development_certificate(tmp_path / "new" / "tls", NOW)
    leaf = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    addresses = names.get_values_for_type(x509.IPAddress)
    assert [str(address) for address in addresses] == ["127.0.0.1", "::1"]
    assert leaf.not_valid_before_utc < NOW < leaf.not_valid_after_utc


def test_only_the_owner_reads_the_key(tmp_path: Path) -> None:
    files = development_certificate(tmp_path / "tls", NOW)
    assert stat.S_IMODE(files.private_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.private_key.parent.stat().st_mode) == 0o700


def test_it_is_reused_while_it_lasts_and_renewed_before_it_ends(tmp_path: Path) -> None:
    first = issued(tmp_path, NOW)
    last_day = NOW + LIFETIME - RENEWED_BEFORE_END - DAY
    assert issued(tmp_path, last_day) == first
    renewed = issued(tmp_path, last_day + DAY)
    assert renewed.spki_sha256 != first.spki_sha256
    assert renewed.not_after > first.not_after


@pytest.mark.parametrize("name", ["certificate.pem", "private_key.pem"])
@pytest.mark.parametrize("content", [b"", b"not PEM"])
def test_a_damaged_file_is_replaced(tmp_path: Path, name: str, content: bytes) -> None:
    damaged = issued(tmp_path, NOW)
    (tmp_path / name).write_bytes(content)
    assert issued(tmp_path, NOW).spki_sha256 != damaged.spki_sha256
