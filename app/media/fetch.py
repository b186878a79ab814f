"""Fetches pictures and files from hosts that the operator allows, and from nowhere else.

A host is resolved once, every address must be public, and the connection goes to an address that was checked: a name
that changes its addresses between two lookups gains nothing. Redirects are followed by the same rules. No cookie, no
proxy, no compression; the content type is not believed, since the content decides.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from socket import SOCK_STREAM
from typing import TYPE_CHECKING

from antiphon.app.media.fetch_rules import AllowedHost, FetchFault, guess_host
from antiphon.app.tools.mcp.address import ClientAddress, is_public_address, parse_ip, parse_url

if TYPE_CHECKING:
    import httpx

FIRST_BYTE_TIMEOUT_S = 5.0
"""Time from the lookup of a host until its headers have come."""
TOTAL_TIMEOUT_S = 20.0
"""Time for all redirects and the whole body."""
MAX_FETCHES_OF_OWNER = 4


async def resolve_public_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, from the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class MediaFetcher:
    """Fetches URLs. One for each server; it belongs to one event loop."""

    def __init__(
        self,
        allowed: Collection[AllowedHost],
        *,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]] = resolve_public_host,
        may_dial: Callable[[str], bool] = is_public_address,
        create_transport: "Callable[[], httpx.AsyncBaseTransport] | None" = None,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
        first_byte_timeout_s: float = FIRST_BYTE_TIMEOUT_S,
    ) -> None:
        self._allowed = tuple(allowed)
        self._resolve, self._may_dial = resolve, may_dial
        self._create_transport = create_transport
        self._total_timeout_s, self._first_byte_timeout_s = total_timeout_s, first_byte_timeout_s
        self._places: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    def check(self, url: str) -> ClientAddress:
        """Returns the parts of a URL that may be fetched. Raises `FetchFault` "refused"."""
        try:
            address = parse_url(url)
        except ValueError:
            raise FetchFault("refused", url, host=guess_host(url)) from None
        is_private = parse_ip(address.host) is not None and not self._may_dial(address.host)
        if is_private or not any(entry.allows(address) for entry in self._allowed):
            raise FetchFault("refused", url, host=address.host)
        return address

    async def fetch(self, owner: str, url: str, max_bytes: int) -> bytes:
        """Returns the body. Raises `FetchFault`."""
        from antiphon.app.media.download import Download, create_pinned_transport  # noqa: PLC0415  it takes long

        self.check(url)
        async with self._take_place(owner):
            download = Download(
                url=url,
                max_bytes=max_bytes,
                check=self.check,
                resolve=self._resolve,
                may_dial=self._may_dial,
                create_transport=self._create_transport or create_pinned_transport,
                total_timeout_s=self._total_timeout_s,
                first_byte_timeout_s=self._first_byte_timeout_s,
            )
            return await download.run()

    @contextlib.asynccontextmanager
    async def _take_place(self, owner: str) -> AsyncIterator[None]:
        """Waits until the owner has fewer than `MAX_FETCHES_OF_OWNER` downloads."""
        semaphore, users = self._places.setdefault(owner, (asyncio.Semaphore(MAX_FETCHES_OF_OWNER), []))
        users.append(None)
        try:
            async with semaphore:
                yield
        finally:
            users.pop()
            if not users:
                del self._places[owner]
