"""The addresses that this server may be sent to: the parser of URLs, and which IP addresses are public.

A URL is parsed once, by one parser, and rebuilt from its parts, so that no later reader finds another host in it. The
parser accepts only what every other parser understands in the same way.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from msgspec import Struct

_URL = re.compile(r"(?P<scheme>[a-z]{1,8})://(?P<authority>[^/?]*)(?P<path>/[^?]*)?(?P<query>\?.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_UNSAFE_IN_URL = re.compile(r'[^\x21-\x7e]|[\\#<>"{}|^`]|%(?![0-9A-Fa-f]{2})')
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 2048
MAX_HOST_CHARS = 253
ANY_HOST = "*"
"""The entry of allowed hosts that stands for every public address."""

PRIVATE_HOST_NAMES = ("localhost", "local", "internal", "home.arpa")
"""Names, with all below them, of hosts that are not on the public internet."""

_NOT_PUBLIC_IPV4 = tuple(
    IPv4Network(network)
    for network in """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15
    198.51.100.0/24 203.0.113.0/24 224.0.0.0/3""".split()
)
"""Special-purpose addresses of IANA's registry, multicast and reserved ones. Python's own lists differ by version."""

_PUBLIC_IPV6 = IPv6Network("2000::/3")
_NOT_PUBLIC_IPV6 = tuple(
    IPv6Network(network) for network in "2001::/23 2001:db8::/32 2620:4f:8000::/48 3fff::/20".split()
)
_IPV4_IN_IPV6 = (
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
"""Networks whose addresses hold an IPv4 address, and how many bits follow it."""


class ClientAddress(Struct, frozen=True, kw_only=True):
    """The parts of a checked URL."""

    scheme: str
    host: str
    """In lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """With the query."""

    @property
    def is_loopback(self) -> bool:
        """Tells whether the host is this machine, by its name or address."""
        return is_loopback_host(self.host)

    @property
    def url(self) -> str:
        """The URL, rebuilt."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_url(url: str) -> ClientAddress:
    """Parses an http or https URL. Raises ValueError with the reason, which does not repeat the URL."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"The URL is longer than {MAX_URL_CHARS} characters.")
    if _UNSAFE_IN_URL.search(url):
        raise ValueError(
            "The URL holds a character that it must not: a space, a control character, a backslash, a fragment, or one "
            "outside ASCII. Escape it; write names of hosts in punycode."
        )
    parts = _URL.fullmatch(url)
    if parts is None or (scheme := parts["scheme"].lower()) not in DEFAULT_PORTS:
        raise ValueError("The URL must begin with https:// or http://.")
    if "@" in parts["authority"]:
        raise ValueError("The URL must not hold a user name or password. Send them in a header.")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise ValueError("The host or port of the URL is not valid.")
    port = int(authority["port"]) if authority["port"] else DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise ValueError("The port of the URL is not valid.")
    path = (parts["path"] or "/") + (parts["query"] or "")
    return ClientAddress(scheme=scheme, host=_check_host(authority["host"].lower()), port=port, path=path)


def _check_host(host: str) -> str:
    """Returns a host in its canonical form. Refuses spellings of IPv4 that only some parsers know."""
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError("The IPv6 address of the URL is not valid.") from None
    labels = host.split(".")
    if len(host) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("The host of the URL is not valid.")
    if labels[-1].isdigit() or re.fullmatch(r"0x[0-9a-f]*", labels[-1]):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise ValueError("An IPv4 address must be four decimal numbers without leading zeros.") from None
    return host


def parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the IP address that a host is, or None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_public_address(ip_text: str) -> bool:
    """Tells whether an IP address is on the public internet. An IPv4 address inside an IPv6 address is looked at."""
    address = parse_ip(ip_text)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_IPV4)
    if address is None or address.scope_id:
        return False
    for network, bits in _IPV4_IN_IPV6:
        if address in network:
            return is_public_address(str(IPv4Address(int(address) >> bits & 0xFFFFFFFF)))
    return address in _PUBLIC_IPV6 and not any(address in network for network in _NOT_PUBLIC_IPV6)


def is_loopback_host(host: str) -> bool:
    """Tells whether a host is this machine, by its name or address."""
    literal = parse_ip(host)
    return literal.is_loopback if literal else host == "localhost"


def is_public_host(host: str) -> bool:
    """Tells whether a host may be on the public internet, as far as that shows without a lookup."""
    if parse_ip(host) is not None:
        return is_public_address(host)
    return not any(f".{host}".endswith(f".{name}") for name in PRIVATE_HOST_NAMES)


def guess_host(url: str) -> str:
    """Returns what stands for the host in a URL that is not valid, to name it in the answer."""
    scheme, separator, rest = url.partition("://")
    authority = rest if separator else scheme
    return authority.partition("/")[0].rpartition("@")[2][:100]
