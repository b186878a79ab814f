"""Nonsense made of a dialect's own markers: nothing raises, the order is legal, no character is lost, no cut matters."""

import random
from datetime import UTC, datetime

import pytest

from antiphon.events.response import Response
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.parsing.reader import MAX_HOLD_BACK_CHARS
from antiphon.state.machine import Machine
from antiphon.state.segments import Arguments, Call, Close, Say, Think
from tests.harmony import parser_helpers

JSON = """{ } [ ] " " : , \\ \\" \\u00 \\ud83d \\ude00 "name" "name":"add" "name":"apply_patch" "arguments" "arguments":{ "input":" 1 null
{"name":"add","arguments":{"a":1}} {"a":1}""".split()
WORDS = [
    "Hello",
    " ",
    "\n",
    "\n\n",
    "a<b",
    "é",
    "😀",
    "</",
    "<",
    ">",
    "to=functions.add",
    " to=",
    "json",
    "<|im_end|>",
    "<|im_start|>",
]
MARKERS = {
    "plain": "<think> </think> <tool_call>".split(),
    "hermes": "<think> </think> <tool_call> </tool_call> <custom=apply_patch> <custom=add> </custom> \n</custom>\n".split(
        " "
    ),
    "qwen3-coder": """<think> </think> <tool_call> </tool_call> <function=add> <function=write> <function= </function> <parameter=a>
<parameter=text> <parameter=path> <parameter=deep> <parameter= </parameter> <function=apply_patch> <parameter=input>""".split(),
    "gpt-oss": """<|start|> <|start|>assistant <|channel|> <|channel|>analysis <|channel|>commentary <|channel|>final <|message|> <|end|>
<|return|> <|call|> <|constrain|>json <|endoftext|> assistant functions.apply_patch""".split(),
}


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
WHOLE = {
    "plain": ["<think>Well</think>"],
    "hermes": [CALL, "<tool_call>\n<custom=apply_patch>\nx\n</custom>\n</tool_call>", "<think>Well</think>"],
    "qwen3-coder": [
        CALL,
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<function=write>\n<parameter=path>\nx\n</parameter>\n<parameter=deep>\n{}\n</parameter>\n</function>",
        "<tool_call><function=apply_patch><parameter=input>x</parameter></function></tool_call>",
    ],
    "gpt-oss": [
        "<|start|>assistant<|channel|>final<|message|>Hi<|end|>",
        "<|channel|>analysis<|message|>Well<|end|>",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
        ' to=functions.apply_patch<|channel|>commentary<|message|>{"input": "x"}<|call|>',
        "<|start|>assistant<|channel|>commentary to=functions.nope<|message|>",
    ],
}


def soup(name: str, chance: random.Random) -> str:
    """Most have whole constructs in them: nonsense alone seldom gets far."""
    loose = [MARKERS[name], JSON, WORDS]
    pots = chance.choice([[*loose, MARKERS[name]], [*loose, WHOLE[name], WHOLE[name]], [WHOLE[name], WORDS]])
    return "".join(chance.choice(chance.choice(pots)) for _ in range(chance.randint(1, 40)))


@pytest.mark.parametrize("name", parser_helpers.NAMES)
@pytest.mark.timeout(1200)
def test_soup_is_a_legal_stream_in_every_cut(name: str) -> None:
    chance = random.Random(f"soup of {name}")
    for number in range(parser_helpers.SOUPS):
        ready: ModelFormat = chance.choice(parser_helpers.formats(name))
        tokens = ready.encode(soup(name, chance))
        options = {"thinking": chance.random() < 0.3, "natural": chance.random() < 0.7}
        whole, reader = parser_helpers.read(ready, tokens, **options)
        for cuts in (range(len(tokens)), parser_helpers.random_cuts(len(tokens), chance)):
            said, again = parser_helpers.read(ready, tokens, cuts, **options)
            assert said == whole, f"soup {number}"
            assert (again.reasoning_tokens, again.call_failed) == (reader.reasoning_tokens, reader.call_failed)
        drive(whole, natural=options["natural"], broken=reader.call_failed)


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_random_tokens_are_a_legal_stream(name: str) -> None:
    chance = random.Random(f"noise of {name}")
    ready = parser_helpers.tokens_format(name)
    for _ in range(parser_helpers.SOUPS // 2):
        tokens = [chance.choice((chance.randrange(300), chance.randrange(199_990, 200_020))) for _ in range(30)]
        whole, _ = parser_helpers.read(ready, tokens)
        assert parser_helpers.read(ready, tokens, range(len(tokens)))[0] == whole


def drive(said: list[parser_helpers.Segment], *, natural: bool, broken: bool) -> None:
    """The machine takes it: no illegal input, and it fails exactly where a call was left open."""
    machine = Machine(head(), new_id=lambda prefix: f"{prefix}_x", clock=lambda: 0)
    machine.begin()
    for segment in said:
        assert not machine.is_ended
        machine.feed(segment)
    machine.stop() if natural else machine.cut()
    opened = sum(isinstance(one, Call) for one in said) > _closed_calls(said)
    assert opened or not broken
    assert machine.response.status == (("failed" if opened else "completed") if natural else "incomplete")


def _closed_calls(said: list[parser_helpers.Segment]) -> int:
    closed, calling = 0, False
    for segment in said:
        closed += calling and isinstance(segment, Close)
        calling = isinstance(segment, Call) or (calling and isinstance(segment, Arguments))
    return closed


def test_a_call_that_does_not_begin_is_not_held_back_for_ever() -> None:
    ready = parser_helpers.tokens_format("hermes")
    text = '<tool_call>{"arguments": {"a": "' + "x" * (MAX_HOLD_BACK_CHARS + 9) + '"}, "name": "add"}</tool_call>'
    tokens = ready.encode(text)
    for cuts in ([], [100], range(0, len(tokens), 5000), range(1, len(tokens), 777)):
        assert parser_helpers.lines(parser_helpers.read(ready, tokens, cuts)[0]) == parser_helpers.lines([Say(text)])
    reader = ready.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.conversation())
    assert reader.feed(tokens[: MAX_HOLD_BACK_CHARS // 2]) == []
    assert reader.feed(tokens[MAX_HOLD_BACK_CHARS // 2 : -1])


def head() -> Response:
    return Response(
        id="resp_x", created_at=int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()), model="x", status="queued"
    )


def test_the_acceptor_refuses_what_is_illegal() -> None:
    for wrong in (
        [Arguments("x")],
        [Call("add"), Say("x")],
        [Say("x", "commentary"), Say("y")],
        [Call("a"), Think("x")],
    ):
        with pytest.raises(AssertionError):
            parser_helpers.legal(wrong)
