"""Where a grammar applies: it compiles, it lets through what the dialect writes, and it stops what would not be read."""

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from antiphon.events.inputs import CustomTool, FunctionTool, GrammarFormat
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.format import ModelFormat, RenderedPrompt
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from tests.harmony import parser_helpers

OURS = ["hermes", "qwen3-coder", "plain"]
GOOD = {
    "plain": ["text only", "reasoning then text", "empty reasoning", "unicode", "nothing"],
    "hermes": [
        "text only",
        "reasoning then text",
        "reasoning opened by the prompt",
        "one call",
        "two parallel calls",
        "reasoning then call",
        "text then call",
        "call then text",
        "no arguments",
        "marker inside a string",
        "name in a namespace",
        "custom tool, raw",
        "custom tool in a namespace",
    ],
    "qwen3-coder": [
        "text only",
        "reasoning then text",
        "reasoning opened by the prompt",
        "one call",
        "two parallel calls",
        "reasoning then call",
        "text then call",
        "call then text",
        "no arguments",
        "name in a namespace",
        "custom tool",
        "unicode and escapes in arguments",
    ],
    "gpt-oss": [
        "reasoning then text",
        "reasoning then call",
        "preamble then call",
        "preamble then final",
        "recipient before the channel",
        "one call without type",
        "no arguments",
        "custom tool, raw",
        "custom tool in a namespace",
        "text of two languages",
    ],
}
BAD = {
    "plain": ["opener said twice"],
    "hermes": [
        "unknown tool",
        "stray opener in prose",
        "not JSON",
        "closer inside the arguments",
        "arguments as a string of JSON",
    ],
    "qwen3-coder": [
        "unknown tool",
        "unknown parameter",
        "types that do not fit become strings",
        "stray markers in prose",
    ],
    "gpt-oss": [
        "malformed: plain text",
        "malformed: unknown tool",
        "malformed: missing end",
        "malformed: empty channel",
    ],
}


class Wrapped:
    """A format's vocabulary as llguidance takes it."""

    bos_token_id = None

    def __init__(self, ready: ModelFormat, size: int) -> None:
        self.tokens = [ready.decode_token(number)[1] for number in range(size)]
        control: Any = getattr(ready, "_vocabulary", None)
        self.special_token_ids = sorted(control.special_ids) if control else list(range(199_998, size))
        self.eos_token_id = (*ready.stop_ids, *ready.encode("<|im_end|>"))[0]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def tokenizer(name: str, letters: bool = False) -> LLTokenizer:
    ready = parser_helpers.letters_format(name) if letters else parser_helpers.tokens_format(name)
    size = 201_088 if name == "gpt-oss" else 258 if letters else 265
    return LLTokenizer(TokenizerWrapper(Wrapped(ready, size)))


def accepts(ready: ModelFormat, tokens: LLTokenizer, text: str, talk: Any, *, thinking: bool = False) -> bool:
    lark = ready.build_grammar(RenderedPrompt((), "", thinking), talk)
    assert lark is not None
    source = LLMatcher.grammar_from_lark(lark)
    assert LLMatcher.validate_grammar(source, tokens) == ""
    matcher = LLMatcher(tokens, source, log_level=0)
    ends = {ready.stop_ids[0], *ready.encode("<|im_end|>")} - set(ready.encode("<|call|>"))
    ids = ready.encode(text)
    ids = ids[:-1] if ids and ids[-1] in ends else ids
    taken = matcher.try_consume_tokens(ids) == len(ids)
    return bool(taken and not matcher.is_error() and matcher.is_accepting())


def named(name: str, wanted: Iterable[str]) -> list[Any]:
    found = {case["name"]: case for case in parser_helpers.cases(name)}
    return [found[one] for one in wanted]


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_what_the_dialect_writes_may_be_written(name: str) -> None:
    for case in named(name, GOOD[name]):
        thinking = case.get("thinking", False)
        assert accepts(
            parser_helpers.tokens_format(name),
            tokenizer(name),
            case["text"],
            parser_helpers.conversation(),
            thinking=thinking,
        ), case


@pytest.mark.parametrize("name", OURS)
def test_markers_may_be_letters(name: str) -> None:
    for case in named(name, GOOD[name]):
        ready, thinking = parser_helpers.letters_format(name), case.get("thinking", False)
        assert accepts(
            ready, tokenizer(name, letters=True), case["text"], parser_helpers.conversation(), thinking=thinking
        ), case


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_what_would_not_be_read_may_not_be_written(name: str) -> None:
    for case in named(name, BAD[name]):
        thinking = case.get("thinking", False)
        ready = parser_helpers.tokens_format(name)
        assert not accepts(ready, tokenizer(name), case["text"], parser_helpers.conversation(), thinking=thinking), case


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_without_tools_there_are_no_calls(name: str) -> None:
    for talk in (parser_helpers.conversation(tool_choice="none"), parser_helpers.conversation(tools=ToolTable())):
        ready = parser_helpers.tokens_format(name)
        hello = next(case for case in parser_helpers.cases(name) if case["name"] == "reasoning then text")
        assert accepts(ready, tokenizer(name), hello["text"], talk)
        for case in parser_helpers.cases(name):
            if case["name"] == "one call":
                assert not accepts(ready, tokenizer(name), case["text"], talk)


RULES = {"lark": 'start: "go " STEP\nSTEP: /[0-9]+/', "regex": r"go [0-9]+/?"}
FRAMES = {
    "hermes": "<tool_call>\n<custom=steer>\n{}\n</custom>\n</tool_call>",
    "qwen3-coder": "<tool_call>\n<function=steer>\n<parameter=input>\n{}\n</parameter>\n</function>\n</tool_call>",
    "gpt-oss": "<|channel|>commentary to=functions.steer <|constrain|>code<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("syntax", RULES)
def test_a_custom_tools_own_grammar_holds_inside_its_frame(name: str, syntax: Any) -> None:
    steer = CustomTool(name="steer", format=GrammarFormat(syntax=syntax, definition=RULES[syntax]))
    talk = parser_helpers.conversation(tools=ToolTable.from_request([steer, FunctionTool(name="now")]))
    ready = parser_helpers.tokens_format(name)
    assert accepts(ready, tokenizer(name), FRAMES[name].format("go 12"), talk)
    assert not accepts(ready, tokenizer(name), FRAMES[name].format("stay"), talk)


OBJECT = {"type": "object", "additionalProperties": False}
REQUIRED, SINGLE = {"tool_choice": "required"}, {"single_call": True}
DEMANDS: list[tuple[dict[str, Any], dict[str, bool]]] = [
    (REQUIRED, {"text only": False, "one call": True, "two parallel calls": True, "text then call": False}),
    (REQUIRED | SINGLE, {"text only": False, "one call": True, "two parallel calls": False}),
    (SINGLE, {"text only": True, "one call": True, "two parallel calls": False}),
    (REQUIRED | {"allowed_tools": frozenset({"now"})}, {"text only": False, "one call": False}),
    ({"allowed_tools": frozenset({"now"})}, {"text only": True, "one call": False}),
    ({"tool_choice": "none"}, {"text only": True, "one call": False}),
    ({"answer_schema": OBJECT}, {"text only": False, "one call": True, "text then call": False}),
    ({"answer_schema": OBJECT, "tool_choice": "none"}, {"text only": False, "one call": False}),
]


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize(("demand", "wanted"), DEMANDS, ids=[str(sorted(demand)) for demand, _ in DEMANDS])
def test_a_demand_leaves_nothing_else(name: str, demand: dict[str, Any], wanted: dict[str, bool]) -> None:
    talk = parser_helpers.conversation(**demand)
    for case in named(name, wanted):
        found = accepts(parser_helpers.tokens_format(name), tokenizer(name), case["text"], talk)
        assert found == wanted[case["name"]], case["name"]
    if "answer_schema" in demand:
        for text, fits in (("{}", True), ("\n{ }", True), ('{"a": 1}', False), ("{} and more", False), ("", False)):
            assert accepts(parser_helpers.tokens_format(name), tokenizer(name), text, talk) == fits, text


def test_a_demand_on_gpt_oss() -> None:
    ready, tokens, final = parser_helpers.tokens_format("gpt-oss"), tokenizer("gpt-oss"), "<|channel|>final<|message|>"
    (think, call) = named("gpt-oss", ["reasoning then text", "reasoning then call"])
    demand = parser_helpers.conversation(**REQUIRED)
    assert not accepts(ready, tokens, think["text"], demand) and accepts(ready, tokens, call["text"], demand)
    answer = parser_helpers.conversation(answer_schema=OBJECT, tool_choice="none")
    assert accepts(ready, tokens, f"{final}{{}}<|return|>", answer)
    assert not accepts(ready, tokens, f"{final}Hello.<|return|>", answer)
    assert not accepts(ready, tokens, think["text"], answer) and not accepts(ready, tokens, call["text"], answer)
    other = parser_helpers.conversation(tool_choice="required", allowed_tools=frozenset({"now"}))
    assert not accepts(ready, tokens, call["text"], other)


def test_reasoning_stays_free_before_an_answer() -> None:
    ready, tokens, talk = (
        parser_helpers.tokens_format("hermes"),
        tokenizer("hermes"),
        parser_helpers.conversation(answer_schema=OBJECT),
    )
    for text, thinking in (("<think>\nAny {words}.\n</think>\n\n{}", False), ("Any {words}.\n</think>\n\n{}", True)):
        assert accepts(ready, tokens, text, talk, thinking=thinking)
        assert not accepts(ready, tokens, text.replace("\n\n{}", "\n\nno"), talk, thinking=thinking)


PARTLY = {
    "qwen3-coder": ("<tool_call>", "</tool_call>", "</function>", "</parameter>"),
    "seed-oss": ("<seed:tool_call>", "</seed:tool_call>"),
    "kimi-k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "minimax-m3": ("]<]minimax[>[",),
    "deepseek-v3.2": ("｜DSML｜",),
}


@pytest.mark.parametrize("name", PARTLY)
def test_markers_that_are_partly_tokens(name: str) -> None:
    """Text of six letters at most, up to a newline and a token, or a token and letters: no way leads nowhere."""
    word = {"type": "string", "maxLength": 6}
    schema = {"type": "object", "properties": {"word": word, "free": {"type": "string"}}, "required": ["word", "free"]}
    tools = ToolTable.from_request(
        [FunctionTool(name="first", parameters={**schema, "additionalProperties": False}, strict=True)]
    )
    offer = tools.find_tool("first")
    assert offer is not None
    vocabulary = ByteVocabulary(PARTLY[name], (*DIALECTS[name].stop, "<|im_end|>"))
    ready = TemplateFormat(DIALECTS[name], vocabulary, ChatTemplate("{{ messages }}"))
    tokens = LLTokenizer(TokenizerWrapper(Wrapped(ready, 256 + len(vocabulary.added_tokens))))
    for talk in (
        parser_helpers.conversation(tools=tools, tool_choice="required"),
        parser_helpers.conversation(tools=tools),
    ):
        for text in ("", "a", "six or", "a\nb\n", "\n\n", "a<b"):
            before = "" if talk.tool_choice == "required" else "So: 1 < 2\n"
            call = DIALECTS[name].calls[0].write_calls([(offer, json.dumps({"word": text, "free": f"{text}\n{text}"}))])
            assert call is not None and accepts(ready, tokens, before + call, talk), text
            said, _ = parser_helpers.read(ready, ready.encode(before + call), talk=talk)
            assert parser_helpers.lines(said)[-3] == "call first" and parser_helpers.lines(said)[-1] == "close", text
        call = DIALECTS[name].calls[0].write_calls([(offer, json.dumps({"word": "sevenlt", "free": ""}))])
        assert call is not None and not accepts(ready, tokens, call, talk)
        assert accepts(ready, tokens, "One < two.", talk) is (talk.tool_choice == "auto")


LIST = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ('{"a":[1,2]}', True),
        ('{"a": [1, 2]}', True),
        ('{ "a" : [ 1 , 2 ] }', True),
        ('{\n  "a": [\n    1,\n    2\n  ]\n}', True),
        ('{\n\t"a": [\n\t\t1\n\t]\n}', True),
        ('{  "a": []}', False),
        ('{\n\n"a": []}', False),
    ],
)
def test_json_is_written_in_a_line_or_indented_but_not_with_blanks_for_their_own_sake(text: str, may: bool) -> None:
    ready, tokens, talk = (
        parser_helpers.tokens_format("plain"),
        tokenizer("plain"),
        parser_helpers.conversation(answer_schema=LIST),
    )
    assert accepts(ready, tokens, text, talk) is may


def test_where_no_call_is_possible_none_can_be_demanded() -> None:
    assert (
        parser_helpers.tokens_format("plain").build_grammar(
            RenderedPrompt((), "", False), parser_helpers.conversation(**REQUIRED)
        )
        is None
    )
    for name in parser_helpers.NAMES:
        nothing = parser_helpers.conversation(tools=ToolTable(), **REQUIRED)
        assert parser_helpers.tokens_format(name).build_grammar(RenderedPrompt((), "", False), nothing) is None, name


def test_only_what_was_promised_is_held_to_a_grammar() -> None:
    free = [{}, {"tool_choice": "none"}, SINGLE]
    assert not any(parser_helpers.conversation(**more).needs_grammar for more in free)
    assert all(parser_helpers.conversation(**more).needs_grammar for more, _ in DEMANDS if more not in free)
    strict = ToolTable.from_request([FunctionTool(name="f", strict=True)])
    assert (
        parser_helpers.conversation(tools=strict).needs_grammar
        and not parser_helpers.conversation(tools=strict, tool_choice="none").needs_grammar
    )
