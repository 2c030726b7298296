"""docs/security.md as a user follows it: its commands, a server that asks for keys, its clients."""

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from tests.e2e.pasted import check_lines
from tests.e2e.process import NARSIL, narsil_serve
from tests.e2e.test_tls import run, with_real_ports

PAGE = Path(__file__).parents[2] / "docs/security.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def console(*programs: str) -> list[str]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [line[2:] for line in lines if line.removeprefix("$ ").startswith(programs)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's own commands have made their keys."""
    made = tmp_path_factory.mktemp("security")
    for line in console("openssl", "printf"):
        subprocess.run(["bash", "-c", line], cwd=made, capture_output=True, check=True)
    return made


async def test_the_page_s_keys_work_and_a_hang_up_takes_new_ones(folder: Path) -> None:
    flags = ["--backend=fake", "--api-keys=keys.toml", "--http-metrics=true"]
    with narsil_serve(folder, flags, ("http", "grpc")) as process:
        asked = []
        for line in console("curl"):
            command = ["bash", "-c", with_real_ports(line, process.urls)]
            asked.append((await asyncio.to_thread(run, command, folder)).stdout)
        assert '"urn:narsil:error:unauthenticated"' in asked[0]
        assert asked[1].startswith('{"models":[{"name":"fake"')
        assert asked[2] == asked[1]
        code = [sys.executable, "-c", with_real_ports(blocks("python")[0], process.urls)]
        done = await asyncio.to_thread(run, code, folder)
        assert b"narsil" in done.stdout.encode(), done.stderr
        metrics = with_real_ports(
            console("curl")[1].replace("/v1/models", "/metrics"), process.urls
        )
        said = (await asyncio.to_thread(run, ["bash", "-c", metrics], folder)).stdout
        assert 'narsil_key_requests_total{key="ranker",outcome="ok"} 4.0' in said
        assert 'narsil_key_requests_total{key="",outcome="missing"} 1.0' in said
        shutil.copy(folder / "ranker.key", folder / "my.key")
        await asyncio.to_thread(
            check_lines, process.banner.partition("Try it:")[2].split("\n  ")[1:], folder
        )
        (folder / "keys.toml").write_text("")
        process.hang_up()
        again = ["bash", "-c", with_real_ports(console("curl")[1], process.urls)]
        refused = (await asyncio.to_thread(run, again, folder)).stdout
        assert '"urn:narsil:error:unauthenticated"' in refused
        key = (folder / "ranker.key").read_text()
        process.terminate()
        code_, log = await asyncio.to_thread(process.wait)
    assert code_ == 0, log
    assert "API keys read anew: 0 in keys.toml" in log
    assert key not in log


def test_keys_that_will_not_do_end_the_start_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[ranker]\nsha256 = 'my secret key'\n")
    free = ["--transports=http", "--http-port=0"]
    assert cli.main(["serve", "--backend=fake", *free, "--api-keys", str(file)]) == 2
    said = capsys.readouterr().err
    assert "server.api_keys: section 'ranker': sha256 must be 64 hexadecimal digits" in said
    assert "secret" not in said


@pytest.mark.slow
async def test_a_signed_artifact_serves_and_a_tampered_one_neither_starts_nor_takes_over(
    folder: Path, small_artifact: Path
) -> None:
    model = shutil.copytree(small_artifact, folder / "models/mine")
    flags = [str(model), "--artifact-keys=trusted.pem"]
    assert cli.main(["sign", str(model), "--key", str(folder / "signing.pem")]) == 0
    with narsil_serve(folder, flags, ("http",)) as process:
        (model / "golden.npz").write_bytes(b"tampered with")
        process.hang_up()
        async with asyncio.timeout(60):
            while "not reloaded" not in process.log:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.05)
        assert "golden.npz is not as it was signed" in process.log
        line = f"curl -s {process.urls['http']}/readyz"
        done = await asyncio.to_thread(run, ["bash", "-c", line], folder)
        assert done.stdout == '{"ready":true}'
    start = ["serve", *flags, "--transports=http", "--http-port=0"]
    done = await asyncio.to_thread(run, [str(NARSIL), *start], folder)
    assert done.returncode == 1
    assert re.fullmatch(
        r"narsil: \S+golden\.npz is not as it was signed: its SHA-256 is another",
        done.stderr.splitlines()[-1],
    )
