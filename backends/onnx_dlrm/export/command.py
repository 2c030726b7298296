"""``narsil export-onnx``: an artifact as an ONNX file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.errors import LoadError


def main(argv: Sequence[str]) -> int:
    """Run ``narsil export-onnx`` with ``argv``; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="narsil export-onnx",
        description="Write a DLRM artifact as ONNX, and compare their golden scores.",
    )
    parser.add_argument("artifact", metavar="ARTIFACT", type=Path, help="folder of narsil export")
    parser.add_argument("out", metavar="DIR", type=Path, help="folder to write; it must not exist")
    arguments = parser.parse_args(argv)
    try:
        # Where the extra is not installed, --help still works.
        from backends.onnx_dlrm.export.write import export  # noqa: PLC0415

        difference = export(arguments.artifact, arguments.out)
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"narsil export-onnx: {error}. Install this project's extra 'onnx':"
            " pip install -e '.[onnx]' in its folder\n"
        )
        return 1
    except (LoadError, OSError) as error:
        sys.stderr.write(f"narsil export-onnx: {error}\n")
        return 1
    sys.stderr.write(
        f"wrote {arguments.out}; largest difference from the golden scores {difference:.3g}\n"
    )
    return 0
