"""HTTP/1.1 transport: one ASGI app, served by uvicorn; HTTP/3 serves the same app."""
