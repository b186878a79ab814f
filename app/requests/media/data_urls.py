"""Decodes images and files that a request holds as base64: data URLs, and base64 alone."""

import binascii

from msgspec import Struct

from antiphon.app.requests.media.errors import MediaPlace, invalid_data_url, invalid_image
from antiphon.app.turn_types.blob_urls import BlobReference, describe_type, refer_to

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MEDIA_TYPE_ALIASES = {"image/jpg": "image/jpeg"}
DATA_SCHEME = "data:"
SLICE_CHARS = 1 << 20
"""Characters that one call decodes, which takes three milliseconds: no other thread runs meanwhile."""


class SentData(Struct, frozen=True):
    """The bytes of an image or a file, and the reference that takes their place in items."""

    reference: BlobReference
    data: bytes


def is_data_url(text: str) -> bool:
    """Tells whether a text is a data URL."""
    return text[: len(DATA_SCHEME)].lower() == DATA_SCHEME


def read_data_url(url: str, place: MediaPlace) -> SentData:
    """Returns the content of a data URL: of an image, the type must be one that is read. Raises `ApiError` 400."""
    header, comma, encoded = url[len(DATA_SCHEME) :].partition(",")
    media_type, *parameters = header.lower().split(";")
    if not comma or "base64" not in parameters:
        raise invalid_data_url(place, "invalid base64")
    charset = next((each.partition("=")[2].strip('" ') for each in parameters if each.startswith("charset=")), None)
    return read_base64(encoded, media_type if place.is_image else describe_type(media_type, charset), place)


def read_base64(encoded: str, media_type: str, place: MediaPlace) -> SentData:
    """Returns the decoded bytes with their type, which is empty if the request names none. Raises `ApiError` 400."""
    media_type = MEDIA_TYPE_ALIASES.get(media_type, media_type)
    if place.is_image and media_type not in IMAGE_TYPES:
        if place.api == "chat" and media_type.startswith("image/"):
            raise invalid_image(place, is_format=True)
        raise invalid_data_url(place, f"the MIME type '{media_type[:100]}'")
    if not encoded:
        raise invalid_data_url(place, "empty base64-encoded bytes")
    data = decode_base64(encoded)
    if data is None:
        raise invalid_data_url(place, "invalid base64")
    try:
        return SentData(refer_to(data, media_type), data)
    except ValueError:
        raise invalid_data_url(place, f"the MIME type '{media_type[:100]}'") from None


def decode_base64(encoded: str) -> bytes | None:
    """Returns the bytes of base64 with its padding; None for any other text. Line breaks of MIME are left out."""
    encoded = encoded.rstrip("\r\n")
    if "=" in encoded[:-2]:
        return None
    decoded, rest = bytearray(), ""
    try:
        for start in range(0, len(encoded), SLICE_CHARS):
            piece = rest + encoded[start : start + SLICE_CHARS].replace("\r", "").replace("\n", "")
            whole = len(piece) // 4 * 4
            decoded += binascii.a2b_base64(piece[:whole], strict_mode=True)
            rest = piece[whole:]
        decoded += binascii.a2b_base64(rest, strict_mode=True)
    except ValueError:
        return None
    return bytes(decoded)
