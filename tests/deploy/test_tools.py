"""The deployed files, read by the tools they are for, where those are installed.

Debian has them: docker-compose, prometheus (with promtool).
"""

import asyncio
import json
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.deploy.files import DEPLOY, adapter_queries, loaded, queries
from tests.deploy.kustomized import documents
from tests.deploy.tools import free_port, run, running, tool, until_ready
from tests.e2e.process import narsil_serve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("profile", ["cpu", "gpu", "scale", "bench"])
def test_compose_takes_its_file(profile: str) -> None:
    shown = run(tool("docker-compose"), "--profile", profile, "config")
    assert "NARSIL_ADMIN__HOST: 0.0.0.0" in shown


def test_kustomize_makes_what_the_other_tests_check() -> None:
    made = list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(DEPLOY / "kubernetes"))))
    (container,) = [
        one["spec"]["template"]["spec"]["containers"][0]
        for one in made
        if one["kind"] == "Deployment"
    ]
    assert container["image"] == "narsil:cpu"
    container["image"] = "narsil"
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert by_name == {(one["kind"], one["metadata"]["name"]): one for one in documents()}


def test_promtool_takes_what_prometheus_is_told() -> None:
    assert "SUCCESS" in run(tool("promtool"), "check", "config", str(DEPLOY / "prometheus.yml"))


def test_promtool_finds_that_alerts_go_off_for_faults_of_ours_alone(tmp_path: Path) -> None:
    assert "SUCCESS" in run(tool("promtool"), "check", "rules", str(DEPLOY / "alerts.yml"))
    told = Path(__file__).with_name("alerts_test.yml").read_text(encoding="utf-8")
    file = tmp_path / "alerts_test.yml"
    file.write_text(told.replace("RULES", str(DEPLOY / "alerts.yml")))
    assert "SUCCESS" in run(tool("promtool"), "test", "rules", str(file))


async def test_prometheus_reads_a_gateway_and_answers_every_query_of_the_dashboard(
    tmp_path: Path,
) -> None:
    prometheus = tool("prometheus")
    with narsil_serve(tmp_path, ["--backend", "fake"]) as process:
        config = loaded("prometheus.yml")
        (job,) = config["scrape_configs"]
        target = urlsplit(process.urls["admin"]).netloc
        job.pop("dns_sd_configs")
        job["static_configs"] = [{"targets": [target]}]
        job["scrape_interval"] = job["scrape_timeout"] = "100ms"
        file = tmp_path / "prometheus.json"  # JSON is YAML
        file.write_text(json.dumps(config))
        port = free_port()
        with running(
            prometheus, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ):  # fmt: skip
            await until_ready(f"http://127.0.0.1:{port}/-/ready")
            await check_queries(f"http://127.0.0.1:{port}")


async def check_queries(url: str) -> None:
    """Ask everything the dashboard asks; series that the gateway has from its start have values."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def values(query: str) -> int:
            answer = (await client.get("/api/v1/query", params={"query": query})).json()
            assert answer["status"] == "success", (query, answer)
            return len(answer["data"]["result"])

        for _ in range(200):  # two scrapes make a rate
            if await values("rate(narsil_lane_busy_seconds_total[1m])"):
                break
            await asyncio.sleep(0.1)
        found = {query: await values(query) for query in chain(queries(), adapter_queries())}
    assert all(found[query] for query in adapter_queries())
    for name in ("dropped_total", "model_info", "lane_busy", "event_loop_lag", "process_cpu"):
        assert any(count for query, count in found.items() if name in query), name
