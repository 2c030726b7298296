"""Certificate files: which are refused and in what words, and how new ones take over."""

import base64
import hashlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.fixtures.authority import DAY, Authority, Pair
from transports.endpoint import EndpointOptions
from transports.grpc.options import GrpcOptions
from transports.http.server import HttpOptions
from transports.http3.server import Http3Options
from transports.tls import Renewed, TlsFiles, read_identity


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def files_of(pair: Pair, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(pair.certificate, pair.private_key, client_ca)


def refusal_of(files: TlsFiles) -> str:
    with pytest.raises(OSError) as refusal:
        read_identity(files, datetime.now(UTC))
    return str(refusal.value).partition("] ")[2]


def test_the_hash_is_that_of_the_public_key(authority: Authority) -> None:
    pair = authority.issue()
    key = x509.load_pem_x509_certificate(pair.certificate.read_bytes()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    identity = read_identity(files_of(pair), datetime.now(UTC))
    assert identity.spki_sha256 == base64.b64encode(hashlib.sha256(spki).digest()).decode()


@pytest.mark.parametrize("setting", ["certificate", "private_key", "client_ca"])
def test_a_missing_file_is_refused_by_its_setting_and_name(
    authority: Authority, setting: str
) -> None:
    pair = authority.issue()
    paths = {"certificate": pair.certificate, "private_key": pair.private_key}
    absent = authority.ca.with_name("absent.pem")
    files = TlsFiles(**{**paths, setting: absent})
    assert refusal_of(files) == f"{setting}: {absent} cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("certificate", "has no PEM certificate that can be read"),
        ("private_key", "is no PEM key without a password"),
        ("client_ca", "has no PEM certificate that can be read"),
    ],
)
@pytest.mark.parametrize("content", [b"", b"hello", b"\x00\xff", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_file_that_is_no_pem_is_refused_by_its_setting_and_name(
    authority: Authority, setting: str, why: str, content: bytes
) -> None:
    pair = authority.issue()
    paths = {"certificate": pair.certificate, "private_key": pair.private_key}
    broken = authority.ca.with_name("broken.pem")
    broken.write_bytes(content)
    assert refusal_of(TlsFiles(**{**paths, setting: broken})).startswith(
        f"{setting}: {broken} {why}"
    )


def test_a_key_with_a_password_is_refused(authority: Authority) -> None:
    pair = authority.issue(password=b"secret")
    assert refusal_of(files_of(pair)).startswith(
        f"private_key: {pair.private_key} is no PEM key without a password"
    )


def test_the_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    mixed = TlsFiles(one.certificate, other.private_key)
    assert refusal_of(mixed) == (
        f"private_key: {other.private_key} is not the key of {one.certificate}"
    )


def test_a_certificate_past_its_end_or_before_its_beginning_is_refused(
    authority: Authority,
) -> None:
    late = authority.issue("late", first=-2 * DAY, last=-DAY)
    assert re.fullmatch(
        rf"certificate: {late.certificate} expired on [0-9-]+ [0-9:]+ UTC",
        refusal_of(files_of(late)),
    )
    early = authority.issue("early", first=DAY, last=2 * DAY)
    assert f"{early.certificate} is not valid before " in refusal_of(files_of(early))


def test_of_several_client_authorities_one_that_has_expired_is_no_fault(
    authority: Authority,
) -> None:
    past = authority.issue("past", first=-2 * DAY, last=-DAY).certificate
    files = files_of(authority.issue(), past)
    assert refusal_of(files).startswith(f"client_ca: {past} expired on ")
    past.write_bytes("# Ämter\n".encode() + past.read_bytes() + authority.ca.read_bytes())
    identity = read_identity(files, datetime.now(UTC))
    assert identity.client_ca_pem.count(b"BEGIN CERTIFICATE") == 2


def test_files_that_have_not_changed_are_not_read_again(authority: Authority) -> None:
    renewed = Renewed(files_of(authority.issue()), lambda identity: identity)
    value = renewed.value
    assert not renewed.refresh()
    assert renewed.value is value


def test_a_new_pair_takes_over_once_both_files_are_there(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair, new = authority.issue(), authority.issue("new")
    renewed = Renewed(files_of(pair), lambda identity: identity.spki_sha256)
    before = renewed.value
    pair.certificate.write_bytes(new.certificate.read_bytes())
    assert not renewed.refresh()
    assert renewed.value == before
    assert "is not the key of" in caplog.text
    caplog.clear()
    assert not renewed.refresh()  # said once, not for each client
    assert not caplog.records
    pair.private_key.write_bytes(new.private_key.read_bytes())
    assert renewed.refresh()
    assert renewed.value not in (before, "")
    assert renewed.value == read_identity(files_of(new), datetime.now(UTC)).spki_sha256


def test_files_that_go_away_or_expire_leave_the_pair_before_them(authority: Authority) -> None:
    pair = authority.issue()
    renewed = Renewed(files_of(pair), lambda identity: identity.spki_sha256)
    before = renewed.value
    pair.replace_by(authority.issue("late", first=-2 * DAY, last=-DAY))
    assert not renewed.refresh()
    os.unlink(pair.certificate)
    assert not renewed.refresh()
    assert renewed.value == before
    pair.replace_by(authority.issue("new"))
    assert renewed.refresh()
    assert renewed.value != before


@pytest.mark.parametrize("options", [HttpOptions, GrpcOptions, Http3Options])
@pytest.mark.parametrize("given", ["certificate", "private_key"])
def test_half_a_pair_is_refused_by_every_transport(options: Any, given: str) -> None:
    with pytest.raises(ValueError, match="certificate and private_key must be given together"):
        options(**{given: "some.pem"})


@pytest.mark.parametrize("options", [HttpOptions, GrpcOptions])
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"client_ca": "ca.pem"}, "client_ca needs a certificate and a private_key"),
        ({"host": ""}, "host is empty, so unix_path must be given"),
        ({"unix_mode": "rw"}, "unix_mode must be three octal digits, got 'rw'"),
        ({"unix_mode": "888"}, "unix_mode must be three octal digits, got '888'"),
        ({"unix_mode": "66"}, "unix_mode must be three octal digits, got '66'"),
    ],
)
def test_what_could_not_work_is_refused(options: Any, given: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError) as refusal:
        options(**given)
    assert str(refusal.value) == why


def test_client_certificates_are_required_or_optional() -> None:
    with pytest.raises(ValueError, match="must be required or optional, got 'never'"):
        HttpOptions(client_certificates="never")


def test_every_option_says_what_it_is_for() -> None:
    fields = EndpointOptions.__dataclass_fields__.values()
    assert all(option.metadata["help"] for option in fields)
