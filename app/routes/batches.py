"""`/v1/batches`: files of requests that run when nothing else does."""

from functools import partial
from typing import Any

from litestar.params import FromPath
from litestar.response import Response

from antiphon.app.context import AnyRequest, endpoint_table, request_owner, request_query, server_context
from antiphon.app.errors import ApiError, clip_text, invalid_value, not_found
from antiphon.app.http.body_parsing import parse_body
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.projections.batches import batch_body
from antiphon.app.projections.item_lists import build_list
from antiphon.app.requests.batches.body import BATCH_ID, BATCH_WINDOW_S, BatchBody
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.fields.checks import check_choice, require_value
from antiphon.app.requests.pagination import BatchesQuery
from antiphon.app.route_helpers.counts import check_counts
from antiphon.app.route_helpers.http_replies import json_reply
from antiphon.app.route_helpers.stored_reads import prepare_read
from antiphon.app.store.batches.records import StoredBatch
from antiphon.app.store.database import Database
from antiphon.app.turn_types.ids import new_id

MAX_OPEN_BATCHES = 100
"""Batches of an owner that have not ended. Each has a row for each of its lines, up to 50 000."""
MAX_KEPT_BATCHES = 10_000
"""Batches of an owner that are kept, as long as responses are."""


async def prepare_batches(request: AnyRequest) -> None:
    """Runs before the handlers of batches. Raises `ApiError` if the server has none, or cannot read its store."""
    if server_context(request).batches is None:
        raise ApiError(404, "batches_disabled", "This server runs no batches: it was started with --no-batches.")
    await prepare_read(request)


@endpoint("POST", "/v1/batches", body=BatchBody, prepare=prepare_batches)
async def create_batch(request: AnyRequest) -> Response[Any]:
    """Starts a batch: every line of its input file is a request to one endpoint."""
    context, owner = server_context(request), request_owner(request)
    body = decode_body(BatchBody, await parse_body(await request.body()))
    file_id, endpoint = require_value(body.input_file_id, "input_file_id"), require_value(body.endpoint, "endpoint")
    check_choice(endpoint, endpoint_table(request).list_batchable(), "endpoint")
    window = require_value(body.completion_window, "completion_window")
    now = context.turn_manager.clock()
    file = await context.store.read(lambda database: database.files.find_file(owner, file_id, now))
    if file is None:
        raise _no_such_file(file_id)
    if file.purpose != "batch":
        raise invalid_value("input_file_id", f"Invalid 'input_file_id': its purpose is '{file.purpose}', not 'batch'.")
    batch = StoredBatch(
        id=new_id("batch"),
        endpoint=endpoint,
        input_file_id=file_id,
        created_at=int(now),
        expires_at=int(now) + BATCH_WINDOW_S,
        completion_window=window,
        metadata=body.metadata,
        key_id=request_state(request.scope).key.id,
        output_expires_s=body.output_expires_after.seconds if body.output_expires_after is not None else None,
    )
    started, counts = await context.store.change(partial(_start_batch, owner, batch, context.store.name))
    check_counts(counts, MAX_OPEN_BATCHES, MAX_KEPT_BATCHES, "batches", "POST /v1/batches/ID/cancel")
    if not started:
        raise _no_such_file(file_id)
    _wake_runner(request)
    return json_reply(batch_body(batch))


@endpoint("GET", "/v1/batches", query=BatchesQuery, prepare=prepare_batches)
async def list_batches(request: AnyRequest) -> Response[Any]:
    """Lists batches, latest first."""
    store, owner = server_context(request).store, request_owner(request)
    query = request_query(request, BatchesQuery)
    limit, after = query.limit, query.after
    batches = None
    if after is None or BATCH_ID.fullmatch(after):
        batches = await store.read(lambda database: database.batches.list_batches(owner, limit=limit + 1, after=after))
    if batches is None:
        raise invalid_value("after", f"Invalid 'after': there is no batch with id '{clip_text(after or '')}'.")
    return json_reply(build_list([batch_body(batch) for batch in batches[:limit]], has_more=len(batches) > limit))


@endpoint("GET", "/v1/batches/{batch_id}", prepare=prepare_batches)
async def retrieve_batch(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Returns a batch as it is now."""
    return json_reply(batch_body(await _require_batch(request, batch_id)))


@endpoint("POST", "/v1/batches/{batch_id}/cancel", prepare=prepare_batches)
async def cancel_batch(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
    """Cancels a batch. Lines that have a result keep it. A batch that has ended is returned unchanged."""
    context, batch = server_context(request), await _require_batch(request, batch_id)
    now = context.turn_manager.clock()
    await context.store.change(lambda database: database.batches.request_cancel(batch.id, now))
    _wake_runner(request)
    return json_reply(batch_body(await _require_batch(request, batch_id)))


def _start_batch(owner: str, batch: StoredBatch, writer: str, database: Database) -> tuple[bool, tuple[int, int]]:
    """Starts a batch, unless the owner has too many. Returns whether it could, and the numbers that it had."""
    counts = database.batches.count_batches(owner)
    has_room = counts[0] < MAX_OPEN_BATCHES and counts[1] < MAX_KEPT_BATCHES
    return has_room and database.start_batch(owner, batch, writer), counts


def _no_such_file(file_id: str) -> ApiError:
    return invalid_value("input_file_id", f"Invalid 'input_file_id': No such File object: {clip_text(file_id)}")


def _wake_runner(request: AnyRequest) -> None:
    if (runner := server_context(request).batches) is not None:
        runner.wake()


async def _find_batch(request: AnyRequest, batch_id: str) -> StoredBatch | None:
    """Returns the owner's batch with this id, which may be malformed."""
    if not BATCH_ID.fullmatch(batch_id):
        return None
    owner = request_owner(request)
    return await server_context(request).store.read(lambda database: database.batches.find_batch(owner, batch_id))


async def _require_batch(request: AnyRequest, batch_id: str) -> StoredBatch:
    """Returns the owner's batch. Raises `ApiError` 404."""
    batch = await _find_batch(request, batch_id)
    if batch is None:
        raise not_found(f"No batch found with id '{clip_text(batch_id)}'.")
    return batch
