"""Fetches pictures and files from hosts that the operator allows, and from nowhere else.

Redirects are followed by the same rules. No cookie, no compression; the content type is not believed, since the content
decides.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from msgspec import structs

from antiphon.app.outbound.address import ANY_HOST, DEFAULT_PORTS, is_public_host, parse_url
from antiphon.app.outbound.faults import FetchFault, OutboundError, RefusedUrlError
from antiphon.app.outbound.policy import AllowedHost, OutboundPolicy
from antiphon.app.outbound.resolver import Resolve, resolve_host
from antiphon.app.outbound.slots import KeyedSlots

if TYPE_CHECKING:
    import httpx2

    from antiphon.app.outbound.transport import PinnedTransport

FIRST_BYTE_TIMEOUT_S = 5.0
"""Time from the lookup of a host until its headers have come."""
TOTAL_TIMEOUT_S = 20.0
"""Time for all redirects and the whole body."""
MAX_FETCHES_OF_OWNER = 4
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"User-Agent": "antiphon", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}


def create_fetch_policy(hosts: Iterable[AllowedHost]) -> OutboundPolicy:
    """Returns the policy for the URLs of pictures and files."""
    return OutboundPolicy(
        hosts=tuple(hosts),
        max_redirects=MAX_REDIRECTS,
        head_timeout_s=FIRST_BYTE_TIMEOUT_S,
        total_timeout_s=TOTAL_TIMEOUT_S,
        max_parallel_of_owner=MAX_FETCHES_OF_OWNER,
    )


def parse_allowed_host(text: str, *, may_be_any: bool = False) -> AllowedHost:
    """Parses HOST, HOST:PORT or http://HOST. Raises ValueError with the reason."""
    if text.endswith(ANY_HOST):
        if text not in (ANY_HOST, f"http://{ANY_HOST}", f"https://{ANY_HOST}") or not may_be_any:
            raise ValueError("Every host is allowed only with --allow-any-image-host. Name the hosts instead.")
        scheme = "http" if text.startswith("http:") else "https"
        return AllowedHost(frozenset({scheme}), ANY_HOST, DEFAULT_PORTS[scheme])
    address = parse_url(text if "://" in text else f"https://{text}")
    if address.path != "/":
        raise ValueError("Name a host without a path.")
    if not is_public_host(address.host):
        raise ValueError(f"{address.host} is not public, so that no URL of it is ever fetched. Name a public host.")
    return AllowedHost(frozenset({address.scheme}), address.host, address.port)


class UrlFetcher:
    """Fetches URLs. One for each server; it belongs to one event loop. `create_network`: see `PinnedTransport`."""

    def __init__(
        self,
        policy: OutboundPolicy,
        *,
        resolve: Resolve = resolve_host,
        create_network: "Callable[[], httpx2.AsyncBaseTransport] | None" = None,
    ) -> None:
        self._policy, self._resolve, self._create_network = policy, resolve, create_network
        self._slots = KeyedSlots(policy.max_parallel_of_owner)

    async def fetch(self, owner: str, url: str, max_bytes: int) -> bytes:
        """Returns the body. Raises `FetchFault`."""
        import httpx2  # noqa: PLC0415  it takes long

        try:
            self._policy.check_url(url)
            async with self._slots.get(owner), contextlib.aclosing(self._open_transport(max_bytes)) as transport:
                return await self._follow(transport, url)
        except OutboundError as error:
            raise _explain(error, url, max_bytes) from None
        except (TimeoutError, httpx2.TimeoutException):
            raise FetchFault("timeout", url) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError):
            raise FetchFault("failed", url) from None

    def _open_transport(self, max_bytes: int) -> "PinnedTransport":
        from antiphon.app.outbound.transport import PinnedTransport  # noqa: PLC0415  it takes long

        deadline_s = asyncio.get_running_loop().time() + self._policy.total_timeout_s
        return PinnedTransport(
            structs.replace(self._policy, max_body_bytes=max_bytes),
            resolve=self._resolve,
            get_deadline=lambda: deadline_s,
            network=None if self._create_network is None else self._create_network(),
        )

    async def _follow(self, transport: "PinnedTransport", url: str) -> bytes:
        """Returns the body behind the redirects. The transport checks each URL like the first one."""
        import httpx2  # noqa: PLC0415  it takes long

        current = url
        for _ in range(self._policy.max_redirects + 1):
            address = self._policy.check_url(current)
            response = await transport.handle_async_request(httpx2.Request("GET", address.url, headers=_HEADERS))
            async with contextlib.aclosing(response):
                if response.status_code == 200:
                    return b"".join([part async for part in response.stream])  # type: ignore[union-attr]
            if response.status_code not in REDIRECTS:
                raise FetchFault("status", url, status=response.status_code)
            current = _join_url(address.url, response.headers.get("location", ""))
        raise FetchFault("failed", url)


def _explain(error: OutboundError, url: str, max_bytes: int) -> FetchFault:
    if isinstance(error, RefusedUrlError):
        return FetchFault("refused", url, host=error.host)
    return FetchFault("too_large" if error.code == "too_large" else "failed", url, max_bytes=max_bytes)


def _join_url(base: str, location: str) -> str:
    """Returns the URL of a redirect. A location that is no URL stays as it is, and is refused."""
    try:
        return urljoin(base, location)
    except ValueError:
        return location
