"""The serve command's flags, made from the options dataclasses."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from app.settings import closest

# The options dataclass of each section, by name.
Schema: TypeAlias = Mapping[str, type[Any]]

# Short names for what is set most; each stands for the long flags beside it.
ALIASES: dict[str, tuple[str, ...]] = {
    "--backend": ("server.backend",),
    "--transports": ("server.transports",),
    "--host": ("http.host", "grpc.host", "http3.host"),
    "--cors-origins": ("http.cors_origins", "http3.cors_origins"),
    "--certificate": ("http.certificate", "grpc.certificate", "http3.certificate"),
    "--private-key": ("http.private_key", "grpc.private_key", "http3.private_key"),
    "--client-ca": ("http.client_ca", "grpc.client_ca"),
    "--frontends": ("server.frontends",),
    "--api-keys": ("server.api_keys",),
    "--artifact-keys": ("server.artifact_keys",),
    "--deltas": ("server.deltas",),
    "--log-level": ("server.log_level",),
    "--repository": ("repository.url",),
}
# As many flags with the same last words are named to one who left the first out (--port).
_MOST_MEANT = 6
METAVARS = {str: "TEXT", int: "N", float: "X", bool: "true|false", tuple: "A,B,..."}


def make_parser(schema: Schema, *, add_help: bool) -> argparse.ArgumentParser:
    """Return a parser with a flag for each key of each section in ``schema``."""
    parser = argparse.ArgumentParser(
        prog="narsil serve",
        usage="narsil serve [MODEL ... | --repository URL] [--FLAG VALUE ...]",
        description="Serve models over gRPC, HTTP and HTTP/3.",
        epilog="Every flag is also an environment variable (--http-port: NARSIL_HTTP__PORT) and a"
        " key of the TOML file ([http] port = ...). Flags win, then environment, then file. The"
        " file may have a table for each model, [models.NAME], whose keys win over [backend] and,"
        " in [models.NAME.scheduler], over [scheduler]. SIGHUP loads every model anew and lets it"
        " take over while requests flow.",
        allow_abbrev=False,
        add_help=add_help,
    )
    parser.add_argument("model", nargs="*", help="artifact folders, or model.pt files")
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument(
        "--print-config", action="store_true", help="show every value and its origin"
    )
    for alias, names in ALIASES.items():
        parser.add_argument(alias, help=f"short for {', '.join(map(_flag, names))}")
    for section, options in schema.items():
        group = parser.add_argument_group(section)
        for option in dataclasses.fields(options):
            _add(group, f"{section}.{option.name}", option)
    return parser


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags set: "section.key" -> raw value; a long flag wins over an alias."""
    values = {name: raw for name, raw in vars(arguments).items() if raw is not None}
    flags: dict[str, Any] = {}
    for alias, names in ALIASES.items():
        raw = values.get(alias.removeprefix("--").replace("-", "_"))
        flags |= {} if raw is None else dict.fromkeys(names, raw)
    return flags | {name: raw for name, raw in values.items() if "." in name}


def unknown(arguments: Sequence[str], schema: Schema, elsewhere: Mapping[str, Schema]) -> str:
    """Return what is wrong with ``arguments``, which nothing in ``schema`` takes.

    ``elsewhere`` has what would take some of them, by its description.
    """
    first = next((each for each in arguments if each.startswith("-")), arguments[0])
    flag = first.partition("=")[0]
    owners = [owner for owner, sections in elsewhere.items() if flag in _all_flags(sections)]
    if owners:
        # "the backend A, and this is C", "the backend B, and this is C"
        names, why = zip(*(owner.split(", ", 1) for owner in owners), strict=True)
        return f"{flag} belongs to {' or '.join(names)}, {why[0]}"
    known = [*_all_flags(schema), *ALIASES, "--config", "--print-config", "--help"]
    meant = " or ".join(_meant(flag, known))
    more = f"; did you mean {meant}?" if meant else ""
    return f"unrecognized arguments: {' '.join(arguments)}{more}"


def _meant(flag: str, known: Sequence[str]) -> list[str]:
    """Return what ``flag`` is a slip of, or where it is the end of a few."""
    name = flag.lstrip("-")
    longer = [each for each in known if each.endswith(f"-{name}")]
    if 1 <= len(longer) <= _MOST_MEANT:
        return longer
    close = closest(name, [each.lstrip("-") for each in known])
    return [f"--{close}"] if close else []


def _all_flags(schema: Schema) -> list[str]:
    return [
        flag
        for section, options in schema.items()
        for option in dataclasses.fields(options)
        for flag in flags_of(f"{section}.{option.name}")
    ]


def _add(group: "argparse._ArgumentGroup", name: str, option: "dataclasses.Field[Any]") -> None:
    default: Any = option.default
    kind = type(default)
    shown = ",".join(map(str, default)) if kind is tuple else str(default)
    text = f"{option.metadata.get('help', '')} (default: {shown or 'none'})"
    group.add_argument(
        *flags_of(name), dest=name, metavar=METAVARS[kind], help=text.replace("%", "%%")
    )


def flags_of(name: str) -> list[str]:
    """Return the long flag of "section.key"; a backend's options also have a short (--device)."""
    section, key = name.split(".")
    short = "--" + key.replace("_", "-")
    taken = (*ALIASES, "--config", "--print-config", "--help")
    return [_flag(name), short] if section == "backend" and short not in taken else [_flag(name)]


def _flag(name: str) -> str:
    return "--" + name.replace(".", "-").replace("_", "-")
