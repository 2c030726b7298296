"""The configuration as the log has it."""

import json
from pathlib import Path

from app.effective import redacted, set_by_hand, without_secrets
from app.resolve import resolve


def test_every_value_is_there_and_nothing_secret() -> None:
    config, _ = resolve(
        [
            "--transports=http,grpc",
            "--http-private-key=/etc/key.pem",
            "--http-certificate=/c.pem",
            "--repository=s3://me:secret@shop.test/models",
        ]
    )
    line = redacted(config.all_sections())
    values = json.loads(line)
    assert "\n" not in line
    assert "key.pem" not in line
    assert "secret" not in line
    assert values["http"]["private_key"] == "***"
    assert values["http"]["certificate"] == "/c.pem"
    assert values["repository"]["url"] == "s3://***@shop.test/models"
    assert values["grpc"]["private_key"] == ""
    assert values["server"]["transports"] == ["http", "grpc"]
    assert {"log", "metrics", "tracing", "repository"} <= values.keys()


def test_what_is_as_by_default_is_left_out_and_what_is_secret_hidden() -> None:
    arguments = ["--backend=fake", "--transports=http,grpc", "--http-private-key=/etc/key.pem",
                 "--http-certificate=/c.pem", "--log-requests=true"]  # fmt: skip
    config, _ = resolve(arguments)
    assert set_by_hand(config.all_sections()) == (
        "server.backend=fake, server.transports=http,grpc, log.requests=true,"
        " http.certificate=/c.pem, http.private_key=***"
    )
    config, _ = resolve([])
    assert set_by_hand(config.all_sections()) == "all as it is by default"


def test_of_many_settings_the_line_has_the_first_and_a_count(tmp_path: Path) -> None:
    file = tmp_path / "narsil.toml"
    file.write_text("".join(f"[models.m{n}]\nlanes = 2\n" for n in range(30)))
    config, _ = resolve(["--backend=fake", "--config", str(file)])
    line = set_by_hand(config.all_sections())
    assert line.startswith("server.backend=fake, models.m0.")
    assert line.endswith(" more")
    assert len(line) < 1000


def test_a_urls_password_and_query_are_hidden_and_its_host_is_not() -> None:
    assert without_secrets("s3://key:word@host/a?sig=1 b") == "s3://***@host/a?*** b"
    assert without_secrets("s3://bucket/a@b") == "s3://bucket/a@b"
    assert without_secrets("a?b") == "a?b"
