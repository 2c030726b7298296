"""What ``narsil serve`` prints when it is ready: where it listens, and lines to try that work."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from app.models import Served
from app.resolve import Config, asks_for_certificate
from app.senders import predict_path
from scheduler.types import ModelSpec

logger = logging.getLogger(__name__)

NOTES = {
    "http": "docs at /docs, Open Inference Protocol at /v2",
    "grpc": "predictor.Predictor, Open Inference Protocol, health, reflection",
    "http3": "HTTP/3 over QUIC and HTTPS on the same port",
    "admin": "what is going on, as a page; metrics, probes",
    "collective": "tensors by torch.distributed",
}
# For models that bring no example of their own.
EXAMPLES = Path(".narsil/examples")
# Where the lines to try find a key, if the server asks for one.
KEY_FILE = "my.key"
# Characters of what an artifact says about its own example.
_MOST_NOTE = 400


def show(
    config: Config, served: Sequence[Served], addresses: Mapping[str, tuple[str, ...]]
) -> None:
    """Print the banner; a disk that is full or a pipe that is closed costs the banner alone."""
    try:
        _show(config, served, addresses)
    except OSError as error:
        logger.warning("cannot print where the server listens (%s): %s", error, dict(addresses))


def _show(
    config: Config, served: Sequence[Served], addresses: Mapping[str, tuple[str, ...]]
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n[bold]Narsil {version('narsil')}[/bold] is ready")
    width = max(map(len, ("model", *addresses))) + 1
    if not served:
        console.print(f"  {'model':<{width}}none yet")
    for model in served:
        plan = model.spec.properties.get("plan", "")
        where = f" on {model.config.device}" if model.config.device else ""
        where += f", plan {plan}" if plan else ""
        beside = f", beside it {', '.join(model.others)}" if model.others else ""
        version_of = f"version {model.spec.version}{beside}"
        console.print(f"  {'model':<{width}}{model.spec.name} {version_of}{where}")
    for name, urls in addresses.items():
        console.print(f"  {name:<{width}}{'  '.join(urls)}  [dim]{_note(config, name)}[/dim]")
    lines = _lines_to_try(config, served, _urls_to_try(config, addresses))
    if lines:
        key = f"with your API key in the file {KEY_FILE}. " if config.server.api_keys else ""
        console.print(f"\nTry it: {key}{_example_note(served[0])}".rstrip(), markup=False)
    for line in lines:
        console.print(f"  {line}", markup=False)
    console.print()


def _note(config: Config, name: str) -> str:
    """Say what is served there, and to whom."""
    options = config.sections[name].options
    notes = [NOTES.get(name, "")]
    if getattr(options, "client_ca", ""):
        wanted = "required" if asks_for_certificate(options) else "optional"
        notes.append(f"client certificates {wanted}")
    elif getattr(options, "without_client_certificates", False):
        notes.append("no client certificates asked for")
    return ", ".join(filter(None, notes))


def _urls_to_try(config: Config, addresses: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for each transport the address that asks for no certificate of the client's."""
    urls: dict[str, str] = {}
    for name, all_urls in addresses.items():
        asks = asks_for_certificate(config.sections[name].options)
        for url in reversed(all_urls):
            if url.startswith("unix:") or not asks:
                urls[name] = url
    return urls


def _lines_to_try(config: Config, served: Sequence[Served], urls: Mapping[str, str]) -> list[str]:
    """Return a line for every transport that asks the first model, and one for each other model."""
    if not served:
        return []
    first, *others = served
    lines = _lines_for(config, first, first.spec.name if others else "", urls)
    for model in others:
        lines += _lines_for(config, model, model.spec.name, urls)[:1]
    return lines


def _lines_for(config: Config, model: Served, name: str, urls: Mapping[str, str]) -> list[str]:
    """Return a line for every transport that asks ``model``, by ``name`` unless it is empty."""
    example = _example_file(model)
    if example is None:
        return []
    predict = (
        f"{os.path.relpath(sys.argv[0])} predict {example}{f' --model {name}' if name else ''}"
    )
    lines = []
    json = "-H 'content-type: application/json'"
    if config.server.api_keys:
        predict += f" --api-key-file {KEY_FILE}"
        json += f' -H "authorization: Bearer $(cat {KEY_FILE})"'
    if "http" in urls:
        lines.append(f"{_curl(config, urls['http'], predict_path(name))} {json} -d @{example}")
        if "grpc" in urls:  # predictor.proto names no features: their order is asked over HTTP
            where = f"--url {urls['grpc']} --describe {urls['http']}"
            # A Unix socket speaks no TLS.
            ca = _ca(config, "grpc") if "s://" in where else ""
            lines.append(f"{predict} --transport grpc {where}{ca}")
    if "http3" in urls:
        lines.append(f"{predict} --transport http3 --url {urls['http3']}{_ca(config, 'http3')}")
    return lines


def _curl(config: Config, url: str, path: str) -> str:
    if url.startswith("unix:"):
        return f"curl -s --unix-socket {url.removeprefix('unix:')} http://localhost{path}"
    trust = f"--cacert {config.sections['http'].options.certificate} " if "https:" in url else ""
    return f"curl -s {trust}{url}{path}"


def _ca(config: Config, name: str) -> str:
    """Return the flag that names the certificate to trust, unless it is the usual one or none."""
    given: Any = config.sections[name].options
    if given.certificate:
        return f" --ca {given.certificate}"
    directory = getattr(given, "certificate_dir", "")
    if directory and directory != type(given)().certificate_dir:
        return f" --ca {Path(directory) / 'certificate.pem'}"
    return ""


def _example_note(model: Served) -> str:
    """Return the line that says what the model's own example is about, or ""."""
    note = Path(model.config.path) / "example.txt"
    try:
        with note.open(encoding="utf-8") as file:
            return file.readline(_MOST_NOTE).strip() if model.config.path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _example_file(model: Served) -> Path | None:
    """Return a file with a request for the model, written here if need be and if possible."""
    example = Path(model.config.path) / "example.json"
    if model.config.path and example.is_file():
        return example
    example = EXAMPLES / f"{model.spec.name}.json"
    try:
        EXAMPLES.mkdir(parents=True, exist_ok=True)
        example.write_bytes(example_request(model.spec))
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
