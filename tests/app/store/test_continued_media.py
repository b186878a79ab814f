"""Responses with images and files, whose server is gone: the other one prepares them again from the store."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.inspection.summaries import RESTARTED_CODE
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.turn_types.event_log import EventLog, is_terminal
from antiphon.app.turns.stored_history import StoredHistory
from tests.app.media.documents import make_pdf
from tests.app.store.continued_turns import read_end, run_context, wait_for_entries
from tests.app.store.store_helpers import StorePlace
from tests.clients.media.vision_model import data_url, make_png, vision_registry, write_vision_model
from tests.invariants import check_stream

pytestmark = pytest.mark.processes
WORDS = [step for number in range(20) for step in ({"pause": 0.02}, f"w{number} ")]
SCRIPT: list[dict[str, Any]] = [{"name": "words", "output": [*WORDS, {"media": True}]}]
PICTURE = {"type": "input_image", "image_url": data_url(make_png(64, 32))}
DOCUMENT = {
    "type": "input_file",
    "filename": "a.pdf",
    "file_data": data_url(make_pdf("gamma delta"), "application/pdf"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_vision_model(tmp_path / "vision")


async def start_turn(context: Any, parts: list[dict[str, Any]], **fields: Any) -> EventLog:
    body = {"model": "vision", "input": [{"role": "user", "content": parts}], "background": True} | fields
    if previous := fields.get("previous_response_id"):
        await context.store.prepare_read("", previous)
    history = StoredHistory(context.store, "", context.turn_manager.sealer)
    parsed = await asyncio.to_thread(read_responses_request, body, context.models, history)
    log: EventLog = await context.turn_manager.start_turn(parsed.model, parsed.spec)
    return log


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@pytest.mark.parametrize("parts", [[PICTURE], [DOCUMENT], [PICTURE, DOCUMENT]], ids=["image", "pdf", "both"])
async def test_response_with_media_continues(place: StorePlace, folder: Path, parts: list[dict[str, Any]]) -> None:
    async with run_context(place, registry=vision_registry(folder, SCRIPT)) as first:
        whole = await start_turn(first, parts)
        expected = check_stream(await read_end(first, whole.id))
        log = await start_turn(first, parts)
        await wait_for_entries(log, 12)
    assert not is_terminal(log.entries)
    async with run_context(place, registry=vision_registry(folder, SCRIPT)) as second:
        response = check_stream(await read_end(second, log.id))
    assert (response["status"], text_of(response)) == ("completed", text_of(expected))
    assert response["usage"]["input_tokens"] == expected["usage"]["input_tokens"]


async def test_response_whose_image_was_deleted_ends_with_that_reason(place: StorePlace, folder: Path) -> None:
    async with run_context(place, registry=vision_registry(folder, SCRIPT)) as first:
        earlier = await start_turn(first, [PICTURE])
        await earlier.wait_finished()
        log = await start_turn(first, [{"type": "input_text", "text": "And?"}], previous_response_id=earlier.id)
        await wait_for_entries(log, 12)
        await first.store.delete_response("", earlier.id)
    async with run_context(place, registry=vision_registry(folder, SCRIPT)) as second:
        error = (await read_end(second, log.id))[-1]["response"]["error"]
    assert error["code"] == RESTARTED_CODE and "an image of its conversation was deleted" in error["message"]
