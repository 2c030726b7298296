"""The page's own files, in memory: nothing is read while serving, and no path leads elsewhere."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, its media type and the tag (RFC 9110 8.8.3) that changes when it does.

    ``coding`` is the Content-Encoding of ``body``, "" for none.
    """

    body: bytes
    media_type: str
    tag: str
    coding: str = ""


def assets() -> Mapping[str, Asset]:
    """Return every file of the page by its name."""
    folder = files("transports.http.page").joinpath("static")
    return {each.name: asset_of(each.name, each.read_bytes()) for each in folder.iterdir()}


def asset_of(name: str, body: bytes) -> Asset:
    """Return ``body`` as the file ``name``."""
    digest = hashlib.sha256(body).hexdigest()[:16]
    return Asset(body, _TYPES[name.rpartition(".")[2]], f'"{digest}"')
