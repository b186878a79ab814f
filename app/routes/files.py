"""`/v1/files`: files that clients upload, and the output files of batches."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Response, Stream

from antiphon.app.base.errors import ApiError, clip_text, invalid_value, not_found
from antiphon.app.batches.stored_files import FileWriter, new_file_id, read_pieces
from antiphon.app.context import AnyRequest, request_owner, server_context
from antiphon.app.projections.batches import file_body
from antiphon.app.projections.item_lists import build_list
from antiphon.app.replies.http_replies import json_reply
from antiphon.app.replies.stored_reads import prepare_read
from antiphon.app.replies.upload import receive_upload
from antiphon.app.requests.batches.body import FILE_ID, read_purpose
from antiphon.app.requests.pagination import MAX_FILES_LIMIT, read_limit, read_order
from antiphon.app.store.batches.records import StoredFile
from antiphon.app.turns.manager import new_id


@post("/v1/files", status_code=200, before_request=prepare_read)
async def upload_file(request: AnyRequest) -> Response[Any]:
    """Stores a file: a multipart form with the fields "file", "purpose" and, optionally, "expires_after"."""
    context, owner = server_context(request), request_owner(request)
    now = int(context.turn_manager.clock())
    file = StoredFile(id=new_file_id(new_id), created_at=now, expires_at=None, filename="", purpose="")
    writer = FileWriter(context.store, owner, file, max_owner_bytes=context.store.max_owner_bytes)
    try:
        await writer.begin()
        completed = await receive_upload(request.headers.get("content-type", ""), request.stream(), writer)
        writer.file = completed
        await _complete_upload(request, writer)
    except BaseException:
        with contextlib.suppress(ApiError):  # the store is away, too
            await writer.discard()
        raise
    return json_reply(file_body(completed))


@get("/v1/files", before_request=prepare_read)
async def list_files(request: AnyRequest) -> Response[Any]:
    """Lists files, latest first by default."""
    context, owner, query = server_context(request), request_owner(request), request.query_params
    limit, after = read_limit(query, str(MAX_FILES_LIMIT), MAX_FILES_LIMIT), query.get("after")
    now, purpose = context.turn_manager.clock(), read_purpose(query)
    is_descending = read_order(query, "desc") == "desc"
    if after is not None and await _find_file(request, after) is None:
        raise invalid_value("after", f"Invalid 'after': there is no file with id '{clip_text(after)}'.")
    files = await context.store.read(
        lambda database: database.files.list_files(
            owner, now, limit=limit + 1, after=after, purpose=purpose, descending=is_descending
        )
    )
    return json_reply(build_list([file_body(file) for file in files[:limit]], has_more=len(files) > limit))


@get("/v1/files/{file_id:str}", before_request=prepare_read)
async def retrieve_file(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Returns a file without its content."""
    return json_reply(file_body(await _require_file(request, file_id)))


@get("/v1/files/{file_id:str}/content", before_request=prepare_read)
async def retrieve_content(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Returns the content of a file."""
    file = await _require_file(request, file_id)
    headers = {"content-length": str(file.size), "content-disposition": 'attachment; filename="file"'}
    content: AsyncIterator[bytes] = read_pieces(server_context(request).store, file.id)
    return Stream(content, media_type="application/octet-stream", headers=headers)


@delete("/v1/files/{file_id:str}", status_code=200, before_request=prepare_read)
async def delete_file(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Deletes a file, unless a batch reads it."""
    store, file = server_context(request).store, await _require_file(request, file_id)
    if not await store.change(lambda database: database.delete_unused_file(file.id)):
        message = f"The file '{file.id}' is the input of a batch that has not ended. Cancel the batch first."
        raise ApiError(409, "file_in_use", message)
    return json_reply({"id": file.id, "object": "file", "deleted": True})


async def _complete_upload(request: AnyRequest, writer: FileWriter) -> None:
    """Makes a file exist. Raises `ApiError` 404 if another server has deleted it, because this one was paused."""
    if not await server_context(request).store.change(writer.complete):
        raise not_found("The file was deleted while it was uploaded. Upload it again.")


async def _find_file(request: AnyRequest, file_id: str) -> StoredFile | None:
    """Returns the owner's file with this id, which may be malformed."""
    if not FILE_ID.fullmatch(file_id):
        return None
    context, owner = server_context(request), request_owner(request)
    now = context.turn_manager.clock()
    return await context.store.read(lambda database: database.files.find_file(owner, file_id, now))


async def _require_file(request: AnyRequest, file_id: str) -> StoredFile:
    """Returns the owner's file. Raises `ApiError` 404."""
    file = await _find_file(request, file_id)
    if file is None:
        raise not_found(f"No such File object: {clip_text(file_id)}", "id")
    return file
