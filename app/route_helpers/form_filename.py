"""The name of a file in a form: as it is, in `filename*` (RFC 5987), or as encoded words of mail (RFC 2047)."""

import re
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from urllib.parse import unquote_to_bytes

from multipart import MultipartSegment

_EXTENDED = re.compile(r""";\s*filename\*\s*=\s*"?(?P<charset>[\w-]{1,40})'[\w-]*'(?P<value>[^;"\s]*)""", re.IGNORECASE)
_ENCODED_WORDS = re.compile(r"(?:=\?[\w-]{1,40}\?[bBqQ]\?[^?\s]*\?=(?:\s+(?==\?))?)+")


def find_filename(segment: MultipartSegment) -> str:
    """Returns the name that a part of a form gives its file; empty if it gives none. One that cannot be decoded stays.

    Of two names, that in `filename*` counts: the other is for readers that do not know it.
    """
    extended = _EXTENDED.search(segment.header("content-disposition") or "")
    if extended is not None:
        try:
            return unquote_to_bytes(extended["value"]).decode(extended["charset"])
        except (LookupError, UnicodeError):
            return segment.filename or extended["value"]
    name = segment.filename or ""
    if not _ENCODED_WORDS.fullmatch(name):
        return name
    try:
        return str(make_header(decode_header(name))) or name
    except (LookupError, UnicodeError, HeaderParseError, ValueError):
        return name
