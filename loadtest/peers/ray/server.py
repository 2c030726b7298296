"""``python server.py ARTIFACT PORT``: Ray Serve with its request batching, raw bytes."""

import sys
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from loadtest.peers.model import Array, Model, Tensors, as_bytes


@serve.deployment(num_replicas=1, max_ongoing_requests=64, ray_actor_options={"num_cpus": 1})
class Ranker:
    """One replica that gets up to 16 requests at once."""

    def __init__(self, artifact: str) -> None:
        self.model = Model(artifact)

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.001)  # type: ignore[untyped-decorator] # no types of it are here
    async def predict(self, requests: list[Tensors]) -> list[Array]:
        """Run one forward."""
        return self.model.predict(requests)

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        tensors = self.model.from_bytes(await request.body())
        return Response(as_bytes(await self.predict(tensors)))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    application: Any = Ranker
    serve.run(application.bind(sys.argv[1]), route_prefix="/predict", blocking=True)
