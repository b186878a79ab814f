"""Sums of keys over random lives of turns: refused, retried, handed over, killed, steered, cancelled, continued.

They equal the sums of what the responses say.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from antiphon.app.context import ServerContext, create_context
from antiphon.app.errors import ApiError
from antiphon.app.options.api_keys import ApiKey, key_digest
from antiphon.app.options.settings import Settings
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.store.history.usage_tables import UsageQuery
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnOrigin
from antiphon.engine.protocol import EngineError, Job
from tests.app.store.store_helpers import SqlitePlace
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry

SCRIPT = [
    {"name": "words", "output": ["<think>\nHm, one.\n</think>\n\ntwo three four five six"], "tokens_per_chunk": 1}
]
KEYS = tuple(ApiKey(digest=key_digest(f"sk-{number}"), owner="team", name="team") for number in range(2))
NUM_LIVES = 200 if FULL_COUNTS else 10
NUM_TURNS = 12
DELAY_S = 0.002
REFUSALS = ("server_is_overloaded", "engine_unavailable", "invalid_request")
FATES = ("completed", "refused", "retried", "half refused", "cancelled", "left", "steered", "handed over", "killed")
Sums = Counter[tuple[str, str]]
"""Numbers by the id of a key and their name."""


class LivingServer:
    """A server without a socket, which restarts: its keys, and the responses that its clients know."""

    def __init__(self, place: SqlitePlace, dice: random.Random) -> None:
        self._place, self._dice = place, dice
        self.refusals: list[str] = []
        """Codes of the errors with which the engine refuses the jobs of new responses; "" for one that it takes."""
        self.known: dict[str, ApiKey] = {}
        self.expected: Sums = Counter()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[ServerContext]:
        async with self._place.open() as store:
            models = scripted_registry(SCRIPT, delay=DELAY_S, max_num_seqs=2)
            engine = models.served[0].engine
            generate = engine.generate

            async def refuse_or_generate(job: Job, on_chunk: Any) -> None:
                # The job of a response that this server continues may come at any time.
                if job.id not in self.known and self.refusals and (code := self.refusals.pop(0)):
                    raise EngineError(code, "no")
                await generate(job, on_chunk)

            engine.generate = refuse_or_generate  # type: ignore[method-assign]
            context = create_context(Settings(fixed_keys=KEYS), models, store=store)
            context.turn_manager.continuer.start(models.served, 60.0)
            await context.turn_manager.continuer.wait_started()
            yield context

    async def start_turn(self, context: ServerContext, key: ApiKey, **options: Any) -> EventLog:
        n, is_batch = options.pop("n", 1), options.pop("is_batch", False)
        body = {"model": "scripted", "input": "Hi " * self._dice.randrange(1, 9), "store": True, **options}
        parsed = read_responses_request(body, context.models)
        origin, spec = TurnOrigin(key=key, is_batch=is_batch), structs.replace(parsed.spec, n=n)
        log, *_ = await context.turn_manager.start_prompts(parsed.model, (spec,), "team", origin=origin)
        self.known[log.id] = key
        self.expected[key.id, "requests"] += 1
        return log

    async def live(self, context: ServerContext, fate: str) -> None:
        """Lets one turn begin, and have its fate, except that of a restart."""
        key, dice = self._dice.choice(KEYS), self._dice
        if fate in ("refused", "half refused"):
            code = dice.choice(REFUSALS)
            self.refusals = [code] if fate == "refused" else ["", code]
            with pytest.raises(ApiError) as refused:
                await self.start_turn(context, key, n=1 if fate == "refused" else 2)
            # A rejection is counted where it is answered, which is not here.
            self.expected[key.id, "requests"] += int(refused.value.status != 429)
            await wait_idle(context)
            return
        if fate == "retried":
            self.refusals = [dice.choice(REFUSALS[:2]) for _ in range(dice.randrange(1, 4))]
            while self.refusals:
                with pytest.raises(ApiError):
                    await self.start_turn(context, key, is_batch=True)
            fate = "completed"
            log = await self.start_turn(context, key, is_batch=True)
        else:
            log = await self.start_turn(context, key, background=True)
        if fate in ("cancelled", "left", "steered", "handed over", "killed"):
            await wait_for_entries(log, dice.randrange(1, 12))
        manager = context.turn_manager
        if fate == "cancelled":
            manager.cancel_turn(log.id)
        elif fate == "left":
            manager.cancel_turn(log.id, "client_left")
        elif fate == "steered":
            manager.steer_turn(log.id)
        if fate not in ("handed over", "killed"):
            await log.wait_finished()
            await wait_idle(context)


async def wait_for_entries(log: EventLog, count: int) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while log.published < count and not log.ended:
            await asyncio.sleep(0.001)


async def wait_idle(context: ServerContext) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while context.turn_manager.num_running:
            await asyncio.sleep(0.001)


async def wait_continued(context: ServerContext, server: LivingServer) -> None:
    """Waits until all responses have ended that this server continues."""
    async with asyncio.timeout(HANG_TIMEOUT_S):
        for response_id in server.known:
            if (log := await context.store.read_log("team", response_id)) is not None:
                await log.wait_finished()
    await wait_idle(context)


async def read_sums(context: ServerContext) -> Sums:
    query = UsageQuery(start=0, end=1 << 40, period_s=3600, by=("key_id",))
    found: Sums = Counter()
    for row in await context.usage.read_periods(query):
        for name, number in structs.asdict(row.counts).items():
            found[row.key_id, name] += number
    return found


@pytest.mark.parametrize("seed", range(NUM_LIVES))
async def test_sums_are_those_of_the_responses(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    server = LivingServer(SqlitePlace(tmp_path / "store.db"), dice)
    fates = [dice.choice(FATES) for _ in range(NUM_TURNS)]
    while fates:
        async with server.run() as context:
            fate = ""
            while fates and fate not in ("handed over", "killed"):
                fate = fates.pop()
                if fate == "killed":  # what has ended and is not written yet is lost
                    await wait_continued(context, server)
                await context.usage.flush()
                await server.live(context, fate)
            await context.turn_manager.drain(0)
            if fate != "killed":
                await context.usage.flush()
    async with server.run() as context:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            for response_id, key in server.known.items():
                log = await context.store.read_log("team", response_id)
                assert log is not None
                usage = (await log.wait_finished()).usage
                assert usage is not None
                server.expected[key.id, "input_tokens"] += usage.input_tokens
                server.expected[key.id, "output_tokens"] += usage.output_tokens
                server.expected[key.id, "cached_tokens"] += usage.input_tokens_details.cached_tokens
                server.expected[key.id, "reasoning_tokens"] += usage.output_tokens_details.reasoning_tokens
        await wait_idle(context)
        found = await read_sums(context)
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "requests", "rejections"):
            for key in KEYS:
                assert found[key.id, name] == server.expected[key.id, name], name
        await context.turn_manager.drain(0)
