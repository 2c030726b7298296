"""Give any bytes to a codec: it returns a request or refuses it in our words, nothing else."""

import contextlib
from collections.abc import Iterator

from backends.fake import FakeBackend, FakeOptions
from scheduler.errors import Code, ServingError
from scheduler.types import InferRequest
from scheduler.validate import validate
from transports.codecs import oip_http, oip_protobuf, predict_json, predictor
from transports.http.coding import UNPACKED_PIECE_BYTES, Unpacker, accepted_coding, content_coding
from transports.http.head import harmless, media_type, own_id, parse_head, whole
from transports.http.problem import HttpError, problem_of

BACKEND = FakeBackend(FakeOptions())
SPEC = BACKEND.spec
REFUSALS = {Code.INVALID_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED}
# Long enough for every sentence of ours, too short for a client's own text.
MAX_DETAIL_CHARACTERS = 1000
# What a decoded array may weigh for each byte of its body: "[],[],..." is 8 bytes of length
# (int64) for 3 bytes of JSON.
MAX_GROWTH = 64
# As much as a server that counts would take before it refuses.
MAX_UNPACKED_BYTES = 4 * UNPACKED_PIECE_BYTES


@contextlib.contextmanager
def refusals_only() -> Iterator[None]:
    """Let nothing out but what the transports expect."""
    try:
        yield
    except (ServingError, HttpError) as error:
        check_refusal(error)


def check_refusal(error: ServingError | HttpError) -> None:
    """A refusal is the client's fault; its detail is short, and can be sent."""
    assert error.code in REFUSALS, error.code
    assert 0 < len(error.detail) <= MAX_DETAIL_CHARACTERS, len(error.detail)
    problem_of(error).body("/")
    error.detail.encode()


def check(request: InferRequest, body: bytes) -> None:
    """What was decoded must be fit for the scheduler, which may still refuse it."""
    assert request.rows >= 0
    assert request.priority >= 0
    for array in request.inputs.values():
        assert array.flags.aligned
        assert array.nbytes <= MAX_GROWTH * len(body)
    validate(SPEC, request, priorities=8)
    BACKEND.check(request)
    assert len(BACKEND.score(request)) == request.rows


def predictor_protobuf(body: bytes) -> None:
    """TorchRec's PredictionRequest."""
    with refusals_only():
        check(predictor.decode_request(body, SPEC.name), body)


def oip_grpc(body: bytes) -> None:
    """The Open Inference Protocol's ModelInferRequest."""
    with refusals_only():
        check(oip_protobuf.decode_request(oip_protobuf.parse_request(body), SPEC), body)


def oip_json(body: bytes) -> None:
    """The Open Inference Protocol in JSON."""
    with refusals_only():
        check(oip_http.decode_request(body, None, SPEC)[0], body)


def oip_binary(content: bytes) -> None:
    """The binary tensor extension; two bytes in front say how much of the body is JSON."""
    with refusals_only():
        body = content[2:]
        json_bytes = int.from_bytes(content[:2], "big")
        check(oip_http.decode_request(body, json_bytes, SPEC)[0], body)


def predict_route(body: bytes) -> None:
    """The JSON of the predict routes."""
    with refusals_only():
        check(predict_json.decode_request(body, SPEC), body)


def http_head(content: bytes) -> None:
    """Everything that an inference request's headers say."""
    lines = [line.partition(b":") for line in content.split(b"\n")]
    headers = {name.lower(): value.strip() for name, _, value in lines}
    given_id = own_id(headers)
    assert 0 < len(given_id) <= 128
    assert harmless(given_id.encode()) == given_id
    with refusals_only():
        media_type(headers)
    with refusals_only():
        assert (whole(headers, b"inference-header-content-length") or 0) >= 0
    with refusals_only():
        head = parse_head(headers)
        assert head.timeout_s > 0
        assert head.priority >= 0
        assert head.body_bytes is None or head.body_bytes >= 0


def coding(content: bytes) -> None:
    """Content codings: a line of header, then the body that is said to be packed so."""
    header, _, body = content.partition(b"\n")
    assert accepted_coding(header) in {"", "gzip", "deflate"}
    with refusals_only():
        name = content_coding(header)
        if not name:
            return
        unpacker, total_bytes = Unpacker(name), 0
        for piece in unpacker.pieces(body):
            assert len(piece) <= UNPACKED_PIECE_BYTES
            total_bytes += len(piece)
            if total_bytes > MAX_UNPACKED_BYTES:
                return
        unpacker.finish()
