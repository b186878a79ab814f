"""Bodies of `/v1/batches` and `/v1/uploads`, and the fields of an upload to `/v1/files`."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.app.errors import invalid_value, unknown_field
from antiphon.app.requests.fields import Echoed, Honoured, RequestBody
from antiphon.app.requests.fields.checks import build_check, check_choice, require_value
from antiphon.app.requests.fields.common import Metadata
from antiphon.app.requests.query_fields import parse_integer
from antiphon.app.turn_types.blob_urls import describe_type

MIN_FILE_LIFETIME_S = 3600
"""Shortest time after which a client may have a file deleted."""
MAX_FILE_LIFETIME_S = 30 * 86_400
"""Longest one. Files of other purposes than `batch` have no end if none was asked for."""
BATCH_FILE_LIFETIME_S = MAX_FILE_LIFETIME_S
"""Time after which files of batches are deleted if nothing else was asked for."""
BATCH_WINDOW_S = 86_400
"""Time after its creation at which a batch expires."""
MAX_ANTHROPIC_LIFETIME_S = 90 * 86_400
MAX_BATCH_FILE_BYTES = 200 << 20
"""Largest file of a batch. `--max-file-mib` is the limit of the others."""
FILE_PURPOSES = ("batch", "user_data", "assistants", "vision")
OUTPUT_PURPOSE = "batch_output"
"""Purpose of the files that batches write."""
MAX_FILENAME_CHARS = 255
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")
FILE_ID = re.compile(r"^file-[A-Za-z0-9_-]{1,123}\Z")
BATCH_ID = re.compile(r"^batch_[A-Za-z0-9_-]{1,122}\Z")
Lifetime = Annotated[int, Meta(ge=MIN_FILE_LIFETIME_S, le=MAX_FILE_LIFETIME_S)]
AnthropicLifetime = Annotated[int, Meta(ge=MIN_FILE_LIFETIME_S, le=MAX_ANTHROPIC_LIFETIME_S)]
_ANTHROPIC_FIELD = "expires_in_seconds"
_EXPIRY_FIELDS = ("expires_after[anchor]", "expires_after[seconds]")


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """Lifetime of files, counted from their creation."""

    anchor: Literal["created_at"]
    seconds: Lifetime


class BatchBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/batches`."""

    input_file_id: Honoured[Annotated[str, Meta(pattern=FILE_ID.pattern)]] = None
    """Required. Id of a file with the purpose `batch`."""
    endpoint: Honoured[str] = None
    """Required. The path that every line of the file names."""
    completion_window: Honoured[Literal["24h"]] = None
    """Required. `24h`: lines that have no result by then expire."""
    metadata: Echoed[Metadata] = None
    """At most 16 pairs; keys of up to 64 characters, values of up to 512."""
    output_expires_after: Honoured[ExpiresAfter] = None
    """Lifetime of the output files: `anchor`, which is `created_at`, and `seconds` from 3600 to 2592000. Default: 30
    days."""


class NewUploadBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/uploads`."""

    bytes: Honoured[Annotated[int, Meta(ge=1)]] = None
    """Required. Size of the file, at most `--max-file-mib`, or 200 MiB with the purpose `batch`."""
    filename: Honoured[Annotated[str, Meta(max_length=4096)]] = None
    """Required. Its last part is kept, up to 255 characters; it must have no control characters."""
    mime_type: Honoured[Annotated[str, Meta(max_length=255)]] = None
    """Required."""
    purpose: Honoured[Literal["batch", "user_data", "assistants", "vision"]] = None
    """Required."""
    expires_after: Honoured[ExpiresAfter] = None
    """Lifetime of the file: `anchor`, which is `created_at`, and `seconds` from 3600 to 2592000."""


class CompleteUploadBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/uploads/{upload_id}/complete`."""

    part_ids: Honoured[list[Annotated[str, Meta(max_length=128)]]] = None
    """Required. Ids of all parts that the file is made of, in order."""
    md5: Honoured[Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{32}\Z")]] = None
    """MD5 of the file in hexadecimal digits. If it is another one, the upload stays pending."""


class UploadFields(Struct, frozen=True):
    """The fields of an upload besides the file itself."""

    purpose: str
    lifetime_s: int | None


def read_upload_fields(fields: Mapping[str, str]) -> UploadFields:
    """Reads the text fields of OpenAI's form. Raises `ApiError` 400."""
    _check_known(fields, "purpose", *_EXPIRY_FIELDS)
    purpose = require_value(fields.get("purpose"), "purpose")
    check_choice(purpose, FILE_PURPOSES, "purpose")
    default_s = BATCH_FILE_LIFETIME_S if purpose == "batch" else None
    anchor, seconds = (fields.get(name) for name in _EXPIRY_FIELDS)
    if anchor is None and seconds is None:
        return UploadFields(purpose, default_s)
    check_choice(require_value(anchor, _EXPIRY_FIELDS[0]), ("created_at",), _EXPIRY_FIELDS[0])
    return UploadFields(purpose, _read_seconds(require_value(seconds, _EXPIRY_FIELDS[1]), _EXPIRY_FIELDS[1], Lifetime))


def read_anthropic_fields(fields: Mapping[str, str]) -> UploadFields:
    """Reads the text fields of Anthropic's form. Its files have the purpose `user_data`. Raises `ApiError` 400."""
    _check_known(fields, _ANTHROPIC_FIELD)
    seconds = fields.get(_ANTHROPIC_FIELD)
    lifetime_s = None if seconds is None else _read_seconds(seconds, _ANTHROPIC_FIELD, AnthropicLifetime)
    return UploadFields("user_data", lifetime_s)


def _read_seconds(sent: str, name: str, kind: Any) -> int:
    seconds = parse_integer(sent, name)
    build_check(kind)(seconds, name)
    return seconds


def read_part_fields(fields: Mapping[str, str]) -> UploadFields:
    """Reads the text fields of a part of an upload: there are none. Raises `ApiError` 400."""
    _check_known(fields)
    return UploadFields("", None)


def _check_known(fields: Iterable[str], *known: str) -> None:
    for name in fields:
        if name not in known:
            raise unknown_field(name)


def read_file_id(sent: str) -> str | None:
    """Returns the id under which a file is stored; None for a malformed one.

    Anthropic's clients see and send `file_…` in place of `file-…`. Both are good in every API.
    """
    file_id = f"file-{sent[5:]}" if sent.startswith("file_") else sent
    return file_id if FILE_ID.fullmatch(file_id) else None


def clean_filename(sent: str, default: str) -> str:
    """Returns the last part of a file's name, which is never a path here. Raises `ApiError` 400.

    Control characters are refused: a name is shown in terminals and sent in headers.
    """
    if any(unicodedata.category(char) == "Cc" for char in sent):
        raise invalid_value("filename", "Invalid 'filename': it has a control character.")
    name = "".join(filter(str.isprintable, sent.replace("\\", "/").rpartition("/")[2]))
    return name[:MAX_FILENAME_CHARS] or default


def clean_media_type(sent: str | None) -> str:
    """Returns the media type of a file, with the charset of a text; empty if it is none."""
    media_type, *parameters = (part.strip().lower() for part in (sent or "").split(";"))
    declared = next((each for each in parameters if each.startswith("charset=")), "")
    charset = declared.removeprefix("charset=").strip('"')
    return describe_type(media_type, charset) if _MEDIA_TYPE.fullmatch(media_type) else ""


class _LineModes(Struct, frozen=True):
    """The fields of a line's body that say how the reply arrives."""

    stream: Any = None
    background: Any = None


_modes_decoder = msgspec.json.Decoder(_LineModes)


def check_line_body(body: bytes) -> None:
    """Refuses the modes of a reply that a line cannot have; the endpoint checks the rest. Raises `ApiError` 400."""
    try:
        modes = _modes_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    for name, reason in (("stream", "has no stream"), ("background", "runs in the background already")):
        if getattr(modes, name):
            raise invalid_value(name, f"Invalid '{name}': a line of a batch {reason}. Leave the field out.")
