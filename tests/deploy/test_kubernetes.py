"""deploy/kubernetes: valid, hardened, and in step with the command line's defaults."""

from typing import Any

import kubernetes_validate
import pytest

from app.observe import PrometheusObserver
from app.resolve import resolve
from app.server import FLUSH_S
from tests.deploy.files import adapter_queries, last, loaded
from tests.deploy.kustomized import documents

# The oldest and the newest Kubernetes that is supported with these files.
RELEASES = ("1.29", "1.37")


BY_NAME = {(one["kind"], one["metadata"]["name"]): one for one in documents()}
OWN = [one for one in BY_NAME.values() if one["kind"] != "ServiceMonitor"]
POD = BY_NAME["Deployment", "narsil"]["spec"]["template"]
RUNTIME = loaded("kubernetes", "kserve-runtime.yaml")
CONTAINERS = [POD["spec"]["containers"][0], RUNTIME["spec"]["containers"][0]]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "document", OWN, ids=lambda one: f"{one['kind']}/{one['metadata']['name']}"
)
def test_each_resource_fits_kubernetes_own_schema(document: dict[str, Any], release: str) -> None:
    kubernetes_validate.validate(document, release, strict=True)


def test_the_validator_would_find_a_wrong_key() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, RELEASES[-1], strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_the_pod_of_the_kserve_runtime_is_a_pod(release: str) -> None:
    parts = {key: RUNTIME["spec"][key] for key in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": parts}
    kubernetes_validate.validate(pod, release, strict=True)
    assert RUNTIME["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert RUNTIME["kind"] == "ClusterServingRuntime"
    assert {*RUNTIME["spec"]} == {
        "supportedModelFormats", "protocolVersions", "multiModel", "annotations", "containers",
        "volumes",
    }  # fmt: skip


@pytest.mark.parametrize("container", CONTAINERS, ids=["deployment", "kserve"])
def test_probes_ask_the_three_pages_of_a_port_that_is_listened_to(
    container: dict[str, Any],
) -> None:
    config, _ = resolve([each.replace("{{.Name}}", "x") for each in container["args"][1:]])
    listens = {name: config.sections[name].options for name in ("http", "admin")}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for kind, path in (("startup", "/startupz"), ("liveness", "/livez"), ("readiness", "/readyz")):
        asked = container[f"{kind}Probe"]["httpGet"]
        assert asked["path"] == path
        assert ports.get(asked["port"], asked["port"]) in [each.port for each in listens.values()]
    assert ports.get("admin", listens["admin"].port) == listens["admin"].port


def test_the_ports_are_those_of_the_command_line() -> None:
    (container,) = POD["spec"]["containers"]
    config, _ = resolve(container["args"][1:])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name, port in ports.items():
        section = "http3" if name == "https" else name
        assert port == config.sections[section].options.port
    for document in BY_NAME.values():
        if document["kind"] == "Service":
            for port in document["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]


def test_a_pod_has_longer_to_stop_than_it_takes() -> None:
    server = resolve(POD["spec"]["containers"][0]["args"][1:])[0].server
    least_s = server.drain_delay_s + server.grace_s + FLUSH_S
    assert POD["spec"]["terminationGracePeriodSeconds"] > least_s


@pytest.mark.parametrize("container", CONTAINERS, ids=["deployment", "kserve"])
def test_containers_have_no_rights_and_the_images_user(container: dict[str, Any]) -> None:
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    user, _, group = last("cpu", "USER").partition(":")
    pod = POD["spec"]["securityContext"]
    assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"]) == (
        int(user),
        int(group),
        int(group),
    )
    assert context.get("runAsUser", pod["runAsUser"]) == int(user)
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {
        "/tmp",
        "/var/lib/narsil",
    }


def test_only_prometheus_is_led_to_the_admin_listener() -> None:
    leading = [
        name
        for (kind, name), document in BY_NAME.items()
        if kind == "Service" and "admin" in [port["name"] for port in document["spec"]["ports"]]
    ]
    assert leading == ["narsil-metrics"]
    monitor = BY_NAME["ServiceMonitor", "narsil"]
    metrics = BY_NAME["Service", "narsil-metrics"]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= metrics["metadata"]["labels"].items()
    )
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == ["admin"]


def test_the_scaler_and_the_budget_are_of_the_deployment() -> None:
    target = BY_NAME["HorizontalPodAutoscaler", "narsil"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in BY_NAME
    assert "replicas" not in BY_NAME["Deployment", "narsil"]["spec"]
    selector = BY_NAME["PodDisruptionBudget", "narsil"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= POD["metadata"]["labels"].items()


def test_the_scaler_asks_for_what_the_adapter_makes_of_series_that_a_gateway_has() -> None:
    rules = loaded("kubernetes", "adapter-rules.yaml")["rules"]["custom"]
    metrics = BY_NAME["HorizontalPodAutoscaler", "narsil"]["spec"]["metrics"]
    assert {one["pods"]["metric"]["name"] for one in metrics} == {
        rule["name"]["as"] for rule in rules
    }
    exposed = PrometheusObserver().exposition("")[0].decode()
    for rule in rules:
        assert f"# TYPE {rule['seriesQuery'].partition('{')[0]} " in exposed
    assert not any("<<" in query for query in adapter_queries())
