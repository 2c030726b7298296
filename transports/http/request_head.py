"""A request's head as HTTP/1.1 has it."""


class RequestHead:
    """What was parsed; ``fields`` are in the client's order, their names in lower case.

    ``keep_alive``: the client takes more answers on its connection.
    """

    def __init__(
        self,
        method: bytes,
        url: bytes,
        version: str,
        fields: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        self.method = method
        self.url = url
        self.version = version
        self.fields = fields
        self.headers = dict(fields)
        self.keep_alive = keep_alive
