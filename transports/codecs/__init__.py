"""Pure functions between bytes and requests or answers; no sockets, no clocks."""
