"""Policies and vocabularies as manifests and operators write them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc, parquet

from backends.dlrm.manifest import Table
from backends.ids.declared import Declared, declared, make_rules
from backends.ids.hashing import murmur3_rows
from backends.ids.policy import parse_policy
from backends.jagged import JaggedLayout
from scheduler.errors import LoadError, ServingError
from scheduler.types import InferRequest

PAGE = Path(__file__).parents[2] / "docs" / "ids.md"
LAYOUT = JaggedLayout("ids", ("user", "item"), np.array([10, 1000]))


@pytest.mark.parametrize(
    "text",
    [
        "reject",
        "zero",
        "clamp",
        "default_row:9",
        "hash:murmur3:0",
        "hash:modulo:7",
    ],
)
def test_a_policy_is_written_as_it_is_read(text: str) -> None:
    assert parse_policy(text, 10).text == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drop", "'drop' is unknown; policies are reject, zero, clamp, default_row:ROW"),
        (7, "7 is no text; policies are"),
        ("zero:1", "'zero:1' is unknown"),
        ("default_row", "'default_row': '' is not a row, a number of 0 or more"),
        ("default_row:10", "'default_row:10': the table has 10 rows (0..9)"),
        ("default_row:-1", "'default_row:-1': '-1' is not a row"),
        ("hash", "'hash': functions are murmur3, modulo"),
        ("hash:md5:1", "'hash:md5:1': functions are murmur3, modulo"),
        ("hash:murmur3", "'hash:murmur3' lacks its seed, which is the training side's"),
        ("hash:modulo:x", "'hash:modulo:x': 'x' is not a seed, a number of 0 or more"),
        ("hash:modulo:4294967296", "the seed is above 4294967295"),
    ],
)
def test_a_policy_in_a_manifest_that_cannot_be_is_refused(text: Any, words: str) -> None:
    said = declared(Path("m/manifest.json"), [Table("user", 10, 4, ids=text)])
    with pytest.raises(LoadError) as caught:
        make_rules(LAYOUT, said, ())
    assert str(caught.value).startswith("m/manifest.json: ids of 'user': ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["zero"], "--ids: 'zero' is not FEATURE=POLICY"),
        (["owner=zero"], "--ids: no feature 'owner'; the model has user, item"),
        (["user=zero", "user=clamp"], "--ids: 'user' is given twice"),
        (["*=default_row:10"], "--ids: feature 'user': 'default_row:10': the table has 10 rows"),
    ],
)
def test_an_option_that_cannot_be_is_refused(chosen: list[str], words: str) -> None:
    with pytest.raises(LoadError, match=re.escape(words)):
        make_rules(LAYOUT, Declared(), chosen)


def test_an_option_wins_over_the_manifest_and_is_shown_as_it_could_be_given() -> None:
    tables = [Table("user", 10, 4, ids="clamp"), Table("item", 1000, 4, ids="hash:murmur3:7")]
    said = declared(Path("manifest.json"), tables)
    assert make_rules(LAYOUT, said, ()).text == "user=clamp,item=hash:murmur3:7"
    assert make_rules(LAYOUT, said, ["user=zero"]).text == "user=zero,item=hash:murmur3:7"
    assert make_rules(LAYOUT, said, ["*=reject"]).text == "*=reject"
    assert make_rules(LAYOUT, said, ["*=reject", "item=zero"]).text == "item=zero,*=reject"


def test_a_table_too_long_for_the_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="the hash only 2\\*\\*32 values"):
        parse_policy("hash:murmur3:0", 2**32 + 1)


def test_the_page_about_ids_has_vectors_that_hold() -> None:
    rows = re.findall(r"^\| (-?\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 8
    for one, seed, limit, row in (map(int, found) for found in rows):
        ids, seeds = np.array([one]), np.array([seed], np.uint32)
        assert murmur3_rows(ids, seeds, np.array([limit])).tolist() == [row]


def parquet_file(path: Path, **columns: Any) -> None:
    parquet.write_table(pyarrow.table(columns), path)


def arrow_file(path: Path, **columns: Any) -> None:
    table = pyarrow.table(columns)
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def rules_of(path: Path, ids: str = "reject") -> Any:
    table = Table("user", 10, 4, ids=ids, vocabulary=path.name)
    return make_rules(LAYOUT, declared(path.with_name("manifest.json"), [table]), ())


@pytest.mark.parametrize("write", [parquet_file, arrow_file])
def test_a_text_is_the_row_where_the_file_has_it(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    write(tmp_path / "users", name=["anna", "b\u00e9la", ""], visits=[1, 2, 3])
    vocabulary = rules_of(tmp_path / "users").vocabularies["user"]
    assert vocabulary.ids_of(["b\u00e9la", "", "anna"]).tolist() == [1, 2, 0]
    (unknown,) = vocabulary.ids_of(["Anna"]).tolist()
    assert unknown < 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"name": ["a", "b", "a"]}, "'a' of 'user' is there twice"),
        ({"name": ["a", None]}, "entry 1 of 'user' is null"),
        ({"name": list("abcdefghijk")}, "11 texts, but the table of 'user' has 10 rows"),
        ({"visits": [1]}, "has 0 columns of texts, not 1"),
        ({"name": ["a"], "town": ["b"]}, "has 2 columns of texts, not 1"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    parquet_file(tmp_path / "users", **columns)
    with pytest.raises(LoadError, match=re.escape(words)):
        rules_of(tmp_path / "users")


@pytest.mark.parametrize("write", [parquet_file, arrow_file])
def test_a_torn_or_missing_vocabulary_is_refused(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    path = tmp_path / "users"
    with pytest.raises(LoadError, match="users: there is no such file"):
        rules_of(path)
    write(path, name=[f"user {number}" for number in range(10)])
    whole = path.read_bytes()
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(LoadError, match="users is no Arrow or Parquet file"):
            rules_of(path)


def test_a_vocabulary_lies_beside_the_manifest() -> None:
    with pytest.raises(LoadError, match="is no name of a file beside it"):
        declared(Path("manifest.json"), [Table("user", 10, 4, vocabulary="../users")])


@pytest.mark.parametrize("policy", ["clamp", "hash:murmur3:7"])
def test_a_policy_for_numbers_is_refused_beside_a_vocabulary(tmp_path: Path, policy: str) -> None:
    parquet_file(tmp_path / "users", name=["a"])
    with pytest.raises(LoadError, match="a text is no number; take reject, zero or default_row"):
        rules_of(tmp_path / "users", policy)


def test_a_text_that_no_vocabulary_has_is_refused_by_feature_and_row(tmp_path: Path) -> None:
    parquet_file(tmp_path / "users", name=["anna", "bob"])
    rules = rules_of(tmp_path / "users")
    ids = np.append(rules.vocabularies["user"].ids_of(["bob", "eve"]), [5, 5])
    inputs = {"ids.lengths": np.ones((2, 2), np.int64), "ids.values": ids}
    with pytest.raises(ServingError) as caught:
        rules.check(InferRequest("", 2, inputs))
    assert caught.value.detail == (
        "ids.values: feature 'user' row 1 has a text that its vocabulary of 2 lacks"
    )
    assert caught.value.missed == (("user", "reject", 1),)
