"""What ``narsil serve`` prints when it is ready: where it listens, and lines to try that work."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from app.flags import Config
from scheduler.engine import Engine
from scheduler.types import ModelSpec

NOTES = {
    "http": "docs at /docs, metrics at /metrics",
    "grpc": "predictor.Predictor, health, reflection",
    "http3": "HTTP/3 over QUIC and HTTPS on the same port",
    "admin": "metrics and probes",
}
# For models that bring no example of their own.
EXAMPLES = Path(".narsil/examples")


def show(config: Config, engine: Engine, addresses: dict[str, tuple[str, ...]]) -> None:
    """Print the banner."""
    console = Console(highlight=False, soft_wrap=True)
    device = getattr(config.sections["backend"], "device", "")
    console.print(f"\n[bold]Narsil {version('narsil')}[/bold] is ready")
    for spec in engine.specs():
        console.print(
            f"  {'model':<8} {spec.name} version {spec.version}{f' on {device}' if device else ''}"
        )
    for name, urls in addresses.items():
        console.print(f"  {name:<8} {'  '.join(urls)}  [dim]{NOTES.get(name, '')}[/dim]")
    example = _example_file(config, engine.specs()[0])
    if example is not None:
        console.print("\nTry it:")
        for line in _lines_to_try(config, example, addresses):
            console.print(f"  {line}", markup=False)
    console.print()


def _lines_to_try(
    config: Config, example: Path, addresses: dict[str, tuple[str, ...]]
) -> list[str]:
    predict = f"{os.path.relpath(sys.argv[0])} predict {example}"
    first = {name: urls[0] for name, urls in addresses.items()}
    lines = []
    if "http" in first:
        json = "-H 'content-type: application/json'"
        lines.append(f"curl -s {first['http']}/v1/predict {json} -d @{example}")
        if "grpc" in first:  # predictor.proto names no features: their order is asked over HTTP
            describe = f"--describe {first['http']}"
            lines.append(f"{predict} --transport grpc --url {first['grpc']} {describe}")
    if "http3" in first:
        lines.append(f"{predict} --transport http3 --url {first['http3']}{_ca(config)}")
    return lines


def _ca(config: Config) -> str:
    """Return the flag that names the certificate to trust, unless it is the usual one."""
    given: Any = config.sections["http3"]
    usual = type(given)()
    if given.certificate:
        return f" --ca {given.certificate}"
    if given.certificate_dir != usual.certificate_dir:
        return f" --ca {Path(given.certificate_dir) / 'certificate.pem'}"
    return ""


def _example_file(config: Config, spec: ModelSpec) -> Path | None:
    """Return a file with a request for the model, written here if need be and if possible."""
    path: Any = getattr(config.sections["backend"], "path", "")
    example = Path(path) / "example.json"
    if path and example.is_file():
        return example
    example = EXAMPLES / f"{spec.name}.json"
    try:
        EXAMPLES.mkdir(parents=True, exist_ok=True)
        example.write_bytes(example_request(spec))
    except OSError:
        return None
    return example


def example_request(spec: ModelSpec) -> bytes:
    """Return a JSON request of one row that any DLRM accepts: zeros and empty bags."""
    lengths, dense = spec.input("id_list_features.lengths"), spec.input("float_features")
    width = dense.shape[1] if dense else 0
    document: dict[str, Any] = {}
    if isinstance(width, int) and width:
        document["float_features"] = [[0.0] * width]
    if lengths:
        document["id_list_features"] = {name: [[]] for name in lengths.labels}
    return orjson.dumps(document)
