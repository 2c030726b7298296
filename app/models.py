"""Which models are served, and how: from the command line's paths or the file's tables."""

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app import plugins
from app.config import MODELS, ModelTable, ServerOptions, Sources
from app.settings import ConfigError, Section, Setting, Settings, keys, make_section
from app.signatures import trusted_keys, verify
from scheduler.backend import Backend
from scheduler.errors import LoadError
from scheduler.options import SchedulerOptions
from scheduler.threads import run_in_thread
from scheduler.types import ModelSpec

ARGUMENT = "argument MODEL"
# Keys of a model's table besides those of its backend.
BACKEND, SCHEDULER = "backend", "scheduler"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model to serve; ``label`` is its path or table, "" if it is the only one.

    ``artifact_keys`` is the file of the keys that must have signed it, "" if none must.
    """

    label: str
    plugin: plugins.Plugin[Backend]
    backend: Section
    scheduler: Section
    artifact_keys: str = ""

    @property
    def path(self) -> str:
        """Where the model lies, if its backend reads it from somewhere."""
        return str(getattr(self.backend.options, "path", ""))

    @property
    def device(self) -> str:
        """Where it runs, if its backend has a choice."""
        return str(getattr(self.backend.options, "device", ""))

    def missing(self) -> str:
        """Say which file or folder that its options name is not there, or "".

        An option of a plug-in has to be there if its metadata has "missing": how to come by one,
        ``{path}`` standing for its value.
        """
        for option in dataclasses.fields(self.plugin.options):
            value, hint = getattr(self.backend.options, option.name), option.metadata.get("missing")
            if hint and value and not Path(value).exists():
                return f"{value} does not exist; {hint.replace('{path}', shlex.quote(value))}"
        return ""

    def build(self) -> Backend:
        """Return a new backend, not loaded yet; its files must have been checked."""
        return self.plugin.build(self.backend.options)

    def remake(self) -> Backend:
        """Check the files and return a new backend; call it off the event loop.

        Raises LoadError.
        """
        self.verify()
        return self.build()

    async def check_signed(self) -> None:
        """Check the files, off the event loop. Raises LoadError."""
        if self.artifact_keys:
            await run_in_thread(self.verify, "verify")

    def verify(self) -> None:
        """See that the files are as somebody trusted has signed them. Raises LoadError."""
        if not self.artifact_keys:
            return
        if not self.path:
            raise LoadError("artifact_keys are set, and this backend has no files to check")
        verify(Path(self.path), trusted_keys(Path(self.artifact_keys)))

    def with_options(self, **values: str) -> "ModelConfig":
        """Return the same model with those of ``values`` that its backend has options for."""
        known = keys(self.plugin.options)
        chosen = {key: value for key, value in values.items() if key in known}
        options = dataclasses.replace(self.backend.options, **chosen)
        return dataclasses.replace(self, backend=dataclasses.replace(self.backend, options=options))

    def effective(self, backend: Backend) -> str:
        """Say how the loaded ``backend`` computes and is scheduled."""
        options: SchedulerOptions = self.scheduler.options
        limits = options.limits(backend.spec)
        plan = backend.spec.properties.get("plan", "")
        plan = f"plan {plan}, " if plan else ""
        return (
            f"{plan}mode {options.mode}, lanes {backend.lanes},"
            f" max_batch_rows {limits.max_batch_rows}, max_batch_ids {limits.max_batch_ids},"
            f" max_delay_s {limits.max_delay_s:g}"
        )


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model: what was asked for, what it turned out to be; other versions served."""

    config: ModelConfig
    spec: ModelSpec
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One model before its settings meet the general ones: those lose to ``own``."""

    label: str = ""
    defaults: Settings = field(default_factory=dict)
    own: Settings = field(default_factory=dict)
    scheduler: Settings = field(default_factory=dict)


def resolve_models(sources: Sources, paths: Sequence[str], backend: str) -> tuple[ModelConfig, ...]:
    """Return the models to serve, with the plug-in ``backend`` unless they say otherwise.

    The sections ``[backend]`` and ``[scheduler]`` give the defaults of all, whatever source they
    come from. A model with another plug-in takes those keys of ``[backend]`` that it has too.
    Raises ConfigError or PluginError.
    """
    general = sources.sections.get("backend", {})
    # Checked by themselves first, so that the message names the section that is wrong.
    make_section("backend", plugins.backend(backend).options, general)
    make_section("scheduler", SchedulerOptions, sources.sections.get("scheduler", {}))
    wanted = _wanted(sources, paths)
    if wanted[0].label and "name" in general:
        raise ConfigError(f"{general['name'].origin}: backend.name would be that of every model")
    return tuple(_resolve(each, sources, backend) for each in wanted)


def resolve_model(sources: Sources, backend: str, name: str, table: ModelTable) -> ModelConfig:
    """Return the model ``name`` of a repository, whose own settings are those of ``table``.

    Raises ConfigError or PluginError.
    """
    return _resolve(_of_table(name, table), sources, backend)


def _wanted(sources: Sources, paths: Sequence[str]) -> list[_Wanted]:
    if sources.models and paths:
        raise ConfigError(
            f"{ARGUMENT}: the file has [{MODELS}.NAME] tables; name the models there or here"
        )
    if sources.models:
        return [_of_table(name, table) for name, table in sources.models.items()]
    settings = [{"path": Setting(path, ARGUMENT)} for path in paths]
    if len(paths) > 1:
        return [_Wanted(path, own=own) for path, own in zip(paths, settings, strict=True)]
    return [_Wanted(own=settings[0] if settings else {})]


def _of_table(name: str, table: ModelTable) -> _Wanted:
    return _Wanted(name, {"name": Setting(name, table.origin)}, table.settings, table.scheduler)


def _resolve(wanted: _Wanted, sources: Sources, backend: str) -> ModelConfig:
    name = f"{MODELS}.{wanted.label}" if wanted.label else "backend"
    own = dict(wanted.own)
    plugin = _plugin(name, own.pop(BACKEND)) if BACKEND in own else plugins.backend(backend)
    known = keys(plugin.options)
    defaults = {**wanted.defaults, **sources.sections.get("backend", {})}
    settings = {key: setting for key, setting in defaults.items() if key in known} | own
    scheduler = {**sources.sections.get("scheduler", {}), **wanted.scheduler}
    return ModelConfig(
        wanted.label,
        plugin,
        make_section(name, plugin.options, settings, (BACKEND, SCHEDULER) if wanted.label else ()),
        make_section(
            f"{name}.scheduler" if wanted.label else "scheduler", SchedulerOptions, scheduler
        ),
        make_section(
            "server", ServerOptions, sources.sections.get("server", {})
        ).options.artifact_keys,
    )


def _plugin(section: str, chosen: Setting) -> plugins.Plugin[Backend]:
    where = f"{chosen.origin}: {section}.{BACKEND}"
    if not isinstance(chosen.raw, str):
        raise ConfigError(f"{where} must be str, got {chosen.raw!r}")
    try:
        return plugins.backend(chosen.raw)
    except plugins.PluginError as error:
        raise ConfigError(f"{where}: {error}") from error
