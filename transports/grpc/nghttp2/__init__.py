"""gRPC on libnghttp2: asyncio.Protocol around the sans-IO binding ngh2."""
