"""Random output made of a dialect's markers: parsing never raises, loses no character and does not depend on splits."""

import random

import pytest

from antiphon.harmony.format import ModelFormat
from antiphon.harmony.parsing.reader import MAX_HOLD_BACK_CHARS
from antiphon.state.segments import Arguments, Call, Say, Think
from tests.harmony import parser_helpers

JSON_PIECES = """{ } [ ] " " : , \\ \\" \\u00 \\ud83d \\ude00 "name" "name":"add" "name":"apply_patch" "arguments" "arguments":{ "input":" 1 null
{"name":"add","arguments":{"a":1}} {"a":1}""".split()
TEXT_PIECES = [
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
MARKER_PIECES = {
    "plain": "<think> </think> <tool_call>".split(),
    "hermes": "<think> </think> <tool_call> </tool_call> <custom=apply_patch> <custom=add> </custom> \n</custom>\n".split(
        " "
    ),
    "qwen3-coder": """<think> </think> <tool_call> </tool_call> <function=add> <function=write> <function= </function> <parameter=a>
<parameter=text> <parameter=path> <parameter=deep> <parameter= </parameter> <function=apply_patch> <parameter=input>""".split(),
    "gpt-oss": """<|start|> <|start|>assistant <|channel|> <|channel|>analysis <|channel|>commentary <|channel|>final <|message|> <|end|>
<|return|> <|call|> <|constrain|>json <|endoftext|> assistant functions.apply_patch""".split(),
}


JSON_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
COMPLETE_CONSTRUCTS = {
    "plain": ["<think>Well</think>"],
    "hermes": [JSON_CALL, "<tool_call>\n<custom=apply_patch>\nx\n</custom>\n</tool_call>", "<think>Well</think>"],
    "qwen3-coder": [
        JSON_CALL,
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


def draw_output(name: str, rng: random.Random) -> str:
    """Draws fragments, often with complete constructs among them: fragments alone rarely open a call."""
    fragments = [MARKER_PIECES[name], JSON_PIECES, TEXT_PIECES]
    sources = rng.choice(
        [
            [*fragments, MARKER_PIECES[name]],
            [*fragments, COMPLETE_CONSTRUCTS[name], COMPLETE_CONSTRUCTS[name]],
            [COMPLETE_CONSTRUCTS[name], TEXT_PIECES],
        ]
    )
    return "".join(rng.choice(rng.choice(sources)) for _ in range(rng.randint(1, 40)))


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
@pytest.mark.timeout(1200)
def test_random_markers_give_a_valid_stream_for_any_split(name: str) -> None:
    rng = random.Random(f"soup of {name}")
    for number in range(parser_helpers.RANDOM_OUTPUTS):
        model_format: ModelFormat = rng.choice(parser_helpers.load_formats(name))
        tokens = model_format.encode(draw_output(name, rng))
        options = {"thinking": rng.random() < 0.3, "natural": rng.random() < 0.7}
        expected, reader = parser_helpers.parse_tokens(model_format, tokens, **options)
        for cuts in (range(len(tokens)), parser_helpers.draw_cuts(len(tokens), rng)):
            segments, other_reader = parser_helpers.parse_tokens(model_format, tokens, cuts, **options)
            assert segments == expected, f"output {number}"
            assert (other_reader.reasoning_tokens, other_reader.call_failed) == (
                reader.reasoning_tokens,
                reader.call_failed,
            )
        parser_helpers.check_machine_accepts(expected, natural=options["natural"], call_failed=reader.call_failed)


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_random_tokens_give_a_valid_stream(name: str) -> None:
    rng = random.Random(f"noise of {name}")
    model_format = parser_helpers.load_token_format(name)
    for _ in range(parser_helpers.RANDOM_OUTPUTS // 2):
        tokens = [rng.choice((rng.randrange(300), rng.randrange(199_990, 200_020))) for _ in range(30)]
        expected, _ = parser_helpers.parse_tokens(model_format, tokens)
        assert parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)))[0] == expected


def test_hold_back_is_limited_before_a_call_name() -> None:
    model_format = parser_helpers.load_token_format("hermes")
    text = '<tool_call>{"arguments": {"a": "' + "x" * (MAX_HOLD_BACK_CHARS + 9) + '"}, "name": "add"}</tool_call>'
    tokens = model_format.encode(text)
    for cuts in ([], [100], range(0, len(tokens), 5000), range(1, len(tokens), 777)):
        assert parser_helpers.format_segments(
            parser_helpers.parse_tokens(model_format, tokens, cuts)[0]
        ) == parser_helpers.format_segments([Say(text)])
    reader = model_format.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.build_prompt_input())
    assert reader.feed(tokens[: MAX_HOLD_BACK_CHARS // 2]) == []
    assert reader.feed(tokens[MAX_HOLD_BACK_CHARS // 2 : -1])


def test_segment_order_check_rejects_illegal_sequences() -> None:
    for illegal_segments in (
        [Arguments("x")],
        [Call("add"), Say("x")],
        [Say("x", "commentary"), Say("y")],
        [Call("a"), Think("x")],
    ):
        with pytest.raises(AssertionError):
            parser_helpers.check_segment_order(illegal_segments)
