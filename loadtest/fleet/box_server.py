"""The real server that the simulation is calibrated on.

    python -m loadtest.fleet.box_server cost --batch-ms 10 --row-us 100
    python -m loadtest.fleet.box_server native_dlrm --artifact artifacts/reference

One lane; gRPC for the load, HTTP for the statistics. Prints both ports.
"""

import argparse
import asyncio
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from backends.fake import FakeOptions
from loadtest.fleet.timed import TimedBackend
from loadtest.lab import setting
from loadtest.lab.backends import CostBackend
from scheduler.backend import Backend
from scheduler.observer import Observer
from transports.grpc.options import GrpcOptions
from transports.grpc.server import GrpcTransport
from transports.http.server import HttpOptions, HttpTransport
from transports.statistics import Statistics

COST = "cost"


def backend_of(arguments: argparse.Namespace) -> Backend:
    """Return the backend asked for, not yet loaded."""
    if arguments.backend == COST:
        options = FakeOptions(max_batch_rows=arguments.max_batch_rows)
        return CostBackend(options, arguments.batch_ms / 1e3, arguments.row_us / 1e6)
    plugin = entry_points(group="narsil.backends")[arguments.backend].load()
    backend: Backend = plugin(
        plugin.Options(
            path=str(arguments.artifact), lanes=1, max_batch_rows=arguments.max_batch_rows
        )
    )
    return TimedBackend(backend, arguments.batches) if arguments.batches else backend


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add what says which backend is served."""
    add = parser.add_argument
    add("backend", help="cost, or a plug-in")
    add("--artifact", type=Path, default=Path("artifacts/reference"))
    add("--batch-ms", type=float, default=10.0, help="cost: what a batch takes")
    add("--row-us", type=float, default=100.0, help="cost: what each of its rows adds")
    add("--max-batch-rows", type=int, default=256)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until killed."""
    observer = Statistics(Observer())
    async with setting.serving(backend_of(arguments), observer=observer) as engine:
        urls = [
            *await GrpcTransport(GrpcOptions(port=0)).start(engine),
            *await HttpTransport(HttpOptions(port=0)).start(engine),
        ]
        setting.settle_memory()
        print(*(url.rpartition(":")[2] for url in urls), flush=True)
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve what ``argv`` names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    add_backend(parser)
    parser.add_argument("--batches", type=Path, help="file to note the cost of each batch in")
    setting.run(serve(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
