"""Let pages of other origins call from a browser: the Fetch standard's CORS, by Starlette."""

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from transports.http.whole import without_whole

ANY = "*"
# As long as Chromium remembers at most what it was allowed.
MAX_AGE_S = 7200
# What a page may read of an answer's headers, besides the few it always may.
EXPOSED = ("x-request-id", "server-timing", "retry-after", "inference-header-content-length")

# As browsers write one: in lower case, without the scheme's usual port.
_ORIGIN = re.compile(
    r"(?!http://.*:80$|https://.*:443$)https?://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:\d+)?"
)


def check_origins(name: str, origins: Sequence[str]) -> None:
    """Raise ValueError, which names the option and the value, for what no browser sends."""
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{name} must be '*' or origins as browsers write them, like "
                f"https://shop.example or http://localhost:3000, got {origin!r}"
            )


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return ``app``, open to pages of ``origins``; none: as it is, nothing on its path."""
    return CrossOrigin(app, origins) if origins else app


class CrossOrigin:
    """Say to browsers which pages may ask, and read the answers; errors are answers too."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._cors = CORSMiddleware(
            app,
            allow_origins=origins,
            # The app itself refuses what it does not serve, in its own words.
            allow_methods=("*",),
            allow_headers=("*",),
            expose_headers=EXPOSED,
            max_age=MAX_AGE_S,
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        without_whole(scope)  # browsers are told in the headers
        # Starlette would refuse a stranger's preflight in plain text, we do in JSON.
        strange = scope["method"] == "OPTIONS" and not self._allows(scope)
        await (self._app if strange else self._cors)(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        return self._cors.is_allowed_origin(Headers(scope=scope).get("origin", ""))
