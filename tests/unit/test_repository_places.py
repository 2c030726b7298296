"""What a repository is seen to hold, in a folder here and elsewhere through fsspec."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest

from app.repository.listing import MAX_CONFIG_BYTES, FoundModel, Listing, Place, PlaceError
from app.repository.local import LocalPlace
from app.repository.options import RepositoryOptions
from app.repository.places import place_of
from app.repository.remote import RemotePlace


@dataclass(frozen=True)
class Store:
    """A repository that can be written to, and read as a server would."""

    place: Place
    write: Callable[[str, bytes], None]
    remove: Callable[[str], None]

    def scan(self) -> Listing:
        return self.place.scan()

    def signature(self, version: str = "1") -> str:
        return self.scan()["m"].versions[version].signature


def folder_store(root: Path) -> Store:
    root.mkdir()

    def write(name: str, data: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    return Store(LocalPlace(root), write, lambda name: (root / name).unlink())


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield folder_store(tmp_path / "root")
        return
    memory = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    place = RemotePlace(f"memory:/{root}", tmp_path / "cache")
    yield Store(
        place,
        lambda name, data: memory.pipe_file(f"{root}/{name}", data),
        lambda name: memory.rm_file(f"{root}/{name}"),
    )
    if memory.exists(root):
        memory.rm(root, recursive=True)


def test_an_artifact_without_a_version_is_a_problem_until_it_has_one(store: Store) -> None:
    store.write("m/manifest.json", b"{}")
    assert store.scan()["m"].problem.endswith("what lies in m belongs into m/1")
    store.write("m/1/manifest.json", b"{}")
    assert not store.scan()["m"].problem


def test_models_versions_and_configs_are_found_and_other_names_are_none(store: Store) -> None:
    for name in (
        "m/1/model.pt", "m/12/sub/x", "m/3.tmp/x", "m/07/x", "m/readme/x", "m/notes",
        ".hidden/1/x", "_old/1/x", "next.tmp/1/x", "b/1/x", "stray",
    ):  # fmt: skip
        store.write(name, b"x")
    store.write("m/config.toml", b"lanes = 2\n")
    found = store.scan()
    assert sorted(found) == ["b", "m"]
    assert sorted(found["m"].versions) == ["1", "12"]
    assert found["m"].config == "lanes = 2\n"
    assert found["b"].config == ""
    assert not any(one.problem for one in found["m"].versions.values())


def test_a_versions_signature_changes_with_its_files_and_only_then(store: Store) -> None:
    store.write("m/1/a", b"x")
    store.write("m/2/a", b"x")
    seen = [store.signature()]
    assert store.signature() == seen[0]
    store.write("m/2/b", b"y")
    assert store.signature() == seen[0]
    for name, data in (("m/1/a", b"xx"), ("m/1/b", b"y"), ("m/1/.b.part", b"z")):
        store.write(name, data)
        seen.append(store.signature())
    store.remove("m/1/b")
    seen.append(store.signature())
    assert len(set(seen)) == len(seen)


def test_a_version_is_fetched_whole_and_tells_when_it_is_another(store: Store) -> None:
    store.write("m/1/a", b"first")
    store.write("m/1/sub/b", b"second")
    signature = store.signature()
    folder = store.place.fetch("m", "1", signature)
    assert (folder / "a").read_bytes() == b"first"
    assert (folder / "sub" / "b").read_bytes() == b"second"
    assert store.place.unchanged("m", "1", signature)
    assert store.place.fetch("m", "1", signature) == folder
    store.place.release("m", "1", signature)


def test_a_repository_that_is_not_there_cannot_be_read(store: Store) -> None:
    store.write("m/1/a", b"x")
    missing = place_of(RepositoryOptions(url=f"{store.place.url}-gone"))
    with pytest.raises(PlaceError):
        missing.scan()


@pytest.mark.parametrize("name", ["we ird", "ä", "x" * 129])
def test_a_model_name_that_no_url_could_have_is_a_problem(store: Store, name: str) -> None:
    store.write(f"{name}/1/a", b"x")
    assert "use at most 128 letters" in store.scan()[name].problem


@pytest.mark.parametrize("data", [b"\xff", b"#" * (MAX_CONFIG_BYTES + 1)])
def test_a_config_that_is_no_text_or_too_large_is_a_problem(store: Store, data: bytes) -> None:
    store.write("m/1/a", b"x")
    store.write("m/config.toml", data)
    found = store.scan()["m"]
    assert found.problem
    assert found.versions == {}


@pytest.mark.parametrize("link", ["m", "m/1", "m/1/model.pt", "m/config.toml"])
def test_a_link_out_of_the_repository_is_a_problem(tmp_path: Path, link: str) -> None:
    store = folder_store(tmp_path / "root")
    store.write("m/2/a", b"x")
    secret = tmp_path / "secret"
    (secret / "1").mkdir(parents=True)
    (secret / "file").write_text("x")
    path = tmp_path / "root" / link
    if link == "m":
        path = tmp_path / "root" / "n"
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(secret / "file" if "." in link else secret)
    found = store.scan()
    where = found["n"] if link == "m" else found["m"]
    problem = where.versions["1"].problem if "1" in link else where.problem
    assert "leads out of the repository" in problem
    if "1" in link:
        assert not where.versions["2"].problem


def test_links_within_the_repository_are_followed_and_circles_are_a_problem(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    store = folder_store(root)
    store.write("m/1/a", b"x")
    (root / "m" / "2").symlink_to(root / "m" / "1")
    (root / "m" / "3").mkdir()
    (root / "m" / "3" / "loop").symlink_to(root / "m" / "3")
    (root / "m" / "4").mkdir()
    (root / "m" / "4" / "self").symlink_to("self")
    versions = store.scan()["m"].versions
    assert not versions["2"].problem
    assert "folders deep" in versions["3"].problem
    assert versions["4"].problem


def test_file_urls_are_folders() -> None:
    place = place_of(RepositoryOptions(url="file:///tmp/with%20space"))
    assert isinstance(place, LocalPlace)
    assert place.url == "/tmp/with space"


def test_a_url_that_nothing_reads_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match=r"\.\[remote\]"):
        RemotePlace("nosuch://bucket/models", tmp_path)


class Remote:
    """A repository in memory whose file system does ``meddle`` before each file is fetched."""

    def __init__(self, tmp_path: Path) -> None:
        self.memory = fsspec.filesystem("memory")
        self.root = f"/{tmp_path.name}"
        self.place = RemotePlace(f"memory:/{self.root}", tmp_path / "cache")
        self.cache = tmp_path / "cache"
        self.memory.pipe_file(f"{self.root}/m/1/a", b"x")
        self.signature = self.place.scan()["m"].versions["1"].signature

    def copies(self) -> list[str]:
        return [path.name for path in self.cache.glob("*/*/*")]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    made = Remote(tmp_path)
    yield made
    made.memory.rm(made.root, recursive=True)


def test_a_copy_of_what_has_changed_meanwhile_is_not_kept(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = type(remote.memory).get_file

    def meddling(files: object, source: str, target: str, **more: object) -> None:
        fetch(files, source, target, **more)
        remote.memory.pipe_file(f"{remote.root}/m/1/b", b"late")

    with monkeypatch.context() as patch:
        patch.setattr(type(remote.memory), "get_file", meddling)
        with pytest.raises(PlaceError, match="changed while it was copied"):
            remote.place.fetch("m", "1", remote.signature)
    assert remote.copies() == []
    with pytest.raises(PlaceError, match="changed before it could be copied"):
        remote.place.fetch("m", "1", remote.signature)


def test_a_copy_that_breaks_off_leaves_nothing_and_can_be_tried_again(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **more: object) -> None:
        raise ZeroDivisionError("the wire was cut")

    with monkeypatch.context() as patch:
        patch.setattr(type(remote.memory), "get_file", broken)
        with pytest.raises(PlaceError, match="the wire was cut"):
            remote.place.fetch("m", "1", remote.signature)
    assert remote.copies() == []
    remote.place.fetch("m", "1", remote.signature)
    assert remote.copies() == [f"1-{remote.signature}"]
    remote.place.release("m", "1", remote.signature)
    assert remote.copies() == []


def test_object_names_that_lead_out_of_a_version_are_a_problem(remote: Remote) -> None:
    remote.memory.store[f"{remote.root}/m/1/../../../x"] = remote.memory.store[
        f"{remote.root}/m/1/a"
    ]
    try:
        found = remote.place.scan()["m"].versions["1"]
    finally:
        del remote.memory.store[f"{remote.root}/m/1/../../../x"]
    assert "leads out of the repository" in found.problem


def test_old_copies_of_what_is_gone_are_deleted_at_the_first_look(
    remote: Remote, tmp_path: Path
) -> None:
    kept = remote.place.fetch("m", "1", remote.signature)
    old = kept.with_name("0-gone")
    fresh = kept.with_name(".partial-of-another-server")
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (0, 0))
    os.utime(kept, (0, 0))
    RemotePlace(remote.place.url, remote.cache).scan()
    assert sorted(remote.copies()) == sorted([kept.name, fresh.name])


def test_the_config_is_read_again_only_when_it_has_changed(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = f"{remote.root}/m/config.toml"
    remote.memory.pipe_file(file, b"lanes = 2")
    assert remote.place.scan()["m"].config == "lanes = 2"

    def unreadable(*given: object, **more: object) -> bytes:
        raise OSError("not again")

    with monkeypatch.context() as patch:
        patch.setattr(type(remote.memory), "cat_file", unreadable)
        assert remote.place.scan()["m"].config == "lanes = 2"
        remote.memory.pipe_file(file, b"lanes = 3")
        assert "not again" in remote.place.scan()["m"].problem
    assert remote.place.scan()["m"] == FoundModel("lanes = 3", remote.place.scan()["m"].versions)


def test_one_link_in_a_circle_keeps_no_model_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "circle").symlink_to("circle")
    assert sorted(LocalPlace(tmp_path).scan()) == ["m"]


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    for folder in ("a/1", "b/1"):
        (tmp_path / folder).mkdir(parents=True)
    os.mkfifo(tmp_path / "a" / "1" / "golden.npz")
    os.mkfifo(tmp_path / "b" / "config.toml")
    found = LocalPlace(tmp_path).scan()
    assert found["a"].versions["1"].problem == "a/1/golden.npz is no file"
    assert found["b"].problem == "config.toml is no file"


def test_names_of_any_bytes_are_told_in_characters_that_can_be_sent(tmp_path: Path) -> None:
    for name in (b"\xff", b"two\nlines"):
        (Path(os.fsdecode(bytes(tmp_path) + b"/" + name)) / "1").mkdir(parents=True)
    found = LocalPlace(tmp_path).scan()
    assert sorted(found) == [r"\udcff", r"two\nlines"]
    assert all(model.problem for model in found.values())
