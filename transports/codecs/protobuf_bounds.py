"""Bound what parsing a protobuf message can cost, from its outermost fields alone.

A field costs time and memory for each entry, however few bytes it has on the wire: 64 MiB of empty
entries would hold the event loop for seconds and take gigabytes. Only a ``bytes`` field costs what
it weighs. (Encoding: https://protobuf.dev/programming-guides/encoding/)
"""

from scheduler.errors import Code, ServingError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def check_bounds(body: bytes, bulk_field: int, max_fields: int, max_bytes: int) -> None:
    """Refuse more than ``max_fields`` outermost fields, or ``max_bytes`` beside ``bulk_field``.

    What is no protobuf message passes: parsing says so. Raises ServingError (PAYLOAD_TOO_LARGE).
    """
    position = fields = other_bytes = 0
    size = len(body)
    usual_end = size - 2
    while position < size:
        start = position
        tag = body[position]
        # As messages have them: a number below 16, and less than 16 KiB.
        if tag < 128 and tag & 7 == _LENGTH and position < usual_end and body[position + 2] < 128:
            length = body[position + 1]
            if length < 128:
                position += 2 + length
            else:
                position += 3 + (length & 127 | body[position + 2] << 7)
        else:
            tag, position = _varint(body, position)
            position = _skip(body, position, tag & 7)
        position = min(position, size)
        fields += 1
        if tag >> 3 != bulk_field:
            other_bytes += position - start
        if fields > max_fields:
            raise _too_large(f"more than {max_fields} fields")
        if other_bytes > max_bytes:
            raise _too_large(f"more than {max_bytes} bytes outside raw_input_contents")


def _skip(body: bytes, position: int, wire_type: int) -> int:
    """Return where the field ends; the end of ``body`` for what cannot be."""
    if wire_type == _LENGTH:
        length, position = _varint(body, position)
        return position + length
    if wire_type == _VARINT:
        return _varint(body, position)[1]
    if wire_type in (_FIXED64, _FIXED32):
        return position + (8 if wire_type == _FIXED64 else 4)
    return len(body)


def _varint(body: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(position + 10, len(body))):
        byte = body[place]
        if byte < 128:
            return value | byte << shift, place + 1
        value |= (byte & 127) << shift
        shift += 7
    return 0, len(body)


def _too_large(what: str) -> ServingError:
    return ServingError(Code.PAYLOAD_TOO_LARGE, f"message: {what}; send tensors as raw bytes")
