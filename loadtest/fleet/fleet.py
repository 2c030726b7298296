"""A fleet under load: requests meet balancers, replicas, deaths, hedges. Sans-IO, seeded."""

import math
from collections.abc import Sequence

from loadtest.fleet.balancers import BALANCERS
from loadtest.fleet.batching import Job
from loadtest.fleet.draws import Draws, uniform
from loadtest.fleet.plan import Death, Plan, Result
from loadtest.fleet.shared import AnyServer, server_of
from loadtest.fleet.timeline import Timeline

# Second halves of seeds, so that no two things draw the same numbers. None is 0, and no seed ends
# in one: numpy takes (7,) and (7, 0) for the same.
_SHARES, _CHOICES, SERVICES = 11, 12, 13


class _Request:
    """``left`` parts have no answer yet; ``over`` once it has its one end."""

    __slots__ = ("arrived_s", "left", "number", "over", "rows")

    def __init__(self, number: int, arrived_s: float, rows: int, left: int) -> None:
        self.number = number
        self.arrived_s = arrived_s
        self.rows = rows
        self.left = left
        self.over = False


class _Part:
    """One shard's part of a request, and the attempts at it that are under way."""

    __slots__ = ("avoid", "balancer", "done", "jobs", "request", "shard", "tries")

    def __init__(self, request: _Request, shard: int, balancer: int) -> None:
        self.request = request
        self.shard = shard
        self.balancer = balancer
        self.tries = 0
        self.done = False
        self.jobs: list[Job] = []
        self.avoid: set[int] = set()  # servers that have had it


def simulate(plan: Plan, arrivals: Sequence[float], rows: Sequence[int], seed: int) -> Result:
    """Send requests of ``rows`` (in turn) at ``arrivals`` (ascending seconds); return their ends.

    The same arguments give the same result, to the bit.
    """
    return _Fleet(plan, arrivals, rows, seed).run()


class _Fleet:
    def __init__(
        self, plan: Plan, arrivals: Sequence[float], rows: Sequence[int], seed: int
    ) -> None:
        self._plan = plan
        self._arrivals = arrivals
        self._rows = rows
        self._timeline = Timeline()
        self._draws = Draws(uniform, (seed, _SHARES))
        self._balancers = [
            [BALANCERS[plan.balancer](plan.replicas, (seed, _CHOICES, number, shard + 1))
             for shard in range(plan.shards)]
            for number in range(plan.balancers)
        ]  # fmt: skip
        count = plan.replicas * plan.shards
        self._servers = [self._server(number, seed) for number in range(count)]
        self._up = [list(range(plan.replicas)) for _ in range(plan.shards)]
        seconds = arrivals[-1] if len(arrivals) else 0.0
        self._result = Result(seconds, [math.nan] * len(arrivals))

    def _server(self, number: int, seed: int) -> AnyServer:
        plan = self._plan
        draws = Draws(plan.box.service.law, (seed, SERVICES, number + 1))
        slower = plan.slower[number] if number < len(plan.slower) else 1.0
        return server_of(self._timeline, plan.box, self, draws, slower)

    def run(self) -> Result:
        if len(self._arrivals):
            self._timeline.at(self._arrivals[0], self._arrive, 0)
        for death in self._plan.deaths:
            self._timeline.at(death.at_s, self._die, death)
        for hold in self._plan.holds:
            self._timeline.at(hold.at_s, self._servers[hold.server].hold, hold.seconds)
        self._timeline.run()
        result = self._result
        for server in self._servers:
            result.add(server)
        return result

    def _arrive(self, number: int) -> None:
        if number + 1 < len(self._arrivals):
            self._timeline.at(self._arrivals[number + 1], self._arrive, number + 1)
        plan = self._plan
        rows = self._rows[number % len(self._rows)]
        request = _Request(number, self._timeline.now_s, rows, plan.shards)
        self._result.arrived += 1
        balancer = self._draws.below(plan.balancers) if plan.balancers > 1 else 0
        for shard in range(plan.shards):
            part = _Part(request, shard, balancer)
            self._send(part)
            if plan.hedge_s < math.inf:
                self._timeline.at(self._timeline.now_s + plan.hedge_s, self._hedge, part)

    def _send(self, part: _Part) -> None:
        """Send ``part`` to a replica that has not had it."""
        base = part.shard * self._plan.replicas
        among = self._up[part.shard]
        if part.avoid:
            among = [each for each in among if base + each not in part.avoid]
        part.tries += 1
        if not among:
            if not part.jobs:
                self._end(part.request, refused=False)
            return
        balancer = self._balancers[part.balancer][part.shard]
        replica = balancer.choose(among)
        balancer.sent(replica)
        job = Job(part.request.rows, base + replica, part)
        part.jobs.append(job)
        part.avoid.add(job.server)
        server = self._servers[job.server]
        self._timeline.at(self._timeline.now_s + self._plan.box.wire_s / 2, server.accept, job)

    def _hedge(self, part: _Part) -> None:
        if not (part.done or part.request.over):
            self._result.hedged += 1
            self._send(part)

    def answered(self, job: Job, time_s: float) -> None:
        """Take an answer; the others at the same part are given up."""
        part = self._forget(job)
        if job.gone or part.done or part.request.over:
            self._result.wasted += 1
            return
        part.done = True
        for other in tuple(part.jobs):
            if self._servers[other.server].forget(other):
                self._forget(other)
        request = part.request
        request.left -= 1
        if not request.left:
            request.over = True
            latency_s = time_s + self._plan.box.wire_s / 2 - request.arrived_s
            self._result.latencies_s[request.number] = latency_s
            self._result.answered += 1

    def refused(self, job: Job) -> None:
        """Take a refusal, which is the request's end unless another attempt is under way."""
        part = self._forget(job)
        if not (part.done or part.jobs):
            self._end(part.request, refused=True)

    def failed(self, job: Job) -> None:
        """Try again elsewhere, as often as that is allowed."""
        part = self._forget(job)
        if part.done or part.request.over or job.gone:
            return
        if part.tries <= self._plan.retries:
            self._result.retried += 1
            self._send(part)
        elif not part.jobs:
            self._end(part.request, refused=False)

    def _forget(self, job: Job) -> _Part:
        part = job.part
        assert isinstance(part, _Part)
        if job in part.jobs:
            part.jobs.remove(job)
        replica = job.server - part.shard * self._plan.replicas
        self._balancers[part.balancer][part.shard].done(replica)
        return part

    def _end(self, request: _Request, *, refused: bool) -> None:
        if not request.over:
            request.over = True
            self._result.refused += refused
            self._result.failed += not refused

    def _die(self, death: Death) -> None:
        server = self._servers[death.server]
        shard, replica = divmod(death.server, self._plan.replicas)
        now_s = self._timeline.now_s
        server.die()
        self._timeline.at(now_s + self._plan.detect_s, self._leave, shard, replica, server)
        self._timeline.at(now_s + death.down_s, self._return, shard, replica, server)

    def _leave(self, shard: int, replica: int, server: AnyServer) -> None:
        if not server.up and replica in self._up[shard]:
            self._up[shard].remove(replica)

    def _return(self, shard: int, replica: int, server: AnyServer) -> None:
        server.revive()
        if replica not in self._up[shard]:
            self._up[shard].append(replica)
            self._up[shard].sort()
