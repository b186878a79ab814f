"""A transport that turns a right server into a wrong one: it changes the replies to the requests that it selects."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

Json = dict[str, Any]


@dataclass(frozen=True)
class Received:
    """A reply of the right server. `error` is raised in the middle of the body."""

    status: int
    content_type: str
    body: bytes
    error: httpx2.TransportError | None = None

    def with_json(self, value: Any, status: int | None = None) -> "Received":
        body = json.dumps(value).encode()
        return Received(self.status if status is None else status, "application/json", body)

    def edit(self, change: Callable[[Json], Any]) -> "Received":
        """Returns the reply with its JSON object changed in place."""
        value = json.loads(self.body)
        change(value)
        return self.with_json(value)

    def substitute(self, pattern: str, text: str) -> "Received":
        return replace(self, body=re.sub(pattern.encode(), text.encode(), self.body))


@dataclass
class Breakage:
    """A change of the replies to one kind of request. `path` is a regular expression; `skip` requests come through."""

    method: str
    path: str
    change: Callable[[Received], Received]
    skip: int = 0
    seen: int = field(default=0, init=False)


class BreakingTransport(httpx2.BaseTransport):
    """Forwards requests to the server at `url`, and breaks the replies."""

    def __init__(self, url: str, *breakages: Breakage) -> None:
        self._inner, self._url, self._breakages = httpx2.HTTPTransport(), httpx2.URL(url), breakages

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = request.url.copy_with(host=self._url.host, port=self._url.port)
        reply = self._inner.handle_request(request)
        received = Received(reply.status_code, reply.headers.get("content-type", ""), reply.read())
        for breakage in self._breakages:
            if breakage.method == request.method and re.search(breakage.path, request.url.raw_path.decode()):
                breakage.seen += 1
                if breakage.seen > breakage.skip:
                    received = breakage.change(received)
        headers = {"content-type": received.content_type}
        return httpx2.Response(received.status, headers=headers, stream=_BrokenStream(received))

    def close(self) -> None:
        self._inner.close()


class _BrokenStream(httpx2.SyncByteStream):
    def __init__(self, received: Received) -> None:
        self._received = received

    def __iter__(self) -> Iterator[bytes]:
        yield self._received.body
        if self._received.error is not None:
            raise self._received.error
