"""Chart.js as the package chartkick brings it: served from where pip put it, no copy of ours."""

import asyncio
import gzip
from dataclasses import replace
from http import HTTPStatus
from importlib.resources import files

from transports.http.coding import accepted_coding
from transports.http.page.assets import Asset, asset_of
from transports.http.problem import HttpError

PACKAGE = "chartkick"
PLACE = "django/static/chartkick/Chart.bundle.js"
NAME = PLACE.rpartition("/")[2]


class Library:
    """The script, read and packed when a page first asks: 1 MB, of which others need nothing."""

    def __init__(self, package: str = PACKAGE) -> None:
        self._package = package
        self._forms: tuple[Asset, Asset] | None = None

    async def asset(self, accept_encoding: bytes) -> Asset:
        """Return the script in the best coding. Raises HttpError (404) without the package."""
        if self._forms is None:
            # Some 50 ms: not on the event loop. Two pages at once do the same twice, no more.
            self._forms = await asyncio.to_thread(_read, self._package)
        plain, packed = self._forms
        return packed if accepted_coding(accept_encoding) == "gzip" else plain


def _read(package: str) -> tuple[Asset, Asset]:
    """Return the script as it is, and packed."""
    try:
        plain = asset_of(NAME, files(package).joinpath(PLACE).read_bytes())
    except (ImportError, OSError) as error:
        raise HttpError(
            HTTPStatus.NOT_FOUND,
            f"{NAME}: not in the package {package} of this server's environment; install the"
            " version that pyproject.toml names",
        ) from error
    # Each form of it has a tag of its own (RFC 9110 8.8.3.3).
    tag = f'"gzip-{plain.tag[1:]}'
    return plain, replace(plain, body=gzip.compress(plain.body, 6, mtime=0), tag=tag, coding="gzip")
