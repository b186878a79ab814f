"""Tool servers that clients name: rules for their URLs, from the option `--mcp-allow`, and for their headers."""

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address

from antiphon.app.outbound.address import ANY_HOST, ClientAddress, parse_ip, parse_url
from antiphon.app.outbound.faults import RefusedUrlError
from antiphon.app.outbound.policy import AllowedHost, OutboundPolicy

MAX_SERVER_HEADERS = 32
MAX_SERVER_HEADER_BYTES = 16 * 1024
"""Of all names and values together."""
_SERVER_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFUSED_HEADERS = frozenset(
    """accept accept-encoding connection content-encoding content-length content-type cookie expect host keep-alive
    last-event-id origin proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding
    upgrade""".split()
)
"""Headers that belong to the connection or to the protocol. Those that begin with `mcp-` do, too."""


def create_client_policy(entries: Iterable[str]) -> OutboundPolicy:
    """Returns the policy for the URLs of clients' tool servers.

    An entry is HOST, HOST:PORT or `*`. Without a port in the entry, 443 and 80 are allowed. Raises ValueError for any
    other text, naming the option.
    """
    return OutboundPolicy(hosts=tuple(_parse_entry(entry.lower()) for entry in entries), reach="loopback")


def _parse_entry(entry: str) -> AllowedHost:
    """Returns the host of an entry in the form that it has in a parsed URL, so that the two can be compared."""
    if entry == ANY_HOST:
        return AllowedHost(frozenset({"https"}), ANY_HOST)
    is_bare_ipv6 = isinstance(parse_ip(entry), IPv6Address)
    try:
        address = parse_url(f"https://[{entry}]" if is_bare_ipv6 else f"https://{entry}")
    except ValueError as error:
        raise ValueError(f"--mcp-allow {entry}: {error}") from None
    if address.path != "/":
        raise ValueError(f"--mcp-allow {entry}: Name a host without a path.")
    schemes = {"http", "https"} if address.is_loopback else {"https"}
    has_port = not is_bare_ipv6 and ":" in entry.rpartition("]")[2]
    return AllowedHost(frozenset(schemes), address.host, address.port if has_port else None)


def check_client_url(url: str, policy: OutboundPolicy) -> ClientAddress:
    """Parses a URL that a client names and checks it. Raises ValueError with the reason.

    Whether the host's addresses are public is checked when it is dialled.
    """
    try:
        return policy.check_url(url)
    except RefusedUrlError as error:
        raise ValueError(_explain_refusal(error)) from None


def _explain_refusal(error: RefusedUrlError) -> str:
    texts = {
        "url": error.reason,
        "host": f"The host {error.host!r} is not allowed.",
        "port": f"The port {error.port} is not allowed. The operator allows it with --mcp-allow HOST:PORT.",
        "scheme": "The URL must begin with https://.",
        "address": "The address is not public. The operator configures such servers with --tool-server.",
    }
    return texts[error.part]


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
    if len(checked) > MAX_SERVER_HEADERS:
        raise ValueError(f"There are more than {MAX_SERVER_HEADERS} headers.")
    if len(set(names)) < len(names):
        raise ValueError("Two headers have the same name.")
    if sum(len(name) + len(value) for name, value in checked) > MAX_SERVER_HEADER_BYTES:
        raise ValueError(f"The headers are longer than {MAX_SERVER_HEADER_BYTES // 1024} KiB.")
    for name, value in checked:
        _check_header(name, value)
    return tuple(checked)


def _check_header(name: str, value: str) -> None:
    if not _SERVER_HEADER_NAME.fullmatch(name):
        raise ValueError("The name of a header is not valid.")
    if name.lower() in _REFUSED_HEADERS or name.lower().startswith("mcp-"):
        raise ValueError(f"The header {name!r} must not be set: it belongs to the connection or to the protocol.")
    if not (value.isascii() and value.isprintable()) or value != value.strip():
        raise ValueError(f"The value of the header {name!r} holds a character that cannot be sent.")
