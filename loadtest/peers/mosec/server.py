"""``python server.py ARTIFACT PORT``: Mosec with its dynamic batching, raw bytes."""

import sys

from mosec import Server, Worker

from loadtest.peers.model import Array, Model, Tensors, as_bytes

ARTIFACT, PORT = sys.argv[1:3]


class Ranker(Worker):  # type: ignore[misc] # no types of it are here
    """One worker that gets up to 16 requests at once."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(ARTIFACT)

    def deserialize(self, data: bytes) -> Tensors:
        """Read one body."""
        return self.model.from_bytes(data)

    def forward(self, data: list[Tensors]) -> list[Array]:
        """Run one forward."""
        return self.model.predict(data)

    def serialize(self, data: Array) -> bytes:
        """Word one answer."""
        return as_bytes(data)


if __name__ == "__main__":
    # Mosec reads its own flags from the command line.
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", PORT, "--log-level", "warning"]
    server = Server()
    server.append_worker(Ranker, num=1, max_batch_size=16, max_wait_time=1, start_method="fork")
    server.run()
