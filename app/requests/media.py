"""Images and files that come with a request. No model here sees: they stand in the prompt by name, or are refused.

Nothing is ever fetched and no picture is ever decoded, so there is nothing to gain by a hostile one; an address that
no server should be asked to visit is refused all the same, so that nobody builds on its being let through.
"""

import base64
import binascii
import ipaddress
import re
import unicodedata
from typing import Any
from urllib.parse import urlsplit

from antiphon.app.errors import ApiError, unsupported_field

MEDIA_PART_TYPES = ("input_image", "image_url", "input_file", "file")
"""Parts that hold an image or a file, on either face."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
PRIVATE_HOST_NAMES = ("localhost", "local", "internal", "home.arpa")
IDEOGRAPHIC_STOP = "\u3002"
"""Resolvers take it for a dot."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NUMERIC_HOST = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)
_UNSAFE_CHARS = re.compile(r"[\x00-\x20\x7f\\]")


def check_media(entries: object, at: str, *, refused: bool) -> None:
    """Look at all images and files of items or messages as they were sent. Raises `ApiError` 400 naming the place."""
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        for key in ("content", "output"):
            parts = entry.get(key) if isinstance(entry, dict) else None
            for number, part in enumerate(parts if isinstance(parts, list) else ()):
                if isinstance(part, dict) and part.get("type") in MEDIA_PART_TYPES:
                    _check_part(part, f"{at}[{index}].{key}[{number}]", refused=refused)


def _check_part(part: dict[str, Any], path: str, *, refused: bool) -> None:
    if refused:
        raise unsupported_field(path, "No model here sees images or reads files, and this server is set to say so.")
    url = part.get("image_url")
    if isinstance(url, dict):
        url, path = url.get("url"), f"{path}.image_url.url"
    elif isinstance(url, str):
        path = f"{path}.image_url"
    if isinstance(url, str):
        _check_url(url, path, pictured=True)
    elif isinstance(part.get("file_url"), str):
        _check_url(part["file_url"], f"{path}.file_url", pictured=False)


def _check_url(url: str, path: str, *, pictured: bool) -> None:
    held = pictured and url[:5].lower() == "data:"
    if not (_is_image_data_url(url) if held else _is_public_url(url)):
        kind = "image" if pictured else "file"
        wanted = "a data URL with base64 of a PNG, JPEG, GIF or WebP, or " if pictured else ""
        message = f"Invalid '{path}': expected {wanted}a public http or https address."
        raise ApiError(400, f"invalid_{kind}_url", message, path)


def _is_image_data_url(url: str) -> bool:
    head, comma, data = url[5:].partition(",")
    kind, _, coding = head.lower().partition(";")
    if not comma or kind not in IMAGE_TYPES or coding != "base64":
        return False
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _unwrap_nat64(
    found: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address behind one of NAT64's; any other as it is."""
    if isinstance(found, ipaddress.IPv6Address) and found in NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found


def _is_public_url(url: str) -> bool:
    """Whether an address may lie outside of this machine and its network, as far as can be told without asking."""
    try:
        parts = urlsplit(unicodedata.normalize("NFKC", url).replace(IDEOGRAPHIC_STOP, "."))
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError:
        return False
    if _UNSAFE_CHARS.search(url) or parts.scheme not in ("http", "https") or not host or parts.username is not None:
        return False
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # Other spellings of an IPv4 address, which resolvers take and checks overlook.
        return not _NUMERIC_HOST.fullmatch(host) and not any(
            f".{host}".endswith(f".{name}") for name in PRIVATE_HOST_NAMES
        )
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or _unwrap_nat64(found)
    return bool(found.is_global and mapped.is_global and not found.is_multicast)
