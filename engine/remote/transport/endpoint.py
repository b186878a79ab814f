"""Address of a remote engine, parsed from the URL that the operator gives."""

from urllib.parse import urlsplit

import msgspec

DEFAULT_PORTS = {"http": 80, "https": 443}


class RemoteEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens: host and port, or the path of a Unix socket.

    `base_path` precedes the path of every request. `parse_endpoint("http://gpu1:8000/engine/")` gives host
    `gpu1`, port 8000 and base path `/engine`.
    """

    host: str = "localhost"
    port: int = 80
    is_tls: bool = False
    socket_path: str | None = None
    base_path: str = ""

    @property
    def name(self) -> str:
        """Short name for messages and metrics, such as `gpu1:8000`. It contains no secret."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        """Value of the Host header: without the port if it is the scheme's own."""
        if self.socket_path is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


def parse_endpoint(url: str) -> RemoteEndpoint:
    """Parses `http://host:port/base`, `https://…` or `unix:/path`. Raises `ValueError` with the reason."""
    if url.startswith("unix:"):
        path = "/" + url.removeprefix("unix:").lstrip("/")
        if path == "/":
            raise ValueError("the path of the socket is missing; write unix:/path/to/socket")
        return RemoteEndpoint(socket_path=path)
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("not a URL such as http://gpu1:8000 or unix:/path/to/socket")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL contains a user name; the engine's key is read from a variable")
    if parts.query or parts.fragment:
        raise ValueError("a query or fragment is not supported in the URL")
    path = parts.path.rstrip("/")
    return RemoteEndpoint(
        host=parts.hostname,
        port=parts.port or DEFAULT_PORTS[parts.scheme],
        is_tls=parts.scheme == "https",
        base_path=path.removesuffix("/v1"),
    )
