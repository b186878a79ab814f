"""Why turns end: every cause, on each API that can have it, streamed and not. The cause is found in the access log."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.turn_types.endings import CAUSES, DESCRIPTIONS, Cause, Ending
from antiphon.app.turn_types.turn_stats import Api, TurnStats
from antiphon.app.turns.turn import Turn
from antiphon.state.machine import Machine
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve
from tests.snapshots.run_case import make_turn_manager
from tests.snapshots.tool_cases import TOOL_CASES
from tests.snapshots.tool_runs import run_tool_case
from tests.syntax import ROOT

CALL = '<tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</tool_call>'
ALL: tuple[Api, ...] = ("responses", "chat", "completions", "messages")
WITH_TOOLS: tuple[Api, ...] = ("responses", "chat", "messages")
PATHS: dict[Api, str] = {
    "responses": "responses",
    "chat": "chat/completions",
    "completions": "completions",
    "messages": "messages",
    "compact": "responses/compact",
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS: dict[Api, dict[str, Any]] = {
    "responses": {"tools": [{"type": "function", "name": "find", "parameters": SCHEMA, "strict": False}]},
    "chat": {"tools": [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]},
    "messages": {"tools": [{"name": "find", "input_schema": SCHEMA}]},
}
SINGLE_CALL: dict[Api, dict[str, Any]] = {
    "responses": {"parallel_tool_calls": False},
    "chat": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
LIMITS: dict[Api, str] = {
    "responses": "max_output_tokens",
    "chat": "max_completion_tokens",
    "completions": "max_tokens",
    "messages": "max_tokens",
}


class EndingCase(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted reply that ends a turn, on which APIs it can happen, and how the request differs on each."""

    cause: Cause
    output: list[Any]
    apis: tuple[Api, ...] = ALL
    finish: str = "stop"
    detail: str | None = None
    fields: dict[Api, dict[str, Any]] = msgspec.field(default_factory=dict)
    leaves: bool = False
    """True if the client closes the connection."""


CASES = [
    EndingCase(cause="stop_token", output=["Hello"]),
    EndingCase(
        cause="stop_string",
        output=["Hello END more"],
        apis=("chat", "completions", "messages"),  # Responses has no stop strings
        detail="END",
        fields={"chat": {"stop": "END"}, "completions": {"stop": ["END"]}, "messages": {"stop_sequences": ["END"]}},
    ),
    EndingCase(
        cause="max_output_tokens",
        output=["Hello, how are you?"],
        detail="16",
        fields={api: {name: 16} for api, name in LIMITS.items()},
    ),
    EndingCase(cause="context_full", output=["Hello"], finish="length"),
    EndingCase(cause="repetition", output=["no no", {"ids": [104], "finish": "repetition"}], detail="6"),
    EndingCase(cause="single_call", output=[CALL, CALL], apis=WITH_TOOLS, detail="1", fields=SINGLE_CALL),
    EndingCase(cause="stopped_in_call", output=[CALL[:40]], apis=WITH_TOOLS),
    EndingCase(cause="call_cannot_complete", output=[f"{CALL[:46]}<|im_start|>", "more"], apis=WITH_TOOLS),
    EndingCase(cause="cancelled", output=["Hello", {"ids": [104], "finish": "cancelled"}]),
    EndingCase(cause="client_left", output=["Hello", {"stall": True}], leaves=True),
    EndingCase(
        cause="deadline", output=["Hello", {"fault": "late", "code": "deadline_exceeded"}], detail="deadline_exceeded"
    ),
    EndingCase(
        cause="engine_fault", output=["Hello", {"fault": "boom", "code": "server_error"}], detail="server_error"
    ),
    EndingCase(cause="server_bug", output=["Hello BUG"]),
]
OTHER_CAUSES: set[Cause] = {
    "max_tool_calls",
    "rejected",
    "nothing_generated",
    "compacted",
    "compaction_empty",
    "steered",
    "store_unavailable",
    "server_shutdown",
    "server_restarted",
}
"""Causes that a single scripted reply cannot have: the tests below and the snapshot of the cases have them."""

SCRIPT = [
    {"name": f"{case.cause}", "when": [f"case {case.cause}."], "output": case.output, "finish": case.finish}
    for case in CASES
]
SERVER = partial(serve, SCRIPT)


def build_body(api: Api, prompt: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    asked: dict[Api, dict[str, Any]] = {
        "responses": {"input": prompt},
        "chat": {"messages": [message]},
        "completions": {"prompt": prompt},
        "messages": {"messages": [message], "max_tokens": 4096},
        "compact": {"input": prompt},
    }
    return {"model": "scripted", **asked[api], **({} if api == "compact" else {"stream": stream}), **fields}


def send(server: RunningServer, api: Api, body: dict[str, Any], *, leaves: bool = False) -> TurnStats:
    """Sends a request, and returns the figures of its turn from the access log, complete."""
    count = len(server.access_records)
    with httpx.Client(timeout=httpx.Timeout(HANG_TIMEOUT_S, read=0.5 if leaves else HANG_TIMEOUT_S)) as client:
        try:
            with client.stream("POST", f"{server.url}/{PATHS[api]}", json=body) as response:
                for _ in response.iter_bytes():
                    pass
        except httpx.ReadTimeout:
            assert leaves
    wait_with_progress(lambda: len(server.access_records) > count, "the request is in the access log")
    (stats,) = server.access_records[count].turns
    wait_with_progress(lambda: stats.ending is not None and stats.times.ended is not None, "the turn has ended")
    return stats


def test_every_cause_has_a_case_and_a_description() -> None:
    causes = {case.cause for case in CASES}
    assert causes | OTHER_CAUSES == set(CAUSES) == set(DESCRIPTIONS)
    assert not causes & OTHER_CAUSES


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("case", "api"), [pytest.param(case, api, id=f"{case.cause}-{api}") for case in CASES for api in case.apis]
)
def test_cause(
    server: RunningServer, case: EndingCase, api: Api, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.cause == "server_bug":
        monkeypatch.setattr(Machine, "feed", _raise_bug)
    tools = TOOLS.get(api, {}) if case.apis == WITH_TOOLS else {}
    body = build_body(api, f"case {case.cause}.", stream=stream, **tools, **case.fields.get(api, {}))
    stats = send(server, api, body, leaves=case.leaves)
    assert stats.ending is not None
    assert (stats.api, stats.ending.cause) == (api, case.cause)
    if case.detail is not None:
        assert stats.ending.detail == case.detail
    check_times(stats)


def _raise_bug(*_: object) -> Any:
    raise RuntimeError("a bug")


def check_times(stats: TurnStats) -> None:
    """Checks that the times of a turn that the engine admitted never decrease."""
    times = msgspec.structs.asdict(stats.times)
    known = [value for name, value in times.items() if value is not None and name != "durable"]
    assert known == sorted(known)
    assert None not in (times["arrived"], times["parsed"], times["rendered"], times["submitted"], times["ended"])


def test_turn_without_output(server: RunningServer) -> None:
    stats = send(server, "completions", build_body("completions", "Hi", stream=False, max_tokens=0, echo=True))
    assert stats.ending is not None and stats.ending.cause == "nothing_generated"


@pytest.mark.parametrize(("reply", "cause"), [("A summary.", "compacted"), ("", "compaction_empty")])
def test_summary(reply: str, cause: Cause) -> None:
    with serve([{"name": "summary", "output": [reply]}]) as server:
        stats = send(server, "compact", build_body("compact", "Hi", stream=False))
    assert stats.ending is not None and stats.ending.cause == cause


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", ALL)
def test_turn_that_a_shutdown_ends(api: Api, stream: bool) -> None:
    with serve([{"name": "stall", "output": ["Hello", {"stall": True}]}]) as server, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, server, api, build_body(api, "Hi", stream=stream))
        wait_with_progress(lambda: server.engine.stats().running, "the engine has the job")
        server.loop.call_soon_threadsafe(server.stop)
        ending = sent.result(HANG_TIMEOUT_S).ending
    assert ending is not None and ending.cause == "server_shutdown"


async def test_last_tool_call_of_a_round_with_a_function() -> None:
    [case] = [case for case in TOOL_CASES if case.name == "function_then_a_call"]
    result = await run_tool_case(dataclasses.replace(case, request={**case.request, "max_tool_calls": 1}))
    assert result.run.log is not None and result.run.log.stats is not None
    assert result.run.log.stats.ending == Ending("max_tool_calls", "1")


async def test_turn_that_is_rejected_after_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn without events ends, too: its request gets an error."""
    ended: list[TurnStats] = []
    registry = scripted_registry(SCRIPT)
    manager = make_turn_manager(on_turn_end=ended.append)
    parsed = read_responses_request({"model": "scripted", "input": "Hi"}, registry)

    async def reject(_: object) -> None:
        raise ApiError(400, "invalid_prompt", "The prompt of this round cannot be rendered.")

    monkeypatch.setattr(Turn, "_generate", reject)
    with pytest.raises(ApiError, match="of this round"):
        await manager.start_turn(parsed.model, parsed.spec)
    [stats] = ended
    assert (stats.ending, stats.status) == (Ending("rejected", "invalid_prompt"), "refused")


def test_page_lists_the_causes() -> None:
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    assert all(f"| `{cause}` | {text} |\n" in page for cause, text in DESCRIPTIONS.items())
