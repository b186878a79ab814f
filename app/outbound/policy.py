"""Policies: which URLs may be requested, which addresses may be dialled, and how much may come back in which time."""

import math
from typing import Literal

from msgspec import Struct

from antiphon.app.outbound.address import (
    ANY_HOST,
    DEFAULT_PORTS,
    ClientAddress,
    guess_host,
    is_loopback_host,
    is_public_address,
    parse_ip,
    parse_url,
)
from antiphon.app.outbound.faults import RefusedPart, RefusedUrlError

Reach = Literal["public", "loopback", "any"]
"""The addresses that may be dialled: public ones; also those of this machine, for a host that is this machine by its
name; or any, for a URL of the operator, whose name is looked up at each connection."""


class AllowedHost(Struct, frozen=True):
    """A host that an operator allows."""

    schemes: frozenset[str]
    host: str
    """`ANY_HOST`: every host but this machine."""
    port: int | None = None
    """None: 80 and 443."""

    def names(self, address: ClientAddress) -> bool:
        """Tells whether this is the host of a URL. Without a port, it is so for every port of the URL."""
        is_host = not address.is_loopback if self.host == ANY_HOST else self.host == address.host
        return is_host and self.port in (None, address.port)


class OutboundPolicy(Struct, frozen=True, kw_only=True):
    """Rules and limits for the requests of one use."""

    hosts: tuple[AllowedHost, ...] | None = None
    """None: every host. The URL comes from the operator, or was checked when a request was read."""
    reach: Reach = "public"
    max_redirects: int = 0
    lookup_timeout_s: float | None = None
    """Time to look a host up."""
    head_timeout_s: float | None = None
    """Time from the lookup of a host until its headers have come."""
    total_timeout_s: float = math.inf
    """Time for all redirects and the whole body."""
    max_body_bytes: int = 4 << 20
    max_parallel_of_owner: int = 4
    """Requests of one owner at a time."""

    def check_url(self, url: str) -> ClientAddress:
        """Returns the parts of a URL that may be requested. Raises `RefusedUrlError`."""
        try:
            address = parse_url(url)
        except ValueError as error:
            raise RefusedUrlError("url", host=guess_host(url), reason=str(error)) from None
        if (refused := self._find_refused_part(address)) is not None:
            raise RefusedUrlError(refused, host=address.host, port=address.port)
        return address

    def may_dial(self, ip_text: str, host: str) -> bool:
        """Tells whether the address of a host may be dialled."""
        if self.reach == "any":
            return True
        if self.reach == "loopback" and is_loopback_host(host):
            ip = parse_ip(ip_text)
            return ip is not None and ip.is_loopback
        return is_public_address(ip_text)

    def _find_refused_part(self, address: ClientAddress) -> RefusedPart | None:
        if self.hosts is not None:
            entries = [entry for entry in self.hosts if entry.names(address)]
            if not entries:
                return "host"
            if address.port not in DEFAULT_PORTS.values() and all(entry.port is None for entry in entries):
                return "port"
            if not any(address.scheme in entry.schemes for entry in entries):
                return "scheme"
        if parse_ip(address.host) is not None and not self.may_dial(address.host, address.host):
            return "address"
        return None
