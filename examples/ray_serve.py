"""The whole gateway as a Ray Serve deployment: routes, checks, batching and model in each replica.

``python examples/ray_serve.py artifacts/reference`` serves until Ctrl-C; see docs/ray.md. Narsil
and ``ray[serve]`` must be installed wherever replicas may run.
"""

import argparse

import ray
from ray import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.native_dlrm.backend import NativeDlrmBackend
from scheduler.engine import Engine
from scheduler.observer import Observer
from scheduler.options import SchedulerOptions
from transports.http.app import HttpApp
from transports.http.intake import Intake
from transports.http.server import HttpOptions


@serve.deployment(max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1})
@serve.ingress()
class Gateway:
    """One engine with its model, behind the routes of Narsil's HTTP transport."""

    async def __init__(self, artifact: str) -> None:
        """Load the model on the replica's own event loop."""
        self._engine = Engine(SchedulerOptions(), Observer())
        options = NativeDlrmBackend.Options(path=artifact, lanes=1)
        await self._engine.load(NativeDlrmBackend(options))
        self._engine.open()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the ASGI app; Serve asks for it once ``__init__`` is over."""
        http = HttpApp(self._engine, Intake(HttpOptions()))

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "lifespan":
                await http(scope, receive, send)
                return
            for event in ("startup", "shutdown"):
                await receive()
                if event == "shutdown":
                    await self._engine.close(grace_s=10.0)
                await send({"type": f"lifespan.{event}.complete"})

        return app

    def check_health(self) -> None:
        """Let Serve replace a replica whose model has failed."""
        if not self._engine.ready:
            raise RuntimeError("the model is not ready")


def main() -> None:
    """Serve on one machine, or on the cluster that this one is part of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--address", help="of a cluster that runs; without, one for this machine")
    arguments = parser.parse_args()
    alone = {} if arguments.address else {"include_dashboard": False}
    ray.init(address=arguments.address or "local", **alone)
    serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
    gateway = Gateway.options(num_replicas=arguments.replicas)
    serve.run(gateway.bind(arguments.artifact), route_prefix="/", blocking=True)


if __name__ == "__main__":
    main()
