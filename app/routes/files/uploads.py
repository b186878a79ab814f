"""`/v1/uploads`: files that arrive in parts. Each part is a file of its own until the upload ends."""

import contextlib
import hashlib
from functools import partial
from typing import Any

from litestar.params import FromPath
from litestar.response import Response
from msgspec import structs

from antiphon.app.batches.stored_files import FileGoneError, FileWriter, new_file_id, read_pieces
from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_value, not_found
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import Form, endpoint
from antiphon.app.projections.files import DEFAULT_MEDIA_TYPE, part_body, upload_body
from antiphon.app.requests.batches.body import (
    BATCH_FILE_LIFETIME_S,
    CompleteUploadBody,
    NewUploadBody,
    clean_filename,
    clean_media_type,
)
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.fields.checks import require_value
from antiphon.app.route_helpers.counts import check_counts
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.route_helpers.stored_reads import prepare_read
from antiphon.app.route_helpers.upload import PART_FORM, max_file_bytes, receive_upload
from antiphon.app.store.batches.records import StoredFile, StoredUpload
from antiphon.app.store.database import Database
from antiphon.app.turn_types.ids import new_id

UPLOAD_LIFETIME_S = 3600
"""Time after its creation in which an upload takes parts and can be completed."""
MAX_OPEN_UPLOADS = 100
"""Uploads of an owner that take parts at the same time."""
MAX_KEPT_UPLOADS = 10_000
"""Uploads of an owner that are known. One is forgotten a day after it could take its last part."""


@endpoint("POST", "/v1/uploads", body=NewUploadBody, prepare=prepare_read)
async def create_upload(request: AnyRequest) -> Response[Any]:
    """Begins a file that arrives in parts, within an hour."""
    context, owner = server_context(request), request_owner(request)
    body = decode_body(NewUploadBody, await parse_body(await request.body()))
    size, purpose = require_value(body.bytes, "bytes"), require_value(body.purpose, "purpose")
    limit = max_file_bytes(purpose, context.settings.max_file_mib)
    if size > limit:
        raise ApiError(413, "file_too_large", f"A file may have at most {limit} bytes.", "bytes")
    lifetime_s = body.expires_after.seconds if body.expires_after is not None else None
    now = int(context.turn_manager.clock())
    upload = StoredUpload(
        id=new_id("upload"),
        created_at=now,
        expires_at=now + UPLOAD_LIFETIME_S,
        size=size,
        filename=clean_filename(require_value(body.filename, "filename"), "file"),
        purpose=purpose,
        media_type=clean_media_type(require_value(body.mime_type, "mime_type")) or DEFAULT_MEDIA_TYPE,
        file_expires_s=BATCH_FILE_LIFETIME_S if lifetime_s is None and purpose == "batch" else lifetime_s,
    )
    counts = await context.store.change(partial(_insert_upload, owner, upload))
    check_counts(counts, MAX_OPEN_UPLOADS, MAX_KEPT_UPLOADS, "uploads", "POST /v1/uploads/ID/cancel")
    return json_reply(upload_body(upload, now))


@endpoint("POST", "/v1/uploads/{upload_id}/parts", body=Form(), prepare=prepare_read)
async def add_upload_part(request: AnyRequest, upload_id: FromPath[str]) -> Response[Any]:
    """Stores a part of an upload: a multipart form with the field "data"."""
    context, owner = server_context(request), request_owner(request)
    upload = await _require_pending(request, upload_id)
    now = int(context.turn_manager.clock())
    part = StoredFile(
        id=new_id("part"),
        created_at=now,
        expires_at=upload.expires_at,
        filename="",
        purpose=upload.purpose,
        upload_id=upload.id,
    )
    writer = FileWriter(context.store, owner, part, is_limited=True)
    content_type, limit = request.headers.get("content-type", ""), context.settings.max_file_mib
    try:
        await writer.begin()
        part = await receive_upload(content_type, request.stream(), writer, PART_FORM, limit)
        await _complete_part(request, upload, part)
    except BaseException:
        with contextlib.suppress(ApiError):  # the store is away, too
            await writer.discard()
        raise
    return json_reply(part_body(part))


@endpoint("POST", "/v1/uploads/{upload_id}/complete", body=CompleteUploadBody, prepare=prepare_read)
async def complete_upload(request: AnyRequest, upload_id: FromPath[str]) -> Response[Any]:
    """Makes a file of the parts of an upload. A repeated request gets the same reply."""
    context, owner = server_context(request), request_owner(request)
    body = decode_body(CompleteUploadBody, await parse_body(await request.body()))
    part_ids = require_value(body.part_ids, "part_ids")
    upload, now = await _find_upload(request, upload_id), int(context.turn_manager.clock())
    if upload.status == "completed":
        return json_reply(upload_body(upload, now))
    _check_pending(upload, now)
    parts = _select_parts(
        upload, part_ids, await context.store.read(lambda database: database.files.list_parts(owner, upload.id))
    )
    expires_at = None if upload.file_expires_s is None else now + upload.file_expires_s
    file = StoredFile(
        id=new_file_id(new_id),
        created_at=now,
        expires_at=expires_at,
        filename=upload.filename,
        purpose=upload.purpose,
        media_type=upload.media_type,
    )
    writer = FileWriter(context.store, owner, file, is_limited=True)
    try:
        await writer.begin()
        await _join_parts(request, writer, parts, body.md5)
        ended = structs.replace(upload, status="completed", file=writer.file)
        await _complete_file(request, writer, ended)
    except BaseException:
        with contextlib.suppress(ApiError):  # the store is away, too
            await writer.discard()
        raise
    return json_reply(upload_body(ended, now))


@endpoint("POST", "/v1/uploads/{upload_id}/cancel", prepare=prepare_read)
async def cancel_upload(request: AnyRequest, upload_id: FromPath[str]) -> Response[Any]:
    """Ends an upload without a file, and deletes its parts. A repeated request gets the same reply."""
    context, owner = server_context(request), request_owner(request)
    upload, now = await _find_upload(request, upload_id), context.turn_manager.clock()
    if upload.status == "cancelled":
        return json_reply(upload_body(upload, now))
    cancelled = structs.replace(upload, status="cancelled")
    if not await context.store.change(lambda database: database.uploads.end_upload(owner, cancelled)):
        raise _ended_error(upload.id)
    return json_reply(upload_body(cancelled, now))


async def _complete_part(request: AnyRequest, upload: StoredUpload, part: StoredFile) -> None:
    """Makes a part exist. Raises `ApiError` if the upload does not take it."""
    store, owner = server_context(request).store, request_owner(request)
    refusal = await store.change(lambda database: database.uploads.complete_part(owner, upload, part, store.name))
    if refusal is not None:
        raise invalid_value("data", refusal)


async def _complete_file(request: AnyRequest, writer: FileWriter, ended: StoredUpload) -> None:
    """Makes the file of an upload exist, and ends the upload. Raises `ApiError` if that has ended meanwhile."""
    store, owner = server_context(request).store, request_owner(request)

    def complete(database: Database) -> bool:
        return writer.lock(database) and database.uploads.end_upload(owner, ended) and writer.complete(database)

    if not await store.change(complete):
        raise _ended_error(ended.id)


async def _join_parts(request: AnyRequest, writer: FileWriter, parts: list[StoredFile], md5: str | None) -> None:
    """Writes the content of the parts. Raises `ApiError` if one was deleted, and for another MD5 than that."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        for part in parts:
            async for piece in read_pieces(server_context(request).store, part.id):
                digest.update(piece)
                await writer.write(piece)
        await writer.flush()
    except FileGoneError:
        raise _ended_error(parts[0].upload_id or "") from None
    if writer.file.size != sum(part.size for part in parts):
        raise _ended_error(parts[0].upload_id or "")
    if md5 is not None and digest.hexdigest() != md5.lower():
        raise invalid_value("md5", f"Invalid 'md5': that of the parts is '{digest.hexdigest()}'.")


def _select_parts(upload: StoredUpload, part_ids: list[str], stored: list[StoredFile]) -> list[StoredFile]:
    """Returns the parts with these ids. Raises `ApiError` if they are not the whole file."""
    parts_by_id = {part.id: part for part in stored}
    if len(set(part_ids)) < len(part_ids):
        raise invalid_value("part_ids", "Invalid 'part_ids': name each part once.")
    for index, part_id in enumerate(part_ids):
        if part_id not in parts_by_id:
            raise invalid_value(f"part_ids[{index}]", f"The upload has no part with id '{clip_text(part_id)}'.")
    parts = [parts_by_id[part_id] for part_id in part_ids]
    total = sum(part.size for part in parts)
    if total != upload.size:
        message = f"The parts have {total} bytes; the upload was created with {upload.size}."
        raise invalid_value("part_ids", message)
    return parts


async def _find_upload(request: AnyRequest, upload_id: str) -> StoredUpload:
    """Returns the owner's upload. Raises `ApiError` 404."""
    owner = request_owner(request)
    upload = await server_context(request).store.read(
        lambda database: database.uploads.find_upload(owner, upload_id) if upload_id.isascii() else None
    )
    if upload is None:
        raise not_found(f"No such Upload object: {clip_text(upload_id)}", "id")
    return upload


async def _require_pending(request: AnyRequest, upload_id: str) -> StoredUpload:
    upload = await _find_upload(request, upload_id)
    _check_pending(upload, server_context(request).turn_manager.clock())
    return upload


def _check_pending(upload: StoredUpload, now: float) -> None:
    if upload.status != "pending":
        raise _ended_error(upload.id)
    if upload.expires_at <= now:
        raise invalid_value("id", f"The upload '{upload.id}' has expired. Create another one.")


def _ended_error(upload_id: str) -> ApiError:
    return invalid_value("id", f"The upload '{upload_id}' has ended: it is completed or cancelled.")


def _insert_upload(owner: str, upload: StoredUpload, database: Database) -> tuple[int, int]:
    """Inserts an upload, unless the owner has too many. Returns the numbers that it had."""
    counts = database.uploads.count_uploads(owner, upload.created_at)
    if counts[0] < MAX_OPEN_UPLOADS and counts[1] < MAX_KEPT_UPLOADS:
        database.uploads.insert_upload(owner, upload)
    return counts
