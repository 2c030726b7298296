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
from scheduler.types import ModelSpec, TensorSpec

NOTES = {
    "http": "docs at /docs, metrics at /metrics",
    "grpc": "predictor.Predictor, health, reflection",
    "http3": "HTTP/3 over QUIC and HTTPS on the same port",
    "admin": "metrics and probes",
}


def show(config: Config, engine: Engine, addresses: dict[str, tuple[str, ...]]) -> None:
    """Print the banner."""
    console = Console(highlight=False, soft_wrap=True)
    device = getattr(config.sections["backend"], "device", "cpu")
    console.print(f"\n[bold]Narsil {version('narsil')}[/bold] is ready")
    for spec in engine.specs():
        console.print(f"  {'model':<8} {spec.name} version {spec.version} on {device}")
    for name, urls in addresses.items():
        console.print(f"  {name:<8} {'  '.join(urls)}  [dim]{NOTES.get(name, '')}[/dim]")
    lines = _lines_to_try(config, engine.specs()[0], addresses)
    console.print("\nTry it:")
    for line in lines:
        console.print(f"  {line}", markup=False)
    console.print()


def _lines_to_try(
    config: Config, spec: ModelSpec, addresses: dict[str, tuple[str, ...]]
) -> list[str]:
    example = _example_file(config)
    body = f"@{example}" if example else f"'{example_request(spec).decode()}'"
    command = os.path.relpath(sys.argv[0])
    source = str(example) if example else "REQUEST.json"
    http = addresses.get("http", ("",))[0]
    lines = []
    if http:
        lines.append(f"curl -s {http}/v1/predict -H 'content-type: application/json' -d {body}")
    if "grpc" in addresses:
        lines.append(
            _predict(command, source, "grpc", addresses["grpc"][0]) + f" --describe {http}"
        )
    if "http3" in addresses:
        lines.append(_predict(command, source, "http3", addresses["http3"][0]))
    return lines


def _predict(command: str, source: str, transport: str, url: str) -> str:
    return f"{command} predict {source} --transport {transport} --url {url}"


def _example_file(config: Config) -> Path | None:
    path: Any = getattr(config.sections["backend"], "path", "")
    example = Path(path) / "example.json"
    return example if path and example.is_file() else None


def example_request(spec: ModelSpec) -> bytes:
    """Return a JSON request of one row that any DLRM accepts: zeros and empty bags."""
    lengths = spec.input("id_list_features.lengths")
    dense = spec.input("float_features")
    return orjson.dumps(
        {
            "float_features": [[0.0] * _width(dense)] if dense else [],
            "id_list_features": {name: [[]] for name in lengths.labels} if lengths else {},
        }
    )


def _width(dense: TensorSpec) -> int:
    width = dense.shape[1]
    return width if isinstance(width, int) else 0
