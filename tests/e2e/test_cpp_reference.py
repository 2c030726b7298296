"""The C++ yardstick gives the artifact's scores; run if it has been built."""

from pathlib import Path

import grpc
import numpy as np
import pytest

from backends.dlrm.gather import DENSE
from backends.torch_dlrm.export.golden import Golden
from loadtest.cpp_reference.serve import BINARY, YardstickError, serving
from transports.codecs.predictor_client import decode_response, encode_request

built = pytest.mark.skipif(not BINARY.is_file(), reason="not built: make cpp-reference")
PREDICT = "/predictor.Predictor/Predict"


@built
@pytest.mark.slow
def test_the_yardstick_scores_as_the_artifact_does(small_artifact: Path, golden: Golden) -> None:
    inputs = {
        name: array if array.dtype == np.float32 else array.astype(np.int32)
        for name, array in golden.inputs.items()
    }
    body = encode_request(len(inputs[DENSE]), inputs)
    with serving(small_artifact) as url, grpc.insecure_channel(url.removeprefix("grpc://")) as way:
        answer = way.unary_unary(PREDICT)(body, timeout=30.0)
    scores, expected = decode_response(answer)["default"], golden.served["default"]
    np.testing.assert_allclose(scores.astype(float), expected.astype(float), atol=1e-6)


@built
@pytest.mark.slow
def test_a_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"nothing")
    with pytest.raises(YardstickError, match="exit code 1"), serving(tmp_path):
        pass
