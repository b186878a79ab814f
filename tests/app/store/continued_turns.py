"""Turns in the background that another server continues."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from antiphon.app.context import ServerContext, create_context
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.turn_types.event_log import EventLog
from tests.app.store.store_helpers import StorePlace
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry

TEXT = "one two three four five six seven eight"
SCRIPT = [{"name": "words", "output": [TEXT], "tokens_per_chunk": 1}]
BODY = {"model": "scripted", "input": "Hi", "background": True, "store": True}
DELAY_S = 0.005


@asynccontextmanager
async def run_context(
    place: StorePlace, *, delay: float = DELAY_S, registry: ModelRegistry | None = None, **settings: Any
) -> AsyncIterator[ServerContext]:
    """Runs all of a server but its socket. At its end, the server leaves its responses open, as at a restart."""
    async with place.open() as store:
        models = registry or scripted_registry(SCRIPT, delay=delay)
        context = create_context(Settings(**settings), models, store=store)
        early = context.settings.show_uncommitted
        context.turn_manager.continuer.start(models.served, context.settings.continue_within, background_only=early)
        await context.turn_manager.continuer.wait_started()
        try:
            yield context
        finally:
            await context.turn_manager.drain(0)


async def start_turn(context: ServerContext, **fields: Any) -> EventLog:
    parsed = read_responses_request(BODY | fields, context.models)
    return await context.turn_manager.start_turn(parsed.model, parsed.spec)


async def wait_for_entries(log: EventLog, count: int) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while log.published < count:
            await asyncio.sleep(0.002)


async def read_end(context: ServerContext, response_id: str) -> list[dict[str, Any]]:
    """Returns all events of a response, which ends."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        log = await context.store.read_log("", response_id)
        assert log is not None
        await log.wait_finished()
    return [json.loads(entry.data) for entry in log.entries]
