"""Which IP addresses are public, and that every rule for URLs has the same answer."""

import ipaddress
import random
from collections.abc import Sequence

import pytest

from antiphon.app.outbound.address import is_public_address, parse_ip, parse_url
from antiphon.app.outbound.faults import RefusedUrlError
from antiphon.app.outbound.fetcher import create_fetch_policy, parse_allowed_host
from antiphon.app.outbound.policy import OutboundPolicy
from antiphon.app.outbound.resolver import find_addresses
from antiphon.app.requests.media.urls import is_public_url
from antiphon.app.tools.mcp.client_server import create_client_policy
from tests.app.outbound.addresses import NOT_PUBLIC, PUBLIC


@pytest.mark.parametrize("ip", PUBLIC)
def test_address_is_public(ip: str) -> None:
    assert is_public_address(ip)


@pytest.mark.parametrize("ip", [*NOT_PUBLIC, "", "example.com", "8.8.8.8 "])
def test_address_is_not_public(ip: str) -> None:
    assert not is_public_address(ip)


PICTURES = create_fetch_policy([parse_allowed_host("*", may_be_any=True)])
TOOLS = create_client_policy(["*"])
EDGES = [
    address
    for network in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
        "192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 "
        "203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 64:ff9b::/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 "
        "2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 ff00::/8"
    ).split()
    for address in (ipaddress.ip_network(network)[0], ipaddress.ip_network(network)[-1])
]


def list_addresses() -> list[str]:
    """Returns the addresses of the tables, the ends of all special networks, and others at random."""
    rng = random.Random(54)
    numbers = [ipaddress.IPv4Address(rng.getrandbits(32)) for _ in range(500)]
    wide = [ipaddress.IPv6Address(rng.getrandbits(128)) for _ in range(500)]
    mapped = [
        ipaddress.IPv6Address(prefix << 32 | int(edge))
        for edge in (*EDGES, *numbers)
        if edge.version == 4
        for prefix in (0xFFFF, 0x64FF9B << 64)
    ]
    found = [*PUBLIC, *NOT_PUBLIC, *map(str, (*EDGES, *numbers, *wide, *mapped))]
    return [ip for ip in found if parse_ip(ip) is not None and "%" not in ip]


def is_allowed(policy: OutboundPolicy, url: str) -> bool:
    try:
        policy.check_url(url)
    except RefusedUrlError:
        return False
    return True


async def may_dial(policy: OutboundPolicy, ip: str) -> bool:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return [ip]

    try:
        return await find_addresses(parse_url("https://name.example/"), policy, resolve) == [ip]
    except RefusedUrlError:
        return False


async def test_every_rule_has_the_same_verdict_of_an_address() -> None:
    addresses = list_addresses()
    faults = []
    for ip in addresses:
        url = f"https://[{ip}]/" if ":" in ip else f"https://{ip}/"
        verdicts = {
            "pictures": is_allowed(PICTURES, url),
            "tools": is_allowed(TOOLS, url),
            "pictures, by name": await may_dial(PICTURES, ip),
            "tools, by name": await may_dial(TOOLS, ip),
            "requests": is_public_url(url),
        }
        if set(verdicts.values()) != {is_public_address(ip)}:
            faults.append((ip, verdicts))
    assert not faults
    assert len(addresses) > 2000
