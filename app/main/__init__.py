"""Programs built from all rooms: the ASGI application, its server, their start, and batches without a server."""
