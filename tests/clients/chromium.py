"""A headless Chromium, driven through the pipe of its DevTools protocol."""

import asyncio
import base64
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.clients import tools

MAX_MESSAGE_BYTES = 2**24
# The browser reads its commands from file descriptor 3 and answers on 4.
WITH_PIPES = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


class PageError(Exception):
    """What the page's own code raised."""


class Chromium:
    """One tab; commands go one at a time."""

    def __init__(self, commands: int, answers: asyncio.StreamReader) -> None:
        self._commands = commands
        self._answers = answers
        self._numbers = itertools.count()
        self._session = ""

    async def attach(self) -> None:
        """Open the tab."""
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", **target, flatten=True)
        self._session = attached["sessionId"]
        await self._call("Page.enable")

    async def before_each_page(self, script: str) -> None:
        """Run ``script`` in every page that is opened from now on, before its own."""
        await self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def block(self, pattern: str) -> None:
        """Let nothing be loaded whose URL is like ``pattern``, in which * is anything."""
        await self._call("Network.enable")
        await self._call("Network.setBlockedURLs", urls=[pattern])

    async def open(self, url: str) -> None:
        """Load a page; fail the test if it cannot be."""
        answer = await self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        while (await self._next()).get("method") != "Page.loadEventFired":
            pass

    async def evaluate(self, function: str, *arguments: Any) -> Any:
        """Return what an async JavaScript function gives in the page. Raises PageError."""
        answer = await self._call(
            "Runtime.evaluate",
            expression=f"({function})(...{json.dumps(arguments)})",
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    async def look(self, *, width: int, dark: bool = False, forced: bool = False) -> None:
        """Make the window so wide, and light or dark; forced: in the system's colours alone."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        forcing = {"name": "forced-colors", "value": "active" if forced else "none"}
        await self._call("Emulation.setEmulatedMedia", features=[scheme, forcing])
        await self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def press(self, key: str) -> None:
        """Press and let go of a key, by its DOM name."""
        for event in ("keyDown", "keyUp"):
            await self._call("Input.dispatchKeyEvent", type=event, key=key, code=key)

    async def screenshot(self, path: Path) -> None:
        """Write a picture (PNG) of the whole page."""
        taken = await self._call("Page.captureScreenshot", captureBeyondViewport=True)
        _write(path, base64.b64decode(taken["data"]))

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := await self._next()).get("id") != number:
            pass
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads((await self._answers.readuntil(b"\0"))[:-1])
        return message


@asynccontextmanager
async def chromium(folder: Path, flags: Sequence[str]) -> AsyncIterator[Chromium]:
    """Run a browser whose profile is in ``folder``; skip the test if there is none."""
    binary = tools.program("chromium")
    (commands_read, commands), (answers, answers_write) = os.pipe(), os.pipe()
    with (folder / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", WITH_PIPES, "bash", str(commands_read), str(answers_write), binary,
            "--remote-debugging-pipe", "--no-sandbox", f"--user-data-dir={folder / 'profile'}",
            # The name may mean ::1 first; the servers of tests listen on this one.
            "--host-resolver-rules=MAP localhost 127.0.0.1", *flags,
            pass_fds=(commands_read, answers_write), stderr=log,
        )  # fmt: skip
    os.close(commands_read)
    os.close(answers_write)
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", 0)
    )
    try:
        tab = Chromium(commands, reader)
        await tab.attach()
        yield tab
    finally:
        # It ends when nobody holds the pipe any more.
        os.close(commands)
        pipe.close()
        await process.wait()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
