"""``narsil predict``: whatever goes wrong is said in one sentence."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import predict
from app.access.guard import Guard
from backends.fake import FakeBackend
from scheduler.types import InferRequest
from tests.fixtures.serving import serving
from transports.base import Transport
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpTransport
from transports.http3.certificate import development_certificate
from transports.http3.server import Http3Transport

INPUTS: dict[str, Any] = {
    "float_features": np.ones((1, 3), np.float32),
    "id_list_features.lengths": np.ones((2, 1), np.int32),
    "id_list_features.values": np.ones(2, np.int64),
}


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"float_features": [[1.0, 2.0, 3.0]]}))
    return file


@pytest.fixture
def whole_request(request_file: Path) -> Path:
    features = {"cat_0": [[3]], "cat_1": [[7]]}
    body = {"float_features": [[1.0, 2.0, 3.0]], "id_list_features": features}
    request_file.write_text(json.dumps(body))
    return request_file


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--url", "127.0.0.1:1"], "http expects http://HOST:PORT or https://HOST:PORT"),
        (["--url", "http://127.0.0.1:x"], "http expects http://HOST:PORT or https://HOST:PORT"),
        (["--transport", "grpc", "--url", "http://h:1"], "grpc expects grpc://HOST:PORT"),
        (["--transport", "http3", "--url", "http://h:1"], "http3 expects https://HOST:PORT"),
        (["--describe", "h:1"], "--describe expects http://HOST:PORT or https://HOST:PORT"),
    ],
)
def test_a_url_that_does_not_fit_the_transport_is_refused(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        predict.main(["unused", *flags])
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


def test_grpc_with_a_json_file_says_which_address_it_asked_for_the_features(
    request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "http://127.0.0.1:1"
    flags = ["--transport", "grpc", "--url", "grpc://127.0.0.1:1", "--describe", nobody]
    assert predict.main([str(request_file), *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"narsil predict: {nobody}: ")
    assert "--describe gives the HTTP address" in line


def test_a_missing_request_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main(["gone.json"]) == 1
    assert capsys.readouterr().err == "narsil predict: gone.json: No such file or directory\n"


@pytest.mark.parametrize("flags", [["--transport", "http3"], ["--url", "https://localhost:1"]])
def test_a_missing_ca_is_named(
    flags: list[str], request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict.main([str(request_file), *flags, "--ca", "gone.pem"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "CA file gone.pem not found" in line


@pytest.mark.parametrize("transport", ["grpc", "http", "http3"])
async def test_an_unknown_model_is_answered_with_the_detail_alone(
    transport: str, request_file: Path, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
        url = served.urls[transport].replace("https://127.0.0.1", "https://localhost")
        flags = ["--transport", transport, "--url", url, "--ca", str(served.ca)]
        flags += ["--describe", served.urls["http"], "--model", "foo"]
        assert await asyncio.to_thread(predict.main, [str(request_file), *flags]) == 1
    assert capsys.readouterr().err == "narsil predict: 404: no model 'foo'; served: fake\n"


@pytest.fixture
async def in_tls(certificates: Path) -> AsyncIterator[dict[str, str]]:
    """Where a fake model listens on every transport in TLS."""
    own = development_certificate(certificates, datetime.now(UTC))
    certificate, key = str(own.certificate), str(own.private_key)
    async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
        transports: dict[str, Transport] = {
            "http": HttpTransport(
                HttpTransport.Options(port=0, certificate=certificate, private_key=key)
            ),
            "grpc": GrpcTransport(
                GrpcTransport.Options(port=0, certificate=certificate, private_key=key)
            ),
        }
        started = {name: await each.start(served.engine) for name, each in transports.items()}
        urls = {"http3": served.urls["http3"], **{name: url for name, (url,) in started.items()}}
        yield {name: url.replace("127.0.0.1", "localhost") for name, url in urls.items()}
        for each in transports.values():
            await each.stop(0)


@pytest.mark.parametrize("transport", ["grpc", "http", "http3"])
async def test_a_certificate_of_another_ca_fails_with_one_sentence_that_says_whom_to_trust(
    transport: str, in_tls: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = development_certificate(tmp_path, datetime.now(UTC)).certificate
    np.savez(tmp_path / "request.npz", **INPUTS)
    flags = ["--transport", transport, "--url", in_tls[transport], "--ca", str(other)]
    command = [str(tmp_path / "request.npz"), *flags]
    assert await asyncio.to_thread(predict.main, command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "certificate in certificate chain" in line
    assert f"; --ca FILE names whom to trust, here {other}: the certificate for development is" in (
        line
    )
    assert "--certificate" not in line


async def test_a_certificate_of_another_name_is_no_matter_of_whom_to_trust(
    certificates: Path, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = Http3Transport.Options(host="127.0.0.2", port=0, certificate_dir=str(certificates))
    async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
        transport = Http3Transport(elsewhere)
        url, *_ = await transport.start(served.engine)
        command = [str(request_file), "--transport=http3", f"--url={url}", f"--ca={served.ca}"]
        assert await asyncio.to_thread(predict.main, command) == 1
        await transport.stop(0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "hostname '127.0.0.2' doesn't match" in line
    assert "--ca" not in line


@pytest.mark.parametrize("flags", [["--priority=-1"], ["--timeout-ms=0"], ["--timeout-ms=nan"]])
def test_a_priority_or_timeout_that_cannot_be_is_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        predict.main(["unused", *flags])
    assert stopped.value.code == 2
    assert f"{flags[0].partition('=')[0]} must be" in capsys.readouterr().err


@pytest.mark.parametrize("transport", ["grpc", "http", "http3"])
@pytest.mark.parametrize("inside", [True, False])
async def test_priority_and_timeout_reach_the_server_from_a_flag_or_the_file(
    *, transport: str, inside: bool, tmp_path: Path, certificates: Path
) -> None:
    asked: list[tuple[int, float]] = []

    class Asked(FakeBackend):
        def check(self, request: InferRequest) -> None:
            super().check(request)
            asked.append((request.priority, request.timeout_s))

    flags = [] if inside else ["--priority", "2", "--timeout-ms", "5000"]
    fields = {"priority": 2, "timeout_ms": 5000} if inside else {}
    file = tmp_path / "request.json"
    ids = {"cat_0": [[1]], "cat_1": [[2]]}
    row = {"float_features": [[1.0, 2.0, 3.0]], "id_list_features": ids}
    file.write_text(json.dumps(row | fields))
    async with serving(Asked(FakeBackend.Options()), certificates) as served:
        url = served.urls[transport].replace("https://127.0.0.1", "https://localhost")
        flags += ["--transport", transport, "--url", url, "--ca", str(served.ca)]
        flags += ["--describe", served.urls["http"]]
        assert await asyncio.to_thread(predict.main, [str(file), *flags]) == 0
    ((priority, timeout_s),) = asked
    assert priority == 2
    assert 4 < timeout_s <= 5.1  # of gRPC what is left of the client's own deadline


def test_the_help_names_the_default_transport(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        predict.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "how to send it (default: http)" in shown
    assert "(default: None)" not in shown
    assert "(default: )" not in shown


@pytest.mark.parametrize("transport", ["grpc", "http", "http3"])
async def test_an_api_key_comes_from_a_file_and_is_in_no_message(
    transport: str, whole_request: Path, certificates: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keys, key = tmp_path / "keys.toml", tmp_path / "key"
    keys.write_text(f"[me]\nsha256 = '{hashlib.sha256(b'secret-1').hexdigest()}'\n")
    async with serving(FakeBackend(FakeBackend.Options()), certificates) as served:
        served.engine.access = Guard(keys, lambda key, outcome: None)
        url = served.urls[transport].replace("https://127.0.0.1", "https://localhost")
        flags = ["--transport", transport, "--url", url, "--ca", str(served.ca)]
        command = [str(whole_request), *flags, "--describe", served.urls["http"]]
        assert await asyncio.to_thread(predict.main, command) == 1
        key.write_text("secret-1\n")
        command += ["--api-key-file", str(key)]
        assert await asyncio.to_thread(predict.main, command) == 0
        key.write_text("secret-2")
        assert await asyncio.to_thread(predict.main, command) == 1
        key.write_text("two words")
        assert await asyncio.to_thread(predict.main, command) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("default: ")
    missing, _, unknown, unusable = printed.err.splitlines()
    assert missing.endswith("x-api-key: KEY (--api-key-file FILE)")
    assert unknown.endswith(": the API key is not known")
    assert unusable.endswith("one word of printable ASCII is expected in it")
    assert "secret" not in printed.err
