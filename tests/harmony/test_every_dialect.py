"""Requirements on every dialect. A new dialect is tested here without a test of its own.

The dialect's call formats write the calls. Each call is parsed with markers as tokens and as bytes, for any split of
its tokens; the grammar accepts it; its streamed arguments are never revised; and a truncated call is never complete.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest

from antiphon.events.inputs import InputMessage
from antiphon.events.tools import CustomTool, FunctionTool, GrammarFormat
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.parsing.json_stream import Extent
from antiphon.harmony.parsing.reader import MAX_HOLD_BACK_CHARS, MIN_HOLD_BACK_CHARS
from antiphon.harmony.parsing.unoffered_calls import MAX_NOTES
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import HostedTool, ToolTable
from antiphon.state.segments import Arguments, Call, Close, Say, Think
from tests.harmony import parser_helpers
from tests.harmony.dialect_outputs import CALLING_DIALECTS, REAL_OUTPUTS, draw_output_under_grammar
from tests.harmony.grammar_helpers import grammar_accepts
from tests.harmony.samples import SAMPLE_CALLS, write_sample_calls

THINKING_DIALECTS = [dialect for dialect in CALLING_DIALECTS if dialect.think]
EACH_CALLING_DIALECT = pytest.mark.parametrize("dialect", CALLING_DIALECTS, ids=lambda dialect: dialect.name)


@cache
def load_formats(name: str) -> tuple[ModelFormat, ...]:
    """Returns the formats with markers as tokens and as bytes."""
    return tuple(parser_helpers.load_formats(name))


def expected_calls(*names: str) -> list[tuple[str, Any]]:
    return [SAMPLE_CALLS[name] for name in names]


def draw_splits(length: int, rng: random.Random) -> Iterator[Any]:
    yield range(length)
    yield from ([cut] for cut in range(rng.randrange(parser_helpers.CUT_STEP), length, parser_helpers.CUT_STEP))
    yield from (parser_helpers.draw_cuts(length, rng) for _ in range(parser_helpers.RANDOM_SPLITS))


@EACH_CALLING_DIALECT
@pytest.mark.parametrize("name", SAMPLE_CALLS)
def test_written_call_is_parsed_back(dialect: Dialect, name: str) -> None:
    for model_format in load_formats(dialect.name):
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(write_sample_calls(dialect, name)))
        assert parser_helpers.collect_calls(segments) == expected_calls(name)
        assert not any(isinstance(segment, Say) and segment.text.strip() for segment in segments)


@EACH_CALLING_DIALECT
def test_any_split_of_a_call_gives_the_same_segments(dialect: Dialect) -> None:
    rng = random.Random(dialect.name)
    for model_format in load_formats(dialect.name):
        for name in ("types", "text", "none"):
            tokens = model_format.encode(write_sample_calls(dialect, name))
            expected, _ = parser_helpers.parse_tokens(model_format, tokens)
            for cuts in draw_splits(len(tokens), rng):
                segments, _ = parser_helpers.parse_tokens(model_format, tokens, cuts)
                assert segments == expected


PATCH_TEXT = '*** Begin Patch\n+say("hi") \\n {"a": [1]}\n\n*** End Patch'


def write_patch_call(dialect: Dialect) -> str | None:
    """Returns a call of a custom tool; None if the dialect has no frame for raw text."""
    offer = parser_helpers.TOOLS.find_tool("apply_patch")
    assert offer is not None
    calls = (frame.write_calls([(offer, PATCH_TEXT)]) for frame in dialect.calls)
    return next((call for call in calls if call is not None), None)


def test_every_dialect_but_pythonic_has_a_frame_for_raw_text() -> None:
    assert [dialect.name for dialect in CALLING_DIALECTS if write_patch_call(dialect) is None] == ["pythonic"]


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in CALLING_DIALECTS if dialect.name != "pythonic"], ids=lambda dialect: dialect.name
)
def test_custom_tool_input_is_parsed_unchanged(dialect: Dialect) -> None:
    text = write_patch_call(dialect)
    assert text is not None
    for model_format in load_formats(dialect.name):
        tokens = model_format.encode(text)
        segments, _ = parser_helpers.parse_tokens(model_format, tokens)
        assert parser_helpers.collect_calls(segments) == [("apply_patch", PATCH_TEXT)], text
        for cut in range(0, len(tokens), 3):
            assert parser_helpers.parse_tokens(model_format, tokens, [cut])[0] == segments


NUMBER_SCHEMA = {
    "type": "object",
    "properties": {
        "factor": {"type": "number"},
        "offset": {"type": ["number", "null"]},
        "ratio": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        "size": {"type": "number"},
    },
}


@EACH_CALLING_DIALECT
def test_integer_fits_a_number_parameter(dialect: Dialect) -> None:
    tools = ToolTable.from_request([FunctionTool(name="scale", parameters=NUMBER_SCHEMA)])
    offer = tools.find_tool("scale")
    assert offer is not None
    arguments = {"factor": 3, "offset": -4, "ratio": 0, "size": 2.5}
    texts = (frame.write_calls([(offer, json.dumps(arguments))]) for frame in dialect.calls)
    text = next(text for text in texts if text is not None)
    for model_format in load_formats(dialect.name):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(text), prompt_input=parser_helpers.build_prompt_input(tools=tools)
        )
        assert parser_helpers.collect_calls(segments) == [("scale", arguments)]


@EACH_CALLING_DIALECT
def test_two_calls_are_parsed_as_two(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(write_sample_calls(dialect, "text", "one"))
        )
        assert parser_helpers.collect_calls(segments) == expected_calls("text", "one")


@EACH_CALLING_DIALECT
def test_text_before_a_call_is_text(dialect: Dialect) -> None:
    calls_only_at_the_head = dialect.calls[0].head_only
    for model_format in load_formats(dialect.name):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode("Let me see.\n\n" + write_sample_calls(dialect, "two"))
        )
        assert isinstance(segments[0], Say) and segments[0].text.startswith("Let me see.")
        if not calls_only_at_the_head:
            assert parser_helpers.collect_calls(segments) == expected_calls("two")


@pytest.mark.parametrize("dialect", THINKING_DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("prefilled", [False, True])
def test_reasoning_then_text_and_reasoning_then_call(dialect: Dialect, prefilled: bool) -> None:
    assert dialect.think
    opener, closer = dialect.think
    answer_markers = dialect.answer or ("", "")
    for model_format in load_formats(dialect.name):
        for following in (f"{answer_markers[0]}\nHello.\n{answer_markers[1]}", write_sample_calls(dialect, "one")):
            output = f"{'' if prefilled else opener}\nHm. {closer}\n\n{following}"
            segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(output), thinking=prefilled)
            assert isinstance(segments[0], Think) and segments[0].text.strip() == "Hm."
            text = "".join(segment.text for segment in segments if isinstance(segment, Say)).strip()
            assert (text, parser_helpers.collect_calls(segments)) == (
                ("Hello.", []) if "Hello." in following else ("", expected_calls("one"))
            )


@EACH_CALLING_DIALECT
def test_truncated_call_is_never_complete(dialect: Dialect) -> None:
    """Cut anywhere, the output is a valid stream, and a closed call has complete arguments."""
    for model_format in load_formats(dialect.name):
        tokens = model_format.encode("So:\n" * (not dialect.calls[0].head_only) + write_sample_calls(dialect, "types"))
        expected, _ = parser_helpers.parse_tokens(model_format, tokens)
        all_arguments = "".join(segment.text for segment in expected if isinstance(segment, Arguments))
        for end in range(len(dialect.name) % parser_helpers.CUT_STEP, len(tokens), parser_helpers.CUT_STEP):
            segments, _ = parser_helpers.parse_tokens(model_format, tokens[:end], natural=False)
            if any(isinstance(segment, Close) for segment in segments):
                assert parser_helpers.collect_calls(segments) == expected_calls("types")
            reader = model_format.create_reader(RenderedPrompt((), ""), parser_helpers.build_prompt_input())
            streamed_arguments = "".join(
                segment.text for segment in reader.feed(tokens[:end]) if isinstance(segment, Arguments)
            )
            assert all_arguments.startswith(streamed_arguments), "streamed arguments are never revised"


@EACH_CALLING_DIALECT
def test_markers_in_prose_are_text(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        any_format: Any = model_format
        for marker in dialect.all_markers:
            if any(marker in markers for markers in (*(dialect.think or ()), *(dialect.answer or ()))):
                continue
            text = f"One writes {marker} before a call, like {marker}nothing."
            segments, _ = parser_helpers.parse_tokens(any_format, any_format.encode(text))
            assert not parser_helpers.collect_calls(segments)
            assert "before a call, like" in "".join(segment.text for segment in segments if isinstance(segment, Say))


@EACH_CALLING_DIALECT
def test_call_of_an_unknown_tool_is_text(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        text = write_sample_calls(dialect, "one").replace("add", "subtract")
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text))
        assert not parser_helpers.collect_calls(segments) and not any(isinstance(segment, Call) for segment in segments)


@EACH_CALLING_DIALECT
def test_call_of_an_unknown_tool_is_a_call_on_request(dialect: Dialect) -> None:
    prompt_input = parser_helpers.build_prompt_input(unknown_tools="call")
    occurs_in_answers = dialect.calls[0].head_only or dialect.calls[0].openers[0].startswith("```")
    text = write_sample_calls(dialect, "two").replace("add", "subtract")
    for model_format in load_formats(dialect.name):
        tokens = model_format.encode(text)
        segments, reader = parser_helpers.parse_tokens(model_format, tokens, prompt_input=prompt_input)
        names = [name for name, _ in parser_helpers.collect_calls(segments)]
        assert names == ([] if occurs_in_answers else ["subtract"]) and not reader.call_failed
        assert all(isinstance(arguments, dict) for _, arguments in parser_helpers.collect_calls(segments))
        split, _ = parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)), prompt_input=prompt_input)
        assert split == segments
        for fields in ({"tool_choice": "none"}, {"tools": ToolTable()}):
            refused = parser_helpers.build_prompt_input(**{"unknown_tools": "call", **fields})
            assert not parser_helpers.collect_calls(
                parser_helpers.parse_tokens(model_format, tokens, prompt_input=refused)[0]
            )


@EACH_CALLING_DIALECT
def test_invented_tool_of_a_server_is_its_call(dialect: Dialect) -> None:
    """It never becomes a call of the client's function. Syntaxes of ordinary answers stay text."""
    known = HostedTool(kind="mcp", name="add", server_label="math", parameters={"type": "object"})
    prompt_input = parser_helpers.build_prompt_input(tools=ToolTable.from_request([known]), unknown_tools="call")
    is_plain = dialect.calls[0].head_only or dialect.calls[0].openers[0].startswith("```")
    for written in ("math__subtract", "subtract"):
        text = write_sample_calls(dialect, "one").replace("add", written)
        for model_format in load_formats(dialect.name):
            segments, _ = parser_helpers.parse_tokens(
                model_format, model_format.encode(text), prompt_input=prompt_input
            )
            calls = [segment for segment in segments if isinstance(segment, Call)]
            found = [(call.kind, call.server_label, call.name, call.is_invented) for call in calls]
            assert found == ([] if is_plain else [("mcp", "math", "subtract", True)])


@pytest.mark.parametrize(("unknown_tools", "names"), [("text", []), ("call", ["subtract"])])
def test_gpt_oss_calls_an_unknown_tool_on_request(unknown_tools: str, names: list[str]) -> None:
    model_format = parser_helpers.load_token_format("gpt-oss")
    prompt_input = parser_helpers.build_prompt_input(unknown_tools=unknown_tools)
    for recipient, expected in (("functions.subtract", names), ("browser.search", [])):
        text = f'<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{"a": 1}}<|call|>'
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text), prompt_input=prompt_input)
        assert [name for name, _ in parser_helpers.collect_calls(segments)] == expected


@EACH_CALLING_DIALECT
@pytest.mark.parametrize("mode", ["text", "call"])
def test_call_of_an_unknown_tool_is_noted(dialect: Dialect, mode: str) -> None:
    """The note has the name, what became of the call, and its place, however the output is split."""
    before = "" if dialect.calls[0].head_only else "So:\n"
    is_plain = dialect.calls[0].head_only or dialect.calls[0].openers[0].startswith("```")
    prompt_input = parser_helpers.build_prompt_input(unknown_tools=mode)
    for model_format in load_formats(dialect.name):
        tokens = model_format.encode(before + write_sample_calls(dialect, "one").replace("add", "subtract"))
        _, reader = parser_helpers.parse_tokens(model_format, tokens, prompt_input=prompt_input)
        [note] = reader.unoffered_calls
        became = "text" if is_plain else mode
        assert (note.name, note.became, note.is_plain) == ("subtract", became, is_plain)
        assert (note.offered[:3], note.num_offered) == (("add", "write", "now"), 6)
        assert note.first_token == len(model_format.encode(before))
        assert "subtract" in model_format.decode(tokens[note.first_token : note.end_token])
        _, split = parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)), prompt_input=prompt_input)
        assert split.unoffered_calls == [note]


@EACH_CALLING_DIALECT
def test_unknown_tool_among_known_ones_is_noted(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        text = write_sample_calls(dialect, "text", "one").replace("add", "subtract")
        segments, reader = parser_helpers.parse_tokens(model_format, model_format.encode(text))
        notes = reader.unoffered_calls
        assert [note.name for note in notes] == ["subtract"] and notes[0].first_token < notes[0].end_token
        assert notes[0].became == "text" or parser_helpers.collect_calls(segments)


@EACH_CALLING_DIALECT
def test_markers_in_prose_and_offered_tools_are_not_noted(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        prose = "".join(f"One writes {marker} before a call, like {marker}nothing.\n" for marker in dialect.all_markers)
        for text in (prose, write_sample_calls(dialect, "text", "one")):
            _, reader = parser_helpers.parse_tokens(model_format, model_format.encode(text))
            assert reader.unoffered_calls == []


@pytest.mark.parametrize("mode", ["text", "call"])
def test_gpt_oss_notes_an_unknown_tool(mode: str) -> None:
    model_format = parser_helpers.load_token_format("gpt-oss")
    prompt_input = parser_helpers.build_prompt_input(unknown_tools=mode)
    for recipient, name in (("functions.subtract", "subtract"), ("browser.search", "browser.search")):
        text = f'<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{"a": 1}}<|call|>'
        _, reader = parser_helpers.parse_tokens(model_format, model_format.encode(text), prompt_input=prompt_input)
        [note] = reader.unoffered_calls
        assert (note.name, note.first_token) == (name, 0)
        assert note.became == (mode if name == "subtract" else "text"), "no tool may have that name"
    refused = parser_helpers.build_prompt_input(tool_choice="none")
    _, reader = parser_helpers.parse_tokens(
        model_format, model_format.encode(text.replace("browser.search", "functions.add")), prompt_input=refused
    )
    [note] = reader.unoffered_calls
    assert (note.name, note.num_offered) == ("add", 0), "the request forbids calls"


def test_notes_of_an_endless_repetition_are_bounded() -> None:
    model_format = parser_helpers.load_token_format("hermes")
    text = "".join(
        f'<tool_call>\n{{"name": "tool{number}", "arguments": {{}}}}\n</tool_call>\n' for number in range(2 * MAX_NOTES)
    )
    _, reader = parser_helpers.parse_tokens(model_format, model_format.encode(text))
    notes = reader.unoffered_calls
    assert len(notes) == MAX_NOTES and not any(note.offered for note in notes[1:])


@EACH_CALLING_DIALECT
def test_unknown_name_that_no_tool_may_have_is_text(dialect: Dialect) -> None:
    prompt_input = parser_helpers.build_prompt_input(unknown_tools="call")
    text = write_sample_calls(dialect, "one").replace("add", "sub/tract.é")
    for model_format in load_formats(dialect.name):
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text), prompt_input=prompt_input)
        assert not parser_helpers.collect_calls(segments)


@EACH_CALLING_DIALECT
def test_grammar_accepts_written_calls_and_no_unknown_tool(dialect: Dialect) -> None:
    for model_format in load_formats(dialect.name):
        prompt_input = parser_helpers.build_prompt_input(tool_choice="required")
        for name in ("one", "two", "types", "none"):
            assert grammar_accepts(model_format, _write_call_with_json_values(dialect, name), prompt_input), name
        assert not grammar_accepts(model_format, "Hello.", prompt_input)
        assert not grammar_accepts(
            model_format, _write_call_with_json_values(dialect, "one").replace("add", "subtract"), prompt_input
        )


STRICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "word": {"type": "string", "maxLength": 6},
        "free": {"type": "string"},
        "kind": {"type": "string", "enum": ["red", "green"]},
        "code": {"type": "string", "pattern": "^[a-c]{2}[0-9]$"},
        "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 2},
        "deep": {
            "type": "object",
            "properties": {"x": {"type": "string", "maxLength": 3}},
            "additionalProperties": False,
        },
    },
    "required": ["count", "word", "free", "kind", "code", "on", "list"],
    "additionalProperties": False,
}
STEER_TOOL = CustomTool(name="steer", format=GrammarFormat(syntax="regex", definition="go [0-9]{1,3}"))
CONSTRAINED_TOOLS = ToolTable.from_request(
    [FunctionTool(name="first", parameters=STRICT_SCHEMA, strict=True), FunctionTool(name="none"), STEER_TOOL]
)


@EACH_CALLING_DIALECT
def test_random_output_under_the_grammar_is_a_valid_call(dialect: Dialect) -> None:
    rng, complete_outputs = random.Random(f"answers in {dialect.name}"), 0
    for number in range(parser_helpers.RANDOM_OUTPUTS // 10 if parser_helpers.FULL_COUNTS else 8):
        model_format = load_formats(dialect.name)[number % 2]
        prompt_input = parser_helpers.build_prompt_input(tools=CONSTRAINED_TOOLS, tool_choice="required")
        tokens = draw_output_under_grammar(model_format, prompt_input, rng)
        if tokens is None:
            continue
        segments, reader = parser_helpers.parse_tokens(model_format, tokens, prompt_input=prompt_input)
        text = model_format.decode(tokens)
        assert not reader.call_failed, text
        calls = parser_helpers.collect_calls(segments)
        assert calls and all(arguments is not ... for _, arguments in calls), text
        for name, arguments in calls:
            if name == "steer":
                assert re.fullmatch("go [0-9]{1,3}", arguments), text
            else:
                jsonschema.validate(arguments, STRICT_SCHEMA if name == "first" else {"type": "object"})
        assert not "".join(segment.text for segment in segments if isinstance(segment, Say)).strip(), text
        complete_outputs += 1
    assert complete_outputs > parser_helpers.RANDOM_OUTPUTS // 100, "too few outputs reached their end"


DIALECTS_WITHOUT_TRANSCRIPTS = [
    dialect for dialect in CALLING_DIALECTS if dialect.name not in parser_helpers.TRANSCRIPT_DIALECTS
]
TEXT_PIECES = [
    " ",
    "\n",
    "Hello",
    "a<b",
    "é",
    "😀",
    "<",
    "</",
    ">",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    '"',
    "'",
    ",",
    ":",
    "=",
    "\\",
]
CALL_PIECES = [
    "add",
    "write",
    "now",
    "a=1",
    '"a": 1',
    '{"a": 1}',
    "name",
    '"name": "add"',
    "functions.add:0",
    "call:add",
    "<|im_end|>",
]


def draw_output(dialect: Dialect, rng: random.Random) -> str:
    """Draws random text from the dialect's markers, fragments of calls, and complete calls."""
    markers = [*dialect.all_markers, *(marker[: len(marker) // 2] for marker in dialect.all_markers)]
    calls = [write_sample_calls(dialect, name) for name in ("one", "none", "types")]
    truncated_calls = [call[: rng.randrange(len(call))] for call in calls]
    sources = rng.choice(
        (
            [markers, TEXT_PIECES, CALL_PIECES],
            [markers, TEXT_PIECES, CALL_PIECES, calls, truncated_calls],
            [calls, TEXT_PIECES],
            [markers, CALL_PIECES],
        )
    )
    return "".join(rng.choice(rng.choice(sources)) for _ in range(rng.randint(1, 30)))


@pytest.mark.parametrize("dialect", DIALECTS_WITHOUT_TRANSCRIPTS, ids=lambda dialect: dialect.name)
@pytest.mark.timeout(1200)
def test_random_markers_give_a_valid_stream_for_any_split(dialect: Dialect) -> None:
    rng = random.Random(f"soup of {dialect.name}")
    for number in range(
        parser_helpers.RANDOM_OUTPUTS if parser_helpers.FULL_COUNTS else parser_helpers.RANDOM_OUTPUTS // 8
    ):
        model_format = rng.choice(load_formats(dialect.name))
        tokens = model_format.encode(draw_output(dialect, rng))
        options = {"thinking": bool(dialect.think) and rng.random() < 0.3, "natural": rng.random() < 0.7}
        expected, reader = parser_helpers.parse_tokens(model_format, tokens, **options)
        for cuts in (range(len(tokens)), parser_helpers.draw_cuts(len(tokens), rng)):
            segments, other_reader = parser_helpers.parse_tokens(model_format, tokens, cuts, **options)
            assert segments == expected, f"output {number}"
            assert (other_reader.reasoning_tokens, other_reader.call_failed) == (
                reader.reasoning_tokens,
                reader.call_failed,
            )
        parser_helpers.check_machine_accepts(expected, natural=options["natural"], call_failed=reader.call_failed)


def _write_call_with_json_values(dialect: Dialect, name: str) -> str:
    """Returns the call with nested values as JSON, which is how the grammar constrains them."""
    return write_sample_calls(dialect, name).replace('"b": None', '"b": null')


@pytest.mark.parametrize("unit", ['functools[{"a":[', 'functools[{"arguments":{"a":['])
def test_repeated_call_openers_take_linear_time(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that opens a call again and again, each inside the value of the last one, is scanned about once."""
    scanned_chars: list[int] = []
    original_advance = Extent.advance

    def counting_advance(extent: Extent, text: str, at: int) -> int:
        end = original_advance(extent, text, at)
        scanned_chars.append(end - at)
        return end

    monkeypatch.setattr(Extent, "advance", counting_advance)
    model_format = load_formats("phi4-mini")[0]
    parser_helpers.parse_tokens(model_format, model_format.encode(unit * 1000))
    assert sum(scanned_chars) < MAX_HOLD_BACK_CHARS + len(unit) * 1000 + 1000 * 2 * MIN_HOLD_BACK_CHARS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral-v11", "[TOOL_CALLS]" + "x" * 100_000 + '[TOOL_CALLS][{"arguments": {"a": "' + "y" * 60_000 + '"}, "name": "add"}]'),
        ("cohere", "<co>" + "x" * 90_000 + '<|START_ACTION|>[{"parameters": {"a": "' + "y" * 35_000 + '"}, "tool_name": "add"}]<|END_ACTION|>'),
    ],
)  # fmt: skip
def test_hold_back_limit_does_not_depend_on_the_split(name: str, text: str) -> None:
    model_format = load_formats(name)[0]
    tokens = model_format.encode(text)
    expected, _ = parser_helpers.parse_tokens(model_format, tokens)
    for step in (97, 5000):
        assert parser_helpers.format_segments(
            parser_helpers.parse_tokens(model_format, tokens, range(0, len(tokens), step))[0]
        ) == parser_helpers.format_segments(expected)


@EACH_CALLING_DIALECT
def test_invalid_tool_schemas_do_not_break_parsing(dialect: Dialect) -> None:
    """A client's parameter schemas are not validated, so any JSON can occur in them."""
    for parameters in (
        {"properties": ["a"]},
        {"type": 3, "properties": {"a": 7, "b": {"type": ["string", 4]}}},
        {"required": "a"},
    ):
        table = ToolTable.from_request([FunctionTool(name=name, parameters=parameters) for name in ("add", "write")])
        prompt_input = parser_helpers.build_prompt_input(tools=table)
        for model_format in load_formats(dialect.name):
            segments, _ = parser_helpers.parse_tokens(
                model_format, model_format.encode(write_sample_calls(dialect, "one")), prompt_input=prompt_input
            )
            assert [name for name, arguments in parser_helpers.collect_calls(segments) if arguments is not ...] == [
                "add"
            ]


def test_reasoning_marker_in_user_text_opens_no_reasoning() -> None:
    dialect = DIALECTS["mistral-v11"]
    template = ChatTemplate("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}")
    model_format = TemplateFormat(dialect, ByteVocabulary((), ("<s>",)), template)
    for opener, _ in dialect.think_markers:
        prompt_input = parser_helpers.build_prompt_input(
            items=(InputMessage(role="user", content=f"What is {opener} for?"),)
        )
        assert not model_format.render_prompt(prompt_input, now=parser_helpers.NOW).in_reasoning


# Output of real models that differs from what the call formats write

TEXT_LIKE_CALLS = [
    ("llama3", '{"city": "x", "name": "add"}'),
    ("llama3", '{"name": "add", "age": 3}'),
    ("llama3", 'Here: {"name": "add", "parameters": {"a": 1}}'),
    ("xlam", '[{"name": "add", "age": 3}]'),
    ("pythonic", "[1, 2, 3]"),
]


@pytest.mark.parametrize(
    ("name", "text", "calls"), REAL_OUTPUTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_real_outputs_are_parsed_as_calls(name: str, text: str, calls: list[tuple[str, Any]]) -> None:
    for model_format in load_formats(name):
        tokens = model_format.encode(text)
        segments, _ = parser_helpers.parse_tokens(model_format, tokens)
        assert parser_helpers.collect_calls(segments) == calls
        assert not "".join(segment.text for segment in segments if isinstance(segment, Say)).strip()
        assert parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)))[0] == segments


def write_typed_call(dialect: Dialect, schema: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, ToolTable]:
    """Returns a call of a function `f` with this schema, and the table with it."""
    tools = ToolTable.from_request([FunctionTool(name="f", parameters=schema)])
    calls = [(spec, json.dumps(arguments)) for spec in tools]
    return next(text for frame in dialect.calls if (text := frame.write_calls(calls)) is not None), tools


BARE_VALUES_SCHEMA = {"type": "object", "properties": {"list": {"type": "array"}, "size": {"type": "object"}}}
BARE_VALUES = [
    ("list", '"a.py", "b.py"', ["a.py", "b.py"]),
    ("list", "1, (2, 'c')", [1, [2, "c"]]),
    ("list", "('a',)", ["a"]),
    ("size", "1, 2", "1, 2"),
    ("size", "{'a': (1, 2)}", {"a": [1, 2]}),
    ("size", '"a": 1, "b": 2', '"a": 1, "b": 2'),
]


BARE_DIALECTS = [
    dialect
    for dialect in CALLING_DIALECTS
    if '"u, v"' not in write_typed_call(dialect, BARE_VALUES_SCHEMA, {"list": "u, v"})[0]
]


@pytest.mark.parametrize("dialect", BARE_DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(("key", "text", "expected"), BARE_VALUES)
def test_list_without_brackets_is_a_list_where_the_schema_wants_one(
    dialect: Dialect, key: str, text: str, expected: object
) -> None:
    written, tools = write_typed_call(dialect, BARE_VALUES_SCHEMA, {key: text})
    prompt_input = parser_helpers.build_prompt_input(tools=tools)
    for model_format in load_formats(dialect.name):
        tokens = model_format.encode(re.sub(r' (type|string)="\w+"', "", written))
        segments, _ = parser_helpers.parse_tokens(model_format, tokens, prompt_input=prompt_input)
        assert parser_helpers.collect_calls(segments) == [("f", {key: expected})]
        split, _ = parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)), prompt_input=prompt_input)
        assert split == segments


def test_dialects_of_bare_values_are_found() -> None:
    assert len(BARE_DIALECTS) >= 14 and {"glm", "minimax-m3", "gemma4"} <= {dialect.name for dialect in BARE_DIALECTS}


@pytest.mark.parametrize(("name", "text"), TEXT_LIKE_CALLS)
def test_text_similar_to_a_call_is_text(name: str, text: str) -> None:
    for model_format in load_formats(name):
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text))
        assert "".join(segment.text for segment in segments if isinstance(segment, Say)) == text


def test_written_calls_of_kimi_are_numbered_over_the_conversation() -> None:
    calls = [(spec, "{}") for spec in parser_helpers.TOOLS if spec.name == "now"]
    for name, expected in (("kimi-k2", "functions.now:3<"), ("kimi-k3", ' index="1"'), ("hermes", '"name": "now"')):
        texts = (form.write_calls(calls, 3) for form in DIALECTS[name].calls)
        assert expected in next(filter(None, texts))


def test_native_call_id_is_kept() -> None:
    text = write_sample_calls(DIALECTS["kimi-k2"], "one").replace(":0", ":7")
    segments, _ = parser_helpers.parse_tokens(load_formats("kimi-k2")[0], load_formats("kimi-k2")[0].encode(text))
    assert [segment.call_id for segment in segments if isinstance(segment, Call)] == ["functions.add:7"]


ENUM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"$ref": "#/$defs/C"},
        "b": {"type": "string", "const": "x"},
        "c": {"allOf": [{"$ref": "#/$defs/C"}]},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
    "$defs": {"C": {"type": "string", "enum": ["red", "blue"]}},
}


@EACH_CALLING_DIALECT
def test_grammar_follows_schema_references(dialect: Dialect) -> None:
    prompt_input = parser_helpers.build_prompt_input(
        tools=ToolTable.from_request([FunctionTool(name="f", parameters=ENUM_SCHEMA, strict=True)]),
        tool_choice="required",
    )
    offer = prompt_input.tools.find_tool("f")
    assert offer is not None
    for values, expected in (
        ({"a": "red", "b": "x", "c": "blue"}, True),
        ({"a": "green", "b": "x", "c": "blue"}, False),
        ({"a": "red", "b": "y", "c": "blue"}, False),
    ):
        text = next(
            call for frame in dialect.calls if (call := frame.write_calls([(offer, json.dumps(values))])) is not None
        )
        model_format = load_formats(dialect.name)[0]
        assert grammar_accepts(model_format, text, prompt_input) == expected


@pytest.mark.parametrize("name", ["llama3", "pythonic", "llama4-pythonic", "xlam"])
def test_free_text_cannot_bypass_a_strict_schema(name: str) -> None:
    prompt_input = parser_helpers.build_prompt_input(
        tools=ToolTable.from_request([FunctionTool(name="add", parameters=parser_helpers.ADD_SCHEMA, strict=True)])
    )
    offer, dialect = prompt_input.tools.find_tool("add"), DIALECTS[name]
    assert offer is not None
    text = next(call for frame in dialect.calls if (call := frame.write_calls([(offer, '{"a": "x"}')])) is not None)
    assert not grammar_accepts(load_formats(name)[0], text, prompt_input)
    assert grammar_accepts(load_formats(name)[0], text.replace('"x"', "5"), prompt_input)
    assert grammar_accepts(load_formats(name)[0], "Hello there.", prompt_input)
