"""Heads of HTTP requests, their headers, and how an exchange can end."""

from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

HeaderList = Sequence[tuple[bytes, bytes]]
"""Headers in their order, with the letter case of their sender."""

ExchangeEnding = Literal["complete", "cut", "reset", "client_left", "unreachable"]
"""How a reply ended. cut: the server closed the connection before the end; reset: by a TCP reset."""

HOP_BY_HOP_NAMES = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Headers that are about one connection. RFC 9110, section 7.6.1."""


class IncomingRequest(msgspec.Struct, frozen=True):
    """The first line and the headers of a request."""

    method: str
    target: str
    """Path and query, as they were sent."""
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def path(self) -> str:
        """The target without its query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the query. The last one of a name counts."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def is_websocket(self) -> bool:
        """True if the request asks for a WebSocket."""
        return find_header(self.headers, "upgrade").lower() == "websocket"

    @property
    def has_body(self) -> bool:
        """True if the headers announce a body."""
        return bool(find_header(self.headers, "transfer-encoding") or find_header(self.headers, "content-length"))


def find_header(headers: HeaderList, name: str) -> str:
    """Returns the values of a header, joined by commas; an empty string without one."""
    wanted = name.lower().encode()
    return ", ".join(value.decode("latin-1") for key, value in headers if key.lower() == wanted)


def drop_hop_by_hop(headers: HeaderList, also: Iterable[bytes] = ()) -> list[tuple[bytes, bytes]]:
    """Returns the headers that a proxy passes on: without those about the connection, and without `also`."""
    named = {name.strip().lower().encode("latin-1") for name in find_header(headers, "connection").split(",")}
    dropped = HOP_BY_HOP_NAMES | named | set(also)
    return [(key, value) for key, value in headers if key.lower() not in dropped]


def media_type(headers: HeaderList) -> str:
    """Returns the content type in lower case, without its parameters."""
    return find_header(headers, "content-type").partition(";")[0].strip().lower()
