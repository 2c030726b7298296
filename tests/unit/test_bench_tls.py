"""``narsil bench`` over TLS: what is trusted, what is agreed on, and what is said if it fails."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest import command, drive, workload
from loadtest.calibrate import null_server
from loadtest.closed import NoServerError
from loadtest.encodings import encode
from loadtest.record import Outcome
from loadtest.report import FAILED, INVALID
from loadtest.wires.base import Target
from loadtest.wires.connect import connected
from loadtest.wires.kinds import KINDS, target
from loadtest.workload import Mix
from tests.fixtures.authority import Authority, Pair
from tests.fixtures.gates import serving
from tests.fixtures.grpc_calls import grpc_options
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpOptions, HttpTransport
from transports.http3.server import Http3Options, Http3Transport

WIRES = {"grpc": "grpcs", "http": "https"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def null(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Yield the port of a server over TLS for gRPC, and its certificate's file."""
    folder = tmp_path_factory.mktemp("null")
    with null_server("grpc", folder, tls=True) as port:
        yield port, folder / "certificate.pem"


def outcome_of(wire: str, place: Target) -> Outcome:
    (made,) = workload.draws(workload.ModelShape(3, ("cat_0", "cat_1"), (1000, 1000)),
                             Mix(((2, 1.0),)), 1, seed=1)  # fmt: skip
    body = encode(KINDS[wire].encoding, "", ("cat_0", "cat_1"), made[1])
    with connected(KINDS[wire].scheme, place, 2) as wires:
        plan = drive.Plan([body], warmup_s=0.0, measure_s=0.1, in_flight=2)
        return drive.run(wires, plan, time.perf_counter())


@pytest.mark.parametrize("wire", WIRES)
async def test_requests_over_tls_are_answered(wire: str, authority: Authority) -> None:
    pair = authority.issue()
    certificate, private_key = str(pair.certificate), str(pair.private_key)
    async with serving() as state:
        state.gate.open()
        transport = (
            GrpcTransport(grpc_options(port=0, certificate=certificate, private_key=private_key))
            if wire == "grpc"
            else HttpTransport(
                HttpOptions(port=0, certificate=certificate, private_key=private_key)
            )
        )
        (url,) = await transport.start(state.engine)
        assert url.startswith(f"{WIRES[wire]}://")
        place = target(KINDS[wire], url, str(authority.ca))
        try:
            outcome = await asyncio.to_thread(outcome_of, wire, place)
        finally:
            await transport.stop(0)
    assert outcome.failures.first == ""
    assert outcome.answered > 0


async def ask_over_http3(pair: Pair, ca: Path) -> Outcome:
    async with serving() as state:
        state.gate.open()
        transport = Http3Transport(
            Http3Options(
                port=0, certificate=str(pair.certificate), private_key=str(pair.private_key)
            )
        )
        await transport.start(state.engine)
        place = target(KINDS["http3"], f"https://localhost:{transport.port}", str(ca))
        try:
            return await asyncio.to_thread(outcome_of, "http3", place)
        finally:
            await transport.stop(0)


async def test_a_certificate_that_is_its_own_authority_will_do_over_http3(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue_own()
    outcome = await ask_over_http3(own, own.certificate)
    assert outcome.failures.first == ""
    assert outcome.answered > 0


async def test_over_http3_it_is_said_what_was_trusted(tmp_path: Path, authority: Authority) -> None:
    own = Authority(tmp_path / "own").issue_own()
    other = Authority(tmp_path / "other").issue_own()
    for ca in (authority.ca, other.certificate):
        with pytest.raises(NoServerError, match=rf"trusted is {ca} \(--ca\)"):
            await ask_over_http3(own, ca)


@pytest.mark.slow
def test_a_run_over_tls_is_measured_beside_a_null_server_over_tls(
    null: tuple[int, Path], small_artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--url grpcs://localhost:{null[0]} --ca {null[1]} --rows 1 --requests 10 --seconds 0.1\
        --warmup 0".split()
    assert command.main([str(small_artifact), *flags]) in (0, INVALID)
    assert "the generator alone, grpc, 1 rows: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wire", "host", "trusted", "said"),
    [
        # OpenSSL's words depend on what the server sends of its chain.
        ("grpc", "localhost", "stranger", "(local issuer|self-signed) certificate.*; trusted is"),
        ("grpc", "127.1", "own", "certificate is not valid for .127.1."),
        ("grpc", "localhost", "gone", "gone.pem not found \\(--ca\\)"),
        ("http", "localhost", "own", "the server does not offer http/1.1 \\(ALPN\\)|no TLS there"),
    ],
)
def test_why_there_is_no_tls_is_said(
    wire: str, host: str, trusted: str, said: str, null: tuple[int, Path], authority: Authority
) -> None:
    files = {"stranger": authority.ca, "own": null[1], "gone": null[1].with_name("gone.pem")}
    url = f"{WIRES[wire]}://{host}:{null[0]}"
    place = target(KINDS[wire], url, str(files[trusted]))
    with (
        pytest.raises(NoServerError, match=f"cannot connect to {url}: .*({said})"),
        connected(KINDS[wire].scheme, place, 1),
    ):
        pass


@pytest.mark.slow
def test_a_server_without_tls_is_told_from_one_that_is_not_trusted(
    tmp_path: Path, small_artifact: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    with null_server("http", tmp_path) as port:
        flags = f"--wire http --url https://127.0.0.1:{port} --ca {authority.ca} --requests 2\
            --no-calibration".split()
        assert command.main([str(small_artifact), *flags]) == FAILED
    *_, last = capsys.readouterr().err.splitlines()
    assert f": cannot connect to https://127.0.0.1:{port}: no TLS there" in last
