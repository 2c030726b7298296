"""What bounds one connection."""

import ngh2

from transports.grpc.nghttp2.head import MAX_HEAD_BYTES
from transports.grpc.options import GrpcOptions

# What a client may have on the wire to one call, and to all, before we have taken it. Room for
# many requests; a larger message is taken as it comes.
STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
# A request in one frame is copied once less.
FRAME_BYTES = 256 << 10
# What the unfinished messages of all calls of a connection may add up to, besides one of the
# largest.
UNFINISHED_BYTES = 64 << 20
# What may wait for a client that does not read. Over it, its new calls are refused.
UNSENT_BYTES = 64 << 20

# How often every connection is looked at, and how long it may take: to say that it speaks HTTP/2,
# to go on with a message begun, to read any of what waits for it, to say anything at all.
SWEEP_S = 2.0
HANDSHAKE_S = 10.0
MESSAGE_STALL_S = 60.0
WRITE_STALL_S = 60.0
SILENCE_S = 60.0  # then it is pinged
PONG_S = 20.0
# Frames between two looks that move nothing (pings, settings, empty data), less two for each
# request: gRPC's own clients ping with what they receive, to measure the path.
MOST_IDLE_FRAMES = 500

CONFIGURATION = ngh2.Configuration(
    auto_window_update=False,
    # Resets at once, and a second from then on: clients that give up early reset a few calls in a
    # hundred; each costs about what a small call does.
    stream_reset_rate_limit=(1000, 200),
    max_outbound_ack=200,
    max_continuations=8,
    # Twice what is told to the client. What lies between costs it the call, more the connection.
    max_inbound_header_list_size=2 * MAX_HEAD_BYTES,
    max_inbound_header_count=256,
)


def settings(options: GrpcOptions) -> dict[ngh2.Setting, int]:
    """Return what the client is told to keep to."""
    return {
        ngh2.Setting.MAX_CONCURRENT_STREAMS: options.max_concurrent_streams,
        ngh2.Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
        ngh2.Setting.MAX_FRAME_SIZE: FRAME_BYTES,
        ngh2.Setting.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES,
    }
