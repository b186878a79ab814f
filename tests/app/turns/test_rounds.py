"""Rounds of a turn in which the server runs tools: limits, usage, seeds, and independence of chunks and of time."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from antiphon.app.projections import responses as responses_projection
from antiphon.app.requests.responses import request as responses
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.tools.call_rules import MAX_ROUNDS, CallRules
from antiphon.app.turns.continuation.replay import JournalReplay
from antiphon.app.turns.core.inputs import (
    AdmittedInput,
    CutInput,
    FinishedInput,
    ResultInput,
    RoundInput,
    TokensInput,
    to_token_input,
)
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.app.turns.rounds import OUTPUT_SHARE
from antiphon.engine.protocol import Chunk, Fault
from antiphon.events.inputs import InputFunctionCall, InputFunctionOutput
from antiphon.events.sse import encode_event
from antiphon.state.segments import McpResult
from antiphon.state.table import State
from tests.counts import FULL_COUNTS
from tests.invariants import check_stream
from tests.journals import encode_steps
from tests.numbered_dice import NumberedDice
from tests.progress import HANG_TIMEOUT_S
from tests.snapshots.captured_orders import check_item_orders
from tests.snapshots.cases import WEATHER, WEATHER_CALL
from tests.snapshots.run_case import collect_frames
from tests.snapshots.tool_cases import ANSWER, ASKED, BAR, CAFE, FOUND, GPT_CALL, TOOL_CASES, cancel
from tests.snapshots.tool_runs import MCP, QUESTION, Reply, ToolCase, ToolRun, open_run, run_tool_case

NUM_RANDOM_RUNS = 2000 if FULL_COUNTS else 30
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CASES_BY_NAME = {case.name: case for case in TOOL_CASES}


# Chunks and time


@dataclass(frozen=True)
class RoundCase:
    """What a model writes in one round, and the limits of the turn."""

    name: str
    text: str
    finish: str = "stop"
    request: dict[str, Any] = field(default_factory=dict)
    max_calls: int | None = None
    dialect: str = "hermes"


THREE = f"{CAFE}\n{BAR}\n{CAFE}"
ROUND_CASES = [
    RoundCase("two calls", f"<think>\nBoth.\n</think>\n\nI look.\n\n{CAFE}\n{BAR}"),
    RoundCase("text after a call", f"{CAFE}\n\nA moment. \n"),
    RoundCase("reasoning between calls", f"{CAFE}\n<think>\nAnd the bar.\n</think>\n{BAR}\n"),
    RoundCase("function between calls", f"{CAFE}\n{WEATHER_CALL}\n{BAR}"),
    RoundCase("stop string after calls", f"{CAFE}\nI look. END of it.{BAR}", request={"stop": ["END"]}),
    RoundCase("half a stop string", f"{CAFE}\nI look. EN", request={"stop": ["END"]}),
    RoundCase("stop string after the last permitted call", f"{CAFE}\nI END.", request={"stop": ["END"]}, max_calls=1),
    RoundCase("at most one call", THREE, max_calls=1),
    RoundCase("at most two calls", f"{THREE}\nText.", max_calls=2),
    RoundCase("length after the last permitted call", f"{CAFE}\n{BAR}\nText", finish="length", max_calls=2),
    RoundCase("function after the last permitted call", f"{CAFE}\n{BAR}\n{WEATHER_CALL}", max_calls=2),
    RoundCase("one call a round", THREE, request={"parallel_tool_calls": False}),
    RoundCase("function, and one call a round", f"{WEATHER_CALL}\n{CAFE}", request={"parallel_tool_calls": False}),
    RoundCase("malformed call after a call", f'{CAFE}\n<tool_call>\n{{"name": "maps__find", "arguments": {{"q": <|im_start|>'),
    RoundCase("malformed call after the last permitted one", f'{CAFE}\n<tool_call>\n{{"name": "maps__find", "arguments": {{"q": <|im_start|>', max_calls=1),
    RoundCase("stop inside a call", f"{CAFE}\n{BAR[:-20]}"),
    RoundCase("length inside a call", f"{CAFE}\n{BAR[:-20]}", finish="length"),
    RoundCase("length after a call", f"{CAFE}\nText", finish="length"),
    RoundCase("cancelled after a call", f"{CAFE}", finish="cancelled"),
    RoundCase("gpt-oss", "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant" + "".join(text for text in GPT_CALL if isinstance(text, str)), dialect="gpt-oss"),
]  # fmt: skip
ENDED_BY_THE_ENGINE = ("cancelled after a call",)
"""What the engine cancels or fails ends at once, whatever the tools do."""


class RoundCore:
    """Processes the tokens of one round, with the results of calls at any time."""

    def __init__(self, case: RoundCase) -> None:
        self.case = case

    async def open(self) -> "RoundCore":
        async with open_run(ToolCase("round", [Reply([])], dialect=self.case.dialect)) as run:
            body = {"model": "scripted", "input": QUESTION, "tools": [MCP, WEATHER]} | self.case.request
            request = responses.read_responses_request(body, run.registry)
            spec, _ = await run.manager.preparer.open_tools(request.spec, "")
        base_response = msgspec.structs.replace(spec.base_response, id="resp_1", created_at=1)
        self.format = request.model.format
        self.spec = msgspec.structs.replace(spec, base_response=base_response)
        self.prompt = PromptTokenCache().render(self.format, "", self.spec.prompt_input, NOW)
        self.tokens = self.format.encode(self.case.text)
        return self

    def create_core(self, max_calls: int | None = None) -> TurnCore:
        rules, calls = self.spec.build_rules(), CallRules(sign=lambda *_: "", max_calls=max_calls)
        return TurnCore(rules, self.prompt, self.spec.base_response, dice=NumberedDice(), clock=lambda: 2, calls=calls)

    def process(self, cuts: Sequence[Sequence[int]], answers: Callable[[], bool]) -> tuple[str, int]:
        """Returns the items as JSON, and the number of calls that were run. `answers`: a result comes after a chunk."""
        core = self.create_core(self.case.max_calls)
        num_run = 0

        def end_due_call() -> None:
            nonlocal num_run
            num_run += 1
            events.extend(core.apply(ResultInput(McpResult(f"result {num_run}"), f"result {num_run}")))

        events = core.apply(AdmittedInput())
        for chunk in [*(Chunk(tokens=tuple(each)) for each in cuts), Chunk(finish=cast("Any", self.case.finish))]:
            if core.needs_no_more:
                break
            events += core.apply(to_token_input(chunk))
            while core.calls.due is not None and answers():
                end_due_call()
        while core.calls.due is not None and not core.is_ended:
            end_due_call()
        is_over = core.end.is_round_over
        assert is_over != core.is_ended
        if is_over:
            assert core.machine.state is State.IDLE
            events += core.apply(CutInput())
        response = check_stream([json.loads(encode_event(event)) for event in events])
        # Usage counts all tokens that were generated, also those that nobody needed.
        return json.dumps([is_over, response | {"usage": None}], ensure_ascii=False), num_run


@pytest.mark.parametrize("case", ROUND_CASES, ids=lambda case: case.name)
async def test_neither_chunks_nor_the_time_of_results_change_a_round(case: RoundCase) -> None:
    round_core = await RoundCore(case).open()
    tokens = round_core.tokens
    expected = round_core.process([[token] for token in tokens], lambda: True)
    assert expected[1] > 0 or case.finish == "cancelled" or WEATHER_CALL in case.text
    if case.name in ENDED_BY_THE_ENGINE:
        return
    for index in range(len(tokens) + 1):
        # With reduced counts, results are early and late by turns.
        for early in (True, False) if FULL_COUNTS else (index % 2 == 0,):
            result = round_core.process([tokens[:index], tokens[index:]], lambda early=early: early)  # type: ignore[misc]
            assert result == expected, f"cut at {index}, results {'early' if early else 'late'}"
    dice = random.Random(case.name)
    for _ in range(NUM_RANDOM_RUNS):
        bounds = sorted(dice.choices(range(len(tokens) + 1), k=dice.randrange(1, 12)))
        cuts = [tokens[a:b] for a, b in zip([0, *bounds], [*bounds, len(tokens)], strict=True)]
        assert round_core.process(cuts, lambda: dice.random() < 0.5) == expected


async def test_repeated_round_has_the_calls_before_it_for_citations() -> None:
    opened = await RoundCore(RoundCase("one call", CAFE)).open()
    core = opened.create_core()
    journal = encode_steps(
        [
            AdmittedInput(),
            TokensInput(tuple(opened.tokens)),
            FinishedInput(),
            ResultInput(McpResult("found"), "found"),
            RoundInput(opened.prompt),
        ],
        core.figures.round,
    )
    JournalReplay(core, [opened.prompt, opened.prompt]).apply_step(journal)
    *earlier, call, output = core.figures.round.prompt.prompt_input.items
    assert [*earlier] == [*opened.prompt.prompt_input.items]
    assert isinstance(call, InputFunctionCall) and isinstance(output, InputFunctionOutput)
    assert (call.call_id, output.output) == (output.call_id, "found")


async def test_fault_of_the_engine_ends_a_turn_whose_call_runs() -> None:
    round_core = await RoundCore(ROUND_CASES[0]).open()
    core = round_core.create_core()
    events = core.apply(AdmittedInput())
    events += core.apply(to_token_input(Chunk(tokens=tuple(round_core.tokens))))
    fault = Fault("server_error", "broken", retryable=False)
    events += core.apply(to_token_input(Chunk(finish="error", fault=fault)))
    events += core.apply(ResultInput(McpResult("too late"), "too late"))
    response = check_stream([json.loads(encode_event(event)) for event in events])
    call = response["output"][-1]
    assert (response["status"], call["status"], call["output"]) == ("failed", "incomplete", None)


# Limits, usage and sampling of all rounds


TWO_ROUNDS = replace(CASES_BY_NAME["one_call"], request={"max_output_tokens": 300, "temperature": 0.5, "seed": 7})


async def test_usage_is_the_sum_of_all_rounds() -> None:
    first, second = CASES_BY_NAME["one_call"].rounds
    case = replace(TWO_ROUNDS, rounds=[replace(first, cached_tokens=11), replace(second, cached_tokens=200)])
    result = await run_tool_case(case)
    prompts = [len(job.tokens) for job in result.run.jobs]
    form = result.run.model.format
    # The engine adds the token that ends a turn.
    outputs = [sum(len(form.encode(text)) for text in each.output) + 1 for each in case.rounds]
    usage = result.response["usage"]
    assert len(prompts) == 2 and prompts[1] > prompts[0] + outputs[0]
    assert usage["input_tokens"] == sum(prompts)
    assert usage["input_tokens_details"]["cached_tokens"] == 211
    assert usage["output_tokens"] == sum(outputs)
    assert usage["total_tokens"] == sum(prompts) + sum(outputs)
    alone = await run_tool_case(ToolCase("alone", [replace(second, when=())]))
    one_thought = alone.response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2 * one_thought > 0


async def test_jobs_of_all_rounds_share_the_token_limit_and_have_seeds_of_their_own() -> None:
    run = (await run_tool_case(TWO_ROUNDS)).run
    jobs, spent = run.jobs, len(run.jobs[0].tokens)
    assert [job.sampling.seed for job in jobs] == [7, 8]
    assert len({job.id for job in jobs}) == 2 and jobs[1].id == f"{jobs[0].id}.1"
    assert jobs[0].sampling.max_tokens == 300
    first_output = 300 - (jobs[1].sampling.max_tokens or 0)
    # The second prompt has what the first round generated, and then the result.
    added = run.model.format.decode(jobs[1].tokens[spent : spent + first_output])
    assert added.endswith("</tool_call><|im_end|>")
    assert jobs[0].sampling.temperature == jobs[1].sampling.temperature == 0.5


@pytest.mark.parametrize(("limit", "num_jobs"), [(59, 1), (60, 2)])
async def test_round_needs_one_token_of_the_limit(limit: int, num_jobs: int) -> None:
    case = ToolCase("limit", [Reply([CAFE]), ANSWER], answers=FOUND, request={"max_output_tokens": limit})
    result = await run_tool_case(case)
    assert result.response["usage"]["output_tokens"] == limit
    assert (len(result.run.jobs), result.response["status"]) == (num_jobs, "incomplete")
    assert result.response["output"][1]["status"] == "completed", "the call was whole, and has its result"


@pytest.mark.parametrize("tools", [[MCP], [MCP, WEATHER]], ids=["no function", "a function"])
async def test_model_that_calls_without_end_is_stopped(tools: list[dict[str, Any]]) -> None:
    case = ToolCase("endless", [Reply([CAFE])], answers=FOUND, request={"tools": tools})
    result = await run_tool_case(case)
    assert len(result.run.servers.calls) == MAX_ROUNDS
    assert len(result.run.jobs) == MAX_ROUNDS + 1, "the model may still answer"
    assert result.response["status"] == "completed"


async def test_context_without_room_for_another_round_cuts_the_turn() -> None:
    case = ToolCase("full", [Reply([CAFE])], answers={"find": ["x" * 1000]}, max_model_len=300)
    result = await run_tool_case(case)
    assert result.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert result.response["output"][1]["status"] == "completed"


async def test_outputs_of_calls_get_a_quarter_of_the_room_that_is_left() -> None:
    text = "A sentence about the harbour. " * 500
    rounds = [Reply([CAFE, "\n", BAR]), Reply(["Done."], when=("the harbour",))]
    result = await run_tool_case(ToolCase("long", rounds, answers={"find": [text]}, max_model_len=4000))
    first, second = result.run.jobs
    form = result.run.model.format
    outputs = [item["output"] for item in result.response["output"] if item["type"] == "mcp_call"]
    lengths = [len(form.encode(output)) for output in outputs]
    room = 4000 - len(first.tokens) - 58  # the first call
    assert room // OUTPUT_SHARE - 60 < lengths[0] <= room // OUTPUT_SHARE < len(text)
    assert lengths[1] <= (room - lengths[0]) // OUTPUT_SHARE < lengths[0]
    assert all(output in form.decode(second.tokens) for output in outputs), "the model reads what the client gets"


async def test_choice_of_tools_binds_the_first_round_only() -> None:
    for choice in (
        "required",
        {"type": "mcp", "server_label": "maps"},
        {"type": "mcp", "server_label": "maps", "name": "find"},
    ):
        case = replace(TWO_ROUNDS, request={"tool_choice": choice, "tools": [MCP, WEATHER]})
        first, second = (await run_tool_case(case)).run.jobs
        assert first.grammar is not None and second.grammar is None


async def test_allowed_tools_bind_all_rounds() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "maps"}]}
    case = replace(TWO_ROUNDS, request={"tool_choice": choice, "tools": [MCP, WEATHER]})
    first, second = (await run_tool_case(case)).run.jobs
    assert first.grammar is not None and second.grammar is not None
    assert first.grammar != second.grammar, "the second round may answer"


async def test_grammar_forbids_more_calls_than_permitted() -> None:
    case = replace(TWO_ROUNDS, request={"max_tool_calls": 1, "tools": [MCP, WEATHER]})
    first, second = (await run_tool_case(case)).run.jobs
    assert first.grammar is None and second.grammar is not None
    assert "get_weather" in second.grammar and "maps__find" not in second.grammar


async def test_approved_calls_have_no_job_and_no_usage() -> None:
    result = await run_tool_case(CASES_BY_NAME["approval_given"])
    jobs = result.run.jobs[result.num_earlier_jobs :]
    assert len(jobs) == 1
    assert result.response["usage"]["input_tokens"] == len(jobs[0].tokens)


@pytest.mark.parametrize("store", [True, False])
async def test_approval_is_good_once(*, store: bool) -> None:
    case = ToolCase("twice", [ANSWER], answers=FOUND, request=ASKED.request, earlier=ASKED)
    async with open_run(case) as run:
        log = await run.start_turn(**ASKED.request)
        asked = json.loads(await responses_projection.final_response(log))
        item = next(item for item in asked["output"] if item["type"] == "mcp_approval_request")
        answer = {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
        fields = {
            **ASKED.request,
            "input": [{"role": "user", "content": QUESTION}, *asked["output"], answer],
            "store": store,
        }
        results = await asyncio.gather(run.start_turn(**fields), run.start_turn(**fields), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        assert [getattr(error, "status", None) for error in errors] == [400]
        for result in results:
            if not isinstance(result, BaseException):
                await result.wait_finished()
        assert len(run.servers.calls) == 1


# What happens from outside


async def test_reader_that_comes_back_while_a_tool_runs_sees_the_rest() -> None:
    case = replace(CASES_BY_NAME["background_call"], waits=True)
    async with open_run(case) as run:
        log = await run.start_turn(**case.request)
        await run.wait_called()
        async with asyncio.timeout(HANG_TIMEOUT_S):
            await log.wait_published()
        start = len(log.entries)
        again = asyncio.create_task(collect_frames(responses_projection.ResponsesStream(log, start)))
        await asyncio.sleep(0)
        run.servers.gate.set()
        async with asyncio.timeout(HANG_TIMEOUT_S):
            rest = await again
            whole = await collect_frames(responses_projection.ResponsesStream(log))
    assert whole.endswith(rest) and b"mcp_call.completed" in rest and b"mcp_call_arguments.done" not in rest


async def test_call_runs_only_once_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments are committed before the tool is called, so that a crash never runs it again."""
    case = replace(CASES_BY_NAME["one_call"])
    async with open_run(case) as run:
        added: list[Any] = []
        monkeypatch.setattr(run.store, "add_log", added.append)
        log = await run.start_turn()
        await run.wait_for("mcp_call_arguments.done")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not run.servers.calls
        monkeypatch.undo()
        MemoryStore.add_log(run.store, log)
        async with asyncio.timeout(HANG_TIMEOUT_S):
            assert (await log.wait_finished()).status == "completed"
        assert len(run.servers.calls) == 1


async def test_finished_rounds_are_remembered_for_later_turns() -> None:
    case = ToolCase(
        "continued", [Reply(["Again."], when=("As before?",))], answers=FOUND,
        earlier=CASES_BY_NAME["one_call"], follow=lambda response: {"previous_response_id": response["id"], "input": "As before?"},
    )  # fmt: skip
    result = await run_tool_case(case)
    *_, before, after = result.run.read_prompts()
    assert after.startswith(before)


async def cancel_at(run: ToolRun, kind: str) -> None:
    await run.wait_for(kind)
    cancel(run)


CANCELLED_AT: dict[str, Callable[[ToolRun], Awaitable[None]]] = {
    kind: lambda run, kind=kind: cancel_at(run, kind)  # type: ignore[misc]
    for kind in ("mcp_list_tools.completed", "reasoning_text.delta", "mcp_call.in_progress", "output_text.delta")
}


@pytest.mark.parametrize("kind", CANCELLED_AT)
async def test_turn_can_be_cancelled_everywhere(kind: str) -> None:
    pauses = [
        Reply([{"pause": 0.02}, *each.output, {"pause": 0.02}], each.when) for each in CASES_BY_NAME["one_call"].rounds
    ]
    case = ToolCase("cancelled", pauses, answers=FOUND, act=CANCELLED_AT[kind], step=3)
    result = await run_tool_case(case)
    assert check_stream(result.events)["status"] == "cancelled"
    check_item_orders(result.events)
