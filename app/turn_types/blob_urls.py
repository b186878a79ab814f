"""Blob URLs: what items hold in place of the bytes of a picture or a file.

A blob is the content of a data URL, of a `file_data` or of a file, kept once for each owner under its SHA-256. Items
refer to it: `blob:sha256-<64 hex digits>;<media type>;<bytes>`. The media type is the one that the client claimed, so
it may differ between two references; it is empty for base64 without a data URL. A blob that was downloaded has its URL
as a fourth part. A part with a `file_id` has the blob URL of the file's content beside it, in `image_url` or
`file_data`, so that the item keeps its meaning when the file is deleted. The owner is that of the row or the request.

Requests contain no blob URLs: the reader of a request refuses them, as all URLs but http, https and data URLs.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from antiphon.events.inputs import AnyInput, InputImage
from antiphon.events.media_parts import list_media
from antiphon.events.result_images import BLOB_PREFIX

UNKNOWN_TYPE = "application/octet-stream"
BlobContents = Mapping[bytes, bytes]
"""Bytes of blobs by their SHA-256."""
NO_BLOBS: BlobContents = MappingProxyType({})
_MEDIA_TYPE = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}"
_TEXT_TYPE = r"text/[a-z0-9][a-z0-9!#$&^_.+-]{0,62};charset=[a-z0-9][a-z0-9_.:-]{0,39}"
_MEDIA_TYPE_PATTERN = re.compile(_MEDIA_TYPE)
_TEXT_TYPE_PATTERN = re.compile(_TEXT_TYPE)
_BLOB_URL = re.compile(
    rf"{BLOB_PREFIX}([0-9a-f]{{64}});((?:{_TEXT_TYPE}|{_MEDIA_TYPE})?);([0-9]{{1,15}})(?:;((?i:https?)://.*))?"
)


class BlobReference(Struct, frozen=True):
    """A blob as an item refers to it."""

    sha256: bytes
    media_type: str
    """Type that the client claimed, in small letters, with the charset of a text; empty for plain base64."""
    size: int
    """Bytes."""
    source_url: str = ""
    """The http or https URL that the bytes were downloaded from, if they were; lists show it."""

    @property
    def charset(self) -> str:
        """The encoding that the client declared for a text; empty if it declared none."""
        return self.media_type.partition(";charset=")[2]


def describe_type(media_type: str, charset: str | None) -> str:
    """Returns a media type with the charset of a text, if it has one, as references and files hold it."""
    declared = f"{media_type};charset={(charset or '').strip().lower()}"
    return declared if _TEXT_TYPE_PATTERN.fullmatch(declared) else media_type


def refer_to(data: bytes, media_type: str, source_url: str = "") -> BlobReference:
    """Returns the reference to bytes. Hashes them: 0.6 ms for each MB. A text that is no media type counts as unknown.

    `media_type` may be empty: for base64 that came without one.
    """
    media_type = media_type.lower()
    if media_type and not (_MEDIA_TYPE_PATTERN.fullmatch(media_type) or _TEXT_TYPE_PATTERN.fullmatch(media_type)):
        media_type = UNKNOWN_TYPE
    return BlobReference(hashlib.sha256(data).digest(), media_type, len(data), source_url)


def format_blob_url(reference: BlobReference) -> str:
    """Returns the blob URL of a reference."""
    url = f"{BLOB_PREFIX}{reference.sha256.hex()};{reference.media_type};{reference.size}"
    return f"{url};{reference.source_url}" if reference.source_url else url


def parse_blob_url(url: str | None) -> BlobReference | None:
    """Returns the reference in a blob URL; None for any other text, which is then a URL, base64 or nothing."""
    if url is None or not url.startswith(BLOB_PREFIX) or (found := _BLOB_URL.fullmatch(url)) is None:
        return None
    return BlobReference(bytes.fromhex(found[1]), found[2], int(found[3]), found[4] or "")


def find_blobs(items: Iterable[AnyInput]) -> Iterator[BlobReference]:
    """Yields the references of items, in order, repeated ones too."""
    for part in chain.from_iterable(map(list_media, items)):
        url = part.image_url if isinstance(part, InputImage) else part.file_data
        if (reference := parse_blob_url(url)) is not None:
            yield reference


def find_message_blobs(messages: Iterable[Mapping[str, Any]]) -> Iterator[BlobReference]:
    """Yields the references of chat messages, in order, repeated ones too."""
    for message in messages:
        parts = message.get("content")
        for part in parts if isinstance(parts, list | tuple) else ():
            holder, key = media_place(part)
            if holder is not None and (reference := parse_blob_url(holder[key])) is not None:
                yield reference


def media_place(part: object) -> tuple[dict[str, Any] | None, str]:
    """Returns the object and the key under which a part of a chat message has its picture or file, as text.

    A part without one gives None and an empty key.
    """
    if not isinstance(part, dict):
        return None, ""
    holder: object = part
    match part.get("type"):
        case "image_url":
            key, nested = "image_url", "url"
        case "file":
            key, nested = "file", "file_data"
        case _:
            return None, ""
    if isinstance(part.get(key), dict):
        holder, key = part[key], nested
    return (holder, key) if isinstance(holder, dict) and isinstance(holder.get(key), str) else (None, "")
