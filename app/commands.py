"""What ``narsil`` runs: serve, predict, and what other packages add (export, bench)."""

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NoReturn

import uvloop

from app import banner, plugins, predict, reference, sign, streams
from app.compiled import build
from app.compiled.use import is_compiled
from app.effective import redacted, set_by_hand
from app.frontends.compose import front_ends_of, transports_of
from app.resolve import Config, resolve
from app.server import Parts, StartError, serve
from app.settings import ConfigError
from app.watching import WatchOptions

logger = logging.getLogger(__name__)

USAGE = """usage: narsil COMMAND ...

  serve       serve models over gRPC, HTTP and HTTP/3
  predict     send one request and print the scores
  sign        sign an artifact folder
  compile     compile the path of a request, for every later start
  config-reference
              print every setting as a Markdown page
{added}
narsil COMMAND --help says more."""

ADDED = {
    "export": "make a served artifact from a TorchRec DLRM",
    "train": "train a model on public data, and export it",
    "convert": "write a model or a checkpoint as safetensors, for serving without PyTorch",
    "inspect": "say what a file or folder of a model is, and how to serve it",
    "bench": "measure a running server",
    "parity": "compare a model's scores over every backend and transport",
    "export-onnx": "write an artifact as an ONNX file, for serving with ONNX Runtime",
    "perf-data": "write requests for perf_analyzer",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2: the command line or configuration is wrong)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    added = plugins.names("narsil.commands")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        lines = (f"  {name:<11} {ADDED.get(name) or plugins.origin(name)}" for name in added)
        print(USAGE.format(added="\n".join(lines) + "\n"))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"narsil {version('narsil')}")
        return 0
    try:
        return _run(arguments[0], arguments[1:], added)
    except (ConfigError, plugins.PluginError) as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 2


def _run(name: str, rest: Sequence[str], added: Sequence[str]) -> int:
    if name == "serve":
        return _serve(rest)
    built_in = {
        "predict": predict.main,
        "sign": sign.main,
        "compile": build.main,
        "config-reference": reference.main,
    }
    if name in built_in:
        return built_in[name](rest)
    if name not in added:
        known = ", ".join(["serve", *built_in, *added])
        raise ConfigError(f"no command {name!r}; there are {known}")
    return plugins.command(name)(rest)


def _serve(argv: Sequence[str]) -> int:
    streams.fill_standard()
    config, arguments = resolve(argv)
    if arguments.print_config:
        print("\n".join(config.lines()))
        return 0
    server = config.server
    # Libraries speak up only when something is wrong; the level set is for our own packages.
    watch = WatchOptions(*(config.sections[name].options for name in ("log", "metrics", "tracing")))
    streams.start_log(watch.log.format)
    for package in ("app", "backends", "scheduler", "transports"):
        logging.getLogger(package).setLevel(server.log_level.upper())
    front_ends = front_ends_of(config)
    parts = Parts(
        server=server,
        models=config.models,
        transports=transports_of(config, front_ends),
        repository=config.repository.options,
        planner=config.planner,
        watch=watch,
        front_ends=front_ends,
    )
    try:
        ended = uvloop.run(serve(parts, partial(_opened, config)))
    except StartError as error:
        print(f"narsil: {error}", file=sys.stderr)
        return 1
    if not ended:
        _leave()
    return 0


def _opened(config: Config, *opened: Any) -> None:
    """Log the configuration, and print the banner if anybody can read it."""
    # Not before: an error at the start would stand behind them.
    sections = config.all_sections()
    logger.info("configuration: %s (--print-config shows all)", set_by_hand(sections))
    logger.debug("whole configuration: %s", redacted(sections))
    how = "compiled" if is_compiled() else "interpreted (make compile makes it faster)"
    logger.info("the path of a request is %s", how)
    try:
        banner.show(config, *opened)
        sys.stdout.flush()
    except (OSError, SystemExit) as error:  # rich ends programs whose reader has left
        logger.warning("no banner: %r", error)
        streams.silence_stdout()


def _leave() -> NoReturn:
    """End the process without Python's own clean-up.

    That would free what a thread still uses inside a library; stopped while it warmed up a model,
    PyTorch aborted the process.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
