"""``python server.py ARTIFACT PORT``: BentoML with its adaptive batching, JSON."""

import sys
from pathlib import Path
from typing import Any

import bentoml
from pydantic import BaseModel

from loadtest.peers.model import Model, as_json


class Arguments(BaseModel):
    """What a worker, a process of its own, is told."""

    artifact: str = ""


@bentoml.service(workers=1, traffic={"timeout": 10}, logging={"access": {"enabled": False}})
class Ranker:
    """One worker that gets up to 16 requests at once: ``requests`` holds those of all callers."""

    def __init__(self) -> None:
        self.model = Model(bentoml.use_arguments(Arguments).artifact)

    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=1000)  # type: ignore[untyped-decorator] # no types of it are here
    def predict(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run one forward."""
        tensors = [self.model.from_json(request) for request in requests]
        return [as_json(scores) for scores in self.model.predict(tensors)]


if __name__ == "__main__":
    bentoml.serve(
        "server:Ranker",
        host="127.0.0.1",
        port=int(sys.argv[2]),
        working_dir=str(Path(__file__).parent),
        args={"artifact": sys.argv[1]},
        blocking=True,
    )
