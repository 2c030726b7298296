"""Variable-length integers, as QUIC and HTTP/3 write their numbers (RFC 9000 16)."""

_MOST_IN_ONE, _MOST_IN_TWO, _MOST_IN_FOUR = 0x3F, 0x3FFF, 0x3FFFFFFF


def pull_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length integer at ``at``, and where it ends. Raises IndexError."""
    first = data[at]
    end = at + (1 << (first >> 6))
    if end > len(data):
        raise IndexError
    if end == at + 1:
        return first, end
    bits = 8 * (end - at) - 2
    return int.from_bytes(data[at:end], "big") & ((1 << bits) - 1), end


def number(value: int) -> bytes:
    """Return ``value``, below 2^62, in as few bytes as there are."""
    if value <= _MOST_IN_ONE:
        return bytes((value,))
    if value <= _MOST_IN_TWO:
        return (value | 0x4000).to_bytes(2, "big")
    if value <= _MOST_IN_FOUR:
        return (value | 0x80000000).to_bytes(4, "big")
    return (value | 0xC000000000000000).to_bytes(8, "big")
