"""Ids without a row, from the command line to a scrape, over real sockets."""

from pathlib import Path

import httpx
import orjson

from tests.e2e.process import narsil_serve

FLAGS = ("--backend=fake", "--ids=cat_0=zero,cat_1=hash:murmur3:7")


def counted(admin: httpx.Client) -> dict[str, float]:
    """Return the ids counted, by table and policy."""
    lines = admin.get("/metrics").text.splitlines()
    prefix = 'narsil_oov_ids_total{model="fake",'
    found = [line.removeprefix(prefix).rpartition(" ") for line in lines if line.startswith(prefix)]
    return {labels: float(count) for labels, _, count in found}


def test_what_became_of_ids_is_counted_and_shown(tmp_path: Path) -> None:
    ids = {"cat_0": [[1, -1, 2**63]], "cat_1": [[5, 6]]}
    body = orjson.dumps({"float_features": [[0.0] * 3], "id_list_features": ids})
    tables = ('policy="zero",table="cat_0"}', 'policy="hash",table="cat_1"}')
    with (
        narsil_serve(tmp_path, FLAGS) as process,
        httpx.Client(base_url=process.urls["admin"], timeout=60) as admin,
        httpx.Client(base_url=process.urls["http"], timeout=60) as client,
    ):
        assert counted(admin) == dict.fromkeys(tables, 0.0)
        assert client.post("/v1/models/fake/predict", content=body).status_code == 200
        assert counted(admin) == dict.fromkeys(tables, 2.0)
        shown = client.get("/v1/models/fake").json()["properties"]["ids"]
        config = client.get("/v2/models/fake/config").json()["parameters"]["ids"]
    assert shown == "cat_0=zero,cat_1=hash:murmur3:7"
    assert config == {"string_value": shown}
