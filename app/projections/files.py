"""Files and uploads as JSON, in the formats of both APIs."""

from datetime import UTC, datetime
from typing import Any

from antiphon.app.store.batches.records import StoredFile, StoredUpload

ANTHROPIC_PREFIX = "file_"
DEFAULT_MEDIA_TYPE = "application/octet-stream"


def file_body(file: StoredFile) -> dict[str, Any]:
    """Returns a file without its content, as OpenAI's API has it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def anthropic_file_body(file: StoredFile) -> dict[str, Any]:
    """Returns a file without its content, as Anthropic's API has it."""
    return {
        "id": anthropic_file_id(file.id),
        "type": "file",
        "filename": file.filename,
        "mime_type": file.media_type.partition(";")[0] or DEFAULT_MEDIA_TYPE,
        "size_bytes": file.size,
        "created_at": _format_time(file.created_at),
        "downloadable": True,
        "expires_at": None if file.expires_at is None else _format_time(file.expires_at),
    }


def anthropic_file_id(file_id: str) -> str:
    """Returns the id of a file as Anthropic's API has it: `file_…` in place of `file-…`."""
    return f"{ANTHROPIC_PREFIX}{file_id[5:]}"


def upload_body(upload: StoredUpload, now: float) -> dict[str, Any]:
    """Returns an upload. `now` is in seconds since 1970."""
    is_expired = upload.status == "pending" and upload.expires_at <= now
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.size,
        "created_at": upload.created_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": "expired" if is_expired else upload.status,
        "expires_at": upload.expires_at,
        "file": None if upload.file is None else file_body(upload.file),
    }


def part_body(part: StoredFile) -> dict[str, Any]:
    """Returns a part of an upload."""
    return {"id": part.id, "object": "upload.part", "created_at": part.created_at, "upload_id": part.upload_id}


def _format_time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
