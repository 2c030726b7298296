"""``python server.py ARTIFACT PORT``: MLServer with its adaptive batching, Open Inference JSON."""

import asyncio
import sys
from typing import Any

import mlserver
import numpy as np
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse

from loadtest.peers.model import Model


class Ranker(mlserver.MLModel):  # type: ignore[misc] # no types of it are here
    """One model in the server's process; a request is the rows of up to 16 callers."""

    async def load(self) -> bool:
        """Load the model."""
        self.model = Model(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run one forward."""
        given = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        lengths, rows = given["lengths"], len(given["lengths"])
        # Ids come row by row, as batching joins them; the model wants them feature by feature.
        features = np.tile(np.arange(lengths.shape[1]), rows).repeat(lengths.reshape(-1))
        values = given["values"].reshape(-1)[np.argsort(features, kind="stable")]
        dense = given["float_features"].astype(np.float32)
        by_feature = np.ascontiguousarray(lengths.T, np.int32)
        (scores,) = self.model.predict([(dense, by_feature, values.astype(np.int32))])
        output = NumpyCodec.encode_output("default", scores.reshape(-1, 1))
        return InferenceResponse(model_name=self.name, outputs=[output])


async def _serve(artifact: str, port: int) -> None:
    settings: Any = Settings(
        debug=False, host="127.0.0.1", http_port=port, grpc_port=0,
        metrics_endpoint=None, parallel_workers=0,
    )  # fmt: skip
    model: Any = ModelSettings(
        name="ranker", implementation=Ranker, max_batch_size=16, max_batch_time=0.001,
        parameters=ModelParameters(uri=artifact),
    )  # fmt: skip
    await mlserver.MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
