"""A model repository as ``narsil inspect`` finds it: models, their versions, what each is."""

import re
from collections.abc import Iterator
from pathlib import Path

from backends.bring.report import Report
from backends.dlrm.kinds import kind_of
from scheduler.errors import LoadError

_CONFIG_FILE = "config.toml"
_VERSION = re.compile(r"0|[1-9][0-9]*")


def read_repository(path: Path) -> Report | None:
    """Return the report of the repository, or of one model of it, at ``path``; None for neither.

    Raises LoadError where it cannot be read.
    """
    try:
        if versions_in(path):
            return _report("a model of a repository", [path], path.absolute().parent)
        models = [each for each in sorted(path.iterdir()) if each.is_dir() and versions_in(each)]
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error}") from error
    return _report(f"model repository of {len(models)}", models, path) if models else None


def versions_in(model: Path) -> list[Path]:
    """Return the folders of the versions of ``model``, the oldest first."""
    found = (each for each in model.iterdir() if _VERSION.fullmatch(each.name) and each.is_dir())
    return sorted(found, key=lambda each: int(each.name))


def _report(kind: str, models: list[Path], root: Path) -> Report:
    unknown: list[str] = []
    lines = [line for model in models for line in _lines(model, unknown)]
    return Report(
        kind,
        models=tuple(lines),
        missing=tuple(unknown),
        next_commands=(f"narsil serve --repository {root}",),
    )


def _lines(model: Path, unknown: list[str]) -> Iterator[str]:
    """Yield a line for each version; one that nobody knows is put into ``unknown``.

    But not where a configuration may name a backend that knows it.
    """
    configured = (model / _CONFIG_FILE).exists()
    for version in versions_in(model):
        try:
            what = _kind(version)
        except LoadError as error:
            what = f"for the backend of its {_CONFIG_FILE}" if configured else "?"
            if not configured:
                unknown.append(str(error))
        yield f"{model.name} version {version.name}: {what}"


def _kind(version: Path) -> str:
    """Return what a version is: its folder, or the only file in it. Raises LoadError."""
    try:
        return kind_of(version).value
    except LoadError:
        files = [each for each in version.iterdir() if each.is_file()]
        if len(files) != 1:
            raise
        return kind_of(files[0]).value
