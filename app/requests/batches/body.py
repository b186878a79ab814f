"""Bodies of `/v1/batches` and the fields of an upload to `/v1/files`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.app.base.errors import invalid_type, invalid_value, unknown_field
from antiphon.app.requests.fields import Echoed, Honoured, RequestBody
from antiphon.app.requests.fields.checks import build_check, check_choice, require_value
from antiphon.app.requests.fields.common import Metadata

MIN_FILE_LIFETIME_S = 3600
"""Shortest time after which a client may have a file deleted."""
MAX_FILE_LIFETIME_S = 30 * 86_400
"""Longest one. Files of other purposes than `batch` have no end if none was asked for."""
BATCH_FILE_LIFETIME_S = MAX_FILE_LIFETIME_S
"""Time after which files of batches are deleted if nothing else was asked for."""
BATCH_WINDOW_S = 86_400
"""Time after its creation at which a batch expires."""
MAX_FILE_BYTES = 200 << 20
BatchEndpoint = Literal["/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
FILE_PURPOSES = ("batch", "user_data", "assistants", "vision", "evals")
OUTPUT_PURPOSE = "batch_output"
"""Purpose of the files that batches write."""
FILE_ID = re.compile(r"^file-[A-Za-z0-9_-]{1,123}\Z")
BATCH_ID = re.compile(r"^batch_[A-Za-z0-9_-]{1,122}\Z")
Lifetime = Annotated[int, Meta(ge=MIN_FILE_LIFETIME_S, le=MAX_FILE_LIFETIME_S)]
_EXPIRY_FIELDS = ("expires_after[anchor]", "expires_after[seconds]")


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """Lifetime of files, counted from their creation."""

    anchor: Literal["created_at"]
    seconds: Lifetime


class BatchBody(RequestBody, frozen=True, kw_only=True):
    """Body of `POST /v1/batches`."""

    input_file_id: Honoured[Annotated[str, Meta(pattern=FILE_ID.pattern)]] = None
    """Required. Id of a file with the purpose `batch`."""
    endpoint: Honoured[BatchEndpoint] = None
    """Required. The path that every line of the file names."""
    completion_window: Honoured[Literal["24h"]] = None
    """Required. `24h`: lines that have no result by then expire."""
    metadata: Echoed[Metadata] = None
    """At most 16 pairs; keys of up to 64 characters, values of up to 512."""
    output_expires_after: Honoured[ExpiresAfter] = None
    """Lifetime of the output files: `anchor`, which is `created_at`, and `seconds` from 3600 to 2592000. Default: 30
    days."""


class UploadFields(Struct, frozen=True):
    """The fields of an upload besides the file itself."""

    purpose: str
    lifetime_s: int | None


def read_upload_fields(fields: Mapping[str, str]) -> UploadFields:
    """Reads the text fields of a multipart form. Raises `ApiError` 400."""
    for name in fields:
        if name not in ("purpose", *_EXPIRY_FIELDS):
            raise unknown_field(name)
    purpose = require_value(fields.get("purpose"), "purpose")
    check_choice(purpose, FILE_PURPOSES, "purpose")
    default_s = BATCH_FILE_LIFETIME_S if purpose == "batch" else None
    anchor, seconds = (fields.get(name) for name in _EXPIRY_FIELDS)
    if anchor is None and seconds is None:
        return UploadFields(purpose, default_s)
    check_choice(require_value(anchor, _EXPIRY_FIELDS[0]), ("created_at",), _EXPIRY_FIELDS[0])
    sent = require_value(seconds, _EXPIRY_FIELDS[1])
    if not re.fullmatch(r"-?[0-9]{1,9}", sent):
        raise invalid_type(_EXPIRY_FIELDS[1], "an integer", sent)
    build_check(Lifetime)(int(sent), _EXPIRY_FIELDS[1])
    return UploadFields(purpose, int(sent))


def read_purpose(query: Mapping[str, str]) -> str | None:
    """Returns the purpose that a list of files is limited to, if any. Raises `ApiError` 400."""
    if (purpose := query.get("purpose")) is not None:
        check_choice(purpose, (*FILE_PURPOSES, OUTPUT_PURPOSE), "purpose")
    return purpose


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
