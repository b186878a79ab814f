"""JSON requests of a handshake, and the errors that end one."""

import asyncio
from typing import TypeVar

import msgspec

from antiphon.engine.remote.backend_apis.base import read_error_body
from antiphon.engine.remote.faults import classify_failure, clean_message
from antiphon.engine.remote.transport.connection import BodySink, HttpResponse, RemoteConnectionError
from antiphon.engine.remote.transport.http_client import HttpClient

BodyT = TypeVar("BodyT")


class HandshakeError(Exception):
    """The server cannot be used. `is_permanent`: it answers, but does not fit; waiting will not mend it."""

    def __init__(self, message: str, *, is_permanent: bool) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent


class UnsupportedPathError(HandshakeError):
    """The server does not have an endpoint."""


class ServerQueries:
    """Sends the requests of a handshake. Every method raises `HandshakeError` with the name of the server."""

    def __init__(self, client: HttpClient, timeout_s: float) -> None:
        self.name = client.endpoint.name
        self._client, self._timeout_s = client, timeout_s

    async def get_json(self, path: str, body_type: type[BodyT]) -> BodyT:
        """Returns the decoded body of a GET request."""
        return self._decode_body(path, await self.request("GET", path), body_type)

    async def post_json(self, path: str, content: object, body_type: type[BodyT]) -> BodyT:
        """Returns the decoded body of the answer to a POST request with a JSON body."""
        response = await self.request("POST", path, msgspec.json.encode(content))
        return self._decode_body(path, response, body_type)

    async def request(self, method: str, path: str, body: bytes = b"", sink: BodySink | None = None) -> HttpResponse:
        """Sends a request. Raises `HandshakeError` if there is no answer in time, or the key is not accepted."""
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.request(method, path, body, sink=sink)
        except TimeoutError:
            raise HandshakeError(f"{self.name}: no answer within {self._timeout_s:g} s", is_permanent=False) from None
        except RemoteConnectionError as error:
            reason = str(error)
            message = reason if self.name in reason else f"{self.name}: {reason}"
            raise HandshakeError(message, is_permanent=False) from None
        if response.status in (401, 403):
            raise self.mismatch("does not accept the key: set the variable of --engine-key-env")
        return response

    def mismatch(self, message: str, *, is_permanent: bool = True) -> HandshakeError:
        """Returns the error for a server that answers, but does not fit. The message may quote the server."""
        line = clean_message(f"{self.name} {message}", self._client.secrets)
        return HandshakeError(line, is_permanent=is_permanent)

    def _decode_body(self, path: str, response: HttpResponse, body_type: type[BodyT]) -> BodyT:
        if response.status == 503:
            raise HandshakeError(f"{self.name} is not ready yet", is_permanent=False)
        if response.status in (404, 405, 501):
            message = f"{self.name} answered {path} with status {response.status}"
            raise UnsupportedPathError(message, is_permanent=True)
        if response.status != 200:
            attempt = classify_failure(read_error_body(response.status, response.body), self.name)
            message = f"{self.name} answered {path} with status {response.status}"
            raise HandshakeError(message, is_permanent=not attempt.is_retryable)
        try:
            return msgspec.json.decode(response.body, type=body_type)
        except (msgspec.DecodeError, RecursionError):
            raise self.mismatch(f"answered {path} in an unknown format") from None
