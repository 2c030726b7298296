"""Front ends as the configuration wants them, or why it cannot have them."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.access.ledger import Ledger
from app.frontends.group import Group, Shared
from app.resolve import Config
from app.settings import ConfigError
from transports.base import Transport

# What stays in the engine's process: operators' own, one listener for all there is; and what has a
# process for each caller already.
_ENGINES_OWN = ("admin", "collective")


def front_ends_of(config: Config) -> Group | None:
    """Return the front ends that ``config`` asks for, None for none. Raises ConfigError."""
    server = config.server
    if not server.frontends:
        return None
    if sys.platform != "linux":
        raise ConfigError(f"server.frontends: they need Linux, and this is {sys.platform}")
    shared = {name: _shared(config, name) for name in config.transports if name not in _ENGINES_OWN}
    if not shared:
        raise ConfigError("server.frontends: no transport that front ends could serve is named")
    settings: dict[str, Any] = {
        "api_keys": server.api_keys,
        "hung_s": server.frontend_hung_s,
        "log_level": server.log_level,
        "log_format": config.sections["log"].options.format,
        "tracing": asdict(config.sections["tracing"].options),
    }
    ledger = Ledger.make() if server.api_keys else None
    return Group(server.frontends, server.frontend_slot_bytes, shared, settings, ledger)


def transports_of(config: Config, group: Group | None) -> Mapping[str, Transport]:
    """Return every transport, those of front ends as ``group`` has them."""
    far = group.transports() if group else {}
    return {
        name: far.get(name) or transport.build(config.sections[name].options)
        for name, transport in config.transports.items()
    }


def _shared(config: Config, name: str) -> Shared:
    options = config.sections[name].options
    built: Any = config.transports[name].build(options)
    if not hasattr(built, "share"):
        raise ConfigError(
            f"server.frontends: the transport {name} cannot listen in several processes"
            " (it has no share, see transports/sharing.py)"
        )
    return Shared(built, options)
