"""``narsil predict`` where no server of ours listens: one sentence that names who does."""

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app import predict

# Closed with it, a connection is reset.
AT_ONCE = struct.pack("ii", 1, 0)


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    features = {"cat_0": [[3]], "cat_1": [[7]]}
    file.write_text(json.dumps({"float_features": [[1.0]], "id_list_features": features}))
    return file


@contextmanager
def stranger(said: bytes | None) -> Iterator[str]:
    """Listen with who says ``said`` to one request, nothing (None), or resets it (empty)."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def meet() -> None:
            link, _ = listening.accept()
            with link, link.makefile("rb") as read:
                head = b"".join(iter(read.readline, b"\r\n"))
                length = re.search(rb"(?i)content-length: (\d+)", head)
                read.read(int(length[1]) if length else 0)
                if said is None:
                    asked.wait()
                elif said:
                    link.sendall(said)
                else:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)

        thread = threading.Thread(target=meet)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            asked.set()
            thread.join()


def http_answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    fields = b"content-type: %b\r\ncontent-length: %d" % (kind, len(body))
    return b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (fields, body)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, "no answer within 0.2 s from --describe "),
        (http_answer(b"hello"), "describes no model of Narsil's"),
        (http_answer(b'{"models": []}'), "describes no model of Narsil's"),
        (http_answer(b'{"models": [{"inputs": 3}]}'), "describes no model of Narsil's"),
    ],
    ids=["silent", "text", "no models", "other models"],
)
def test_who_is_asked_for_the_features_is_named(
    said: bytes | None, expected: str, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stranger(said) as url:
        patience_s = "0.2" if said is None else "60"
        flags = ["--transport", "grpc", "--describe", url, "--timeout", patience_s]
        assert predict.main([str(request_file), *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert url in line
    assert expected in line


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (http_answer(b"hello"), "the answer has no predictions: b'hello'"),
        (http_answer(b'{"predictions": 3}'), "the answer has no predictions"),
        (http_answer(b"hello", b"text/html"), "not a PredictionResponse"),
        (b"", "the connection was cut before an answer came"),
        (http_answer(b"hello")[:-2], "peer closed connection without sending complete message"),
    ],
    ids=["text", "other JSON", "another type", "reset", "cut"],
)
def test_what_is_no_answer_of_ours_is_told(
    said: bytes, expected: str, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stranger(said) as url:
        assert predict.main([str(request_file), "--url", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
