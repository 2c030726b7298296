"""Where a request's tensors, or an answer's, stand within the one message that carries them.

Each begins at a multiple of 64 bytes, in the order of their heads. A trailer follows, the
request's number, which tells a message that came short from one that did not.
"""

import struct
from collections.abc import Sequence

from transports.codecs.oip_tensors import tensor_bytes
from transports.collective.messages import TensorHead

ALIGNMENT_BYTES = 64
TRAILER = struct.Struct("<q")


def places(tensors: Sequence[TensorHead]) -> tuple[tuple[slice, ...], int]:
    """Return each tensor's bytes, and the bytes of the whole message, whose end is the trailer.

    Raises ServingError (INVALID_REQUEST) for a tensor that is none.
    """
    found = []
    end = 0
    for tensor in tensors:
        start = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = start + tensor_bytes(tensor.name, tensor.datatype, tensor.shape)
        found.append(slice(start, end))
    return tuple(found), end + TRAILER.size
