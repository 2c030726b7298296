"""``narsil sign``: vouch for the files of an artifact folder."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app.signatures import SIGNATURE, SUMS, SignError, private_key, sign


def main(argv: Sequence[str]) -> int:
    """Sign one folder; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="narsil sign",
        description=f"Write {SUMS} and {SIGNATURE} into an artifact folder, for servers that are"
        " told --artifact-keys. Sign last: whatever changes afterwards is refused.",
    )
    parser.add_argument("folder", type=Path, help="artifact folder")
    parser.add_argument("--key", type=Path, required=True, help="PEM file, an Ed25519 private key")
    arguments = parser.parse_args(argv)
    try:
        if not arguments.folder.is_dir():
            raise SignError(f"{arguments.folder} is no folder")
        count = sign(arguments.folder, private_key(arguments.key))
    except (SignError, OSError) as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.folder}: {count} files signed")
    return 0
