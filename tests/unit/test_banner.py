"""What is printed once the server is ready."""

from dataclasses import replace

import pytest

from app import banner
from app.models import Served
from app.resolve import resolve
from backends.fake import FakeBackend


@pytest.mark.parametrize(("names", "column"), [(("http", "grpc"), 8), (("http", "collective"), 13)])
def test_what_is_listed_stands_in_one_column(
    names: tuple[str, ...], column: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = resolve(["--backend", "fake", "--transports", ",".join(names)])
    banner.show(config, [], {name: (f"{name}://127.0.0.1:1",) for name in names})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [line[:2].isspace() and line.split()[0] for line in lines] == ["model", *names]
    assert [len(line) - len(line[column:].lstrip()) for line in lines] == [column] * len(lines)
    assert all(line[column - 1] == " " for line in lines)


def test_a_model_is_listed_with_the_plan_that_serves_it(capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = resolve(["--backend", "fake"])
    spec = FakeBackend(FakeBackend.Options()).spec
    planned = replace(spec, properties={**spec.properties, "plan": "fused"})
    banner.show(config, [Served(config.models[0], each) for each in (spec, planned)], {})
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  model")]
    assert listed == ["  model fake version 1", "  model fake version 1, plan fused"]
