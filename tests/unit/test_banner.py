"""What is printed once the server is ready."""

import pytest

from app import banner
from app.resolve import resolve


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
