"""HTTP/1.1 client for one remote engine: kept connections, streamed bodies, no redirects.

A general client costs ten times the CPU per event of a stream; this one passes what httptools parses to a sink.
"""

import asyncio
import ssl
from collections.abc import Mapping

from antiphon.engine.remote.transport.connection import (
    BodySink,
    ConnectError,
    HttpConnection,
    HttpResponse,
    RemoteConnectionError,
    SilenceTimeoutError,
)
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint

ENGINE_CONNECT_TIMEOUT_S = 5.0
"""Longest wait for a connection to a server."""
MAX_IDLE_S = 4.0
"""Time after which an idle connection is not used again: vLLM closes idle connections after 5 s."""
MAX_IDLE_CONNECTIONS = 64
MAX_BODY_BYTES = 4 << 20
"""Maximum size of a body that is not streamed, unless the request says otherwise."""


class HttpClient:
    """Sends requests to one server. Idle connections are kept, and the latest one is used first.

    `secrets`: texts that no message about this server may show, such as its key.
    """

    def __init__(
        self,
        endpoint: RemoteEndpoint,
        headers: Mapping[str, str],
        *,
        silence_timeout_s: float,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.endpoint = endpoint
        self.secrets = secrets
        self._silence_timeout_s = silence_timeout_s
        self.tls = ssl.create_default_context() if endpoint.is_tls else None
        fixed = {"Host": endpoint.host_header, "Accept": "*/*", "User-Agent": "antiphon", **headers}
        self._fixed_headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self.idle_connections: list[HttpConnection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        sink: BodySink | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> HttpResponse:
        """Sends a request and waits for the end of the response.

        The body of a 200 goes to `sink` if there is one. An exception of the sink is raised here. Raises
        `RemoteConnectionError`.
        """
        head = self._encode_head(method, path, body, headers or {})
        while True:
            connection = self._take_idle()
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                return await connection.exchange(
                    head + body, sink, silence_timeout_s=self._silence_timeout_s, max_body_bytes=max_body_bytes
                )
            except RemoteConnectionError as error:
                # The server may close an idle connection at any time: the request did not reach it.
                if not is_reused or error.answered or isinstance(error, SilenceTimeoutError):
                    raise
            finally:
                self._keep_idle(connection)

    def close(self) -> None:
        """Closes the idle connections."""
        while self.idle_connections:
            self.idle_connections.pop().close()

    def _encode_head(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if body:
            extra += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{method} {self.endpoint.base_path}{path} HTTP/1.1\r\n{self._fixed_headers}{extra}\r\n".encode(
            "latin-1"
        )

    def _take_idle(self) -> HttpConnection | None:
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self.idle_connections:
            connection = self.idle_connections.pop()
            if connection.is_reusable and connection.last_data_at >= oldest:
                return connection
            connection.close()
        return None

    def _keep_idle(self, connection: HttpConnection) -> None:
        if connection.is_reusable and len(self.idle_connections) < MAX_IDLE_CONNECTIONS:
            self.idle_connections.append(connection)
        else:
            connection.close()

    async def _connect(self) -> HttpConnection:
        loop, endpoint = asyncio.get_running_loop(), self.endpoint
        try:
            async with asyncio.timeout(ENGINE_CONNECT_TIMEOUT_S):
                if endpoint.socket_path is not None:
                    _, connection = await loop.create_unix_connection(HttpConnection, endpoint.socket_path)
                else:
                    _, connection = await loop.create_connection(
                        HttpConnection, endpoint.host, endpoint.port, ssl=self.tls
                    )
        except TimeoutError:
            raise ConnectError(f"no connection to {endpoint.name} within {ENGINE_CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            raise ConnectError(f"{endpoint.name}: TLS failed: {error.reason or error}") from None
        except OSError as error:
            reason = error.strerror or str(error)  # of several addresses, each with its error
            raise ConnectError(f"{endpoint.name} cannot be reached: {reason}") from None
        return connection
