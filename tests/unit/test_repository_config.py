"""narsil serve --repository: its settings, and what does not go with it."""

from pathlib import Path

import pytest

from app.resolve import resolve
from app.settings import ConfigError


def test_a_repository_is_a_flag_and_its_models_are_planned_with_the_general_settings(
    tmp_path: Path,
) -> None:
    argv = ["--repository", str(tmp_path), "--repository-mode", "poll", "--backend", "fake"]
    config, _ = resolve([*argv, "--repository-poll-s", "5", "--lanes", "3"])
    options = config.repository.options
    assert (options.url, options.mode, options.poll_s) == (str(tmp_path), "poll", 5.0)
    assert config.models == ()
    assert "repository.poll_s = 5.0  # flag --repository-poll-s" in config.lines()
    plan = config.planner("ranking", "table_rows = 7\n[scheduler]\nmode = 'worker'\n")
    made = plan.model.with_options(version="3")
    assert (made.backend.options.lanes, made.backend.options.table_rows) == (3, 7)
    assert made.scheduler.options.mode == "worker"
    onnx = config.planner("ads", "backend = 'onnx_dlrm'").model.with_options(path="x", version="3")
    assert (onnx.path, onnx.backend.options.version, onnx.backend.options.lanes) == ("x", "3", 3)


def test_without_a_url_there_is_no_repository() -> None:
    config, _ = resolve(["--repository", "", "--backend", "fake"])
    assert len(config.models) == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["model.pt"], "flag --repository-url: a repository is served alone"),
        (["--name", "x"], "backend.name is given by where a version lies"),
        (["--repository-mode", "often"], "mode must be none or poll or explicit, got 'often'"),
        (["--repository-load", "a"], "load is for mode explicit, and the mode is none"),
        (["--repository-poll-s", "0"], "poll_s must be above 0, got 0"),
        (["--repository-settle-s", "-1"], "settle_s must be 0 or more, got -1"),
        (["--repository-scan-timeout-s", "inf"], "scan_timeout_s must be above 0, got inf"),
        (["--lanes", "none"], "backend.lanes must be int"),
    ],
)
def test_what_does_not_go_with_a_repository_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(["--repository", "models", *argv])
    assert words in str(refusal.value)


def test_a_config_of_an_unknown_backend_names_those_that_there_are() -> None:
    config, _ = resolve(["--repository", "models", "--backend", "fake"])
    with pytest.raises(ConfigError, match=r"ranking/config.toml: models.ranking.backend: .*fake"):
        config.planner("ranking", "backend = 'nope'")


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "1" * 5000], ids=["deep", "long"])
def test_a_config_beyond_the_parsers_own_limits_is_refused_like_any_other(text: str) -> None:
    config, _ = resolve(["--repository", "models", "--backend", "fake"])
    with pytest.raises(ConfigError, match=r"ranking/config.toml: "):
        config.planner("ranking", text)
