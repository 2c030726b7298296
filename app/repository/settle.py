"""Tell what has come to rest from what is still being written. Pure: it is given the time."""

from dataclasses import replace
from typing import TypeAlias

from app.repository.listing import FoundModel, FoundVersion, Listing

# A model's version; "" is what it has besides versions.
_Unit: TypeAlias = tuple[str, str]


class Settler:
    """Pass on a change once it has been seen unchanged for ``settle_s`` seconds."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._settled: dict[_Unit, FoundModel | FoundVersion] = {}
        self._changing: dict[_Unit, tuple[FoundModel | FoundVersion | None, float]] = {}

    @property
    def waits(self) -> bool:
        """Whether something has changed and has yet to come to rest."""
        return bool(self._changing)

    def adopt(self, listing: Listing) -> Listing:
        """Take ``listing`` as it is, at rest or not, and return it."""
        self._settled = _units(listing)
        self._changing.clear()
        return listing

    def look(self, listing: Listing, now_s: float) -> Listing:
        """Return ``listing``, seen ``now_s``, with what has changed lately as it was before."""
        seen = _units(listing)
        for unit in {*seen, *self._settled, *self._changing}:
            self._look_at(unit, seen.get(unit), now_s)
        return _listing(self._settled)

    def _look_at(self, unit: _Unit, found: FoundModel | FoundVersion | None, now_s: float) -> None:
        if found == self._settled.get(unit):
            self._changing.pop(unit, None)
            return
        before, since_s = self._changing.get(unit, (None, now_s))
        if unit not in self._changing or before != found:
            since_s = now_s
        if now_s - since_s < self._settle_s:
            self._changing[unit] = (found, since_s)
            return
        self._changing.pop(unit, None)
        if found is None:
            del self._settled[unit]
        else:
            self._settled[unit] = found


def _units(listing: Listing) -> dict[_Unit, FoundModel | FoundVersion]:
    units: dict[_Unit, FoundModel | FoundVersion] = {}
    for name, model in listing.items():
        units[name, ""] = replace(model, versions={})
        units |= {(name, version): found for version, found in model.versions.items()}
    return units


def _listing(units: dict[_Unit, FoundModel | FoundVersion]) -> Listing:
    models: dict[str, FoundModel] = {}
    for (name, _), found in units.items():
        if isinstance(found, FoundModel):
            models[name] = found
    for name, model in models.items():
        versions = {
            version: found
            for (model_name, version), found in units.items()
            if model_name == name and isinstance(found, FoundVersion)
        }
        models[name] = replace(model, versions=versions)
    return models
