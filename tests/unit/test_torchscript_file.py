"""TorchScript files are read as data: tensors and containers, no code, nothing out of bounds."""

import io
import os
import pickle
import subprocess
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.torchscript_file.archive import Bytes
from backends.torchscript_file.errors import TorchScriptFileError
from backends.torchscript_file.reader import read_torchscript
from backends.torchscript_file.tree import Module, Opaque, modules
from backends.torchscript_file.unpickler import unpickle

# A scripted module with one attribute "weight": storage 0, six floats, seen as (2, 3).
TREE = (
    b"\x80\x02c__torch__.a\nNet\n)\x81}(X\x06\x00\x00\x00weight"
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQK\x00K\x02K\x03\x86K\x03K\x01\x86\x89"
    b"ccollections\nOrderedDict\n)RtRub."
)
WEIGHT = np.arange(6, dtype=np.float32)


def write(path: Path, changes: dict[str, bytes | None] | None = None, *, deflate: str = "") -> Path:
    """Write a small file like PyTorch's; ``changes`` replaces or drops records."""
    plain: dict[str, bytes | None] = {
        "data/0": WEIGHT.tobytes(),
        "data.pkl": TREE,
        "code/__torch__/a.py": b"class Net(Module): pass",
        "version": b"3\n",
        "byteorder": b"little",
    }
    records = plain | (changes or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            if data is not None:
                method = zipfile.ZIP_DEFLATED if name == deflate else zipfile.ZIP_STORED
                archive.writestr(zipfile.ZipInfo(f"m/{name}"), data, method)
    return path


def refuse(*arguments: object) -> object:
    raise AssertionError(arguments)


def test_a_tensor_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    file = read_torchscript(write(tmp_path / "m.pt"), verify=True)
    weight = file.root.tensor("weight")
    assert weight is not None
    assert np.array_equal(weight, WEIGHT.reshape(2, 3))
    assert not weight.flags.writeable
    assert not weight.flags.owndata
    assert file.code == {"__torch__/a.py": "class Net(Module): pass"}
    assert file.version == 3
    assert file.root.type_name == "__torch__.a.Net"


def test_a_class_of_the_script_that_packed_it_is_a_scripted_module(tmp_path: Path) -> None:
    tree = TREE.replace(b"c__torch__.a\n", b"c__torch__\n")
    root = read_torchscript(write(tmp_path / "m.pt", {"data.pkl": tree})).root
    assert root.type_name == "__torch__.Net"
    assert root.tensor("weight") is not None


def test_what_is_checked_is_what_is_read_though_another_file_takes_its_place(
    tmp_path: Path,
) -> None:
    path, other = write(tmp_path / "m.pt"), write(tmp_path / "n.pt", {"data/0": bytes(24)})
    checked: list[bytes] = []

    def check(data: Bytes) -> None:
        checked.append(data.tobytes())
        other.replace(path)

    file = read_torchscript(path, check=check)
    assert checked == [file.storage.tobytes()]
    weight = file.root.tensor("weight")
    assert weight is not None
    assert np.array_equal(weight, WEIGHT.reshape(2, 3))


def test_a_module_that_is_met_again_is_walked_once() -> None:
    inner = Module("__torch__.Inner")
    outer = Module("__torch__.Outer", {"left": inner, "right": inner, "number": 1})
    inner.attributes["self"] = inner
    assert [path for path, _ in modules(outer)] == ["", "left"]
    assert outer.get("right.self") is inner
    assert outer.get("number.of") is None
    assert outer.tensor("number") is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"data.pkl": None}, "no record 'data.pkl'"),
        ({"data/0": None}, "no record 'data/0'"),
        ({"version": None}, "no record 'version'"),
        ({"version": b"99\n"}, "format version b'99'"),
        ({"version": b"x"}, "format version b'x'"),
        ({"byteorder": b"big"}, "big-endian"),
        ({"code/__torch__/a.py": None}, "what torch.save wrote, .* narsil export --from"),
        ({"code/__torch__/a.py": None, "data.pkl": None, "archive_format": b"pt2"}, "call it .pt2"),
        ({"code/__torch__/a.py": None, "data.pkl": None}, "is no TorchScript file: it has no code"),
        ({"data/0": bytes(20)}, "storage '0' has 20 bytes, 6 items of float32 need 24"),
        ({"data.pkl": TREE[:-9]}, r"data\.pkl, byte \d+"),
        ({"data.pkl": b"\x80\x02K\x07."}, "holds a int, not a scripted module"),
        ({"data.pkl": TREE.replace(b"FloatS", b"BFloat16S")}, "tensors of BFloat16Storage"),
        ({"data.pkl": TREE.replace(b"torch\nFloat", b"torch.x\nFloat")}, "'torch.x' has no stor"),
        ({"data.pkl": TREE.replace(b"K\x02K\x03\x86K\x03", b"K\x09K\x03\x86K\x03")}, "6 items"),
        ({"data.pkl": TREE.replace(b"K\x02K\x03\x86K\x03", b"K\x02K\x03\x86K\x05")}, "past its 6"),
        ({"data.pkl": TREE.replace(b"tQK\x00", b"tQK\x01")}, "reaches past its 6 items"),
        ({"data.pkl": TREE.replace(b"tQK\x00", b"tQ}")}, "a dict is no size"),
        ({"data.pkl": TREE.replace(b"X\x01\x00\x00\x000", b"](K\x01e")}, "a list is no name"),
        ({"data.pkl": bytes(2 << 20)}, r"has 2097152 bytes, more than 1048576"),
        ({"data.pkl": b"\x80\x02" + b"]" * 300_000}, "more than 200000 opcodes"),
        ({"version": bytes(2000)}, "has 2000 bytes, more than 1024"),
        ({"data.pkl": TREE.replace(b"__torch__.a", b"posix")}, "'posix Net' is no scripted"),
    ],
)
def test_a_file_that_says_something_else_is_refused(
    tmp_path: Path, changes: dict[str, bytes | None], complaint: str
) -> None:
    with pytest.raises(TorchScriptFileError, match=complaint):
        read_torchscript(write(tmp_path / "m.pt", changes))


def test_a_compressed_tensor_is_refused_and_compressed_text_is_read(tmp_path: Path) -> None:
    assert read_torchscript(write(tmp_path / "text.pt", deflate="code/__torch__/a.py")).code
    with pytest.raises(TorchScriptFileError, match="'data/0' is compressed"):
        read_torchscript(write(tmp_path / "tensor.pt", deflate="data/0"))


def test_a_flipped_bit_in_a_tensor_is_found_when_verifying(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt")
    data = bytearray(path.read_bytes())
    data[data.find(WEIGHT.tobytes()) + 5] ^= 1
    path.write_bytes(data)
    assert read_torchscript(path).root.tensor("weight") is not None
    with pytest.raises(TorchScriptFileError, match=r"'data/0' is damaged"):
        read_torchscript(path, verify=True)


def test_a_file_that_is_absent_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(TorchScriptFileError, match=r"m\.pt does not exist"):
        read_torchscript(tmp_path / "m.pt")


@pytest.mark.parametrize("kept", [0, 10, 200, -1, -30])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path / "m.pt")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TorchScriptFileError, match=r"m\.pt is no TorchScript file"):
        read_torchscript(path)


def test_a_record_that_claims_more_bytes_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt")
    data = bytearray(path.read_bytes())
    entry = data.find(b"PK\1\2")  # the central directory's first entry: data/0
    data[entry + 20 : entry + 28] = (1 << 30).to_bytes(4, "little") * 2
    path.write_bytes(data)
    with pytest.raises(TorchScriptFileError, match="it was cut off"):
        read_torchscript(path)


def nested(levels: int, times: int) -> bytes:
    """Pickle a list of ``times`` the same list, ``levels`` deep, as a tensor's offset."""
    lists = b"]q\x00"
    for level in range(levels):
        lists += b"](" + bytes([ord("h"), level]) * times + b"eq" + bytes([level + 1])
    offset = b"tQ" + bytes([ord("h"), levels])
    return TREE[:2] + lists + TREE[2:].replace(b"tQK\x00", offset)


def test_lists_whose_text_would_fill_any_memory_are_refused_by_their_type(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", {"data.pkl": nested(100, 100)})
    with pytest.raises(TorchScriptFileError, match="a list is no size"):
        read_torchscript(path)


def test_a_list_nested_deeper_than_python_follows_is_refused(tmp_path: Path) -> None:
    deep = b"]" * 50_000 + b"a" * 49_999
    path = write(tmp_path / "m.pt", {"data.pkl": TREE.replace(b"tQK\x00", b"tQ" + deep)})
    with pytest.raises(TorchScriptFileError, match=r"m\.pt: data\.pkl.*a list is no size"):
        read_torchscript(path)


def test_code_is_read_up_to_a_total(tmp_path: Path) -> None:
    texts: dict[str, bytes | None] = {f"code/{part}.py": b"#" * (2 << 20) for part in "abc"}
    with pytest.raises(TorchScriptFileError, match=r"'code/b\.py' has 2097152 bytes, more than"):
        read_torchscript(write(tmp_path / "m.pt", texts))


class Malice:
    """Pickles as a call of a shell."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch owned",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_names_code_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m.pt", {"data.pkl": pickle.dumps(Malice(), protocol)})
    with pytest.raises(TorchScriptFileError):
        read_torchscript(tmp_path / "m.pt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("value", [subprocess.Popen, io.BytesIO(b"x"), {1, 2}, np.float32(1)])
def test_a_pickle_of_other_objects_is_refused(value: object) -> None:
    with pytest.raises(TorchScriptFileError):
        unpickle(pickle.dumps([value], 2), "tree", refuse, refuse)


def test_enums_and_devices_are_kept_as_their_names() -> None:
    assert unpickle(b"\x80\x02c__torch__.a\nKind\nK\x03R.", "tree", refuse, refuse) == Opaque(
        "__torch__.a.Kind", (3,)
    )


def read_or_refuse(data: bytes) -> None:
    with suppress(TorchScriptFileError):
        unpickle(data, "tree", lambda reference: None, lambda arguments: None)


# pickletools warns of escapes in opcodes that no TorchScript file has, before they are refused.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@given(st.binary(max_size=60))
def test_any_bytes_unpickle_or_are_refused(data: bytes) -> None:
    read_or_refuse(data)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@given(st.integers(0, len(TREE) - 1), st.integers(0, 255))
def test_a_changed_byte_of_a_tree_unpickles_or_is_refused(position: int, value: int) -> None:
    read_or_refuse(TREE[:position] + bytes([value]) + TREE[position + 1 :])
