"""Signed artifacts: what is served, and what is refused before any of it is parsed."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from app import cli
from app.models import ModelConfig
from app.resolve import resolve
from app.signatures import SIGNATURE, SUMS, private_key, sign, trusted_keys, verify
from scheduler.errors import LoadError
from scheduler.execute import load_new

Damage: TypeAlias = Callable[[Path], Any]


def key_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a key; return the files of its private and its public half."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public.write_bytes(b"the key of " + name.encode() + b"\n" + pem)
    return private, public


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_files(tmp_path, "trainer")


@pytest.fixture
def artifact(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    """A signed folder, with a file in a folder within."""
    folder = tmp_path / "model"
    (folder / "tables").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "tables/user.bin").write_bytes(b"rows")
    assert cli.main(["sign", str(folder), "--key", str(keys[0])]) == 0
    return folder


def configured(artifact: Path, public: Path) -> ModelConfig:
    config, _ = resolve([str(artifact), "--artifact-keys", str(public)])
    (model,) = config.models
    return model


def test_a_signed_folder_is_served_and_may_be_signed_again(
    artifact: Path, keys: tuple[Path, Path]
) -> None:
    configured(artifact, keys[1]).remake()
    (artifact / "manifest.json").write_text('{"format": 2}')
    assert cli.main(["sign", str(artifact), "--key", str(keys[0])]) == 0
    verify(artifact, trusted_keys(keys[1]))
    verify(artifact / "manifest.json", trusted_keys(keys[1]))  # a model that is a lone file


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "tables/user.bin").write_bytes(b"rowz"), "user.bin is not as it was"),
        (lambda f: (f / "manifest.json").write_text("{ }"), "manifest.json is not as it was"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: (f / "more.pt").touch(), "more.pt is not listed in SHA256SUMS"),
        (lambda f: (f / "tables/.more").touch(), ".more is not listed in SHA256SUMS"),
        (lambda f: (f / "there").symlink_to("tables"), "there is a link to a folder"),
        (lambda f: (f / SUMS).write_text((f / SUMS).read_text() + "\n"), "none of the 1 artifact"),
        (lambda f: (f / SIGNATURE).write_bytes(bytes(64)), "none of the 1 artifact_keys"),
        (lambda f: (f / SIGNATURE).write_bytes(b""), "none of the 1 artifact_keys"),
        (lambda f: (f / SIGNATURE).write_bytes(bytes(65)), "has more than 64 bytes"),
        (lambda f: (f / SIGNATURE).unlink(), "SHA256SUMS.sig cannot be read: No such file"),
        (lambda f: (f / SUMS).unlink(), "SHA256SUMS cannot be read: No such file"),
    ],
)
def test_what_was_changed_added_or_taken_away_is_refused_by_name(
    artifact: Path, keys: tuple[Path, Path], damage: Damage, words: str
) -> None:
    damage(artifact)
    model = configured(artifact, keys[1])
    with pytest.raises(LoadError, match=words.replace(".", r"\.")):
        model.remake()
    with pytest.raises(LoadError, match=words.replace(".", r"\.")):  # after a failure, too
        load_new(model.remake)


def test_a_key_that_is_not_trusted_is_refused_and_one_of_several_will_do(
    artifact: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    _, other = key_files(tmp_path, "other")
    with pytest.raises(LoadError, match="is of none of the 1 artifact_keys"):
        configured(artifact, other).remake()
    other.write_bytes(other.read_bytes() + keys[1].read_bytes())
    configured(artifact, other).remake()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "artifact_keys: .* cannot be read: No such file"),
        (b"", "has no PEM public key"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "has a key that cannot be"),
        (bytes(1 << 17), "has more than 65536 bytes"),
    ],
)
def test_trusted_keys_that_will_not_do_let_nothing_through(
    artifact: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    public = tmp_path / "trusted.pem"
    if content is not None:
        public.write_bytes(content)
    with pytest.raises(LoadError, match=words):
        configured(artifact, public).remake()


def test_lines_that_name_a_file_twice_or_none_are_refused_though_signed(
    artifact: Path, keys: tuple[Path, Path]
) -> None:
    line = "0" * 64 + "  a\n"
    for text in (line + line, "0" * 64 + " a\n", "../a\n", "\n"):
        (artifact / SUMS).write_text(text)
        (artifact / SIGNATURE).write_bytes(private_key(keys[0]).sign(text.encode()))
        with pytest.raises(LoadError, match=r"SHA256SUMS: line [12] is no 'HASH  PATH'"):
            verify(artifact, trusted_keys(keys[1]))


def test_what_has_no_files_cannot_be_signed_for(keys: tuple[Path, Path]) -> None:
    config, _ = resolve(["--backend=fake", "--artifact-keys", str(keys[1])])
    with pytest.raises(LoadError, match="this backend has no files"):
        config.models[0].remake()


def test_openssl_and_sha256sum_agree(
    artifact: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    public = str(keys[1])
    checked = subprocess.run(
        ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin",
         "-in", SUMS, "-sigfile", SIGNATURE],
        cwd=artifact, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Signature Verified Successfully" in checked.stdout, checked
    subprocess.run(["sha256sum", "-c", SUMS], cwd=artifact, capture_output=True, check=True)
    made, shown = tmp_path / "openssl.pem", tmp_path / "openssl.pub"
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(made)]
    subprocess.run(make, capture_output=True, check=True)
    show = ["openssl", "pkey", "-in", str(made), "-pubout", "-out", str(shown)]
    subprocess.run(show, capture_output=True, check=True)
    assert cli.main(["sign", str(artifact), "--key", str(made)]) == 0
    verify(artifact, trusted_keys(shown))


def test_a_name_with_an_end_of_line_of_unicode_s_is_signed_and_found(
    artifact: Path, keys: tuple[Path, Path]
) -> None:
    private, public = keys
    (artifact / "a\u2028b").touch()
    assert sign(artifact, private_key(private)) == 3
    verify(artifact, trusted_keys(public))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f / "absent", "absent is no folder"),
        (lambda f: (f / "a\nb").touch() or f, "such a file name cannot be signed"),
        (lambda f: (f / "a\udcff").touch() or f, "such a file name cannot be signed"),
        (lambda f: (f / "loop").symlink_to("loop") or f, "loop is no regular file"),
    ],
)
def test_a_folder_that_cannot_be_signed_is_refused_and_left_as_it_was(
    tmp_path: Path, spoil: Damage, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    private, _ = key_files(tmp_path, "key")
    folder = tmp_path / "model"
    folder.mkdir()
    asked = spoil(folder)
    assert cli.main(["sign", str(asked), "--key", str(private)]) == 1
    assert words in capsys.readouterr().err
    assert not (folder / SUMS).exists()


@pytest.mark.parametrize("content", [None, b"no key", "rsa"])
def test_a_private_key_that_will_not_do_is_named(
    artifact: Path, tmp_path: Path, content: bytes | str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    private = tmp_path / "private.pem"
    if content == "rsa":
        make = ["openssl", "genpkey", "-algorithm", "x25519", "-out", str(private)]
        subprocess.run(make, capture_output=True, check=True)
    elif isinstance(content, bytes):
        private.write_bytes(content)
    before = (artifact / SIGNATURE).read_bytes()
    assert cli.main(["sign", str(artifact), "--key", str(private)]) == 1
    assert f"narsil: {private} " in capsys.readouterr().err
    assert (artifact / SIGNATURE).read_bytes() == before


def test_signing_uses_the_key_it_is_given(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").touch()
    key = Ed25519PrivateKey.generate()
    assert sign(folder, key) == 1
    verify(folder, [key.public_key()])
