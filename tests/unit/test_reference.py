"""docs/configuration.md is what the options classes say."""

import dataclasses
import re
from pathlib import Path

import pytest

from app import cli, plugins, reference
from app.config import VARIABLES, ServerOptions
from app.flags import make_parser

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
MAKE_IT = "narsil config-reference > docs/configuration.md"


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config-reference"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8"), f"out of step: {MAKE_IT}"


@pytest.mark.parametrize("name", reference.TRANSPORTS)
def test_every_setting_of_a_transport_has_its_flag_and_variable(name: str) -> None:
    options = plugins.transport(name).options
    page = reference.page()
    for option in dataclasses.fields(options):
        key = option.name
        assert (
            f"`--{name}-{key.replace('_', '-')}`<br>`NARSIL_{name.upper()}__{key.upper()}`" in page
        )


def test_every_plug_in_of_ours_is_on_the_page() -> None:
    assert set(reference.TRANSPORTS) == {*plugins.names("narsil.transports")}
    assert set(reference.BACKENDS) == {*plugins.names("narsil.backends")}


def test_a_flag_of_the_page_is_one_that_the_command_line_takes() -> None:
    parser = make_parser({"server": ServerOptions}, add_help=False)
    arguments = parser.parse_args(["--server-drain-delay-s", "1"])
    assert vars(arguments)["server.drain_delay_s"] == "1"
    assert "`--server-drain-delay-s`" in reference.page()


def test_what_is_read_of_the_environment_beside_the_settings_is_on_the_page() -> None:
    (section,) = re.findall(r"^## Other variables and files\n.*", reference.page(), re.M | re.S)
    assert VARIABLES
    for variable in VARIABLES:
        assert f"| `{variable.name}` | `{str(variable.default).lower()}` |" in section


def test_a_setting_without_a_text_cannot_be_documented() -> None:
    @dataclasses.dataclass
    class Silent:
        """Say nothing."""

        width_bytes: int = dataclasses.field(default=2 << 20, metadata={})

    with pytest.raises(KeyError):
        reference._section("silent", "silent", Silent)


def test_units_come_from_the_names_and_sizes_are_readable() -> None:
    @dataclasses.dataclass
    class Sizes:
        """Say sizes."""

        width_bytes: int = dataclasses.field(default=2 << 20, metadata={"help": "a | b"})
        rows_per_s: float = dataclasses.field(default=0.5, metadata={"help": "rate"})

    section = reference._section("sizes", "sizes", Sizes)
    assert "| `width_bytes` | integer, bytes | `2097152` (2 MiB) |" in section
    assert "| `rows_per_s` | number, per second | `0.5` |" in section
    assert "| a \\| b |" in section
