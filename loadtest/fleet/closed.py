"""A closed loop against one simulated server: so many requests in flight, as ``narsil bench``."""

from loadtest.fleet.batching import Job
from loadtest.fleet.box import Box
from loadtest.fleet.draws import Draws
from loadtest.fleet.plan import Result
from loadtest.fleet.shared import server_of
from loadtest.fleet.timeline import Timeline


def simulate_closed(box: Box, in_flight: int, rows: int, seconds: float, seed: int) -> Result:
    """Keep ``in_flight`` requests of ``rows`` going for ``seconds``; return the latencies."""
    clients = _Clients(box, rows, seconds, seed)
    return clients.run(in_flight)


class _Clients:
    def __init__(self, box: Box, rows: int, seconds: float, seed: int) -> None:
        self._box = box
        self._rows = rows
        self._timeline = Timeline()
        self._result = Result(seconds)
        self._sent_s: dict[Job, float] = {}
        self._server = server_of(self._timeline, box, self, Draws(box.service.law, (seed, 1)))

    def run(self, in_flight: int) -> Result:
        for _ in range(in_flight):
            self._ask()
        self._timeline.run()
        result, server = self._result, self._server
        result.seconds = max(result.seconds, self._timeline.now_s)
        result.add(server)
        return result

    def _ask(self) -> None:
        job = Job(self._rows)
        self._sent_s[job] = self._timeline.now_s
        self._result.arrived += 1
        self._timeline.at(self._timeline.now_s + self._box.wire_s / 2, self._server.accept, job)

    def answered(self, job: Job, time_s: float) -> None:
        """Ask again once the answer is here."""
        self._timeline.at(time_s + self._box.wire_s / 2, self._arrived, job)

    def _arrived(self, job: Job) -> None:
        self._result.answered += 1
        self._result.latencies_s.append(self._timeline.now_s - self._sent_s.pop(job))
        if self._timeline.now_s < self._result.seconds:
            self._ask()

    def refused(self, job: Job) -> None:
        """Count it; the client leaves."""
        del self._sent_s[job]
        self._result.refused += 1

    def failed(self, job: Job) -> None:
        """Count it; the client leaves."""
        del self._sent_s[job]
        self._result.failed += 1
