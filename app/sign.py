"""``narsil sign``: vouch for an artifact, a repository of them, or a lone file."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.repository.listing import CONFIG_FILE, is_hidden, is_version
from app.signatures import SIGNATURE, SUMS, SignError, private_key, sign, sign_file


def main(argv: Sequence[str]) -> int:
    """Sign what is named; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="narsil sign",
        description=f"Write {SUMS} and {SIGNATURE} into an artifact folder, into every version of a"
        " repository, and FILE.sig beside a lone file (a delta, a repository's config.toml), for"
        " servers that are told --artifact-keys. Sign last: what changes afterwards is refused.",
    )
    parser.add_argument(
        "path", type=Path, nargs="+", help="artifact folder, repository, or file of a delta"
    )
    parser.add_argument("--key", type=Path, required=True, help="PEM file, an Ed25519 private key")
    arguments = parser.parse_args(argv)
    try:
        key = private_key(arguments.key)
        for path in arguments.path:
            for line in _signed(path, key):
                print(line)
    except (SignError, OSError) as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 1
    return 0


def _signed(path: Path, key: Ed25519PrivateKey) -> Iterator[str]:
    """Sign what ``path`` is; yield what was signed."""
    if path.is_file():
        sign_file(path, key)
        yield f"{path}: signed"
    elif not path.is_dir():
        raise SignError(f"{path} is no folder and no file")
    elif models := sorted(filter(_is_model, path.iterdir())):
        for model in models:
            yield from _signed(model, key)
    elif _is_model(path):
        config = path / CONFIG_FILE
        for each in [*_versions(path), *([config] if config.exists() else [])]:
            yield from _signed(each, key)
    else:
        yield f"{path}: {sign(path, key)} files signed"


def _is_model(path: Path) -> bool:
    """Return whether ``path`` is a model of a repository: it has versions, and is no artifact."""
    if not path.is_dir() or is_hidden(path.name) or (path / "manifest.json").exists():
        return False
    return bool(_versions(path))


def _versions(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if is_version(each.name) and each.is_dir())
