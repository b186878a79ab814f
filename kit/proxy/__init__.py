"""An HTTP/1.1 server with control over its bytes, and a proxy that checks or records what passes through it."""
