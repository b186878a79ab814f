"""The grammars of dialects: they compile, accept what the dialect writes, and reject what could not be parsed."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.events.tools import CustomTool, FunctionTool, GrammarFormat
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from tests.harmony import parser_helpers
from tests.harmony.grammar_helpers import accepts_output

TEMPLATE_DIALECTS = ["hermes", "qwen3-coder", "plain"]
ACCEPTED_TRANSCRIPTS = {
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
REJECTED_TRANSCRIPTS = {
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


def find_transcripts(name: str, names: Iterable[str]) -> list[Any]:
    transcripts = {case["name"]: case for case in parser_helpers.load_transcripts(name)}
    return [transcripts[transcript_name] for transcript_name in names]


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_grammar_accepts_output_of_the_dialect(name: str) -> None:
    for case in find_transcripts(name, ACCEPTED_TRANSCRIPTS[name]):
        thinking = case.get("thinking", False)
        assert accepts_output(
            parser_helpers.load_token_format(name),
            case["text"],
            parser_helpers.build_prompt_input(),
            thinking=thinking,
        ), case


@pytest.mark.parametrize("name", TEMPLATE_DIALECTS)
def test_grammar_accepts_markers_spelled_in_bytes(name: str) -> None:
    for case in find_transcripts(name, ACCEPTED_TRANSCRIPTS[name]):
        model_format, thinking = parser_helpers.load_byte_format(name), case.get("thinking", False)
        assert accepts_output(
            model_format,
            case["text"],
            parser_helpers.build_prompt_input(),
            thinking=thinking,
        ), case


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_grammar_rejects_malformed_output(name: str) -> None:
    for case in find_transcripts(name, REJECTED_TRANSCRIPTS[name]):
        thinking = case.get("thinking", False)
        model_format = parser_helpers.load_token_format(name)
        assert not accepts_output(model_format, case["text"], parser_helpers.build_prompt_input(), thinking=thinking), (
            case
        )


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_grammar_without_tools_rejects_calls(name: str) -> None:
    for prompt_input in (
        parser_helpers.build_prompt_input(tool_choice="none"),
        parser_helpers.build_prompt_input(tools=ToolTable()),
    ):
        model_format = parser_helpers.load_token_format(name)
        text_case = next(
            case for case in parser_helpers.load_transcripts(name) if case["name"] == "reasoning then text"
        )
        assert accepts_output(model_format, text_case["text"], prompt_input)
        for case in parser_helpers.load_transcripts(name):
            if case["name"] == "one call":
                assert not accepts_output(model_format, case["text"], prompt_input)


GRAMMAR_DEFINITIONS = {"lark": 'start: "go " STEP\nSTEP: /[0-9]+/', "regex": r"go [0-9]+/?"}
CUSTOM_CALL_FRAMES = {
    "hermes": "<tool_call>\n<custom=steer>\n{}\n</custom>\n</tool_call>",
    "qwen3-coder": "<tool_call>\n<function=steer>\n<parameter=input>\n{}\n</parameter>\n</function>\n</tool_call>",
    "gpt-oss": "<|channel|>commentary to=functions.steer <|constrain|>code<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", CUSTOM_CALL_FRAMES)
@pytest.mark.parametrize("syntax", GRAMMAR_DEFINITIONS)
def test_grammar_of_a_custom_tool_applies_inside_its_frame(name: str, syntax: Any) -> None:
    steer = CustomTool(name="steer", format=GrammarFormat(syntax=syntax, definition=GRAMMAR_DEFINITIONS[syntax]))
    prompt_input = parser_helpers.build_prompt_input(tools=ToolTable.from_request([steer, FunctionTool(name="now")]))
    model_format = parser_helpers.load_token_format(name)
    assert accepts_output(model_format, CUSTOM_CALL_FRAMES[name].format("go 12"), prompt_input)
    assert not accepts_output(model_format, CUSTOM_CALL_FRAMES[name].format("stay"), prompt_input)


EMPTY_OBJECT_SCHEMA = {"type": "object", "additionalProperties": False}
REQUIRED_CALL, SINGLE_CALL = {"tool_choice": "required"}, {"single_call": True}
CONSTRAINTS: list[tuple[dict[str, Any], dict[str, bool]]] = [
    (REQUIRED_CALL, {"text only": False, "one call": True, "two parallel calls": True, "text then call": False}),
    (REQUIRED_CALL | SINGLE_CALL, {"text only": False, "one call": True, "two parallel calls": False}),
    (SINGLE_CALL, {"text only": True, "one call": True, "two parallel calls": False}),
    (REQUIRED_CALL | {"allowed_tools": frozenset({"now"})}, {"text only": False, "one call": False}),
    ({"allowed_tools": frozenset({"now"})}, {"text only": True, "one call": False}),
    ({"tool_choice": "none"}, {"text only": True, "one call": False}),
    (
        {"output_constraint": OutputConstraint(schema=EMPTY_OBJECT_SCHEMA)},
        {"text only": False, "one call": True, "text then call": False},
    ),
    (
        {"output_constraint": OutputConstraint(schema=EMPTY_OBJECT_SCHEMA), "tool_choice": "none"},
        {"text only": False, "one call": False},
    ),
]


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize(
    ("constraints", "expected"), CONSTRAINTS, ids=[str(sorted(constraints)) for constraints, _ in CONSTRAINTS]
)
def test_grammar_enforces_tool_choice_and_answer_schema(
    name: str, constraints: dict[str, Any], expected: dict[str, bool]
) -> None:
    prompt_input = parser_helpers.build_prompt_input(**constraints)
    for case in find_transcripts(name, expected):
        accepted = accepts_output(parser_helpers.load_token_format(name), case["text"], prompt_input)
        assert accepted == expected[case["name"]], case["name"]
    if "output_constraint" in constraints:
        for text, accepted in (("{}", True), ("\n{ }", True), ('{"a": 1}', False), ("{} and more", False), ("", False)):
            assert accepts_output(parser_helpers.load_token_format(name), text, prompt_input) == accepted, text


def test_gpt_oss_grammar_enforces_tool_choice_and_answer_schema() -> None:
    model_format, final = (
        parser_helpers.load_token_format("gpt-oss"),
        "<|channel|>final<|message|>",
    )
    (reasoning_case, call_case) = find_transcripts("gpt-oss", ["reasoning then text", "reasoning then call"])
    required = parser_helpers.build_prompt_input(**REQUIRED_CALL)
    assert not accepts_output(model_format, reasoning_case["text"], required) and accepts_output(
        model_format, call_case["text"], required
    )
    answer = parser_helpers.build_prompt_input(
        output_constraint=OutputConstraint(schema=EMPTY_OBJECT_SCHEMA), tool_choice="none"
    )
    assert accepts_output(model_format, f"{final}{{}}<|return|>", answer)
    assert not accepts_output(model_format, f"{final}Hello.<|return|>", answer)
    assert not accepts_output(model_format, reasoning_case["text"], answer) and not accepts_output(
        model_format, call_case["text"], answer
    )
    other_tool = parser_helpers.build_prompt_input(tool_choice="required", allowed_tools=frozenset({"now"}))
    assert not accepts_output(model_format, call_case["text"], other_tool)


OUTPUT_CONSTRAINTS = [
    (OutputConstraint(choice=("yes", "no")), ("yes", "no"), ("maybe", " yes", "yes.", "")),
    (OutputConstraint(regex="[0-9]{2}/[0-9]"), ("12/7",), ("1/7", "12/77")),
    (OutputConstraint(lark='start: "a" "b"+'), ("ab", "abbb"), ("a", "ba")),
]


@pytest.mark.parametrize(("constraint", "accepted", "refused"), OUTPUT_CONSTRAINTS, ids=["choice", "regex", "lark"])
@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("hermes", "{}"),
        ("hermes", "<think>\nHm.\n</think>{}"),
        ("qwen3-coder", "{}"),
        ("gpt-oss", "<|channel|>final<|message|>{}<|return|>"),
    ],
)
def test_text_has_the_required_form(
    name: str, frame: str, constraint: OutputConstraint, accepted: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    prompt_input = parser_helpers.build_prompt_input(output_constraint=constraint, tool_choice="none")
    for text in (*accepted, *refused):
        is_accepted = accepts_output(parser_helpers.load_token_format(name), frame.replace("{}", text), prompt_input)
        assert is_accepted == (text in accepted), text


def test_grammar_leaves_reasoning_before_the_answer_free() -> None:
    model_format, prompt_input = (
        parser_helpers.load_token_format("hermes"),
        parser_helpers.build_prompt_input(output_constraint=OutputConstraint(schema=EMPTY_OBJECT_SCHEMA)),
    )
    for text, thinking in (("<think>\nAny {words}.\n</think>\n\n{}", False), ("Any {words}.\n</think>\n\n{}", True)):
        assert accepts_output(model_format, text, prompt_input, thinking=thinking)
        assert not accepts_output(model_format, text.replace("\n\n{}", "\n\nno"), prompt_input, thinking=thinking)


TOKEN_MARKERS = {
    "qwen3-coder": ("<tool_call>", "</tool_call>", "</function>", "</parameter>"),
    "seed-oss": ("<seed:tool_call>", "</seed:tool_call>"),
    "kimi-k3": ("<|open|>", "<|close|>", "<|sep|>"),
    "minimax-m3": ("]<]minimax[>[",),
    "deepseek-v3.2": ("｜DSML｜",),
}


@pytest.mark.parametrize("name", TOKEN_MARKERS)
def test_grammar_with_some_markers_as_tokens(name: str) -> None:
    """The grammar accepts strings of at most six characters before markers that are tokens, bytes, or both."""
    short_string = {"type": "string", "maxLength": 6}
    schema = {
        "type": "object",
        "properties": {"word": short_string, "free": {"type": "string"}},
        "required": ["word", "free"],
    }
    tools = ToolTable.from_request(
        [FunctionTool(name="first", parameters={**schema, "additionalProperties": False}, strict=True)]
    )
    offer = tools.find_tool("first")
    assert offer is not None
    vocabulary = ByteVocabulary(TOKEN_MARKERS[name], (*DIALECTS[name].stop, "<|im_end|>"))
    model_format = TemplateFormat(DIALECTS[name], vocabulary, ChatTemplate("{{ messages }}"))
    for prompt_input in (
        parser_helpers.build_prompt_input(tools=tools, tool_choice="required"),
        parser_helpers.build_prompt_input(tools=tools),
    ):
        for text in ("", "a", "six or", "a\nb\n", "\n\n", "a<b"):
            prefix = "" if prompt_input.tool_choice == "required" else "So: 1 < 2\n"
            call = DIALECTS[name].calls[0].write_calls([(offer, json.dumps({"word": text, "free": f"{text}\n{text}"}))])
            assert call is not None and accepts_output(model_format, prefix + call, prompt_input), text
            segments, _ = parser_helpers.parse_tokens(
                model_format, model_format.encode(prefix + call), prompt_input=prompt_input
            )
            assert (
                parser_helpers.format_segments(segments)[-3] == "call first"
                and parser_helpers.format_segments(segments)[-1] == "close"
            ), text
        call = DIALECTS[name].calls[0].write_calls([(offer, json.dumps({"word": "sevenlt", "free": ""}))])
        assert call is not None and not accepts_output(model_format, call, prompt_input)
        assert accepts_output(model_format, "One < two.", prompt_input) is (prompt_input.tool_choice == "auto")


LIST_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_grammar_limits_json_whitespace_to_one_line_or_indented(text: str, expected: bool) -> None:
    model_format, prompt_input = (
        parser_helpers.load_token_format("plain"),
        parser_helpers.build_prompt_input(output_constraint=OutputConstraint(schema=LIST_SCHEMA)),
    )
    assert accepts_output(model_format, text, prompt_input) is expected


def test_required_call_without_callable_tools_has_no_grammar() -> None:
    assert (
        parser_helpers.load_token_format("plain").build_grammar(
            RenderedPrompt((), "", False), parser_helpers.build_prompt_input(**REQUIRED_CALL)
        )
        is None
    )
    for name in parser_helpers.TRANSCRIPT_DIALECTS:
        prompt_input = parser_helpers.build_prompt_input(tools=ToolTable(), **REQUIRED_CALL)
        assert (
            parser_helpers.load_token_format(name).build_grammar(RenderedPrompt((), "", False), prompt_input) is None
        ), name


def test_grammar_is_needed_only_for_constrained_requests() -> None:
    unconstrained = [{}, {"tool_choice": "none"}, SINGLE_CALL]
    assert not any(parser_helpers.build_prompt_input(**fields).needs_grammar for fields in unconstrained)
    assert all(
        parser_helpers.build_prompt_input(**fields).needs_grammar
        for fields, _ in CONSTRAINTS
        if fields not in unconstrained
    )
    strict = ToolTable.from_request([FunctionTool(name="f", strict=True)])
    assert (
        parser_helpers.build_prompt_input(tools=strict).needs_grammar
        and not parser_helpers.build_prompt_input(tools=strict, tool_choice="none").needs_grammar
    )
