"""docs/tls.md as a user follows it: its commands, a server process, its clients."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.process import NARSIL, narsil_serve

PAGE = Path(__file__).parents[2] / "docs/tls.md"
FAKE = ["--backend=fake"]
# Not admin: its port would be the default one.
TRANSPORTS = ("http", "grpc")
PREDICT = [str(NARSIL), "predict", ".narsil/examples/fake.json"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith(f"$ {program} ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's own commands have made their certificates."""
    made = tmp_path_factory.mktemp("tls")
    for command in commands("openssl"):
        subprocess.run(command, cwd=made, capture_output=True, check=True)
    return made


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def with_real_ports(text: str, urls: dict[str, str]) -> str:
    for name, port in (("http", ":8000"), ("grpc", ":50051")):
        text = text.replace(port, ":" + urls[name].rpartition(":")[2])
    return text


def shown(urls: dict[str, str]) -> list[str]:
    files = ["--ca=server.pem", "--certificate=ranker.pem", "--private-key=ranker.key"]
    return ["--describe", urls["http"], *files]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(False, id="tls", marks=pytest.mark.slow),
        pytest.param(True, id="client certificates"),
    ],
)
def test_the_page_works_as_it_stands(folder: Path, asked: bool) -> None:
    flags = ["--certificate=server.pem", "--private-key=server.key"]
    flags += ["--client-ca=clients-ca.pem"] if asked else []
    # Of client certificates' two kinds of examples, each with its own server.
    curl, code = commands("curl")[asked], blocks("python")[asked]
    without = commands("curl")[0]
    # Has the banner print lines to try.
    unix = ["--http-unix-path=http.sock", "--grpc-unix-path=grpc.sock"]
    with narsil_serve(folder, [*FAKE, *flags, *unix], TRANSPORTS) as process:
        assert process.urls["http"].startswith("https://")
        assert process.urls["grpc"].startswith("grpcs://")
        assert ("client certificates required" in process.banner) is asked
        assert ("--ca " in process.banner) is not asked  # then they go to the sockets
        done = run([with_real_ports(word, process.urls) for word in curl], folder)
        assert done.stdout == '{"live":true}', done.stderr
        done = run([sys.executable, "-c", with_real_ports(code, process.urls)], folder)
        assert done.returncode == 0, done.stderr
        for name, url in process.urls.items():
            done = run([*PREDICT, "--transport", name, "--url", url, *shown(process.urls)], folder)
            assert done.returncode == 0, done.stderr
        refused = run([with_real_ports(word, process.urls) for word in without], folder)
        assert (refused.returncode != 0) is asked
        if asked:
            check_the_hint(folder, process.urls)


def check_the_hint(folder: Path, urls: dict[str, str]) -> None:
    """See that a client which shows no certificate is told that it may need one."""
    no_ids, dense = np.zeros(0, np.int64), np.zeros((1, 3), np.float32)
    inputs: dict[str, Any] = {f"id_list_features.{name}": no_ids for name in ("lengths", "values")}
    np.savez(folder / "request.npz", float_features=dense, **inputs)
    for name, url in urls.items():
        command = [str(NARSIL), "predict", "request.npz", "--transport", name, "--url", url]
        done = run([*command, "--ca=server.pem"], folder)
        assert "the server may ask for a certificate (--certificate)" in done.stderr


@pytest.mark.slow
async def test_a_killed_servers_sockets_are_taken_over_and_its_banner_works(
    tmp_path: Path,
) -> None:
    flags = [*FAKE, "--http-host=", "--grpc-host="]
    flags += ["--http-unix-path=http.sock", "--grpc-unix-path=grpc.sock"]
    with narsil_serve(tmp_path, flags, TRANSPORTS) as process:
        process.popen.kill()
        await asyncio.to_thread(process.wait)
    assert (tmp_path / "http.sock").is_socket()
    with narsil_serve(tmp_path, flags, TRANSPORTS) as process:
        again = [str(NARSIL), "serve", "--transports=http,grpc", *flags]
        second = await asyncio.to_thread(run, again, tmp_path)
        assert second.returncode == 1
        assert "http: unix_path: cannot listen on" in second.stderr
        assert "another server listens there" in second.stderr
        lines = process.banner.partition("Try it:")[2].split("\n  ")[1:]
        assert len(lines) == 2
        for line in lines:
            done = await asyncio.to_thread(run, shlex.split(line), tmp_path)
            assert done.returncode == 0, done.stderr
            assert "default" in done.stdout
        process.terminate()
        code, log = await asyncio.to_thread(process.wait)
    assert code == 0, log
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".sock")]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--grpc-certificate=a.pem", "--grpc-private-key=b.pem"],
            "narsil: grpc: certificate: a.pem cannot be read: No such file",
        ),
        (["--http-unix-path=absent/x.sock"], "narsil: http: unix_path: cannot listen on "),
    ],
)
def test_a_file_that_will_not_do_ends_the_start_with_one_sentence_that_names_its_setting(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    free = ["--transports=http,grpc", "--http-port=0", "--grpc-port=0"]
    done = run([str(NARSIL), "serve", *FAKE, *free, *flags], tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
