"""Checks the URLs of images and files: they must be public.

Private and loopback URLs are rejected even if nothing is fetched, so that no client relies on them.
"""

import re
import unicodedata
from urllib.parse import urlsplit

from antiphon.app.errors import ApiError
from antiphon.app.outbound.address import is_public_host, parse_ip

IDEOGRAPHIC_STOP = "\u3002"
"""Ideographic full stop. Resolvers treat it as a dot."""
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)
_UNSAFE_CHARS = re.compile(r"[\x00-\x20\x7f\\]")


def check_url(url: str, path: str, *, pictured: bool) -> None:
    """Checks the URL of an image (`pictured`) or of a file. Raises `ApiError` 400."""
    if not is_public_url(url):
        kind = "image" if pictured else "file"
        data_url = "a base64 data URL of a PNG, JPEG, GIF or WebP image, or " if pictured else ""
        message = f"Invalid '{path}': expected {data_url}a public http or https URL."
        raise ApiError(400, f"invalid_{kind}_url", message, path)


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
    # Other notations of an IPv4 address, which resolvers accept and checks often overlook.
    is_number = parse_ip(host) is None and _NUMERIC_HOST.fullmatch(host) is not None
    return not is_number and is_public_host(host)
