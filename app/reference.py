"""``narsil config-reference``: every setting, as one Markdown page made of the options classes.

``docs/configuration.md`` is what it prints; a test holds the two together.
"""

import argparse
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app import plugins
from app.access.keys import KeyOptions
from app.config import PREFIX, VARIABLES, ServerOptions
from app.flags import ALIASES, flags_of
from app.repository.options import RepositoryOptions
from app.repository.plan import GoldenOptions, ShadowOptions, VersionOptions
from app.request_log import LogOptions
from app.tracing.options import TracingOptions
from app.triton_names import MetricsOptions
from scheduler.options import SchedulerOptions

TRANSPORTS = ("http", "grpc", "http3", "admin", "collective")
BACKENDS = ("torch_dlrm", "native_dlrm", "onnx_dlrm", "ray", "fake")
# By how a name ends; the first that fits.
UNITS = {
    "_per_s": "per second",
    "_s": "seconds",
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_rows": "rows",
    "_ids": "ids",
}
KINDS = {str: "text", int: "integer", float: "number", bool: "true, false", tuple: "list"}

HEAD = """# Configuration reference

<!-- Printed by: narsil config-reference > docs/configuration.md -->

Every setting of `narsil serve`. A setting `key` of the section `section` is

| | |
|---|---|
| a flag | `--section-key VALUE` |
| an environment variable | `NARSIL_SECTION__KEY=VALUE` |
| a key of the TOML file that `--config` names | `[section]`, then `key = VALUE` |

and the first of them that is given counts. `narsil serve --print-config` shows every value and
where it came from. Unknown keys and values that could not work are errors that name them. Lists are
`A,B,C` in flags and variables, arrays in the file. Sections are read once, at the start; what can
change while serving is on the pages [models.md](models.md), [repository.md](repository.md),
[security.md](security.md) and [tls.md](tls.md).
"""

ALIAS_HEAD = """## Short flags

A flag that stands for others; a long flag wins over it.

| flag | stands for |
|---|---|"""

MODELS = """## Models

`[models.NAME]` in the file is the table of one model: the keys of its backend, `backend` for
another than `server.backend`, and a table `[models.NAME.scheduler]` with the keys of `[scheduler]`.
What it leaves out comes from `[backend]` and `[scheduler]`: [models.md](models.md).
"""

REPOSITORY = """## A model's `config.toml` in a repository

Beside the keys of a `[models.NAME]` table, and `[labels]` and `[split]`:
[repository.md](repository.md).
"""

KEYS = """## The file of API keys

One table a key, in the file that `server.api_keys` names: [security.md](security.md#api-keys).
"""

VARIABLES_HEAD = """## Other variables and files

What else Narsil reads of its environment. Names that begin with `NARSIL_` and have no `__` are left
alone: Kubernetes sets such for a Service called narsil.

| variable | default |  |
|---|---|---|"""

SURROUNDINGS_HEAD = """
The libraries below it read their own; those that matter:

| variable | read by |  |
|---|---|---|"""
SURROUNDINGS = (
    ("`HOME`", "Python", "where `~` is, of `cache_dir` and of the compiled path of a request"),
    ("`TMPDIR`", "Python", "scratch of `narsil bench`, `narsil parity` and Ray"),
    ("`PATH`", "Python", "a C compiler: `cc`, `gcc` or `clang` ([native.md](native.md))"),
    ("`OTEL_*`", "OpenTelemetry, with `tracing.endpoint`", "[tracing.md](tracing.md)"),
    ("`AWS_*`", "fsspec, where `repository.url` is `s3://`", "[repository.md](repository.md)"),
    ("`PIP_*`", "pip, for `narsil train movielens`", "[movielens.md](movielens.md)"),
    ("`CUDA_VISIBLE_DEVICES`", "PyTorch", "which devices there are; `cuda:0` is their first"),
)

FILES_HEAD = """
Files that no setting names:

| file |  |
|---|---|"""
FILES = (
    ("`~/.cache/narsil/compiled-*`", "what `narsil compile` made; trusted like the program"),
    ("`config.toml` of a repository's model", "[above](#a-models-configtoml-in-a-repository)"),
    ("`.narsil/examples` where it is started", "written: requests, for models without any"),
    ("`/proc/self/cgroup`, `cpu.max` of `/sys/fs/cgroup`", "how many CPUs there are"),
    ("`/dev/shm/NAME`", "with `server.shared_memory`: what clients register"),
)

_FLAG_COLUMNS = ("key", "type", "default", "flag, environment variable", "")
_FILE_COLUMNS = ("key", "type", "default", "")


def main(argv: Sequence[str]) -> int:
    """Print the page; return the exit code."""
    argparse.ArgumentParser(
        prog="narsil config-reference",
        description="Print every setting of narsil serve as a Markdown page.",
    ).parse_args(argv)
    print(page(), end="")
    return 0


def page() -> str:
    """Return the page. Raises PluginError where a plug-in of ours is not installed."""
    sections: Mapping[str, type[Any]] = {
        "server": ServerOptions,
        **{name: plugins.transport(name).options for name in TRANSPORTS},
        "scheduler": SchedulerOptions,
        "repository": RepositoryOptions,
        "log": LogOptions,
        "metrics": MetricsOptions,
        "tracing": TracingOptions,
    }
    parts = [HEAD, "\n".join((ALIAS_HEAD, *_aliases(), ""))]
    parts += [_section(f"`[{name}]`", name, options) for name, options in sections.items()]
    for name in BACKENDS:
        parts.append(_section(f"`[backend]` of `{name}`", "backend", plugins.backend(name).options))
    parts += [MODELS, REPOSITORY]
    tables = {"versions": VersionOptions, "golden": GoldenOptions, "shadow": ShadowOptions}
    parts += [_table(f"### `[{name}]`", options) for name, options in tables.items()]
    return "\n".join([*parts, KEYS, _table("", KeyOptions).lstrip(), *_surroundings(), ""])


def _surroundings() -> Iterator[str]:
    yield VARIABLES_HEAD
    for one in VARIABLES:
        yield _row(f"`{one.name}`", f"`{str(one.default).lower()}`", one.about)
    yield SURROUNDINGS_HEAD
    yield from (_row(*cells) for cells in SURROUNDINGS)
    yield FILES_HEAD
    yield from (_row(*cells) for cells in FILES)


def _aliases() -> Iterator[str]:
    for alias, names in ALIASES.items():
        flags = ", ".join(f"`{flags_of(name)[0]}`" for name in names)
        yield f"| `{alias}` | {flags} |"


def _section(title: str, name: str, options: type[Any]) -> str:
    lines = [f"## {title}", "", _about(options), "", *_head(_FLAG_COLUMNS)]
    for option in dataclasses.fields(options):
        flags = " ".join(f"`{flag}`" for flag in flags_of(f"{name}.{option.name}"))
        variable = f"`{PREFIX}{name.upper()}__{option.name.upper()}`"
        lines.append(_row(*_shown(option), f"{flags}<br>{variable}", _help(option)))
    return "\n".join([*lines, ""])


def _table(title: str, options: type[Any]) -> str:
    lines = [title, "", _about(options), "", *_head(_FILE_COLUMNS)]
    lines += [_row(*_shown(option), _help(option)) for option in dataclasses.fields(options)]
    return "\n".join([*lines, ""])


def _about(options: type[Any]) -> str:
    return " ".join(inspect.cleandoc(options.__doc__ or "").split()).replace("``", "`")


def _head(columns: Sequence[str]) -> list[str]:
    return [_row(*columns), "|" + "---|" * len(columns)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(option: "dataclasses.Field[Any]") -> tuple[str, str, str]:
    """Return key, type with unit, and default."""
    default: Any = option.default
    kind = KINDS[type(default)]
    unit = next((unit for end, unit in UNITS.items() if option.name.endswith(end)), "")
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    if isinstance(default, bool):
        shown = shown.lower()
    size = f" ({default >> 20} MiB)" if unit == "bytes" and default >> 20 else ""
    typed = f"{kind}, {unit}" if unit and kind != "list" else kind
    return f"`{option.name}`", typed, (f"`{shown}`" if shown else "none") + size


def _help(option: "dataclasses.Field[Any]") -> str:
    return str(option.metadata["help"]).replace("|", "\\|")  # a bar would end the cell
