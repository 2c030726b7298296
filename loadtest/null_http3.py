"""Answer every HTTP/3 request with the same bytes, on the library that the generator has.

``python -m loadtest.null_http3 FOLDER`` prints its port; its certificate lies in FOLDER.
"""

import asyncio
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from qh3.asyncio.protocol import QuicConnectionProtocol
from qh3.asyncio.server import serve
from qh3.h3.connection import H3Connection
from qh3.h3.events import DataReceived, HeadersReceived
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.events import ProtocolNegotiated, QuicEvent

from loadtest.null_server import ANSWER
from transports.http3.certificate import development_certificate

_HOST = "127.0.0.1"
_HEAD = [(b":status", b"200"), (b"content-length", b"%d" % len(ANSWER))]


class NullHttp3(QuicConnectionProtocol):
    """Answer each request that ends."""

    _http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Answer what is complete."""
        if isinstance(event, ProtocolNegotiated):
            self._http = H3Connection(self._quic)
        if self._http is None:
            return
        for part in self._http.handle_event(event):
            if isinstance(part, DataReceived | HeadersReceived) and part.stream_ended:
                self._http.send_headers(part.stream_id, _HEAD)
                self._http.send_data(part.stream_id, ANSWER, end_stream=True)


async def _serve(folder: Path) -> None:
    """Serve on a free port of 127.0.0.1 for ever; print the port."""
    files = development_certificate(folder, datetime.datetime.now(datetime.UTC))
    configuration = QuicConfiguration(
        alpn_protocols=["h3"],
        is_client=False,
        max_data=1 << 26,
        max_stream_data=1 << 24,
        max_datagram_frame_size=65_536,  # its HTTP/3 layer announces datagrams, used or not
    )
    configuration.load_cert_chain(files.certificate, files.private_key)
    server = await serve(_HOST, 0, configuration=configuration, create_protocol=NullHttp3)
    listening = server._transport  # noqa: SLF001 - it tells its port to nobody
    assert listening is not None
    print(listening.get_extra_info("sockname")[1], flush=True)
    await asyncio.Event().wait()


def main(argv: Sequence[str]) -> None:
    """Serve with the certificate in the folder that ``argv`` names."""
    uvloop.run(_serve(Path(argv[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
