"""What is fuzzed: by name, the function that takes any bytes and the valid bytes to start from."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import orjson
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import encode_frame
from pylsqpack import Encoder

from scheduler.types import InferRequest
from tests.fixtures.oip_grpc import as_pairs, message_of, typed_message_of
from tests.fixtures.oip_http import JSON_BYTES, binary_body, json_body, one_id_each
from tests.fixtures.raw_http import post
from tests.fixtures.raw_http3 import head
from tests.fixtures.requests import (
    LENGTHS,
    VALUES,
    as_document,
    as_json,
    as_protobuf,
    features,
    random_request,
)
from tests.fuzz import codecs, connections

MAX_STRETCHED_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Target:
    """``run`` takes anything; ``seeds`` are inputs that it takes as they are meant."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


def stretched(content: bytes) -> bytes:
    """Repeat a part of ``content`` as its last four bytes say, so that a short input grows long.

    What is quadratic in some part shows as a time-out only when there is much of it.
    """
    if len(content) < 8 or not content[-1] & 1:
        return content[:-1]
    body, (start, size, doublings) = content[:-4], content[-4:-1]
    start = start % len(body)
    part = body[start : start + 1 + size]
    times = min(1 << doublings % 18, MAX_STRETCHED_BYTES // len(part))
    return body[:start] + part * times + body[start + len(part) :]


def _requests() -> Iterator[InferRequest]:
    for rows in (0, 1, 3):
        request = random_request(codecs.SPEC, rows, seed=rows)
        yield request
        yield one_id_each(request)


def _predictor() -> Iterator[bytes]:
    for request in _requests():
        yield as_protobuf(request)
        ints = {name: request.inputs[name].astype("i4") for name in (LENGTHS, VALUES)}
        yield as_protobuf(replace(request, inputs={**request.inputs, **ints}))


def _oip_grpc() -> Iterator[bytes]:
    for request in _requests():
        for write in (message_of, typed_message_of):
            for arrays in (request.inputs, as_pairs(request, features(codecs.SPEC))):
                yield write(arrays, id="1", model_name="fake").SerializeToString()


def _oip_json() -> Iterator[bytes]:
    for request in _requests():
        yield json_body(request.inputs, id="1", parameters={"priority": 1, "timeout": 100})
        yield json_body(as_pairs(request, features(codecs.SPEC)), outputs=[{"name": "default"}])


def _oip_binary() -> Iterator[bytes]:
    for request in _requests():
        headers, body = binary_body(request.inputs, parameters={"binary_data_output": True})
        yield int(headers[JSON_BYTES]).to_bytes(2, "big") + body
    yield b"\0\0" + bytes(24)


def _predict_json() -> Iterator[bytes]:
    for request in _requests():
        yield as_json(request, codecs.SPEC)
        document = as_document(request, codecs.SPEC)
        bags = document["id_list_features"].items()
        document |= {
            "rows": request.rows,
            "float_features": [x for row in document["float_features"] for x in row],
            "id_list_features": {
                name: {"lengths": [*map(len, column)], "values": [*chain.from_iterable(column)]}
                for name, column in bags
            },
            "id": "x", "outputs": ["default"], "timeout_ms": 10, "priority": 1,
        }  # fmt: skip
        yield orjson.dumps(document)


def _heads() -> Iterator[bytes]:
    yield b"content-type: application/json; charset=utf-8\ncontent-length: 17"
    yield b"x-request-id: a b\nx-request-timeout-ms: 12.5\nx-request-priority: 2"
    yield (
        b"traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01\naccept-encoding: gzip;q=0.5, *"
    )
    yield b"inference-header-content-length: 12\ncontent-encoding: x-gzip"


def _coded() -> Iterator[bytes]:
    plain = as_json(random_request(codecs.SPEC, 3, seed=1), codecs.SPEC)
    yield b"gzip\n" + gzip.compress(plain, mtime=0)
    yield b"deflate\n" + zlib.compress(plain)
    yield b"gzip\n" + gzip.compress(bytes(1 << 20), mtime=0)
    yield b"gzip;q=0.1, deflate;q=1, *;q=0\n"


def _http1() -> Iterator[bytes]:
    body = as_json(random_request(codecs.SPEC, 1, seed=1), codecs.SPEC)
    yield post(body)
    yield post(body, "content-encoding: gzip", "connection: close")
    yield post(body) + post(b"{}") + b"GET / HTTP/1.1\r\n\r\n"
    chunked = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    yield chunked + b"\r\n2;a=b\r\n{}\r\n0\r\ntrailer: x\r\n\r\n"
    yield chunked + b"expect: 100-continue\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    yield b"POST / HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}"
    yield b"CONNECT a:80 HTTP/1.1\r\n\r\n"


def _http3() -> Iterator[bytes]:
    fields = head(path="/v1/predict?a=b", content_length="2", x_request_id="7")
    encoder = Encoder()
    encoder.apply_settings(0, 0)
    headers = encode_frame(1, encoder.encode(0, fields)[1])
    request = headers + encode_frame(0, b"{}")
    yield b"\0" + request
    yield b"\0" + request + encode_frame(1, encoder.encode(0, [(b"trailer", b"x")])[1])
    yield b"\0" + encode_frame(0x21, b"grease") + request
    settings = encode_frame(4, encode_uint_var(1) + encode_uint_var(4096))
    yield b"\1\0" + settings
    yield b"\3" + settings
    yield b"\2\2" + b"\x3f\xe1\x1f"  # QPACK encoder stream: a table of 4096


TARGETS = {
    "predictor": Target(codecs.predictor_protobuf, _predictor),
    "oip-grpc": Target(codecs.oip_grpc, _oip_grpc),
    "oip-json": Target(codecs.oip_json, _oip_json),
    "oip-binary": Target(codecs.oip_binary, _oip_binary),
    "predict-json": Target(codecs.predict_route, _predict_json),
    "http-head": Target(codecs.http_head, _heads),
    "coding": Target(codecs.coding, _coded),
    "http1": Target(connections.http1, _http1),
    "http3": Target(connections.http3_stream, _http3),
}
