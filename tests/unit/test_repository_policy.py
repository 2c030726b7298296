"""Which versions are wanted, where labels point, and who answers what."""

import re
from pathlib import Path

import pytest

from app.config import ModelTable
from app.models import ModelConfig
from app.plugins import PluginError
from app.repository.plan import Plan, plan_of
from app.repository.policy import idle_shadow, labels_now, missing, newest, routes, wanted
from app.settings import ConfigError
from scheduler.routing import Part, ShadowRoute
from tests.fixtures.stock import Stock


def plan(text: str = "") -> Plan:
    """Return what a config file with ``text`` says."""

    def resolve(name: str, table: ModelTable) -> ModelConfig:
        if "colour" in table.settings:
            raise PluginError("no colour")
        return Stock([]).config()

    return plan_of(resolve, "m", text)


CANARY = """
[labels]
stable = 3
canary = "latest"
[split]
stable = 90
canary = 10
"""


@pytest.mark.parametrize(
    ("text", "good", "expected"),
    [
        ("", "1 9 10", "10"),
        ("", "", ""),
        ("[versions]\nlatest = 2", "1 9 10", "9 10"),
        ('[versions]\npolicy = "all"', "1 9 10", "1 9 10"),
        ('[versions]\npolicy = "specific"\nonly = [1, 7]', "1 9 10", "1"),
        (CANARY, "1 3 9 10", "3 10"),
        (CANARY, "1 9", "9"),
        ('[shadow]\nversion = "latest"', "1 9 10", "9 10"),
        ('[shadow]\nversion = "latest"', "10", "10"),
        ("[shadow]\nversion = 1", "1 9 10", "1 10"),
        ("[split]\n1 = 1\n9 = 1", "1 9 10", "1 9 10"),
    ],
)
def test_the_policy_chooses_and_what_is_named_comes_on_top(
    text: str, good: str, expected: str
) -> None:
    assert wanted(plan(text), set(good.split())) == set(expected.split())


def test_what_is_named_by_its_number_and_not_there_is_missing() -> None:
    text = '[labels]\nstable = 3\n[versions]\npolicy = "specific"\nonly = [4, 5]\n'
    assert missing(plan(text), {"5"}) == {"3", "4"}
    assert missing(plan(CANARY), {"3"}) == set()
    assert missing(plan(CANARY), set()) == {"3"}


def test_a_label_moves_once_its_new_version_serves_and_stays_where_it_was_until_then() -> None:
    moved = plan("[labels]\nstable = 4")
    assert labels_now(moved, {"stable": "3"}, {"3"}) == {"stable": "3"}
    assert labels_now(moved, {"stable": "3"}, {"3", "4"}) == {"stable": "4"}
    assert labels_now(moved, {}, {"3"}) == {}
    assert labels_now(plan(), {"stable": "3"}, {"3"}) == {}


def test_the_routes_say_who_answers_what() -> None:
    made = routes(plan(CANARY), {"stable": "3", "canary": "10"}, {"3", "10"})
    assert made.default == "10"
    assert made.labels == {"stable": "3", "canary": "10"}
    assert made.split == (Part("stable", "3", 90.0), Part("canary", "10", 10.0))
    shadowed = routes(plan('[shadow]\nversion = "latest"\nshare = 0.5'), {}, {"3", "10"})
    assert (shadowed.default, shadowed.shadow) == ("3", ShadowRoute("10", 0.5))
    alone = routes(plan('[shadow]\nversion = "latest"'), {}, {"10"})
    assert alone.default == "10"


def test_versions_are_numbers() -> None:
    assert newest({"9", "10"}) == "10"
    assert newest(()) == ""


def test_the_examples_in_the_documentation_are_configs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "repository.md").read_text(encoding="utf-8")
    texts = re.findall(r"```toml\n(.*?)```|<<'TOML'\n(.*?)TOML", page, re.DOTALL)
    whole, first = (plan("".join(text).replace('backend = "fake"', "")) for text in texts[::-1])
    assert first.split == {"stable": 90.0, "canary": 10.0}
    assert (whole.labels["canary"], whole.shadow and whole.shadow.version) == ("latest", "5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[labels", "m/config.toml: "),
        ("versions = 1", "'versions' must be a table"),
        ("[versions]\nlates = 1", "did you mean 'latest'?"),
        ("[versions]\nlatest = 0", "latest must be at least 1, got 0"),
        ('[versions]\nlatest = "two"', "versions.latest must be int, got 'two'"),
        ('[versions]\npolicy = "best"', "policy must be latest or all or specific, got 'best'"),
        ("[versions]\nonly = [1]", "only is the versions of policy specific"),
        ('[versions]\npolicy = "specific"', "only is the versions of policy specific"),
        ("[golden]\ntolerance = -1.0", "tolerance must be 0 or more, got -1"),
        ("[golden]\ntolerance = nan", "tolerance must be 0 or more, got nan"),
        ('[labels]\nstable = "3a"', "labels.stable must be a version or 'latest', got '3a'"),
        ("[labels]\nstable = true", "labels.stable must be a version or 'latest', got True"),
        ("[labels]\n7 = 3", "a label has letters"),
        ("[labels]\nlatest = 3", "a label has letters"),
        ('[labels]\n"a/b" = 3', "a label has letters"),
        ("[split]\nstable = 1", "split.stable: 'stable' is no version and no label; labels: none"),
        ("[split]\n3 = -1", "split.3 must be a number of 0 or more, got -1"),
        ("[split]\n3 = inf", "split.3 must be a number of 0 or more, got inf"),
        ("[split]\n3 = 0", "split gives nobody a share above 0"),
        ("[shadow]\nshare = 0.5", "shadow.version: '' is no version"),
        ("[shadow]\nversion = 3\nshare = 1.5", "share must be 0 to 1, got 1.5"),
        ("[shadow]\nversion = 3\nmax_in_flight = 0", "max_in_flight must be at least 1, got 0"),
        ("[shadow]\nversion = 3\ntimeout_s = 0.0", "timeout_s must be above 0, got 0"),
        ('path = "/etc"', "path is given by where the version lies"),
        ("scheduler = 3", "models.m.scheduler must be a table"),
    ],
)
def test_a_config_file_that_is_wrong_says_what_and_where(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        plan(text)
    assert words in str(refusal.value)


def test_a_version_unlike_those_that_answer_is_no_shadow() -> None:
    told = routes(plan("[shadow]\nversion = 3"), {}, {"3", "10"})
    assert idle_shadow(told, {"shadow": "true"}) == ""
    assert "version 3 is no shadow: its inputs or outputs differ" in idle_shadow(told, {})
    assert idle_shadow(routes(plan(), {}, {"10"}), {}) == ""
