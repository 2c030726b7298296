"""Dockerfile, compose and balancer say what the command line's defaults say."""

import asyncio
import json
import re
import shlex
import tomllib
from typing import Any

import pytest

from app.config import ServerOptions
from app.observe import PrometheusObserver
from app.resolve import resolve
from app.server import FLUSH_S
from scheduler.engine import Engine
from scheduler.options import SchedulerOptions
from tests.deploy.files import (
    DEPLOY,
    ROOT,
    compose,
    environment,
    image_environment,
    instructions,
    last,
    stages,
)
from transports.grpc.server import GrpcTransport
from transports.http.admin import AdminTransport
from transports.http.server import HttpTransport
from transports.http3.server import Http3Transport

SERVICES: dict[str, dict[str, Any]] = compose()["services"]
GATEWAYS = ("gateway", "gateway-gpu", "gateway-scale")
IMAGES = ("cpu", "cuda", "native", "tools")
HTTP, GRPC = HttpTransport.Options().port, GrpcTransport.Options().port
HTTP3, ADMIN = Http3Transport.Options().port, AdminTransport.Options().port
PUBLISHED = {f"{HTTP}/tcp", f"{GRPC}/tcp", f"{HTTP3}/tcp", f"{HTTP3}/udp"}


def started(*profiles: str) -> set[str]:
    """Return the services that compose starts with ``profiles``."""
    return {
        name
        for name, service in SERVICES.items()
        if set(service.get("profiles", profiles)) & set(profiles)
    }


def test_each_profile_has_one_gateway_or_the_balancer_of_several_beside_the_watchers() -> None:
    watchers = {"model", "prometheus", "grafana"}
    assert started(environment()["COMPOSE_PROFILES"]) == {"gateway", *watchers}
    assert started("gpu") == {"gateway-gpu", *watchers}
    assert started("scale") == {"gateway-scale", "balancer", *watchers}
    assert started("bench") == {"gateway", "bench", *watchers}


@pytest.mark.parametrize("name", ["gateway", "gateway-gpu", "balancer"])
def test_what_clients_reach_is_on_loopback_at_the_ports_of_the_command_line(name: str) -> None:
    ports = SERVICES[name]["ports"]
    assert {port.split(":")[-1] for port in ports} == PUBLISHED
    for port in ports:
        address, outside, inside = port.split(":")
        # Alt-Svc names the port inside, so it must be the one outside.
        assert (address, outside) == ("127.0.0.1", inside.split("/")[0])


def test_the_image_exposes_those_ports_and_the_admin_listeners() -> None:
    assert set(last("cpu", "EXPOSE").split()) == {*PUBLISHED, f"{ADMIN}/tcp"}


def test_no_port_is_published_twice_by_what_starts_together() -> None:
    for profile in ("cpu", "gpu", "scale", "bench"):
        ports = [port for name in started(profile) for port in SERVICES[name].get("ports", ())]
        outside = [port.rsplit(":", 1)[0] + port.partition("/")[2] for port in ports]
        assert len(set(outside)) == len(outside)


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "user" not in service  # that of the image


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_has_longer_to_stop_than_it_takes(name: str) -> None:
    server = ServerOptions()
    seconds = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert seconds > server.drain_delay_s + server.grace_s + FLUSH_S


@pytest.mark.parametrize("stage", IMAGES)
def test_every_image_runs_narsil_itself_as_a_user_without_rights(stage: str) -> None:
    assert json.loads(last(stage, "ENTRYPOINT")) == ["narsil"]  # not a shell: signals arrive
    assert isinstance(json.loads(last(stage, "CMD")), list)
    assert last(stage, "STOPSIGNAL") == "SIGTERM"
    user, _, group = last(stage, "USER").partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000


@pytest.mark.parametrize("stage", IMAGES)
def test_final_stages_install_nothing(stage: str) -> None:
    ran = [rest for word, rest in stages()[stage] if word == "RUN"]
    assert not any(re.search(r"\b(pip|apt-get|gcc)\b", each) for each in ran)
    assert stages()[stage][: len(stages()["runtime"])] == stages()["runtime"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_compose_builds_is_a_target_and_what_it_mounts_is_there(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert service["build"]["target"] in IMAGES
        assert service["image"] == f"narsil:{service['build']['target']}"
    else:
        assert re.fullmatch(r".+:v?\d+\.\d+(\.\d+)?", service["image"])  # no moving tag
    for source in (volume.split(":")[0] for volume in service.get("volumes", ())):
        is_path = source.startswith(".")
        assert (ROOT / source).exists() if is_path else source in compose()["volumes"]


@pytest.mark.parametrize("name", GATEWAYS)
def test_the_command_line_takes_what_image_and_compose_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    stage = service["build"]["target"]
    for key, value in (image_environment(stage) | service["environment"]).items():
        if key.startswith("NARSIL_"):
            monkeypatch.setenv(key, value)
    command = json.loads(last(stage, "CMD"))
    config, _ = resolve(command[1:])
    assert command[0] == "serve"
    for transport in ("http", "grpc", "http3", "admin"):
        assert config.sections[transport].options.host == "0.0.0.0"
    assert config.models[0].backend.options.device == ("cuda:0" if stage == "cuda" else "cpu")
    made, mounted = SERVICES["model"]["command"], service["volumes"][0].split(":")[1]
    assert [config.models[0].backend.options.path] == made
    assert made[0].startswith(mounted)


def test_the_image_alone_shows_the_admin_listener_to_nobody_outside() -> None:
    assert "NARSIL_ADMIN__HOST" not in image_environment("cpu")


async def test_the_health_check_fails_until_a_request_would_be_answered() -> None:
    command = json.loads(last("cpu", "HEALTHCHECK").partition("CMD ")[2])
    assert f"127.0.0.1:{ADMIN}/" in command[-1]
    admin = AdminTransport(AdminTransport.Options(port=0))
    engine = Engine(SchedulerOptions(), PrometheusObserver())
    (address,) = await admin.start(engine)
    command[-1] = command[-1].replace(f"http://127.0.0.1:{ADMIN}", address)

    async def status() -> int:
        quiet = asyncio.subprocess.DEVNULL
        return await (await asyncio.create_subprocess_exec(*command, stderr=quiet)).wait()

    assert await status() == 1
    engine.open()
    assert await status() == 0
    await admin.stop(0)
    assert await status() == 1


def test_the_image_is_built_of_every_package_and_its_torchrec_is_the_makefiles() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {f"!{package.rstrip('*')}" for package in packages} <= set(ignored)
    (torchrec,) = set(re.findall(r"torchrec==[\d.]+", (ROOT / "Dockerfile").read_text()))
    assert f"TORCHREC := {torchrec}\n" in (ROOT / "Makefile").read_text()
    extras = project["project"]["optional-dependencies"]
    for word, rest in instructions():
        for listed in re.findall(r"requirements.py ([\w ]+) >", rest) if word == "RUN" else ():
            assert set(listed.split()) <= set(extras)


def test_the_balancer_listens_and_passes_on_at_the_same_ports() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert set(re.findall(r"listen (\d+)", text)) == {str(HTTP), str(GRPC), str(HTTP3)}
    assert re.findall(r"listen (\d+) udp", text) == [str(HTTP3)]
    servers = set(re.findall(r"server ([\w-]+):(\d+)", text))
    assert servers == {("gateway-scale", str(port)) for port in (HTTP, GRPC, HTTP3)}
    largest = int(re.findall(r"client_max_body_size (\d+)m", text)[0]) << 20
    assert largest > HttpTransport.Options().max_request_bytes
    assert largest > GrpcTransport.Options().max_message_bytes


def test_bench_asks_whatever_gateway_runs() -> None:
    command = SERVICES["bench"]["command"]
    assert command[command.index("--url") + 1] == f"grpc://narsil:{GRPC}"
    for name in ("gateway", "gateway-gpu", "balancer"):
        assert "narsil" in SERVICES[name]["networks"]["default"]["aliases"]


def test_the_demo_model_is_made_by_commands_that_exist() -> None:
    script = (DEPLOY / "demo_model.sh").read_text()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    ran = [shlex.split(line)[1] for line in re.findall(r"narsil \w+ [\w\"$]+", script)]
    assert ran[:1] == ["train"]
    assert set(ran) <= set(scripts["narsil.commands"])
