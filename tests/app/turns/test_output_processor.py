"""From tokens to a Response, however the tokens are cut; and streams of nonsense, all of which end legally.

`make test-full` runs the full counts.
"""

import json
import random
from collections.abc import Sequence

import msgspec
import pytest

from antiphon.app.requests import responses as request
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.engine.protocol import Chunk, TokenLogprob
from antiphon.events.sse import encode_event
from tests.counts import FULL_COUNTS
from tests.invariants import check
from tests.snapshots.cases import CASES, TOOLS, Case
from tests.snapshots.run_case import USER, catalogue
from tests.state.machine_helpers import Counted

RANDOM_CUTS = 1000 if FULL_COUNTS else 15
SOUPS = 10_000 if FULL_COUNTS else 150
WHOLE_CASES = [case for case in CASES if all(isinstance(said, str) for said in case.speak)]


class Kitchen:
    """A case's request, ready to be answered by any tokens."""

    def __init__(self, case: Case) -> None:
        body = {"model": "scripted", "input": USER, "tools": TOOLS} | case.request | case.responses
        asked = request.read_responses_request(body, catalogue(case))
        self.form = asked.model.format
        self.spec = msgspec.structs.replace(
            asked.spec, base_response=msgspec.structs.replace(asked.spec.base_response, id="resp_1", created_at=1)
        )
        self.prompt = self.form.render_prompt(self.spec.prompt_input, now=_NOW)

    def answer(self, cuts: Sequence[Sequence[int]], finish: str) -> list[dict[str, object]]:
        """The events of an answer that comes in these pieces."""
        scribe = OutputProcessor(self.spec, self.prompt, self.form, ids=Counted(), clock=lambda: 2)
        scribe.on_admitted(Chunk())
        count = 0
        for tokens in cuts:
            logprobs = tuple(TokenLogprob(token, -0.5 - count - n, ((token, -0.5),)) for n, token in enumerate(tokens))
            count += len(tokens)
            scribe.process_chunk(Chunk(tokens=tuple(tokens), logprobs=logprobs))
        scribe.process_chunk(Chunk(finish=finish))  # type: ignore[arg-type]
        return [json.loads(encode_event(event)) for event in scribe.collect_events()]


def _now():
    from datetime import UTC, datetime

    return datetime(2026, 1, 1, tzinfo=UTC)


_NOW = _now()


def outcome(events: list[dict[str, object]]) -> str:
    """The Response. Where a broken call ended it, without its usage: tokens of the same step were generated, too."""
    response = check(events)
    if response["status"] == "failed":
        response = response | {"usage": None}
    return json.dumps(response, ensure_ascii=False)


@pytest.mark.parametrize("case", WHOLE_CASES, ids=lambda case: case.name)
def test_any_cut_of_the_tokens_gives_the_same_response(case: Case) -> None:
    kitchen = Kitchen(case)
    tokens = [token for said in case.speak for token in kitchen.form.encode(said)]
    stops_early = bool(kitchen.spec.stop_strings) or kitchen.spec.max_tool_calls is not None

    def read(cuts: list[list[int]]) -> str:
        events = kitchen.answer(cuts, case.finish)
        if stops_early:  # then tokens that came in the same step were generated, too: usage is honest about that
            events[-1]["response"]["usage"] = None  # type: ignore[index]
        return outcome(events)

    expected = read([tokens])
    assert read([[token] for token in tokens]) == expected, "token by token"
    for at in range(len(tokens) + 1):
        assert read([tokens[:at], tokens[at:]]) == expected, f"cut at {at}"
    dice = random.Random(case.name)
    for _ in range(RANDOM_CUTS):
        assert read(_cut(tokens, dice)) == expected


def _cut(tokens: list[int], dice: random.Random) -> list[list[int]]:
    bounds = sorted(dice.choices(range(len(tokens) + 1), k=dice.randrange(1, 12)))
    return [tokens[a:b] for a, b in zip([0, *bounds], [*bounds, len(tokens)], strict=True)]


SOUP = {
    "hermes": """<think> </think> <tool_call> </tool_call> <custom=apply_patch> </custom> {"name":"run" ,"arguments":{"cmd":"x"}
        } {"cmd" :1} "x\\n" "\\ud83d <|im_end|> <|im_start|> assistant""",
    "qwen3-coder": """<think> </think> <tool_call> </tool_call> <function=run> <function=get_weather> </function> <parameter=cmd>
        <parameter=days> </parameter> 3 "x" true <function=nope> <custom=apply_patch> </custom> <|im_end|>""",
    "gpt-oss": """<|start|> <|channel|> <|message|> <|end|> <|return|> <|call|> <|constrain|> assistant analysis commentary final
        to=functions.run to=run json {"cmd":"x"} to=nobody user system""",
    "plain": "<think> </think> <tool_call> a b <|im_end|>",
}


@pytest.mark.parametrize("dialect", SOUP)
def test_marker_soup_is_always_a_legal_stream(dialect: str) -> None:
    kitchen = Kitchen(Case("soup", [], dialect=dialect))
    pieces = [kitchen.form.encode(piece) for piece in [*SOUP[dialect].split(), " ", "\n", "\n\n", "é", "😀"]]
    pieces += [[token] for token in kitchen.form.encode("😀")]  # half characters
    dice = random.Random(dialect)
    for number in range(SOUPS):
        cuts = [dice.choice(pieces) for _ in range(dice.randrange(1, 25))]
        finish = dice.choice(["stop", "length", "cancelled"])
        try:
            events = kitchen.answer(cuts, finish)
            check(events)
            if number % 10 == 0 and finish != "cancelled":
                tokens = [token for cut in cuts for token in cut]
                assert outcome(kitchen.answer(_cut(tokens, dice), finish)) == outcome(events)
        except Exception as error:
            raise AssertionError(
                f"soup {number}: {kitchen.form.decode([t for c in cuts for t in c])!r} {finish}"
            ) from error
