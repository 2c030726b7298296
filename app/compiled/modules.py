"""Which modules are compiled, and where what is made of them lies.

They are ordinary Python, and what runs where nothing is compiled. Decision 0046 says what compiling
them gains, and what it does not carry.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

# By package: what a request passes on its way through each transport, the scheduler and from a
# front end.
MODULES = {
    "app.frontends": "channel messages records session slots wire",
    "backends": "jagged",
    "backends.dlrm": "gather turnstile",
    "backends.ids": "rules",
    "backends.native_dlrm": "runtime",
    "scheduler": (
        "admission answers asking errors execute forecast lanes models queue records replies"
        " routing rows runner scheduler shadow types validate versions waiting"
    ),
    "transports": "credential named trace",
    "transports.codecs": (
        "json_columns json_context json_rows json_values oip_binary oip_context oip_http"
        " oip_http_model oip_ids oip_json oip_protobuf oip_protobuf_model oip_request oip_shared"
        " oip_tensors oip_texts predict_json predictor predictor_fields problem_json"
        " protobuf_bounds ranking spelled_out strict_json"
    ),
    "transports.grpc": "admission call calls inference metadata methods outcome predict",
    "transports.grpc.nghttp2": (
        "budget calls connection direct head messages opening output replies streams wire"
    ),
    "transports.http": (
        "access app asked body call calls coding connection direct disconnect exchange flow head"
        " idle incoming inference oip oip_body page_cycle parsing predict problem protocol"
        " receiving refusal request_head standing turns unsent whole"
    ),
    "transports.http3": (
        "bridge bulk connection endpoint established numbers request session udp usual"
    ),
}
CACHE = Path("~/.cache/narsil")
# The folder of sources: that of the packages.
ROOT = Path(__file__).resolve().parents[2]


def sources() -> Iterator[Path]:
    """Yield the files to compile, relative to ROOT."""
    for package, names in MODULES.items():
        for name in names.split():
            yield Path(*package.split("."), f"{name}.py")


def place() -> Path:
    """Return the folder for what is made of the sources as they are now, by this Python.

    What lies there is trusted like the program. A changed source has another one, so that it never
    meets an old build.
    """
    digest = hashlib.sha256((sys.implementation.cache_tag or "").encode())
    for path in sources():
        digest.update(b"\0" + (ROOT / path).read_bytes())
    return CACHE.expanduser() / f"compiled-{digest.hexdigest()[:16]}"
