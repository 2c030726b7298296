"""A repository elsewhere, through fsspec; each version is copied here before it is loaded."""

import hashlib
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from app.repository.listing import (
    CONFIG_FILE,
    CONFIG_SIGNATURE,
    MAX_CONFIG_BYTES,
    MAX_FILES,
    MAX_SIGNATURE_BYTES,
    FoundModel,
    FoundVersion,
    Listing,
    PlaceError,
    is_hidden,
    is_version,
    layout_problem,
    name_problem,
    signature_of,
    told,
)

# What file systems say of an object that changes with it.
_MARKS = ("size", "ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "updated",
          "modified", "created")  # fmt: skip
_PARTIAL = ".partial-"
_OLD_S = 86_400.0  # another server may be at work in the same folder


class RemotePlace:
    """Read the repository at ``url``; copies lie below ``cache_dir``, a folder for each state.

    A copy takes its name when it is complete, and is never changed from then on: several servers
    may share the folder. Raises PlaceError if nothing here reads such URLs.
    """

    def __init__(self, url: str, cache_dir: Path) -> None:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415  # an extra

            self._files, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise PlaceError(
                f"{url}: {error} (pip install -e '.[remote]' in the project's folder brings fsspec,"
                " '.[s3]' also what s3:// needs)"
            ) from error
        self._url = url
        self._cache = cache_dir / hashlib.sha256(url.encode()).hexdigest()[:16]
        self._read: dict[tuple[str, str], tuple[str, bytes]] = {}  # mark and bytes, by file
        self._swept = False

    @property
    def url(self) -> str:
        """The URL."""
        return self._url

    def scan(self) -> Listing:
        """Return everything that is there. Raises PlaceError."""
        models: dict[str, dict[str, Any]] = {}
        for path, info in self._found(self._root).items():
            name, _, rest = path.partition("/")
            if rest and not is_hidden(name):
                models.setdefault(name, {})[rest] = info
        listing = {told(name): self._model(name, files) for name, files in models.items()}
        self._sweep(listing)
        return listing

    def fetch(self, model: str, version: str, signature: str) -> Path:
        """Return the folder of the copy, made now unless there is one. Raises PlaceError."""
        folder = self._folder(model, version, signature)
        if folder.is_dir():
            return folder
        partial = folder.parent / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            self._copy(f"{self._root}/{model}/{version}", signature, partial)
            partial.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else somebody else was faster
                raise PlaceError(f"cannot copy it here: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def unchanged(self, model: str, version: str, signature: str) -> bool:
        """Return true: nobody changes a copy."""
        del model, version, signature
        return True

    def release(self, model: str, version: str, signature: str) -> None:
        """Delete the copy."""
        shutil.rmtree(self._folder(model, version, signature), ignore_errors=True)

    def _sweep(self, listing: Listing) -> None:
        """Delete, once, old copies of what is there no longer, and what was never finished."""
        current = {
            self._folder(name, version, found.signature)
            for name, model in listing.items()
            for version, found in model.versions.items()
        }
        for folder in [] if self._swept else self._cache.glob("*/*"):
            if folder not in current and time.time() - folder.stat().st_mtime > _OLD_S:
                shutil.rmtree(folder, ignore_errors=True)
        self._swept = True

    def _folder(self, model: str, version: str, signature: str) -> Path:
        return self._cache / model / f"{version}-{signature}"

    def _copy(self, source: str, signature: str, target: Path) -> None:
        files = self._found(source)
        if _signature(files) != signature:
            raise PlaceError("it was changed before it could be copied")
        for name in files:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._ask("get_file", f"{source}/{name}", str(path))
        if _signature(self._found(source)) != signature:
            raise PlaceError("it was changed while it was copied")

    def _found(self, root: str) -> dict[str, Any]:
        """Return what is known of every object below ``root``, by its path from there."""
        self._files.invalidate_cache()
        found: Mapping[str, Any] = self._ask("find", root, detail=True)
        if not found and not self._ask("exists", root):
            raise PlaceError(f"{root} does not exist")
        start = len(root.rstrip("/")) + 1
        return {path[start:]: info for path, info in found.items()}

    def _model(self, name: str, files: Mapping[str, Any]) -> FoundModel:
        entries = {path.partition("/")[0] for path in files}
        problem = name_problem(name) or layout_problem(name, entries)
        if problem:
            return FoundModel(problem=problem)
        versions: dict[str, dict[str, Any]] = {}
        for path, info in files.items():
            version, _, rest = path.partition("/")
            if rest and is_version(version):
                versions.setdefault(version, {})[rest] = info
        try:
            config = self._content(name, CONFIG_FILE, files, MAX_CONFIG_BYTES).decode("utf-8")
            signature = self._content(name, CONFIG_SIGNATURE, files, MAX_SIGNATURE_BYTES)
        except (PlaceError, UnicodeDecodeError) as error:
            return FoundModel(problem=f"{CONFIG_FILE}: {error}")
        found_versions = {each: _version(found) for each, found in versions.items()}
        return FoundModel(config, found_versions, config_signature=signature)

    def _content(
        self, model: str, name: str, files: Mapping[str, Mapping[str, Any]], limit_bytes: int
    ) -> bytes:
        """Return what a small file has, read again only when its marks are others."""
        info = files.get(name)
        if info is None:
            return b""
        if (info.get("size") or 0) > limit_bytes:
            raise PlaceError(f"more than {limit_bytes} bytes")
        mark = _signature({name: info})
        if self._read.get((model, name), ("", b""))[0] != mark:
            data: bytes = self._ask("cat_file", f"{self._root}/{model}/{name}")
            self._read[model, name] = (mark, data)
        return self._read[model, name][1]

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        try:
            return getattr(self._files, method)(*arguments, **named)
        except Exception as error:  # each file system has errors of its own
            raise PlaceError(f"{self._url}: {error!r}") from error


def _version(files: Mapping[str, Any]) -> FoundVersion:
    if len(files) > MAX_FILES:
        return FoundVersion("", problem=f"more than {MAX_FILES} files")
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            return FoundVersion("", problem=f"{name[:64]!r} leads out of the repository")
    return FoundVersion(_signature(files))


def _signature(files: Mapping[str, Any]) -> str:
    return signature_of(
        (name, *(str(info[mark]) for mark in _MARKS if info.get(mark) is not None))
        for name, info in files.items()
    )
