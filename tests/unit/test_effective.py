"""The configuration as the log has it."""

import json

from app.effective import redacted, without_secrets
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


def test_a_urls_password_and_query_are_hidden_and_its_host_is_not() -> None:
    assert without_secrets("s3://key:word@host/a?sig=1 b") == "s3://***@host/a?*** b"
    assert without_secrets("s3://bucket/a@b") == "s3://bucket/a@b"
    assert without_secrets("a?b") == "a?b"
