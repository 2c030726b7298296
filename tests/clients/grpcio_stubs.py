"""Run as a script: plain grpcio with the stubs of both of our proto files, against the address.

The stubs are imported from the folder given as PYTHONPATH. What came back is printed as JSON.
"""

import json
import sys
from typing import Any

import grpc
import numpy as np
import open_inference_pb2 as oip
import open_inference_pb2_grpc
import predictor_pb2 as pb
import predictor_pb2_grpc
from google.protobuf import __version__ as protobuf_version
from google.protobuf.json_format import MessageToDict

ROWS, DENSE, FEATURES, MODEL = 2, 3, 2, "fake"
NUMBERS = np.arange(ROWS * DENSE, dtype=np.float32).reshape(ROWS, DENSE)
IDS = np.array([[3, 7], [17, 9]])


def predict(stub: Any, id_type: str) -> list[float]:
    """Return the scores by TorchRec's protocol; it wants ids key-major."""
    ids = pb.SparseFeatures(
        num_features=FEATURES,
        lengths=np.ones((FEATURES, ROWS), id_type).tobytes(),
        values=IDS.T.astype(id_type).tobytes(),
    )
    dense = pb.FloatFeatures(num_features=DENSE, values=NUMBERS.tobytes())
    request = pb.PredictionRequest(batch_size=ROWS, float_features=dense, id_list_features=ids)
    return list(stub.Predict(request, timeout=60).predictions["default"].data)


def infer_request(raw: bool) -> Any:
    """Return the same rows by the Open Inference Protocol, as bytes or as typed contents."""
    request = oip.ModelInferRequest(model_name=MODEL, id="7")
    for name, datatype, array in (
        ("float_features", "FP32", NUMBERS),
        ("id_list_features", "INT64", IDS),
    ):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            request.raw_input_contents.append(array.tobytes())
        elif datatype == "FP32":
            tensor.contents.fp32_contents.extend(array.ravel().tolist())
        else:
            tensor.contents.int64_contents.extend(array.ravel().tolist())
    return request


def scores(answer: Any) -> list[float]:
    """Return the scores of an answer."""
    assert (answer.id, list(answer.outputs[0].shape)) == ("7", [ROWS, 1])
    if answer.raw_output_contents:
        return [float(score) for score in np.frombuffer(answer.raw_output_contents[0], np.float32)]
    return list(answer.outputs[0].contents.fp32_contents)


def describe(stub: Any) -> dict[str, Any]:
    """Ask for everything that is no inference."""
    named = {"name": MODEL}
    asked = {
        "live": stub.ServerLive(oip.ServerLiveRequest()),
        "ready": stub.ServerReady(oip.ServerReadyRequest()),
        "model_ready": stub.ModelReady(oip.ModelReadyRequest(**named)),
        "server": stub.ServerMetadata(oip.ServerMetadataRequest()),
        "model": stub.ModelMetadata(oip.ModelMetadataRequest(**named)),
        "config": stub.ModelConfig(oip.ModelConfigRequest(**named)),
        "statistics": stub.ModelStatistics(oip.ModelStatisticsRequest(**named)),
        "index": stub.RepositoryIndex(oip.RepositoryIndexRequest()),
    }
    return {name: MessageToDict(answer) for name, answer in asked.items()}


def main() -> None:
    """Print what came back."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        torchrec = predictor_pb2_grpc.PredictorStub(channel)
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        streamed = stub.ModelStreamInfer(iter([infer_request(raw=True)] * 2))
        answers = {
            "versions": [grpc.__version__, protobuf_version],
            "int32": predict(torchrec, "int32"),
            "int64": predict(torchrec, "int64"),
            "raw": scores(stub.ModelInfer(infer_request(raw=True), timeout=60)),
            "typed": scores(stub.ModelInfer(infer_request(raw=False), timeout=60)),
            "stream": [scores(answer.infer_response) for answer in streamed],
            "described": describe(stub),
        }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
