"""Everything ``narsil serve`` was told, resolved: which plug-ins run, and with what options."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app import plugins
from app.config import ServerOptions, Sources, gather
from app.flags import given, make_parser, unknown
from app.models import ModelConfig, resolve_model, resolve_models
from app.repository.options import RepositoryOptions
from app.repository.plan import GIVEN, Planner, plan_of
from app.request_log import LogOptions
from app.settings import ConfigError, Section, make_section
from app.tracing.options import TracingOptions
from app.triton_names import MetricsOptions
from scheduler.options import SchedulerOptions
from transports.base import Transport


@dataclass(frozen=True)
class Config:
    """The server's section and each transport's, by name, and the models."""

    sections: Mapping[str, Section]
    models: tuple[ModelConfig, ...]
    transports: Mapping[str, plugins.Plugin[Transport]]
    repository: Section
    planner: Planner

    @property
    def server(self) -> ServerOptions:
        """The server's options."""
        options: ServerOptions = self.sections["server"].options
        return options

    def all_sections(self) -> list[Section]:
        """Return every section, those of the models too."""
        sections = list(self.sections.values())
        for model in self.models:
            sections += [model.scheduler, model.backend]
        return [*sections, self.repository]

    def lines(self) -> list[str]:
        """Return one line a value: ``section.key = value  # origin``."""
        return [line for section in self.all_sections() for line in section.lines()]


def resolve(argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Resolve the configuration of ``narsil serve``. Raises ConfigError or PluginError.

    Two passes: which plug-ins run decides which flags exist.
    """
    first, _ = make_parser({"server": ServerOptions}, add_help=False).parse_known_args(argv)
    server: ServerOptions = _section(_sources(first), "server", ServerOptions).options
    backend = plugins.backend(server.backend)
    transports = {name: plugins.transport(name) for name in server.transports}
    if not transports:
        raise ConfigError("server.transports: at least one transport must be named")
    schema: dict[str, type[Any]] = {
        "server": ServerOptions,
        "log": LogOptions,
        "metrics": MetricsOptions,
        "tracing": TracingOptions,
        **{name: transport.options for name, transport in transports.items()},
    }
    models: dict[str, type[Any]] = {
        "repository": RepositoryOptions,
        "scheduler": SchedulerOptions,
        "backend": backend.options,
    }
    parser = make_parser({**schema, **models}, add_help=True)
    # Intermixed: a path may also follow a flag.
    arguments, extra = parser.parse_known_intermixed_args(argv)
    if extra:
        parser.error(unknown(extra, {**schema, **models}, _elsewhere(server)))
    sources = _sources(arguments)
    sources.check_sections({*schema, *models, *plugins.names("narsil.transports")})
    config = Config(
        sections={name: _section(sources, name, options) for name, options in schema.items()},
        models=_models(sources, arguments.model, server.backend),
        transports=transports,
        repository=_section(sources, "repository", RepositoryOptions),
        planner=partial(
            plan_of,
            partial(resolve_model, sources, server.backend),
            artifact_keys=server.artifact_keys,
        ),
    )
    _check_client_certificates(config.sections)
    _check_rows_are_signed(config.sections)
    return config, arguments


def _models(sources: Sources, paths: Sequence[str], backend: str) -> tuple[ModelConfig, ...]:
    """Return the models to serve by themselves: none beside a repository. Raises ConfigError."""
    url = sources.sections.get("repository", {}).get("url")
    if url is None or not url.raw:
        return resolve_models(sources, paths, backend)
    if paths or sources.models:
        raise ConfigError(f"{url.origin}: a repository is served alone, without other models")
    general = sources.sections.get("backend", {})
    for key in GIVEN:
        if key in general:
            raise ConfigError(
                f"{general[key].origin}: backend.{key} is given by where a version lies in the"
                " repository"
            )
    resolve_models(sources, (), backend)  # the general sections have to be right
    return ()


def _elsewhere(server: ServerOptions) -> dict[str, dict[str, type[Any]]]:
    """Return the flags of the plug-ins that do not run, for hints."""
    found: dict[str, dict[str, type[Any]]] = {}
    for name in plugins.names("narsil.backends"):
        with contextlib.suppress(plugins.PluginError):
            owner = f"the backend {name}, and this is {server.backend}"
            found[owner] = {"backend": plugins.backend(name).options}
    for name in {*plugins.names("narsil.transports")} - {*server.transports}:
        with contextlib.suppress(plugins.PluginError):
            owner = f"the transport {name}, which server.transports leaves out"
            found[owner] = {name: plugins.transport(name).options}
    return found


def asks_for_certificate(options: Any) -> bool:
    """Return whether a transport with ``options`` refuses clients without a certificate."""
    optional = getattr(options, "client_certificates", "required") == "optional"
    return bool(getattr(options, "client_ca", "")) and not optional


def _check_client_certificates(sections: Mapping[str, Section]) -> None:
    """Refuse a door beside the guarded one, unless it was asked for. Raises ConfigError."""
    guarded = [name for name, one in sections.items() if asks_for_certificate(one.options)]
    if not guarded:
        return
    for name, one in sections.items():
        if getattr(one.options, "without_client_certificates", True):
            continue
        others = ",".join(each for each in sections["server"].options.transports if each != name)
        raise ConfigError(
            f"{guarded[0]}.client_ca: {name} asks for no client certificates and would let"
            f" everybody in; leave it out (--transports {others}) or set"
            f" {name}.without_client_certificates=true"
        )


def _check_rows_are_signed(sections: Mapping[str, Section]) -> None:
    """Refuse rows without a signature beside artifacts with one. Raises ConfigError."""
    if not sections["server"].options.artifact_keys:
        return
    for name, one in sections.items():
        if name == "admin" and getattr(one.options, "updates", False):
            raise ConfigError(
                "server.artifact_keys: rows that come over the network (admin.updates) are not"
                " signed; put signed files into a folder (server.deltas)"
            )


def _sources(arguments: argparse.Namespace) -> Sources:
    return gather(arguments.config, given(arguments))


def _section(sources: Sources, name: str, options: type[Any]) -> Section:
    return make_section(name, options, sources.sections.get(name, {}))
