"""Which parts of which objects may be registered, and how many."""

import os
import resource
from pathlib import Path

import pytest

from app.config import ServerOptions
from scheduler.errors import Code, ServingError
from scheduler.regions import Region
from transports.regions import MAX_REGIONS, MAX_TOTAL_BYTES, SharedRegions


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shm = tmp_path / "shm"
    shm.mkdir()
    (shm / "narsil-a").write_bytes(bytes(100))
    (tmp_path / "narsil-outside").write_bytes(bytes(100))
    return shm


@pytest.fixture
def regions(folder: Path) -> SharedRegions:
    return SharedRegions("/narsil", folder)


def refusal(regions: SharedRegions, region: Region, code: Code = Code.INVALID_REQUEST) -> str:
    before = regions.status()
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ServingError) as raised:
        regions.register(region)
    assert raised.value.code is code
    assert regions.status() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    return raised.value.detail


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "/..", "/../narsil-outside", "narsil/../a", "/narsil/", "narsil\0a",
     "narsil" + "a" * 250, "narsil" + "é" * 125],
)  # fmt: skip
def test_a_key_is_a_posix_name_and_never_a_path(regions: SharedRegions, key: str) -> None:
    detail = refusal(regions, Region("a", key, 0, 1))
    assert "names no POSIX shared memory object" in detail
    assert len(detail) < 300


@pytest.mark.parametrize("key", ["narsil-a", "/narsil-a"])
def test_a_key_may_have_its_slash_or_not(regions: SharedRegions, key: str) -> None:
    regions.register(Region("a", key, 0, 100))
    assert regions.window("a", 98, 2).read() == bytes(2)


def test_only_objects_whose_names_begin_as_the_server_says_may_be_registered(
    regions: SharedRegions, folder: Path
) -> None:
    (folder / "other").write_bytes(bytes(8))
    detail = refusal(regions, Region("a", "/other", 0, 8), Code.PERMISSION_DENIED)
    assert "does not begin with '/narsil'" in detail
    SharedRegions("/", folder).register(Region("a", "/other", 0, 8))


def test_links_folders_pipes_and_what_is_not_there_are_refused(
    regions: SharedRegions, folder: Path
) -> None:
    (folder / "narsil-link").symlink_to(folder / "narsil-a")
    (folder / "narsil-folder").mkdir()
    os.mkfifo(folder / "narsil-pipe")
    for name in ("link", "folder", "pipe", "nope"):
        detail = refusal(regions, Region("a", f"/narsil-{name}", 0, 1))
        assert f"'/narsil-{name}'" in detail


def test_objects_of_another_user_are_refused(folder: Path) -> None:
    regions = SharedRegions("/narsil", folder, owner=os.geteuid() + 1)
    detail = refusal(regions, Region("a", "/narsil-a", 0, 1), Code.PERMISSION_DENIED)
    assert "belongs to another user" in detail


@pytest.mark.parametrize(
    ("offset", "size_bytes"),
    [(0, 101), (1, 100), (100, 1), (0, 0), (2**64 - 1, 2), (2**64, 1), (-1, 5), (0, -1)],
)
def test_a_region_lies_within_its_object(
    regions: SharedRegions, offset: int, size_bytes: int
) -> None:
    detail = refusal(regions, Region("a", "/narsil-a", offset, size_bytes))
    assert "which has 100 bytes" in detail


def test_the_same_again_is_no_error_and_anything_else_is(
    regions: SharedRegions, folder: Path
) -> None:
    region = Region("a", "/narsil-a", 4, 8)
    regions.register(region)
    regions.register(region)
    for other in (region._replace(offset=5), region._replace(key="narsil-a")):
        assert "unregister it first" in refusal(regions, other)
    (folder / "narsil-a").unlink()
    assert "cannot be opened" in refusal(regions, region)
    (folder / "narsil-b").write_bytes(bytes(100))
    (folder / "narsil-b").rename(folder / "narsil-a")
    assert "another object" in refusal(regions, region)
    regions.unregister("a")
    regions.register(region)


@pytest.mark.parametrize("name", ["", "a" * 256])
def test_a_name_has_a_length(regions: SharedRegions, name: str) -> None:
    assert "1 to 255 characters" in refusal(regions, Region(name, "/narsil-a", 0, 1))


def test_regions_have_a_number_and_a_size_in_all(regions: SharedRegions, folder: Path) -> None:
    with (folder / "narsil-huge").open("wb") as file:
        file.truncate(MAX_TOTAL_BYTES)
    regions.register(Region("0", "/narsil-a", 0, 1))
    detail = refusal(regions, Region("huge", "/narsil-huge", 0, MAX_TOTAL_BYTES))
    assert f"above the limit of {MAX_TOTAL_BYTES}" in detail
    for number in range(1, MAX_REGIONS):
        regions.register(Region(f"{number}", "/narsil-a", 0, 1))
    assert f"{MAX_REGIONS} regions" in refusal(regions, Region("more", "/narsil-a", 0, 1))
    regions.register(Region("0", "/narsil-a", 0, 1))
    regions.unregister()
    regions.register(Region("huge", "/narsil-huge", 0, MAX_TOTAL_BYTES))


def test_a_write_that_the_system_refuses_is_not_the_clients_fault(regions: SharedRegions) -> None:
    regions.register(Region("a", "/narsil-a", 0, 100))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        with pytest.raises(ServingError, match="cannot be written: File too large") as raised:
            regions.window("a", 40, 20).write(memoryview(bytes(20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize("value", ["/a/b", "a/", "../x"])
def test_a_prefix_with_another_slash_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="beginning of a POSIX name"):
        ServerOptions(shared_memory=value)


def test_front_ends_of_their_own_have_no_shared_memory_between_them() -> None:
    with pytest.raises(ValueError, match="frontends must be 0 with it, got 2"):
        ServerOptions(shared_memory="/narsil", frontends=2)
