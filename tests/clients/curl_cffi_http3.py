"""Run as a script: curl_cffi's two clients over HTTP/3; URL, CA file and a JSON request given."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from curl_cffi import AsyncSession, CurlHttpVersion, Response, Session

HEADERS = {"content-type": "application/json"}


def seen(answer: Response) -> list[Any]:
    """Return status, HTTP version and scores."""
    # libcurl's number for HTTP/3 is 30.
    return [answer.status_code, answer.http_version // 10, answer.json()["predictions"]]


async def main(url: str, ca: str, request: bytes) -> None:
    """Print what came back."""
    options: dict[str, Any] = {"http_version": CurlHttpVersion.V3ONLY, "verify": ca}
    with Session(**options) as session:
        blocking = seen(session.post(url, data=request, headers=HEADERS))
        wrong = session.post(url, data=b"{}", headers=HEADERS)
    async with AsyncSession(**options) as session:
        aio = seen(await session.post(url, data=request, headers=HEADERS))
    refused = [wrong.status_code, wrong.http_version // 10]
    json.dump({"blocking": blocking, "asyncio": aio, "refused": refused}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()))
