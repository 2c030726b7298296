"""The client's side of an HTTP error body."""

import orjson


def problem_detail(content: bytes) -> str:
    """Return the detail of an RFC 9457 problem, or the text that came instead of one."""
    try:
        return str(orjson.loads(content)["detail"])
    except (ValueError, LookupError, TypeError):
        return content.decode(errors="replace")
