"""Keep other sites' pages away from the page: from what it shows, and from the playground.

A browser sends a site's requests to loopback too. Three things tell them apart: a header that no
other origin may send (without CORS, which this listener does not speak), what the browser itself
says of the sender (Fetch Metadata), and, against names that were made to lead here (DNS
rebinding), the name that was asked for.
"""

import ipaddress
from collections.abc import Mapping
from http import HTTPStatus

from transports.http.problem import HttpError

OWN_HEADER = b"x-narsil-page"
# What is loaded by an address typed or bookmarked comes from "none".
_OWN_SITE = (b"same-origin", b"none")


def check_host(headers: Mapping[bytes, bytes], listens_on: str) -> None:
    """Refuse any other name than this machine's, if only it can reach ``listens_on``.

    Raises HttpError.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if _is_loopback(listens_on) and not _is_loopback(_without_port(host)):
        raise HttpError(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"host: {host[:64]!r} is not this machine's name; use localhost or a loopback address",
        )


def check_sender(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what another site's page had its browser send. Raises HttpError."""
    site = headers.get(b"sec-fetch-site", _OWN_SITE[0])
    if site not in _OWN_SITE:
        raise HttpError(HTTPStatus.FORBIDDEN, "only the page itself may ask, not another site's")


def check_own(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what does not say, by OWN_HEADER, that it is the page's. Raises HttpError."""
    check_sender(headers)
    if OWN_HEADER not in headers:
        raise HttpError(HTTPStatus.FORBIDDEN, f"{OWN_HEADER.decode()}: this header is missing")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
