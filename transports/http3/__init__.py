"""HTTP/3 transport: the ASGI app of transports.http over QUIC (aioquic)."""
