"""What each protocol costs the event loop: decoding a request, encoding its answer, bytes.

    python -m loadtest.lab.codecs

A model of the reference preset's shape (13 dense features, 26 id features, one id each). All forms
take turns within a round; times are the quickest of the rounds, since a busy machine only ever
adds. Bytes are those of the body, without HTTP's head and HTTP/2's frames.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest import workload
from loadtest.lab import setting
from loadtest.lab.bodies import (
    Body,
    binary_body,
    columnar,
    json_body,
    pairs,
    protobuf_body,
    row_wise,
)
from loadtest.lab.manifest import manifest
from loadtest.lab.ranking import call_us, reference_backend
from loadtest.lab.tables import print_table
from scheduler.types import InferResponse, ModelSpec, Timing
from transports.codecs import oip_http, oip_protobuf, predict_json, predictor
from transports.codecs.predictor_client import encode_request
from transports.proto.open_inference_pb2 import ModelInferRequest

REFERENCE = workload.ModelShape(13, tuple(f"cat_{n}" for n in range(26)), (100_000,) * 26)


@dataclass(frozen=True, slots=True)
class Form:
    """One protocol's request, and what encodes an answer to it."""

    request: Body
    encode: Callable[[], bytes]


def forms(spec: ModelSpec, rows: int, seed: int) -> dict[str, Form]:
    """Return the same request and answer of ``rows`` rows in every protocol."""
    tensors = workload.draw(REFERENCE, rows, np.random.default_rng(seed))
    scores = np.random.default_rng(seed).random(rows, np.float32)
    response = InferResponse(spec.name, spec.version, {"default": scores}, Timing(0.0, 0.0, rows))
    by_feature = pairs(tensors, REFERENCE.features)
    content = encode_request(rows, tensors)
    protobuf = Body(content, lambda: predictor.decode_request(content, spec.name))

    def as_json() -> bytes:
        return predict_json.encode_response(response)

    def as_oip_binary() -> bytes:
        return oip_http.encode_response(response, oip_http.Asked(all_binary=True))[1]

    def as_oip_message() -> bytes:
        asked = ModelInferRequest(model_name=spec.name)
        return oip_protobuf.encode_response(response, asked).SerializeToString()

    return {
        "predictor.proto": Form(protobuf, lambda: predictor.encode_response(response)),
        "OIP gRPC, TorchRec's tensors": Form(protobuf_body(tensors, spec), as_oip_message),
        "OIP gRPC, a pair a feature": Form(protobuf_body(by_feature, spec), as_oip_message),
        "OIP binary, TorchRec's tensors": Form(binary_body(tensors, spec), as_oip_binary),
        "OIP binary, a pair a feature": Form(binary_body(by_feature, spec), as_oip_binary),
        "JSON, columnar": Form(json_body(columnar(tensors, REFERENCE.features), spec), as_json),
        "JSON, row-wise": Form(json_body(row_wise(tensors, REFERENCE.features), spec), as_json),
    }


def table(arguments: argparse.Namespace) -> list[dict[str, float | str]]:
    """Return one line a number of rows and form."""
    spec = reference_backend(max(arguments.rows)).spec
    lines: list[dict[str, float | str]] = []
    for rows in arguments.rows:
        every = forms(spec, rows, arguments.seed)
        decodes: dict[str, list[float]] = {name: [] for name in every}
        encodes: dict[str, list[float]] = {name: [] for name in every}
        for _ in range(arguments.rounds):
            for name, form in every.items():
                decodes[name].append(call_us(form.request.decode, arguments.seconds))
                encodes[name].append(call_us(form.encode, arguments.seconds))
        for name, form in every.items():
            lines.append(
                {
                    "rows": str(rows),
                    "form": name,
                    "decode us": min(decodes[name]),
                    "encode us": min(encodes[name]),
                    "request bytes": str(len(form.request.content)),
                    "answer bytes": str(len(form.encode())),
                }
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the manifest and the table (``--json``: the lines as JSON)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[1, 10, 100, 1000])
    add("--seconds", type=float, default=0.005, help="each measurement")
    add("--rounds", type=int, default=40)
    add("--seed", type=int, default=0)
    add("--json", action="store_true")
    arguments = parser.parse_args(argv)
    print(json.dumps(manifest(arguments)))
    setting.settle_memory()
    lines = table(arguments)
    if arguments.json:
        print(json.dumps(lines))
    else:
        print_table(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
