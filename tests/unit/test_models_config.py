"""Several models: which are served, with whose settings, and what is refused."""

from pathlib import Path

import pytest

from app.models import ModelConfig
from app.resolve import Config, resolve
from app.settings import ConfigError

TWO = """
[server]
transports = ["http"]
[backend]
lanes = 3
[scheduler]
max_queue_rows = 70
[models.ranking]
path = "models/ranking"
lanes = 1
[models.ranking.scheduler]
mode = "inline"
[models.ads]
path = "models/ads"
name = "adverts"
[models.stand-in]
backend = "fake"
table_rows = 5
"""


def of_file(tmp_path: Path, text: str, *argv: str) -> Config:
    path = tmp_path / "narsil.toml"
    path.write_text(text)
    config, _ = resolve(["--config", str(path), *argv])
    return config


def by_label(config: Config) -> dict[str, ModelConfig]:
    return {model.label: model for model in config.models}


def test_a_file_without_models_and_no_argument_is_one_model() -> None:
    config, _ = resolve(["--backend", "fake"])
    assert [model.label for model in config.models] == [""]


def test_several_arguments_are_models_with_the_same_options() -> None:
    config, _ = resolve(["a", "--lanes", "2", "b", "--scheduler-mode", "worker"])
    assert [model.path for model in config.models] == ["a", "b"]
    assert [model.backend.options.name for model in config.models] == ["", ""]
    for model in config.models:
        assert model.backend.options.lanes == 2
        assert model.scheduler.options.mode == "worker"


def test_a_table_names_its_model_unless_its_key_name_does(tmp_path: Path) -> None:
    config = of_file(tmp_path, TWO)
    names = {model.label: model.backend.options.name for model in config.models}
    assert names == {"ranking": "ranking", "ads": "adverts", "stand-in": "stand-in"}


def test_a_tables_own_keys_win_over_the_general_sections_which_are_the_defaults(
    tmp_path: Path,
) -> None:
    models = by_label(of_file(tmp_path, TWO))
    assert models["ranking"].backend.options.lanes == 1
    assert models["ads"].backend.options.lanes == 3
    assert models["ranking"].scheduler.options.mode == "inline"
    assert models["ads"].scheduler.options.mode == "batch"
    assert models["ranking"].scheduler.options.max_queue_rows == 70


def test_flags_and_environment_change_the_defaults_of_all_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARSIL_SCHEDULER__PRIORITIES", "9")
    models = by_label(of_file(tmp_path, TWO, "--lanes", "4", "--scheduler-mode", "worker"))
    assert models["ranking"].backend.options.lanes == 1
    assert models["ads"].backend.options.lanes == 4
    assert models["ranking"].scheduler.options.mode == "inline"
    assert models["ads"].scheduler.options.mode == "worker"
    assert {model.scheduler.options.priorities for model in models.values()} == {9}


def test_another_backend_takes_what_it_knows_of_the_general_section(tmp_path: Path) -> None:
    text = TWO.replace("lanes = 3", 'lanes = 3\ndevice = "cpu"')
    backend = by_label(of_file(tmp_path, text))["stand-in"].backend
    assert type(backend.options).__name__ == "FakeOptions"
    assert (backend.options.lanes, backend.options.table_rows) == (3, 5)


def test_every_value_of_every_model_is_printed_with_its_origin(tmp_path: Path) -> None:
    file = f"file {tmp_path / 'narsil.toml'}"
    lines = of_file(tmp_path, TWO, "--scheduler-ageing-s", "2").lines()
    for line in (
        f"models.ranking.lanes = 1  # {file}",
        f"models.ranking.name = 'ranking'  # {file}",
        f"models.ranking.scheduler.mode = 'inline'  # {file}",
        "models.ads.scheduler.mode = 'batch'  # default",
        f"models.ads.lanes = 3  # {file}",
        "models.ads.scheduler.ageing_s = 2.0  # flag --scheduler-ageing-s",
        "models.stand-in.dense_features = 3  # default",
        "http.port = 8000  # default",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith(("backend.", "scheduler."))]


def test_arguments_and_tables_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"argument MODEL: .*\[models.NAME\]"):
        of_file(tmp_path, TWO, "some/model")


@pytest.mark.parametrize("argv", [["a", "b"], []])
def test_one_name_for_several_models_is_refused(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"flag --backend-name: backend\.name"):
        of_file(tmp_path, "" if argv else TWO, *argv, "--name", "x")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[models.a]\npaht = 'x'\n", ("'models.a'", "'paht'", "did you mean 'path'")),
        ("[models.a.schedular]\nmode = 'x'\n", ("'models.a'", "did you mean 'scheduler'")),
        ("[models.a]\nbackened = 'fake'\n", ("'models.a'", "did you mean 'backend'")),
        ("[models.a.scheduler]\nmoed = 'x'\n", ("'models.a.scheduler'", "did you mean 'mode'")),
        ("[models.a.scheduler]\nmode = 'x'\n", ("'models.a.scheduler'", "mode must be", "'x'")),
        ("[models.a]\nlanes = 'x'\n", ("models.a.lanes must be int", "'x'")),
        (
            "[models.a]\nbackend = 'nope'\n",
            ("models.a.backend", "'nope'", "installed: fake, "),
        ),
        ("[models.a]\nbackend = 3\n", ("models.a.backend", "3")),
        ("[models]\na = 'x'\n", ("models.a", "[models.NAME]")),
        ("[models.a]\nscheduler = 'x'\n", ("models.a.scheduler",)),
        ("models = 3\n", ("'models'", "outside")),
        ("[model.a]\npath = 'x'\n", ("'model'", "did you mean 'models'")),
        # What is wrong in a general section is said of that section.
        ("[backend]\npaht = 'x'\n[models.a]\n", ("'backend'", "'paht'")),
        ("[scheduler]\nmode = 'x'\n[models.a]\n", ("'scheduler'", "mode must be")),
    ],
)
def test_a_wrong_table_is_refused_by_name(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        of_file(tmp_path, text)
    for word in named:
        assert word in str(refusal.value)


def test_the_environment_cannot_name_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARSIL_MODELS__A", "x")
    with pytest.raises(ConfigError, match=r"NARSIL_MODELS__A.*\[models.NAME\]"):
        resolve([])


def test_a_model_bound_to_a_name_changes_nothing_else(tmp_path: Path) -> None:
    model = by_label(of_file(tmp_path, TWO))["ads"]
    bound = model.with_options(name="kept", colour="red")
    assert bound.backend.options.name == "kept"
    assert bound.path == model.path
    assert bound.scheduler == model.scheduler
