"""Checks images and files in a request. No model here reads them: the prompt has placeholders, or they are refused.

Nothing is fetched and no image is decoded, so a hostile file has no effect. Private and loopback URLs are rejected
even though nothing is fetched, so that no client relies on them.
"""

import base64
import binascii
import ipaddress
import re
import unicodedata
from typing import Any
from urllib.parse import urlsplit

from antiphon.app.base.errors import ApiError, unsupported_field

MEDIA_PART_TYPES = ("input_image", "image_url", "input_file", "file")
"""Types of the content parts that hold an image or a file, on both endpoints."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
PRIVATE_HOST_NAMES = ("localhost", "local", "internal", "home.arpa")
IDEOGRAPHIC_STOP = "\u3002"
"""Ideographic full stop. Resolvers treat it as a dot."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)
_UNSAFE_CHARS = re.compile(r"[\x00-\x20\x7f\\]")


def check_media(entries: object, at: str, *, refused: bool) -> None:
    """Checks all images and files of items or messages as sent. Raises `ApiError` 400 with the path of the fault."""
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        for key in ("content", "output"):
            parts = entry.get(key) if isinstance(entry, dict) else None
            for part_index, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict) and part.get("type") in MEDIA_PART_TYPES:
                    _check_part(part, f"{at}[{index}].{key}[{part_index}]", refused=refused)


def _check_part(part: dict[str, Any], path: str, *, refused: bool) -> None:
    if refused:
        raise refused_media(path)
    url = part.get("image_url")
    if isinstance(url, dict):
        url, path = url.get("url"), f"{path}.image_url.url"
    elif isinstance(url, str):
        path = f"{path}.image_url"
    if isinstance(url, str):
        check_url(url, path, pictured=True)
    elif isinstance(part.get("file_url"), str):
        check_url(part["file_url"], f"{path}.file_url", pictured=False)


def refused_media(path: str) -> ApiError:
    """Returns the error for an image or a file on a server that refuses them."""
    return unsupported_field(path, "Image and file inputs are disabled on this server (`--unsupported-media refuse`).")


def check_url(url: str, path: str, *, pictured: bool) -> None:
    """Checks the URL of an image (`pictured`), which may be a data URL, or of a file. Raises `ApiError` 400."""
    is_data_url = pictured and url[:5].lower() == "data:"
    if not (_is_image_data_url(url) if is_data_url else _is_public_url(url)):
        kind = "image" if pictured else "file"
        data_url = "a base64 data URL of a PNG, JPEG, GIF or WebP image, or " if pictured else ""
        message = f"Invalid '{path}': expected {data_url}a public http or https URL."
        raise ApiError(400, f"invalid_{kind}_url", message, path)


def _is_image_data_url(url: str) -> bool:
    header, separator, data = url[5:].partition(",")
    media_type, _, encoding = header.lower().partition(";")
    if not separator or media_type not in IMAGE_TYPES or encoding != "base64":
        return False
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _unwrap_nat64(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns the IPv4 address that a NAT64 address embeds; any other address unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_public_url(url: str) -> bool:
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
