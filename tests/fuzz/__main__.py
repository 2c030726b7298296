"""Fuzz one target with libFuzzer: ``python -m tests.fuzz TARGET [libFuzzer's options]``.

What it finds is kept in ``artifacts/fuzz/TARGET`` and makes the command fail.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["transports", "scheduler", "backends", "uvicorn.protocols", "aioquic.h3"]
):
    from tests.fuzz.targets import TARGETS, stretched

# One input must not hold up the server; -timeout counts whole seconds, instrumented code is slow.
LIMITS = ["-timeout=5", "-rss_limit_mb=1500", "-malloc_limit_mb=512", "-max_len=4096"]


def main() -> None:
    """Run libFuzzer until its own options stop it."""
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    folder = Path("artifacts/fuzz") / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        # A last byte that is even: as it is, not stretched.
        (corpus / f"seed-{number}").write_bytes(seed + b"\0")
    arguments = [sys.argv[0], *LIMITS, f"-artifact_prefix={folder}/", *options, str(corpus)]
    atheris.Setup(arguments, lambda data: target.run(stretched(data)))
    atheris.Fuzz()


main()
