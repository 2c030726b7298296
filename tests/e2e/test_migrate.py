"""docs/migrate as a user follows it: another server's ports, and the code of the pages."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import gather
from app.models import resolve_model, resolve_models
from app.repository.plan import plan_of
from backends.fake import FakeBackend
from scheduler.types import InferRequest
from tests.e2e.process import narsil_serve
from tests.fixtures.pages import examples, shell
from transports.codecs.delta_json import decode

PAGES = Path(__file__).parents[2] / "docs/migrate"
TRANSPORTS = ("http", "grpc", "admin")


def defined(page: str, name: str) -> Any:
    """Return the function that a page's Python block defines."""
    for block in examples(PAGES / f"{page}.md", "python"):
        if f"def {name}(" in block:
            names: dict[str, Any] = {}
            exec(block, names)
            return names[name]
    raise AssertionError(name)


def started(block: str) -> tuple[str, list[str], dict[str, str]]:
    """Return what to do beforehand, the flags, and the port of each transport."""
    lines = block.replace("\\\n", "").splitlines()
    words = shlex.split(lines.pop())
    ports = {}
    for name in TRANSPORTS:
        at = words.index(f"--{name}-port")
        ports[name] = words[at + 1]
        del words[at : at + 2]
    return "\n".join(lines), words[2:], ports


@pytest.mark.parametrize("page", ["triton", "torchserve"])
async def test_the_first_five_minutes_go_as_the_page_says(page: str, tmp_path: Path) -> None:
    begin, ask = examples(PAGES / f"{page}.md", "sh")
    before, flags, ports = started(begin)
    await shell(before, tmp_path)
    with narsil_serve(tmp_path, flags, TRANSPORTS) as process:
        for name, port in ports.items():
            ask = ask.replace(f"http://127.0.0.1:{port}/", f"{process.urls[name]}/")
        printed = await shell(f'curl() {{ command curl --fail "$@"; echo; }}\n{ask}', tmp_path)
    assert b'"ranking"' in printed


def test_hugectr_s_tensors_become_ours() -> None:
    """Two samples of two features: bags [3], [7, 9] and [4, 5], []."""
    made = defined("hps", "tensors")(
        np.arange(6, dtype=np.float32), np.array([3, 7, 9, 4, 5]), np.array([0, 1, 3, 5, 5]), 2, 2
    )
    np.testing.assert_array_equal(made["id_list_features.lengths"], [[1, 2], [2, 0]])
    np.testing.assert_array_equal(made["id_list_features.values"], [3, 4, 5, 7, 9])
    assert made["float_features"].shape == (2, 3)
    FakeBackend(FakeBackend.Options()).check(InferRequest("", 2, made))


def test_a_delta_that_a_consumer_writes_is_one_that_is_read(tmp_path: Path) -> None:
    rows = {3: np.ones(4, np.float32), 8: np.zeros(4, np.float32)}
    defined("hps", "write")(str(tmp_path), 17, {"movie": rows})
    (file,) = tmp_path.iterdir()
    assert file.name == "000000000017.json"
    delta = decode(file.read_bytes())
    assert delta.id == "kafka-17"


def test_the_settings_of_the_pages_are_settings(tmp_path: Path) -> None:
    sources = gather(None, {})
    (config,) = examples(PAGES / "triton.md", "toml")
    plan = plan_of(partial(resolve_model, sources, "torch_dlrm"), "ranking", config)
    assert (plan.versions.latest, plan.model.scheduler.options.max_queue_rows) == (2, 6400)
    file = tmp_path / "narsil.toml"
    file.write_text(examples(PAGES / "hps.md", "toml")[0])
    (model,) = resolve_models(gather(file, {}), (), "torch_dlrm")
    assert model.backend.options.ids == ("*=zero",)
