"""The flags of ``narsil bench``."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from loadtest import schedule, slo, workload
from loadtest.encodings import NO_CONTEXT
from loadtest.wires.kinds import KINDS

BARE = "bare"
CERTIFICATE = Path(".narsil/tls/certificate.pem")
T = TypeVar("T")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read ``argv``; exits with code 2 if it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="narsil bench",
        description="Measure a running server. Lists are separated by commas. "
        "`narsil bench compare A.json B.json` compares two results.",
    )
    parser.add_argument("artifact", type=Path, help="artifact folder that is being served")
    _add_load(parser)
    _add_requests(parser)
    _add_judgement(parser)
    arguments = parser.parse_args(argv)
    _check(parser, arguments)
    return arguments


def _add_load(parser: argparse.ArgumentParser) -> None:
    shown = "(default: %(default)s)"
    add = parser.add_argument_group("load").add_argument
    wires = f"{', '.join(KINDS)}, or {BARE}: no server"
    add("--wire", type=_wires, default="grpc", help=f"{wires} {shown}")
    add("--url", type=_urls, default="", help="servers, if not at the wire's usual port on this "
        "host; of several, rounds alternate between them")  # fmt: skip
    add("--concurrency", type=_list(_count), help="closed loop: requests in flight (default: 1)")
    add("--rate", type=_list(_above_zero), help="open loop: requests a second; a trace has its own")
    add("--arrivals", type=_arrivals, default="poisson", help="of an open loop: constant, poisson, "
        f"burst:SIZE, step:SHARE+SHARE of the rate, trace:FILE of seconds {shown}")  # fmt: skip
    add("--seconds", type=_above_zero, default=10.0, help=f"how long to measure each {shown}")
    add("--warmup", type=_not_negative, default=2.0, help=f"seconds before measuring {shown}")
    add("--repeats", type=_count, default=1, help=f"rounds over all combinations {shown}")
    add("--processes", type=_count, default=1, help=f"generators that share the load {shown}")
    add("--connections", type=_count, help="in all (default: one a process; HTTP/1.1: one for each "
        "request in flight, 64 in an open loop)")  # fmt: skip
    add("--cancel-every", type=int, default=0, help="give up every N-th request (HTTP/1.1: "
        f"disconnect); 0: none {shown}")  # fmt: skip
    add("--cancel-after-ms", type=_not_negative, default=1.0, help=f"after its send {shown}")
    add("--slow-readers", type=_share, default=0.0, help="so many more clients, as a share of "
        f"those in flight (open loop: of connections), read at a trickle {shown}")  # fmt: skip
    add("--slow-bytes", type=_count, default=64, help=f"that a slow reader reads, 50 "
        f"times a second {shown}")  # fmt: skip
    add("--stop-pid", type=_count, help="of the server on this machine: it gets a SIGTERM in the "
        "middle")  # fmt: skip
    add("--signal-after", type=_not_negative, help="seconds of measuring (default: half of them)")
    add("--api-key-file", type=Path, help="file with the API key, where the server asks for one")
    add("--ca", type=Path, default=CERTIFICATE, help="certificates to trust, for HTTP/3, grpcs:// "
        f"and https:// {shown}")  # fmt: skip


def _add_requests(parser: argparse.ArgumentParser) -> None:
    shown = "(default: %(default)s)"
    add = parser.add_argument_group("requests").add_argument
    add("--rows", type=_list(workload.parse_rows), default="100",
        help=f"samples a request, or a mix as 1:50+10:30+100:20 (rows:weight) {shown}")  # fmt: skip
    add("--pooling", type=workload.parse_pooling, default="one",
        help=f"ids a bag: one, geometric:MEAN, heavy:MEAN {shown}")  # fmt: skip
    add("--zipf", type=_not_negative, default=0.0,
        help=f"exponent of the ids' popularity; 0: uniform {shown}")  # fmt: skip
    add("--ranking", type=workload.parse_context, default=NO_CONTEXT, metavar="COLUMNS+FEATURES",
        help="rows are candidates of one user, whose leading dense columns and id features are "
        "sent once (wires with JSON or of the Open Inference Protocol)")  # fmt: skip
    add("--requests", type=_count, default=10_000, help=f"distinct ones {shown}")
    add("--memory-mb", type=_count, default=512, help=f"that they may take {shown}")
    add("--seed", type=int, default=0, help=f"of requests and arrivals {shown}")
    add("--model", help="name to ask for, of several served (default: the only one; by the "
        "Open Inference Protocol the artifact's)")  # fmt: skip
    add("--timeout-ms", type=_above_zero, help="deadline of each request (default: none)")


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    shown = "(default: %(default)s)"
    add = parser.add_argument_group("judgement and output").add_argument
    add("--slo", type=_slo, help="such as p99=10ms: with --rate or --concurrency a threshold, "
        "else search the highest rate that keeps it")  # fmt: skip
    add("--max-error-rate", type=_not_negative, help="share that may fail (default: 0; with --slo: "
        "0.001)")  # fmt: skip
    add("--precision", type=_above_zero, default=0.05, help=f"of the search {shown}")
    add("--verify", action="store_true", help="compare every answer with the artifact's scores")
    add("--tolerance", type=_above_zero, default=1e-5, help=f"of a score {shown}")
    add("--no-calibration", action="store_true", help="skip measuring the generator alone")
    add("--metrics", default="", help="URL of the server's /metrics, to sample during the runs")
    add("--json", type=Path, help="file to write everything to; -: print each run as JSON instead "
        "of a sentence")  # fmt: skip
    add("--html", type=Path, help="page to write plots to")


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    _check_wires(parser, arguments)
    if arguments.metrics and urlsplit(arguments.metrics).scheme not in ("http", "https"):
        parser.error(f"--metrics {arguments.metrics}: expected http://HOST:PORT/metrics")
    if arguments.max_error_rate is None:
        arguments.max_error_rate = 0.001 if arguments.slo else 0.0
    if arguments.arrivals.kind == "trace" and not arguments.rate:
        try:
            arguments.rate = [schedule.trace_rate(arguments.arrivals.detail)]
        except schedule.ScheduleError as error:
            parser.error(str(error))
    if arguments.signal_after is None:
        arguments.signal_after = arguments.seconds / 2
    # A search is asked for by giving no load.
    arguments.search = bool(arguments.slo) and not (arguments.rate or arguments.concurrency)
    arguments.concurrency = arguments.concurrency or [1]
    if BARE in arguments.wire and (arguments.rate or 1 not in arguments.concurrency):
        parser.error(
            f"--wire {BARE} computes one request after another: take it without --rate, and with 1 "
            "in --concurrency"
        )


def _check_wires(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    for wire in arguments.wire:
        if wire == BARE:
            continue
        kind = KINDS[wire]
        for url in arguments.url:
            if not _fits(url, wire):
                parser.error(
                    f"--url {url}: --wire {wire} expects {kind.scheme}://HOST:PORT"
                    + "".join(f" or {scheme}://HOST:PORT" for scheme in kind.schemes[1:])
                )
        if arguments.ranking != NO_CONTEXT and kind.encoding == "protobuf":
            parser.error(f"--ranking: {wire} carries predictor.proto, which knows no context")
        if arguments.slow_readers and kind.scheme == "https":
            parser.error("--slow-readers: HTTP/3 reads datagrams; take a wire over TCP")


def _fits(url: str, wire: str) -> bool:
    # The scheme picks the protocol: another one would be measured under this wire's name.
    try:
        place = urlsplit(url)
        return place.scheme in KINDS[wire].schemes and None not in (place.hostname, place.port)
    except ValueError:
        return False


def _wires(text: str) -> list[str]:
    wires = text.split(",")
    for wire in wires:
        if wire not in (*KINDS, BARE):
            known = ", ".join((*KINDS, BARE))
            raise argparse.ArgumentTypeError(f"no wire {wire!r}; there are {known}")
    return wires


def _urls(text: str) -> list[str]:
    return text.split(",") if text else []


def _arrivals(text: str) -> schedule.Arrivals:
    try:
        return schedule.parse(text)
    except schedule.ScheduleError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _slo(text: str) -> slo.Slo:
    try:
        return slo.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _list(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    def read(text: str) -> list[T]:
        try:
            return [one(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


def _above_zero(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return float(text)


def _share(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return float(text)


def _not_negative(text: str) -> float:
    if not 0 <= float(text) < math.inf:
        raise argparse.ArgumentTypeError(f"must be 0 or more, got {text}")
    return float(text)
