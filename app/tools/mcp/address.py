"""Where a client may send this server: rules for URLs, IP addresses and headers that requests name.

A URL is parsed once, by one parser, and rebuilt from its parts, so that nobody reads another host in it. The parser
accepts only what every other parser understands in the same way.
"""

import re
from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from msgspec import Struct

_URL = re.compile(r"(?P<scheme>[a-z]{1,8})://(?P<authority>[^/?]*)(?P<path>/[^?]*)?(?P<query>\?.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_UNSAFE = re.compile(r'[^\x21-\x7e]|[\\#<>"{}|^`]|%(?![0-9A-Fa-f]{2})')
_DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 2048
MAX_HOST_CHARS = 253
ANY_HOST = "*"
"""The entry of allowed hosts that stands for every public address."""

MAX_HEADERS = 32
MAX_HEADER_BYTES = 16 * 1024
"""Of all names and values together."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFUSED_HEADERS = frozenset(
    """accept accept-encoding connection content-encoding content-length content-type cookie expect host keep-alive
    last-event-id origin proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding
    upgrade""".split()
)
"""Headers that belong to the connection or to the protocol. Those that begin with `mcp-` do, too."""

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
        literal = parse_ip(self.host)
        return literal.is_loopback if literal else self.host == "localhost"

    @property
    def url(self) -> str:
        """The URL, rebuilt."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_url(url: str) -> ClientAddress:
    """Parses an http or https URL. Raises ValueError with the reason, which does not repeat the URL."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"The URL is longer than {MAX_URL_CHARS} characters.")
    if _UNSAFE.search(url):
        raise ValueError(
            "The URL holds a character that it must not: a space, a control character, a backslash, a fragment, or one "
            "outside ASCII. Escape it; write names of hosts in punycode."
        )
    parts = _URL.fullmatch(url)
    if parts is None or (scheme := parts["scheme"].lower()) not in _DEFAULT_PORTS:
        raise ValueError("The URL must begin with https:// or http://.")
    if "@" in parts["authority"]:
        raise ValueError("The URL must not hold a user name or password. Send them in a header.")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        raise ValueError("The host or port of the URL is not valid.")
    port = int(authority["port"]) if authority["port"] else _DEFAULT_PORTS[scheme]
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


def check_client_url(url: str, allowed_hosts: Collection[str]) -> ClientAddress:
    """Parses a URL that a client names and checks it against the hosts that the operator allows.

    An entry is HOST, HOST:PORT or `*`. Without a port in the entry, 443 and 80 are allowed. Raises ValueError with the
    reason. Whether the host's addresses are public is checked when it is dialled.
    """
    address = parse_url(url)
    entries = {entry.lower() for entry in allowed_hosts}
    host = f"[{address.host}]" if ":" in address.host else address.host
    is_named = not entries.isdisjoint({address.host, host})
    has_port = f"{host}:{address.port}" in entries
    is_any = ANY_HOST in entries and not address.is_loopback
    if not (is_named or has_port or is_any):
        raise ValueError(f"The host {address.host!r} is not allowed.")
    if not has_port and address.port not in _DEFAULT_PORTS.values():
        raise ValueError(f"The port {address.port} is not allowed. The operator allows it with --mcp-allow HOST:PORT.")
    if address.scheme != "https" and not address.is_loopback:
        raise ValueError("The URL must begin with https://.")
    if parse_ip(address.host) and not address.is_loopback and not is_public_address(address.host):
        raise ValueError("The address is not public. The operator configures such servers with --tool-server.")
    return address


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


def check_client_headers(headers: Mapping[str, str], authorization: str | None = None) -> tuple[tuple[str, str], ...]:
    """Returns the headers to send to a client's tool server. Raises ValueError; its text holds no value.

    `authorization` is a bare bearer token.
    """
    checked = list(headers.items())
    names = [name.lower() for name in headers]
    if authorization is not None:
        if "authorization" in names:
            raise ValueError("There are two credentials: authorization, and the header Authorization. Send one.")
        checked.append(("Authorization", f"Bearer {authorization}"))
    if len(checked) > MAX_HEADERS:
        raise ValueError(f"There are more than {MAX_HEADERS} headers.")
    if len(set(names)) < len(names):
        raise ValueError("Two headers have the same name.")
    if sum(len(name) + len(value) for name, value in checked) > MAX_HEADER_BYTES:
        raise ValueError(f"The headers are longer than {MAX_HEADER_BYTES // 1024} KiB.")
    for name, value in checked:
        _check_header(name, value)
    return tuple(checked)


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError("The name of a header is not valid.")
    if name.lower() in _REFUSED_HEADERS or name.lower().startswith("mcp-"):
        raise ValueError(f"The header {name!r} must not be set: it belongs to the connection or to the protocol.")
    if not (value.isascii() and value.isprintable()) or value != value.strip():
        raise ValueError(f"The value of the header {name!r} holds a character that cannot be sent.")
