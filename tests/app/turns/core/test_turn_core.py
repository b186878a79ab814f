"""The core of a turn: the response does not depend on the chunks, and random markers give a valid stream.

`make test-full` runs the full counts.
"""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from antiphon.app.requests.responses import request as responses
from antiphon.app.turns.core.inputs import (
    AdmittedInput,
    CancelInput,
    CutInput,
    FailInput,
    FinishedInput,
    KeepaliveInput,
    QueuedInput,
    ResultInput,
    StartedInput,
    SteerInput,
    StepInput,
    TokensInput,
    to_token_input,
)
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.engine.protocol import Chunk, TokenLogprob
from antiphon.events.base import Event
from antiphon.events.sse import encode_event
from antiphon.state.segments import McpResult
from tests.counts import FULL_COUNTS
from tests.invariants import check_stream
from tests.numbered_dice import NumberedDice
from tests.snapshots.builtin_cases import BUILTIN_CASES
from tests.snapshots.cases import CASES, TOOLS, Case
from tests.snapshots.run_case import USER_TEXT, make_single_case_registry

CUT_STEP = 1 if FULL_COUNTS else 2
"""Distance between the tokens at which an output is cut in two."""
NUM_RANDOM_CUTS = 1000 if FULL_COUNTS else 8
NUM_SOUPS = 10_000 if FULL_COUNTS else 80
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TEXT_CASES = [case for case in (*CASES, *BUILTIN_CASES) if all(isinstance(text, str) for text in case.output)]


class CaseCore:
    """The request of a case, whose output may be any tokens."""

    def __init__(self, case: Case) -> None:
        body = {"model": "scripted", "input": USER_TEXT, "tools": TOOLS} | case.request | case.responses
        request = responses.read_responses_request(body, make_single_case_registry(case))
        self.format = request.model.format
        base_response = msgspec.structs.replace(request.spec.base_response, id="resp_1", created_at=1)
        self.spec = msgspec.structs.replace(request.spec, base_response=base_response)
        self.prompt = PromptTokenCache().render(self.format, "", self.spec.prompt_input, NOW)

    def open(self) -> TurnCore:
        """Returns a core for the request."""
        rules = self.spec.build_rules()
        return TurnCore(rules, self.prompt, self.spec.base_response, dice=NumberedDice(), clock=lambda: 2)

    def process_tokens(self, cuts: Sequence[Sequence[int]], finish: str) -> list[dict[str, object]]:
        """Returns the events of an output whose chunks have these tokens."""
        core = self.open()
        events = core.apply(AdmittedInput())
        count = 0
        for tokens in cuts:
            logprobs = tuple(TokenLogprob(token, -0.5 - count - n, ((token, -0.5),)) for n, token in enumerate(tokens))
            count += len(tokens)
            events += core.apply(to_token_input(Chunk(tokens=tuple(tokens), logprobs=logprobs)))
        events += core.apply(to_token_input(Chunk(finish=finish)))  # type: ignore[arg-type]
        return [json.loads(encode_event(event)) for event in events]


def final_response(events: list[dict[str, object]], *, with_usage: bool) -> str:
    """Returns the response as JSON, without the usage if it failed: usage counts all tokens of the failing chunk."""
    response = check_stream(events)
    if not with_usage or response["status"] == "failed":
        response = response | {"usage": None}
    return json.dumps(response, ensure_ascii=False)


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
def test_chunk_boundaries_do_not_change_the_response(case: Case) -> None:
    case_core = CaseCore(case)
    tokens = [token for text in case.output for token in case_core.format.encode(text)]
    stops_early = bool(case_core.spec.stop_strings) or case_core.spec.single_call

    def process(cuts: list[list[int]]) -> str:
        events = case_core.process_tokens(cuts, case.finish)
        # Usage counts all tokens of the chunk in which the response stops.
        return final_response(events, with_usage=not stops_early)

    expected = process([tokens])
    assert process([[token] for token in tokens]) == expected, "token by token"
    for index in range(len(case.name) % CUT_STEP, len(tokens) + 1, CUT_STEP):
        assert process([tokens[:index], tokens[index:]]) == expected, f"cut at {index}"
    dice = random.Random(case.name)
    for _ in range(NUM_RANDOM_CUTS):
        assert process(cut_randomly(tokens, dice)) == expected


def cut_randomly(tokens: list[int], dice: random.Random) -> list[list[int]]:
    bounds = sorted(dice.choices(range(len(tokens) + 1), k=dice.randrange(1, 12)))
    return [tokens[a:b] for a, b in zip([0, *bounds], [*bounds, len(tokens)], strict=True)]


SOUP_PIECES = {
    "hermes": """<think> </think> <tool_call> </tool_call> <custom=apply_patch> </custom> {"name":"run" ,"arguments":{"cmd":"x"}
        } {"cmd" :1} "x\\n" "\\ud83d <|im_end|> <|im_start|> assistant""",
    "qwen3-coder": """<think> </think> <tool_call> </tool_call> <function=run> <function=get_weather> </function> <parameter=cmd>
        <parameter=days> </parameter> 3 "x" true <function=nope> <custom=apply_patch> </custom> <|im_end|>""",
    "gpt-oss": """<|start|> <|channel|> <|message|> <|end|> <|return|> <|call|> <|constrain|> assistant analysis commentary final
        to=functions.run to=run json {"cmd":"x"} to=nobody user system""",
    "plain": "<think> </think> <tool_call> a b <|im_end|>",
}


@pytest.mark.parametrize("dialect", SOUP_PIECES)
def test_random_markers_always_give_a_valid_stream(dialect: str) -> None:
    case_core = CaseCore(Case("soup", [], dialect=dialect))
    pieces = [case_core.format.encode(piece) for piece in [*SOUP_PIECES[dialect].split(), " ", "\n", "\n\n", "é", "😀"]]
    pieces += [[token] for token in case_core.format.encode("😀")]  # parts of a character
    dice = random.Random(dialect)
    for number in range(NUM_SOUPS):
        cuts = [dice.choice(pieces) for _ in range(dice.randrange(1, 25))]
        finish = dice.choice(["stop", "length", "cancelled"])
        try:
            events = case_core.process_tokens(cuts, finish)
            check_stream(events)
            if number % 10 == 0 and finish != "cancelled":
                tokens = [token for cut in cuts for token in cut]
                recut_events = case_core.process_tokens(cut_randomly(tokens, dice), finish)
                assert final_response(recut_events, with_usage=True) == final_response(events, with_usage=True)
        except Exception as error:
            raise AssertionError(
                f"soup {number}: {case_core.format.decode([t for c in cuts for t in c])!r} {finish}"
            ) from error


def test_malformed_call_fails_the_response_at_once() -> None:
    """What has been emitted of a call cannot become text again, and what follows need not be generated."""
    case_core = CaseCore(Case("malformed", []))
    core = case_core.open()
    events = core.apply(AdmittedInput())
    text = '<tool_call>\n{"name": "run", "arguments": {"cmd": <|im_start|>'
    events += core.apply(to_token_input(Chunk(tokens=tuple(case_core.format.encode(text)))))
    assert core.is_ended
    response = check_stream([json.loads(encode_event(event)) for event in events])
    assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")


def test_log_probabilities_are_never_above_zero() -> None:
    """Rounding can give a probability just above one; clients compute with these."""
    case = Case("logprobs", ["Hi"], responses={"include": ["message.output_text.logprobs"], "top_logprobs": 1})
    case_core = CaseCore(case)
    core = case_core.open()
    events = core.apply(AdmittedInput())
    tokens = case_core.format.encode("Hi")
    logprobs = tuple(TokenLogprob(token, 1e-7, ((token, 1e-7),)) for token in tokens)
    events += core.apply(to_token_input(Chunk(tokens=tuple(tokens), logprobs=logprobs)))
    events += core.apply(to_token_input(Chunk(finish="stop")))
    response = check_stream([json.loads(encode_event(event)) for event in events])
    scored = response["output"][0]["content"][0]["logprobs"]
    assert [(entry["logprob"], entry["top_logprobs"][0]["logprob"]) for entry in scored] == [(0.0, 0.0)] * 2


ANSWER_FORMATS = {
    "schema": {
        "type": "json_schema",
        "name": "answer",
        "schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
    "object": {"type": "json_object"},
}


@pytest.mark.parametrize("name", [None, *ANSWER_FORMATS])
def test_stop_string_does_not_cut_promised_json(name: str | None) -> None:
    answer = '{"text": "One. STOP Two."}'
    fields = {} if name is None else {"text": {"format": ANSWER_FORMATS[name]}}
    # The input mentions JSON, as the API demands for an answer of any JSON object.
    case = Case("stop and format", [answer], request={"stop": ["STOP"], "input": "In JSON."}, responses=fields)
    case_core = CaseCore(case)
    response = check_stream(case_core.process_tokens([case_core.format.encode(answer)], "stop"))
    (message,) = response["output"]
    assert message["content"][0]["text"] == ('{"text": "One. ' if name is None else answer)


ENDS: tuple[tuple[StepInput, ...], ...] = (
    (CancelInput("client_left"),),
    (FailInput("server_error", "no", "engine_fault"),),
    (CutInput(),),
    (SteerInput(), FinishedInput()),
)
AFTER_THE_END: tuple[StepInput, ...] = (
    QueuedInput(), AdmittedInput(), StartedInput(), TokensInput((1,)), FinishedInput(), ResultInput(McpResult("x"), "x"),
    SteerInput(), CutInput(), CancelInput(), FailInput("server_error", "no", "server_bug"), KeepaliveInput(),
)  # fmt: skip


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
def test_any_prefix_and_an_end_are_a_legal_stream(case: Case) -> None:
    """Whatever ends a turn may come at any token; what comes after the end gives no event."""
    case_core = CaseCore(case)
    tokens = [token for text in case.output for token in case_core.format.encode(text)]
    for number in range(len(case.name) % CUT_STEP, len(tokens) + 1, CUT_STEP):
        core = case_core.open()
        events = core.apply(AdmittedInput())
        events += core.apply(TokensInput(tuple(tokens[:number])))
        for step in ENDS[number % len(ENDS)]:
            events += core.apply(step)
        assert core.is_ended
        check_stream([json.loads(encode_event(event)) for event in events])
        assert not [event for step in AFTER_THE_END for event in core.apply(step)]


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
def test_silence_changes_no_later_event(case: Case) -> None:
    case_core = CaseCore(case)
    tokens = [token for text in case.output for token in case_core.format.encode(text)]

    def apply_all(*before_tokens: StepInput) -> list[dict[str, object]]:
        core, events = case_core.open(), list[Event]()
        core.apply(AdmittedInput())
        for token in tokens:
            for step in before_tokens:
                core.apply(step)
            events += core.apply(TokensInput((token,)))
        events += core.apply(FinishedInput(finish=case.finish))
        return [json.loads(encode_event(event)) | {"sequence_number": 0} for event in events]

    assert apply_all(KeepaliveInput()) == apply_all()
