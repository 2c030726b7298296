"""What Prometheus scrapes and Grafana shows is what a gateway exposes."""

import json
import re
from collections.abc import Iterable
from itertools import chain

from app.frontends.group import Group
from app.gpu import GpuSeries
from app.observe import PrometheusObserver
from tests.deploy.files import DASHBOARD, ROOT, alerts, compose, loaded, queries
from tests.unit.test_gpu_metrics import Library
from transports.http.admin import AdminTransport

SERVICES = compose()["services"]
ADAPTER = ("kubernetes", "adapter-rules.yaml")
GATEWAYS = ("gateway", "gateway-gpu", "gateway-scale")


def test_prometheus_finds_every_gateway_at_the_admin_port() -> None:
    (job,) = loaded("prometheus.yml")["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert found["port"] == AdminTransport.Options().port
    for name in GATEWAYS:
        assert found["names"][0] in SERVICES[name]["networks"]["default"]["aliases"]


def exposed_names() -> set[str]:
    """Return the name of every series that a gateway may expose."""
    gpus = GpuSeries(lambda: Library("GPU-1"))
    gpus.watch(["GPU-1"])
    exposed = PrometheusObserver().exposition("")[0].decode()
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposed, re.MULTILINE))
    families |= {family.name: "gauge" for family in gpus.collect()}
    for family in Group(0, 1, {}, {}).families():
        families |= dict(
            re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(family.lines(openmetrics=False)), re.M)
        )
    known = set(families)
    for name in (name for name, kind in families.items() if kind == "histogram"):
        known |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return known


def named(texts: Iterable[str]) -> set[str]:
    """Return the names of our series in ``texts``, those of a family as it is called."""
    return set(
        chain.from_iterable(re.findall(r"\b(?:narsil|process)_\w+\b(?!\*)", t) for t in texts)
    )


def test_every_series_of_the_dashboard_is_one_that_a_gateway_has() -> None:
    used = named(queries())
    assert len(used) > 20
    assert used <= exposed_names()


def test_every_series_of_the_alerts_is_one_that_a_gateway_has() -> None:
    used = named(expression for _, expression in alerts())
    assert len(used) > 10
    assert used <= exposed_names()


def test_every_series_that_the_guides_name_is_one_that_a_gateway_has() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/migrate").glob("*.md")]
    used = named(page.read_text(encoding="utf-8") for page in pages)
    # What the Kubernetes adapter makes of ours.
    adapted = {rule["name"]["as"] for rule in loaded(*ADAPTER)["rules"]["custom"]}
    assert len(used) > 30
    assert used <= exposed_names() | adapted


def test_the_person_on_call_finds_every_alert() -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    names = [name for name, _ in alerts()]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_dashboard_names_the_provisioned_datasource_and_lies_where_it_is_looked_for() -> None:
    provisioning = ("grafana", "provisioning")
    (source,) = loaded(*provisioning, "datasources", "prometheus.yml")["datasources"]
    (provider,) = loaded(*provisioning, "dashboards", "narsil.yml")["providers"]
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert all(panel["title"] and panel["description"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounted
    assert source["url"] == "http://prometheus:9090"
