"""Checks the URLs of images and files: they must be public.

Private and loopback URLs are rejected even if nothing is fetched, so that no client relies on them.
"""

import ipaddress
import re
import unicodedata
from urllib.parse import urlsplit

from antiphon.app.base.errors import ApiError

PRIVATE_HOST_NAMES = ("localhost", "local", "internal", "home.arpa")
IDEOGRAPHIC_STOP = "\u3002"
"""Ideographic full stop. Resolvers treat it as a dot."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)
_UNSAFE_CHARS = re.compile(r"[\x00-\x20\x7f\\]")


def check_url(url: str, path: str, *, pictured: bool) -> None:
    """Checks the URL of an image (`pictured`) or of a file. Raises `ApiError` 400."""
    if not is_public_url(url):
        kind = "image" if pictured else "file"
        data_url = "a base64 data URL of a PNG, JPEG, GIF or WebP image, or " if pictured else ""
        message = f"Invalid '{path}': expected {data_url}a public http or https URL."
        raise ApiError(400, f"invalid_{kind}_url", message, path)


def _unwrap_nat64(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the IPv4 address that a NAT64 address embeds; any other address unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public_url(url: str) -> bool:
    """Tells whether a URL may point outside this machine and its network, as far as that shows without a DNS lookup."""
    try:
        parts = urlsplit(unicodedata.normalize("NFKC", url).replace(IDEOGRAPHIC_STOP, "."))
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return False
    if _UNSAFE_CHARS.search(url) or parts.scheme not in ("http", "https") or not host or parts.username is not None:
        return False
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # Other notations of an IPv4 address, which resolvers accept and checks often overlook.
        return not _NUMERIC_HOST.fullmatch(host) and not any(
            f".{host}".endswith(f".{name}") for name in PRIVATE_HOST_NAMES
        )
    embedded = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or _unwrap_nat64(address)
    return bool(address.is_global and embedded.is_global and not address.is_multicast)
