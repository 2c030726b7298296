"""The dashboard, read by Grafana's own description of what a dashboard is."""

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.files import DASHBOARD

# Grafana shows it in the list of variables; its description has left it out.
UNDESCRIBED = "definition"


def read(dashboard: Any) -> Any:
    """Return what Grafana's description keeps of ``dashboard``: not the fields it does not know."""
    register_default_plugins()  # of panels and of queries to Prometheus, too
    return json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Yield where ``given`` has what ``kept`` has not, or has otherwise."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key in given.keys() - {UNDESCRIBED}:
            yield from lost(given[key], kept.get(key), f"{place}/{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}/{index}")
    elif given != kept:
        yield place


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert list(lost(dashboard, read(dashboard))) == []


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panel = dashboard["panels"][1]
    panel["targets"][0]["exprr"] = panel["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 1
    assert set(lost(dashboard, read(dashboard))) == {
        "/panels/1/targets/0/exprr",
        "/panels/1/fieldConfig/defaults/custom/lineWidht",
    }
