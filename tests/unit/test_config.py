"""Configuration: who wins, what is refused, and what the server can say about it."""

from pathlib import Path

import pytest

from app.plugins import PluginError
from app.resolve import resolve
from app.settings import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "narsil.toml"
    path.write_text("[http]\nport = 7001\n[scheduler]\nmax_queue_rows = 7\n[server]\ngrace_s = 3\n")
    return path


def port(*argv: str) -> tuple[int, str]:
    config, _ = resolve(argv)
    http = config.sections["http"]
    return http.options.port, http.origins["port"]


def test_a_flag_wins_over_environment_over_file_over_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert port() == (8000, "default")
    assert port("--config", str(file)) == (7001, f"file {file}")
    monkeypatch.setenv("NARSIL_HTTP__PORT", "7002")
    assert port("--config", str(file)) == (7002, "environment NARSIL_HTTP__PORT")
    assert port("--config", str(file), "--http-port", "7003") == (7003, "flag --http-port")


def test_values_take_the_type_of_their_field(file: Path) -> None:
    argv = ["--config", str(file), "--transports", "http,grpc", "--scheduler-max-delay-s", "0.5"]
    config, _ = resolve(argv)
    scheduler = config.models[0].scheduler.options
    assert config.server.transports == ("http", "grpc")
    assert config.server.grace_s == 3.0
    assert scheduler.max_delay_s == 0.5
    assert scheduler.max_queue_rows == 7
    assert set(config.sections) == {"server", "log", "metrics", "tracing", "http", "grpc"}


def test_an_alias_sets_every_key_it_stands_for_and_a_long_flag_wins_over_it() -> None:
    config, _ = resolve(["--host", "0.0.0.0", "--grpc-host", "127.0.0.2"])
    assert config.sections["http"].options.host == "0.0.0.0"
    assert config.sections["http3"].options.host == "0.0.0.0"
    assert config.sections["grpc"].options.host == "127.0.0.2"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--http-prot", "7"], "unrecognized arguments: --http-prot; did you mean --http-port?"),
        (["--port", "7"], "arguments: --port; did you mean --http-port or --grpc-port or --http3"),
        (["--bogus"], "error: unrecognized arguments: --bogus\n"),
        (["--zzzzzzzz=1"], "error: unrecognized arguments: --zzzzzzzz=1\n"),
        (
            ["--backend", "native_dlrm", "--plan", "lean"],
            "--plan belongs to the backend ray or the backend torch_dlrm, and this is native_dlrm",
        ),
        (
            ["--transports", "http", "--grpc-port=1"],
            "--grpc-port belongs to the transport grpc, which server.transports leaves out",
        ),
    ],
)
def test_a_flag_that_nothing_takes_is_answered_with_what_was_meant(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        resolve(argv)
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


TLS = ["--certificate", "server.pem", "--private-key", "server.key"]
MUTUAL = [*TLS, "--backend", "fake", "--client-ca", "ca.pem"]


@pytest.mark.parametrize("flags", [["--client-ca", "ca.pem"], ["--grpc-client-ca", "ca.pem"]])
def test_http3_beside_transports_that_require_client_certificates_is_refused(
    flags: list[str],
) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve([*TLS, *flags])
    where = "http" if flags[0] == "--client-ca" else "grpc"
    assert str(refusal.value) == (
        f"{where}.client_ca: http3 asks for no client certificates and would let everybody in;"
        " leave it out (--transports http,grpc,admin) or set"
        " http3.without_client_certificates=true"
    )


@pytest.mark.parametrize(
    "flags",
    [
        [*MUTUAL, "--transports", "http,grpc,admin"],
        [*MUTUAL, "--http3-without-client-certificates", "true"],
        [*MUTUAL, "--transports", "http,http3", "--http-client-certificates", "optional"],
    ],
)
def test_client_certificates_are_accepted_where_nobody_is_let_in_by_mistake(
    flags: list[str],
) -> None:
    config, _ = resolve(flags)
    assert config.sections["http"].options.client_ca == "ca.pem"


def test_the_model_argument_is_the_backends_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARSIL_BACKEND__PATH", "weaker")
    config, _ = resolve(["some/model", "--http-port", "1234"])
    assert config.models[0].path == "some/model"
    assert "backend.path = 'some/model'  # argument MODEL" in config.lines()


def test_a_model_argument_that_the_backend_has_no_use_for_is_refused_as_what_it_is() -> None:
    with pytest.raises(ConfigError, match="argument MODEL: section 'backend' has no key 'path'"):
        resolve(["some/model", "--backend", "fake"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[htpp]\nport = 1\n", ("htpp", "did you mean 'http'")),
        ("[http]\nprot = 1\n", ("http", "prot", "did you mean 'port'")),
        ("[http]\nport = 'high'\n", ("http.port", "int", "high")),
        ("[http]\nport = true\n", ("http.port", "int", "True")),
        ("port = 1\n", ("port", "outside")),
        ("[http\n", ("narsil.toml",)),
        ("[scheduler]\nmax_delay_s = -1\n", ("scheduler", "max_delay_s", "-1")),
        ("[server]\nlog_level = 'loud'\n", ("log_level", "loud")),
        ("[server]\ntransports = []\n", ("transports",)),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, named: tuple[str, ...]) -> None:
    path = tmp_path / "narsil.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        resolve(["--config", str(path)])
    for word in named:
        assert word in str(refusal.value)


def test_a_section_of_a_transport_that_does_not_run_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "narsil.toml"
    path.write_text("[http3]\nport = 1\n")
    config, _ = resolve(["--config", str(path), "--transports", "http"])
    assert "http3" not in config.sections


def test_an_unknown_environment_key_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARSIL_GRPC__PROT", "1")
    with pytest.raises(ConfigError, match=r"NARSIL_GRPC__PROT.*did you mean 'port'"):
        resolve([])


def test_an_unknown_plugin_is_refused_and_the_installed_named() -> None:
    with pytest.raises(PluginError, match=r"fake, .*torch_dlrm"):
        resolve(["--backend", "nope"])
    with pytest.raises(PluginError, match="grpc"):
        resolve(["--transports", "carrier-pigeon"])


def test_every_value_is_printed_with_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARSIL_GRPC__PORT", "5")
    config, arguments = resolve(["--backend", "fake", "--print-config"])
    lines = config.lines()
    assert arguments.print_config
    assert "grpc.port = 5  # environment NARSIL_GRPC__PORT" in lines
    assert "server.backend = 'fake'  # flag --server-backend" in lines
    assert "scheduler.max_delay_s = 0.0  # default" in lines


def test_a_backends_own_flags_need_no_prefix() -> None:
    config, _ = resolve(["model.pt", "--lanes", "2", "--table-rows", "10,20"])
    backend = config.models[0].backend
    assert backend.options.lanes == 2
    assert backend.options.table_rows == (10, 20)
    assert backend.origins["lanes"] == "flag --backend-lanes"


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_times_that_are_no_times_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="drain_delay_s"):
        resolve([f"--server-drain-delay-s={value}"])


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    with pytest.raises(ConfigError) as refused:
        resolve(["--config", str(absent)])
    assert str(refused.value) == f"{absent}: No such file or directory"
