"""Looks hosts up once, and lets only addresses through that the policy allows."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from socket import SOCK_STREAM

from antiphon.app.outbound.address import ClientAddress, parse_ip
from antiphon.app.outbound.faults import OutboundError, RefusedUrlError
from antiphon.app.outbound.policy import OutboundPolicy

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a host. Raises OSError."""


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, from the system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def find_addresses(address: ClientAddress, policy: OutboundPolicy, resolve: Resolve) -> Sequence[str]:
    """Returns the IP addresses of a host.

    Raises `OutboundError` without one, `RefusedUrlError` unless every one may be dialled.
    """
    if parse_ip(address.host) is not None:
        ips: Sequence[str] = [address.host]
    else:
        try:
            async with asyncio.timeout(policy.lookup_timeout_s):
                ips = list(dict.fromkeys(await resolve(address.host, address.port)))
        except (OSError, UnicodeError):  # a TimeoutError, too
            raise OutboundError("unresolved") from None
    if not ips or not all(policy.may_dial(ip, address.host) for ip in ips):
        raise RefusedUrlError("address", host=address.host)
    return ips
