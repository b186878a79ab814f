"""Records of turns in memory: what they keep, how much, and for whom."""

import asyncio
import itertools
import json
from array import array
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.inspection.prompt_blocks import BLOCK_IDS, SharedBlocks, compress, join_blocks, split_prompt
from antiphon.app.inspection.record import MAX_REQUEST_BYTES, TurnRecord, find_restored
from antiphon.app.inspection.record_rows import UnreadableRecordError, unpack_record
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.turn_types.continuation import RecordRow
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnOrigin, TurnStats
from antiphon.app.turns.manager import TurnManager
from antiphon.events.response import Response
from antiphon.state.table import CELLS, Input, State
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry
from tests.snapshots.run_case import make_turn_manager

SECRET = "sk-a-secret-of-a-tool-1234567890"  # searched for
TEXT = "one two three four"


class RecordedTurns:
    """Turns of a scripted model that are recorded. Each has a prompt of about `prompt_chars` tokens."""

    def __init__(self, max_bytes: int = 8 << 20, output: list[Any] | None = None) -> None:
        self.registry = scripted_registry([{"name": "only", "output": output or [TEXT], "tokens_per_chunk": 2}])
        self.recorder = TurnRecorder(max_bytes)
        self.manager: TurnManager = make_turn_manager(recorder=self.recorder)
        self._numbers = itertools.count()

    async def run_turn(self, text: str = "Hi", owner: str = "", body: bytes = b"{}", **fields: Any) -> EventLog:
        log = await self.start_turn(text, owner, body, **fields)
        await log.wait_finished()
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while self.manager.num_running or self.recorder.num_packing:
                await asyncio.sleep(0)
        return log

    async def start_turn(self, text: str = "Hi", owner: str = "", body: bytes = b"{}", **fields: Any) -> EventLog:
        request = {"model": "scripted", "input": text, "store": False} | fields
        parsed = read_responses_request(request, self.registry)
        return await self.manager.start_turn(parsed.model, parsed.spec, owner, TurnOrigin(body=body))

    def find(self, log: EventLog) -> TurnRecord:
        record = self.recorder.find(log.owner, log.id)
        assert record is not None
        return record


@pytest.mark.parametrize("length", [0, 1, BLOCK_IDS, BLOCK_IDS + 1, 3 * BLOCK_IDS])
def test_blocks_hold_the_ids(length: int) -> None:
    ids = array("I", range(1_000, 1_000 + length))
    blocks = split_prompt("owner", tuple(ids))
    assert len(blocks) == -(-length // BLOCK_IDS)
    assert join_blocks([block.data for block in blocks]) == ids


def test_prompts_share_the_blocks_that_they_begin_with() -> None:
    first = tuple(range(2 * BLOCK_IDS))
    second = (*first[:-1], 7)
    shared = SharedBlocks()
    one, _ = shared.share(split_prompt("a", first))
    size = shared.num_bytes
    two, added = shared.share(split_prompt("a", second))
    assert two[0] is one[0] and two[1] is not one[1]
    assert added == size // 2, "one of two blocks is new"
    assert not {block.key for block in split_prompt("b", first)} & {block.key for block in one}, "never across owners"
    assert shared.release(one) == size // 2
    assert shared.release(two) == size and shared.num_bytes == 0


@pytest.mark.parametrize(
    ("rendered", "prompt", "restored"),
    [
        ((1, 2, 9, 5), (1, 2, 7, 8, 5), (2, 4)),
        ((1, 2), (1, 2), (0, 0)),
        ((1, 1, 1), (1, 1), (2, 2)),
        ((), (1, 2), (0, 0)),
        ((1, 9), (1, 7, 8), (1, 3)),
    ],
)
def test_restored_range(rendered: tuple[int, ...], prompt: tuple[int, ...], restored: tuple[int, int]) -> None:
    assert find_restored(rendered, prompt) == restored


async def test_packed_record_equals_the_log() -> None:
    turns = RecordedTurns()
    log = await turns.run_turn(body=b'{"input": "Hi"}')
    record = turns.find(log)
    assert record.packed is not None and not record.is_running
    opened = record.open_log()
    assert [entry.data for entry in opened.entries] == [entry.data for entry in log.entries]
    assert [entry.detail for entry in opened.entries] == [entry.detail for entry in log.entries]
    assert opened.ended and opened.response == log.response
    assert record.read_request() == b'{"input": "Hi"}'
    [only] = record.read_rounds()
    assert len(only.prompt) == log.response.usage.input_tokens  # type: ignore[union-attr]
    assert only.output_tokens == log.response.usage.output_tokens  # type: ignore[union-attr]


async def test_details_have_the_inputs_and_the_times_of_each_step() -> None:
    turns = RecordedTurns()
    log = await turns.run_turn()
    details = [entry.detail for entry in log.entries if entry.detail is not None]
    steps = [CELLS[number] for detail in details for number in detail.inputs]
    assert steps[:2] == [(State.NEW, Input.BEGIN), (State.IDLE, Input.SAY)]
    assert steps[-1] == (State.MESSAGE, Input.STOP)
    times = [detail.at_us for detail in details]
    assert times == sorted(times) and times[0] > 0


async def test_turn_that_runs_is_found_with_what_it_has() -> None:
    turns = RecordedTurns(output=[TEXT, {"stall": True}])
    log = await turns.start_turn()
    record = turns.find(log)
    assert record.is_running and record.open_log() is log and turns.recorder.list_running() == [record]
    turns.manager.cancel_turn(log.id)
    await log.wait_finished()


async def test_secrets_of_a_request_are_not_kept() -> None:
    turns = RecordedTurns()
    tool = {
        "type": "mcp",
        "authorization": SECRET,
        "headers": {"X-Mine": SECRET},
        "server_url": f"https://u:{SECRET}@a/",
    }
    body = {"tools": [tool], "metadata": {"password": SECRET}, "input": "kept"}
    log = await turns.run_turn(body=json.dumps(body).encode())
    kept = turns.find(log).read_request()
    assert SECRET.encode() not in kept and b"kept" in kept


async def test_request_that_is_too_long_is_not_kept() -> None:
    turns = RecordedTurns()
    log = await turns.run_turn(body=b"x" * (MAX_REQUEST_BYTES + 1))
    assert turns.find(log).read_request() == b""


async def test_refused_turn_leaves_no_record() -> None:
    turns = RecordedTurns(output=[{"refuse": "full", "code": "server_is_overloaded"}])
    with pytest.raises(ApiError, match="full"):
        await turns.run_turn()
    assert not list(turns.recorder.list_records(""))


async def test_ring_drops_the_oldest_records() -> None:
    turns = RecordedTurns(max_bytes=64 << 10)
    logs = [await turns.run_turn(f"question {number} " + "x" * 900, owner=str(number % 4)) for number in range(80)]
    assert turns.recorder.num_bytes <= 64 << 10
    kept = [turns.recorder.find(log.owner, log.id) is not None for log in logs]
    assert kept == sorted(kept) and any(kept) and not all(kept), "the latest are kept"


async def test_owner_has_at_most_half() -> None:
    turns = RecordedTurns(max_bytes=64 << 10)
    quiet = await turns.run_turn("once", owner="quiet")
    for number in range(80):
        await turns.run_turn(f"question {number} " + "x" * 900, owner="busy")
    assert turns.recorder.find("quiet", quiet.id) is not None
    assert turns.recorder.num_bytes <= 40 << 10


async def test_forgotten_records_free_their_memory() -> None:
    turns = RecordedTurns()
    logs = [await turns.run_turn("x" * 3_000) for _ in range(3)]
    assert len(list(turns.recorder.list_records(""))) == 3
    assert not turns.recorder.forget("another", logs[0].id)
    assert all(turns.recorder.forget("", log.id) for log in logs)
    assert turns.recorder.num_bytes == 0 and turns.recorder.find("", logs[0].id) is None


async def test_turns_that_end_after_the_recorder_are_not_recorded() -> None:
    """A request that was accepted before the shutdown may begin its turn when the recorder is closed already."""
    turns = RecordedTurns(output=[{"pause": 0.01}, TEXT])
    running = await turns.start_turn()
    await turns.recorder.close()
    assert (await running.wait_finished()).status == "completed"
    late = await turns.run_turn()
    assert late.response.status == "completed" and turns.recorder.find("", late.id) is None
    assert turns.recorder.num_packing == 0


@pytest.mark.parametrize(("request_part", "head"), [(b"damaged", compress(b"")), (compress(b"{}"), b"damaged")])
def test_row_whose_parts_are_damaged_is_unreadable(request_part: bytes, head: bytes) -> None:
    row = RecordRow(msgspec.msgpack.encode(["hermes", request_part, [], "", head]), ())
    log = EventLog(Response(id="resp_1", created_at=1, model="m", status="in_progress"), "")
    with pytest.raises(UnreadableRecordError):
        unpack_record(log, TurnStats(response_id="resp_1", model="m"), row)
