"""Every form that the codecs lab measures is the same request and the same answer."""

from pathlib import Path

import numpy as np
import pytest

from loadtest.lab import shared_bodies
from loadtest.lab.bodies import DENSE, LENGTHS, VALUES
from loadtest.lab.codecs import forms, main
from loadtest.lab.ranking import reference_backend
from scheduler.regions import Region
from scheduler.types import InferRequest
from transports.codecs import oip_http, oip_protobuf
from transports.codecs.oip_shared import SharedMemory
from transports.regions import SharedRegions


def test_every_form_decodes_to_the_same_request() -> None:
    first, *others = (
        form.request.decode() for form in forms(reference_backend(10).spec, 10, 0).values()
    )
    for other in others:
        for name in (DENSE, LENGTHS, VALUES):
            np.testing.assert_array_equal(other.inputs[name], first.inputs[name])


def test_every_form_has_a_line_for_each_number_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "1", "2", "--rounds", "1", "--seconds", "0.0001"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + 2 * len(forms(reference_backend(1).spec, 1, 0))


def test_requests_in_shared_memory_are_those_in_the_message(tmp_path: Path) -> None:
    buffer = bytearray(2 * 10 * (4 * 13 + 8 * 26 + 4))
    ways = shared_bodies.forms(10, 2, memoryview(buffer))
    (tmp_path / "lab").write_bytes(buffer)
    regions = SharedRegions("/", tmp_path)
    regions.register(Region(shared_bodies.REGION_NAME, "/lab", 0, len(buffer)))
    memory, spec = SharedMemory(regions, 1 << 20), reference_backend(10).spec

    def decoded(form: shared_bodies.Form) -> InferRequest:
        if form.scheme == "grpc":
            message = oip_protobuf.parse_request(form.bodies[1])
            return oip_protobuf.decode_request(message, spec, memory)
        json_bytes = int(form.headers.get("inference-header-content-length", len(form.bodies[1])))
        return oip_http.decode_request(form.bodies[1], json_bytes, spec, memory)[0]

    first, *others = map(decoded, ways.values())
    for other in others:
        for name in (DENSE, LENGTHS, VALUES):
            np.testing.assert_array_equal(other.inputs[name], first.inputs[name])
    regions.unregister()
