"""Replays of recorded turns: for every snapshot case on each API, the recorded tokens give the recorded events."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.inspection.prompt_blocks import compress
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.turns.continuation.replay_check import UncheckableTurnError, check_replay
from antiphon.events import stream as ev
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import CASES, Case
from tests.snapshots.dialect_cases import list_dialect_cases
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import (
    make_single_case_registry,
    read_chat,
    read_completion,
    read_responses,
    run_messages_request,
)

ALL_CASES = [*CASES, *EXTRA_CASES, *BUILTIN_CASES, *COMPACTION_CASES]
UNCOMPARED = ("sequence_number", "completed_at", "logprobs")
"""Fields that are not compared: the checker judges the numbers, times are apart, and records have no probabilities."""
NUM_DAMAGES = 20 if FULL_COUNTS else 3
EACH_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


async def record_case(run: Callable[..., Awaitable[object]], case: Case) -> TurnRecord | None:
    """Returns the record of a case; None if the turn was refused."""
    recorder = TurnRecorder(64 << 20)
    await run(case, recorder=recorder)
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while recorder.num_packing or recorder.list_running():
            await asyncio.sleep(0)
    await recorder.close()
    return next(recorder.list_records(""), None)


async def check_case(run: Callable[..., Awaitable[object]], case: Case) -> None:
    """Asserts that a case is replayed, and that a damaged one is not."""
    record = await record_case(run, case)
    if record is None:
        assert case.refused
        return
    if case.name.startswith("compaction") and record.stats.api == "responses":
        with pytest.raises(UncheckableTurnError):
            check_replay(record, record.open_log(), make_single_case_registry(case))
        return
    assert check_replay(record, record.open_log(), make_single_case_registry(case)) is None
    dice = random.Random(case.name)
    for _ in range(NUM_DAMAGES):
        log = record.open_log()
        number, name = damage_entry(log, dice)
        found = check_replay(record, log, make_single_case_registry(case))
        assert found is not None, f"event {number}: {log.entries[number].data!r} for {name}"


def damage_entry(log: EventLog, dice: random.Random) -> tuple[int, bytes]:
    """Changes one byte of an event, so that it still is an event, and another one. Returns its number and old data."""
    while True:
        number = dice.randrange(len(log.entries))
        entry = log.entries[number]
        data = bytearray(entry.data)
        data[dice.randrange(len(data))] = dice.choice(b'abcxyz019 "{,')
        try:
            event, value = ev.decode_event(bytes(data)), json.loads(data)
            log_value = json.loads(entry.data)
        except (msgspec.DecodeError, ValueError):
            continue
        if drop_uncompared(value) != drop_uncompared(log_value) and value["type"] == log_value["type"]:
            log.entries[number] = LogEntry(event, bytes(data), entry.detail)
            return number, entry.data


def drop_uncompared(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: drop_uncompared(each) for name, each in value.items() if name not in UNCOMPARED}
    return [drop_uncompared(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", [case for case in ALL_CASES if "responses" in case.faces], ids=lambda case: case.name)
async def test_responses(case: Case) -> None:
    await check_case(read_responses, case)


@pytest.mark.parametrize("case", [case for case in ALL_CASES if "chat" in case.faces], ids=lambda case: case.name)
async def test_chat(case: Case) -> None:
    await check_case(read_chat, case)


@pytest.mark.parametrize("case", [*CASES, *EXTRA_CASES], ids=lambda case: case.name)
async def test_completions(case: Case) -> None:
    await check_case(read_completion, case)


@EACH_DIALECT
async def test_dialects(dialect: Dialect) -> None:
    for case in list_dialect_cases(dialect):
        for run in (read_responses, read_chat, run_messages_request):
            await check_case(run, case)


async def test_turns_that_cannot_be_replayed_say_why() -> None:
    case = next(case for case in CASES if case.name == "text")
    record = await record_case(read_responses, case)
    assert record is not None and record.packed is not None
    log, models = record.open_log(), make_single_case_registry(case)
    record.dialect = "another"
    with pytest.raises(UncheckableTurnError, match="dialect 'hermes' now, not 'another'"):
        check_replay(record, log, models)
    for body, reason in ((b"", "not kept"), (b'{"model": "gone", "input": "a"}', "cannot be parsed again")):
        record.packed = structs.replace(record.packed, request=compress(body))
        with pytest.raises(UncheckableTurnError, match=reason):
            check_replay(record, log, models)
    record.packed = structs.replace(record.packed, rounds=record.packed.rounds * 2)
    with pytest.raises(UncheckableTurnError, match="ran tools"):
        check_replay(record, log, models)
