"""The serve command's flags, made from the options dataclasses, and the Config they resolve to."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import plugins
from app.config import ConfigError, ServerOptions, Sources, gather
from scheduler.options import SchedulerOptions

# Short names for what is set most; each stands for the long flags beside it.
ALIASES: dict[str, tuple[str, ...]] = {
    "--backend": ("server.backend",),
    "--transports": ("server.transports",),
    "--host": ("http.host", "grpc.host", "http3.host"),
    "--log-level": ("server.log_level",),
}


METAVARS = {str: "TEXT", int: "N", float: "X", bool: "true|false", tuple: "A,B,..."}


@dataclass(frozen=True)
class Config:
    """Every section's options, and where each value came from ("section.key" -> origin)."""

    sections: Mapping[str, Any]
    origins: Mapping[str, str]
    backend: plugins.Plugin[Any]
    transports: Mapping[str, plugins.Plugin[Any]]

    def lines(self) -> list[str]:
        """Return one line a value: ``section.key = value  # origin``."""
        return [
            f"{section}.{option.name} = {getattr(options, option.name)!r}"
            f"  # {self.origins[f'{section}.{option.name}']}"
            for section, options in self.sections.items()
            for option in dataclasses.fields(options)
        ]


def resolve(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Resolve the configuration of ``narsil serve``. Raises ConfigError or PluginError.

    Two passes: which plug-ins run decides which flags exist.
    """
    first, _ = _parser({"server": ServerOptions}, add_help=False).parse_known_args(argv)
    server, _ = _sources(first).section("server", ServerOptions)
    backend = plugins.backend(server.backend)
    transports = {name: plugins.transport(name) for name in server.transports}
    if not transports:
        raise ConfigError("server.transports: at least one transport must be named")
    schema: dict[str, type[Any]] = {
        "server": ServerOptions,
        "scheduler": SchedulerOptions,
        "backend": backend.options,
        **{name: transport.options for name, transport in transports.items()},
    }
    arguments = _parser(schema, add_help=True).parse_args(argv)
    sources = _sources(arguments)
    sources.check_sections({*schema, *plugins.names("narsil.transports")})
    resolved = {name: sources.section(name, options) for name, options in schema.items()}
    config = Config(
        sections={name: options for name, (options, _) in resolved.items()},
        origins={
            f"{name}.{key}": origin
            for name, (_, origins) in resolved.items()
            for key, origin in origins.items()
        },
        backend=backend,
        transports=transports,
    )
    return config, arguments


def _parser(schema: Mapping[str, type[Any]], *, add_help: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="narsil serve",
        usage="narsil serve [model] [--FLAG VALUE ...]",
        description="Serve a model over gRPC, HTTP and HTTP/3.",
        epilog="Every flag is also an environment variable (--http-port: NARSIL_HTTP__PORT) and a"
        " key of the TOML file ([http] port = ...). Flags win, then environment, then file.",
        allow_abbrev=False,
        add_help=add_help,
    )
    parser.add_argument("model", nargs="?", help="artifact folder or model.pt")
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument(
        "--print-config", action="store_true", help="show every value and its origin"
    )
    for alias, names in ALIASES.items():
        parser.add_argument(alias, help=f"short for {', '.join(map(_flag, names))}")
    for section, options in schema.items():
        group = parser.add_argument_group(section)
        for option in dataclasses.fields(options):
            name = f"{section}.{option.name}"
            default: Any = option.default
            kind = type(default)
            shown = ",".join(map(str, default)) if kind is tuple else str(default)
            text = f"{option.metadata.get('help', '')} (default: {shown or 'none'})"
            group.add_argument(
                *_flags(name), dest=name, metavar=METAVARS[kind], help=text.replace("%", "%%")
            )
    return parser


def _sources(arguments: argparse.Namespace) -> Sources:
    given = {name: raw for name, raw in vars(arguments).items() if raw is not None}
    flags: dict[str, Any] = {}
    for alias, names in ALIASES.items():
        raw = given.get(alias.removeprefix("--").replace("-", "_"))
        flags |= {} if raw is None else dict.fromkeys(names, raw)
    flags |= {name: raw for name, raw in given.items() if "." in name}
    if arguments.model is not None:
        flags["backend.path"] = arguments.model
    return gather(arguments.config, flags)


def _flags(name: str) -> list[str]:
    """Return the long flag; a backend's options also go by their own names (--device)."""
    section, key = name.split(".")
    short = "--" + key.replace("_", "-")
    taken = (*ALIASES, "--config", "--print-config", "--help")
    return [_flag(name), short] if section == "backend" and short not in taken else [_flag(name)]


def _flag(name: str) -> str:
    return "--" + name.replace(".", "-").replace("_", "-")
