"""HTTP and WebSocket connections: protocols, admission control, the request guard, bodies, stream writing."""
