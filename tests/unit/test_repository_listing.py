"""What is said of a model's folder that holds no version."""

import pytest

from app.repository.listing import layout_problem

NAMES = ["01", "v2", "1.0", "-1", "\uff12", "20261130120000123456"]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_with_nothing_but_other_names_says_which(name: str) -> None:
    assert f"{name} is none" in layout_problem("m", ["config.toml", name])
    assert not layout_problem("m", ["config.toml", name, "1"])


def test_a_folder_that_may_yet_get_its_versions_has_no_problem() -> None:
    assert not layout_problem("m", [])
    assert not layout_problem("m", ["config.toml", "readme", ".hidden"])
