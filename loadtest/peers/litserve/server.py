"""``python server.py ARTIFACT PORT``: LitServe with its batching, JSON."""

import sys
from typing import Any

import litserve

from loadtest.peers.model import Array, Model, Tensors, as_json


class Ranker(litserve.LitAPI):  # type: ignore[misc] # no types of it are here
    """One worker that gets up to 16 requests at once."""

    def setup(self, device: str) -> None:
        """Load the model in the worker."""
        self.model = Model(sys.argv[1])

    def decode_request(self, request: dict[str, Any]) -> Tensors:
        """Read one body."""
        return self.model.from_json(request)

    def batch(self, inputs: list[Tensors]) -> list[Tensors]:
        """Keep the requests apart: ``predict`` joins them."""
        return inputs

    def predict(self, x: list[Tensors]) -> list[Array]:
        """Run one forward."""
        return self.model.predict(x)

    def unbatch(self, output: list[Array]) -> list[Array]:
        """Return the answers, one a request."""
        return output

    def encode_response(self, output: Array) -> dict[str, Any]:
        """Word one answer."""
        return as_json(output)


if __name__ == "__main__":
    api = Ranker(max_batch_size=16, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
