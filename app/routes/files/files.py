"""`/v1/files`: files that clients upload, and the output files of batches.

OpenAI and Anthropic have the same paths. A request with the header `anthropic-version` gets Anthropic's replies.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from litestar.params import FromPath
from litestar.response import Response, Stream

from antiphon.app.batches.stored_files import FileWriter, new_file_id, read_pieces
from antiphon.app.context import AnyRequest, request_owner, request_query, server_context
from antiphon.app.errors import ANTHROPIC_HEADER, NO_RETRY, ApiError, clip_text, invalid_value, not_found
from antiphon.app.http.endpoints.endpoint import Form, endpoint
from antiphon.app.projections.files import anthropic_file_body, anthropic_file_id, file_body
from antiphon.app.projections.item_lists import build_list
from antiphon.app.requests.batches.body import MAX_BATCH_FILE_BYTES, read_file_id
from antiphon.app.requests.pagination import (
    DEFAULT_LIMIT,
    PAGE_PREFIX,
    AnthropicFilesQuery,
    FilesQuery,
    read_ids,
    read_page,
)
from antiphon.app.requests.query_fields import BetaQuery
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.route_helpers.stored_reads import prepare_read
from antiphon.app.route_helpers.upload import ANTHROPIC_FORM, OPENAI_FORM, receive_upload
from antiphon.app.store.batches.records import StoredFile
from antiphon.app.turn_types.ids import new_id


@endpoint(
    "POST", "/v1/files", body=Form(MAX_BATCH_FILE_BYTES), query=BetaQuery, shape="by_header", prepare=prepare_read
)
async def upload_file(request: AnyRequest) -> Response[Any]:
    """Stores a file: a multipart form with the fields "file", "purpose" and, optionally, "expires_after".

    Anthropic's form has "file" and, optionally, "expires_in_seconds".
    """
    context, owner = server_context(request), request_owner(request)
    now = int(context.turn_manager.clock())
    file = StoredFile(id=new_file_id(new_id), created_at=now, expires_at=None, filename="", purpose="")
    writer = FileWriter(context.store, owner, file, is_limited=True)
    form = ANTHROPIC_FORM if _is_anthropic(request) else OPENAI_FORM
    content_type = request.headers.get("content-type", "")
    try:
        await writer.begin()
        completed = await receive_upload(content_type, request.stream(), writer, form, context.settings.max_file_mib)
        writer.file = completed
        await _complete_file(request, writer)
    except BaseException:
        with contextlib.suppress(ApiError):  # the store is away, too
            await writer.discard()
        raise
    return _file_reply(request, completed)


@endpoint(
    "GET", "/v1/files", query=FilesQuery, anthropic_query=AnthropicFilesQuery, shape="by_header", prepare=prepare_read
)
async def list_files(request: AnyRequest) -> Response[Any]:
    """Lists files, latest first by default."""
    if _is_anthropic(request):
        return await _list_anthropic(request)
    query = request_query(request, FilesQuery)
    limit, after, is_descending = query.limit, query.after, query.order == "desc"
    files = await _load_files(request, limit + 1, after, purpose=query.purpose, descending=is_descending)
    if files is None:
        raise invalid_value("after", f"Invalid 'after': there is no file with id '{clip_text(after or '')}'.")
    return json_reply(build_list([file_body(file) for file in files[:limit]], has_more=len(files) > limit))


@endpoint("GET", "/v1/files/{file_id}", query=BetaQuery, shape="by_header", prepare=prepare_read)
async def retrieve_file(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Returns a file without its content."""
    return _file_reply(request, await _require_file(request, file_id))


@endpoint(
    "GET",
    "/v1/files/{file_id}/content",
    query=BetaQuery,
    shape="by_header",
    prepare=prepare_read,
    media_types=("application/octet-stream",),
)
async def retrieve_content(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Returns the content of a file."""
    file = await _require_file(request, file_id)
    headers = {"content-length": str(file.size), "content-disposition": 'attachment; filename="file"'}
    content: AsyncIterator[bytes] = read_pieces(server_context(request).store, file.id)
    return Stream(content, media_type="application/octet-stream", headers=headers)


@endpoint("DELETE", "/v1/files/{file_id}", query=BetaQuery, shape="by_header", prepare=prepare_read)
async def delete_file(request: AnyRequest, file_id: FromPath[str]) -> Response[Any]:
    """Deletes a file, unless a batch reads it."""
    store, file = server_context(request).store, await _require_file(request, file_id)
    if not await store.change(lambda database: database.delete_unused_file(file.id)):
        message = f"The file '{file.id}' is the input of a batch that has not ended. Cancel the batch first."
        raise ApiError(409, "file_in_use", message, headers=NO_RETRY)
    if _is_anthropic(request):
        return json_reply({"id": anthropic_file_id(file.id), "type": "file_deleted"})
    return json_reply({"id": file.id, "object": "file", "deleted": True})


async def find_file(request: AnyRequest, file_id: str) -> StoredFile | None:
    """Returns the owner's file with this id, which may be malformed."""
    if (stored_id := read_file_id(file_id)) is None:
        return None
    context, owner = server_context(request), request_owner(request)
    now = context.turn_manager.clock()
    return await context.store.read(lambda database: database.files.find_file(owner, stored_id, now))


async def _list_anthropic(request: AnyRequest) -> Response[Any]:
    """Returns a list as Anthropic's API has it: a page, or the files with the ids of the query."""
    query = request_query(request, AnthropicFilesQuery)
    ids = read_ids(query)
    if ids:
        stored_ids = [stored_id for each in ids if (stored_id := read_file_id(each)) is not None]
        context, owner = server_context(request), request_owner(request)
        now = context.turn_manager.clock()
        found = await context.store.read(lambda database: database.files.find_files(owner, stored_ids, now))
        return json_reply({"data": [anthropic_file_body(file) for file in found], "next_page": None})
    limit, page = query.limit or DEFAULT_LIMIT, read_page(query)
    files = await _load_files(request, limit + 1, page, purpose=None, descending=True)
    if files is None:
        raise invalid_value("page", "Invalid 'page': it is not the 'next_page' of a list. Begin the list again.")
    next_page = f"{PAGE_PREFIX}{files[limit - 1].id}" if len(files) > limit else None
    return json_reply({"data": [anthropic_file_body(file) for file in files[:limit]], "next_page": next_page})


async def _load_files(
    request: AnyRequest, limit: int, after: str | None, *, purpose: str | None, descending: bool
) -> list[StoredFile] | None:
    """Returns files behind the one with the id `after`, which may be malformed; None if there was no such file."""
    after_id = None if after is None else read_file_id(after)
    if after is not None and after_id is None:
        return None
    context, owner = server_context(request), request_owner(request)
    now = context.turn_manager.clock()
    return await context.store.read(
        lambda database: database.files.list_files(
            owner, now, limit=limit, after=after_id, purpose=purpose, descending=descending
        )
    )


async def _complete_file(request: AnyRequest, writer: FileWriter) -> None:
    """Makes a file exist. Raises `ApiError` 404 if another server has deleted it, because this one was paused."""
    if not await server_context(request).store.change(writer.complete):
        raise not_found("The file was deleted while it was uploaded. Upload it again.")


async def _require_file(request: AnyRequest, file_id: str) -> StoredFile:
    """Returns the owner's file. Raises `ApiError` 404."""
    file = await find_file(request, file_id)
    if file is None:
        raise not_found(f"No such File object: {clip_text(file_id)}", "id")
    return file


def _is_anthropic(request: AnyRequest) -> bool:
    return ANTHROPIC_HEADER in request.headers


def _file_reply(request: AnyRequest, file: StoredFile) -> Response[Any]:
    return json_reply(anthropic_file_body(file) if _is_anthropic(request) else file_body(file))
