"""Replays of recorded turns: for every snapshot case on each API, the recorded tokens give the recorded events."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import structs

from antiphon.app.inspection.prompt_blocks import compress
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turns.continuation.replay_check import UncheckableTurnError, check_replay
from antiphon.app.turns.core.inputs import TokensInput
from antiphon.events import stream as ev
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from tests.counts import FULL_COUNTS
from tests.journals import encode_steps
from tests.numbered_dice import repeat_dice
from tests.progress import HANG_TIMEOUT_S
from tests.snapshots.builtin_cases import BUILTIN_CASES, COMPACTION_CASES
from tests.snapshots.cases import CASES, Case
from tests.snapshots.dialect_cases import list_dialect_cases
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.hosted_tool_turns import CASES as SERVER_TOOL_CASES
from tests.snapshots.hosted_tool_turns import start_chat_turns, start_message_turn
from tests.snapshots.run_case import (
    make_single_case_registry,
    read_chat,
    read_completion,
    read_responses,
    run_messages_request,
)
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import ToolCase, run_tool_case

ALL_CASES = [*CASES, *EXTRA_CASES, *BUILTIN_CASES, *COMPACTION_CASES]
UNCOMPARED = ("completed_at", "encrypted_content")
"""Fields that are taken from the stored events."""
NUM_DAMAGES = 20 if FULL_COUNTS else 3
EACH_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)


async def record_case(run: Callable[..., Awaitable[object]], case: Case) -> TurnRecord | None:
    """Returns the record of a case; None if the turn was refused."""
    recorder = TurnRecorder(64 << 20)
    await run(case, recorder=recorder)
    await wait_packed(recorder)
    return next(recorder.list_records(""), None)


async def wait_packed(recorder: TurnRecorder) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while recorder.num_packing or recorder.list_running():
            await asyncio.sleep(0)
    await recorder.close()


async def check_case(run: Callable[..., Awaitable[object]], case: Case) -> None:
    """Asserts that a case is replayed, and that a damaged one is not."""
    record = await record_case(run, case)
    if record is None:
        assert case.refused
        return
    check_record(record, partial(make_single_case_registry, case), case.name)


def check_record(record: TurnRecord, create_registry: Callable[[], ModelRegistry], name: str) -> None:
    """Asserts that a turn is replayed, and that a damaged log is not."""
    assert check_replay(record, record.open_log(), create_registry(), repeat_dice) is None
    dice = random.Random(name)
    for _ in range(NUM_DAMAGES):
        log = record.open_log()
        number, data = damage_entry(log, dice)
        found = check_replay(record, log, create_registry(), repeat_dice)
        assert found is not None, f"event {number}: {log.entries[number].data!r} for {data!r}"


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
            log.entries[number] = LogEntry(event, bytes(data), entry.detail, entry.journal)
            return number, entry.data


def drop_uncompared(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: drop_uncompared(each) for name, each in value.items() if name not in UNCOMPARED}
    return [drop_uncompared(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", [case for case in ALL_CASES if "responses" in case.faces], ids=lambda case: case.name)
async def test_responses(case: Case) -> None:
    await check_case(read_responses, case)


@pytest.mark.parametrize("case", TOOL_CASES, ids=lambda case: case.name)
async def test_tools_of_the_server(case: ToolCase) -> None:
    recorder = TurnRecorder(64 << 20)
    result = await run_tool_case(case, recorder)
    await wait_packed(recorder)
    record = next(recorder.list_records(""), None)
    if result.error is not None:
        return
    assert record is not None and record.id == result.response["id"]
    check_record(record, lambda: result.run.registry, case.name)


@pytest.mark.parametrize("name", SERVER_TOOL_CASES)
async def test_tools_of_the_server_on_the_other_apis(name: str) -> None:
    for run in (start_chat_turns, start_message_turn):
        recorder = TurnRecorder(64 << 20)
        logs, registry = await run(SERVER_TOOL_CASES[name], recorder)
        for log in logs:
            await log.wait_finished()
        await wait_packed(recorder)
        [record] = recorder.list_records("")
        check_record(record, lambda registry=registry: registry, name)


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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: setattr(record, "dialect", "another"), "dialect 'hermes' now, not 'another'"),
        (lambda record: change_packed(record, head=b""), "no head"),
        (lambda record: change_packed(record, head=compress(b"\xc1")), "no head"),
        (lambda record: change_packed(record, rounds=()), "before the model read a prompt"),
        (lambda record: setattr(record.stats, "ending", Ending("server_bug")), "a bug of the server"),
    ],
)
async def test_turns_that_cannot_be_replayed_say_why(change: Callable[[TurnRecord], None], reason: str) -> None:
    record, models = await record_text_case()
    change(record)
    with pytest.raises(UncheckableTurnError, match=reason):
        check_replay(record, record.open_log(), models, repeat_dice)


async def test_turn_of_a_model_that_is_not_served_any_more_cannot_be_replayed() -> None:
    record, _ = await record_text_case()
    with pytest.raises(UncheckableTurnError, match="is not served"):
        check_replay(record, record.open_log(), ModelRegistry([]), repeat_dice)


async def test_damage_of_a_journal_is_found() -> None:
    record, models = await record_text_case()
    other = encode_steps([TokensInput((1,))])
    for journal, subject in ((b"", ""), (b"\xc1", "journal"), (other, "delta")):
        log = record.open_log()
        last = log.entries[-1]
        log.entries[-1] = LogEntry(last.event, last.data, last.detail, journal)
        if not journal:
            with pytest.raises(UncheckableTurnError, match="without its journal"):
                check_replay(record, log, models, repeat_dice)
        else:
            found = check_replay(record, log, models, repeat_dice)
            assert found is not None and found.subject == subject


async def record_text_case() -> tuple[TurnRecord, ModelRegistry]:
    case = next(case for case in CASES if case.name == "text")
    record = await record_case(read_responses, case)
    assert record is not None
    return record, make_single_case_registry(case)


def change_packed(record: TurnRecord, **parts: Any) -> None:
    assert record.packed is not None
    record.packed = structs.replace(record.packed, **parts)
