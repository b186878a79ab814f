"""What every dialect must do, by itself: whoever declares one is tested here without writing a test.

The calls are those that its frames write. Each is read over tokens and over letters, in every cut; it is accepted by
the grammar; what was said of its arguments is never revised; and of half a call nothing is ever whole.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from antiphon.events.inputs import CustomTool, FunctionTool, GrammarFormat, InputMessage
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import ModelFormat, RenderedPrompt
from antiphon.harmony.parsing.json_stream import Extent
from antiphon.harmony.parsing.reader import MAX_HOLD_BACK_CHARS, MIN_HOLD_BACK_CHARS
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Arguments, Call, Close, Say, Segment, Think
from tests.harmony import parser_helpers
from tests.harmony.samples import ARGUMENTS, written
from tests.harmony.test_grammar import Wrapped
from tests.harmony.test_soup import drive

CALLING = [dialect for dialect in DIALECTS.values() if dialect.calls]
THINKING = [dialect for dialect in CALLING if dialect.think]
EVERY = pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)


@cache
def formats(name: str) -> tuple[ModelFormat, ...]:
    """Over tokens, and over letters."""
    return tuple(parser_helpers.formats(name))


def calls_of(said: list[Segment]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    text, custom = "", False
    for segment in said:
        if isinstance(segment, Call):
            found.append((segment.name, ...))
            text, custom = "", segment.kind == "custom"
        elif isinstance(segment, Arguments):
            text += segment.text
        elif isinstance(segment, Close) and found and found[-1][1] is ...:
            found[-1] = (found[-1][0], text if custom else json.loads(text or "{}"))
    return found


def wanted(*names: str) -> list[tuple[str, Any]]:
    return [ARGUMENTS[name] for name in names]


def ways(length: int, chance: random.Random) -> Iterator[Any]:
    yield range(length)
    yield from ([cut] for cut in range(chance.randrange(parser_helpers.STEP), length, parser_helpers.STEP))
    yield from (parser_helpers.random_cuts(length, chance) for _ in range(parser_helpers.CUTS))


@EVERY
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_call_is_read_as_it_was_written(dialect: Dialect, name: str) -> None:
    for ready in formats(dialect.name):
        said, _ = parser_helpers.read(ready, ready.encode(written(dialect, name)))
        assert calls_of(said) == wanted(name)
        assert not any(isinstance(segment, Say) and segment.text.strip() for segment in said)


@EVERY
def test_every_cut_reads_the_same_and_revises_nothing(dialect: Dialect) -> None:
    chance = random.Random(dialect.name)
    for ready in formats(dialect.name):
        for name in ("types", "text", "none"):
            tokens = ready.encode(written(dialect, name))
            whole, _ = parser_helpers.read(ready, tokens)
            for cuts in ways(len(tokens), chance):
                said, _ = parser_helpers.read(ready, tokens, cuts)
                assert said == whole


PATCH = '*** Begin Patch\n+say("hi") \\n {"a": [1]}\n\n*** End Patch'


@EVERY
def test_a_custom_tools_text_comes_as_it_was_written(dialect: Dialect) -> None:
    offer = parser_helpers.TOOLS.find_tool("apply_patch")
    assert offer is not None
    text = next((call for frame in dialect.calls if (call := frame.write_calls([(offer, PATCH)])) is not None), None)
    if text is None:
        assert dialect.name == "pythonic", "without markers there is nothing but strings"
        return
    for ready in formats(dialect.name):
        tokens = ready.encode(text)
        said, _ = parser_helpers.read(ready, tokens)
        assert calls_of(said) == [("apply_patch", PATCH)], text
        for cut in range(0, len(tokens), 3):
            assert parser_helpers.read(ready, tokens, [cut])[0] == said


@EVERY
def test_two_calls_are_two(dialect: Dialect) -> None:
    for ready in formats(dialect.name):
        said, _ = parser_helpers.read(ready, ready.encode(written(dialect, "text", "one")))
        assert calls_of(said) == wanted("text", "one")


@EVERY
def test_text_before_a_call_is_text(dialect: Dialect) -> None:
    bare = dialect.calls[0].head_only
    for ready in formats(dialect.name):
        said, _ = parser_helpers.read(ready, ready.encode("Let me see.\n\n" + written(dialect, "two")))
        assert isinstance(said[0], Say) and said[0].text.startswith("Let me see.")
        if not bare:
            assert calls_of(said) == wanted("two")


@pytest.mark.parametrize("dialect", THINKING, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("prefilled", [False, True])
def test_reasoning_then_text_and_reasoning_then_call(dialect: Dialect, prefilled: bool) -> None:
    assert dialect.think
    opener, closer = dialect.think
    around = dialect.answer or ("", "")
    for ready in formats(dialect.name):
        for rest in (f"{around[0]}\nHello.\n{around[1]}", written(dialect, "one")):
            text = f"{'' if prefilled else opener}\nHm. {closer}\n\n{rest}"
            said, _ = parser_helpers.read(ready, ready.encode(text), thinking=prefilled)
            assert isinstance(said[0], Think) and said[0].text.strip() == "Hm."
            told = "".join(segment.text for segment in said if isinstance(segment, Say)).strip()
            assert (told, calls_of(said)) == (("Hello.", []) if "Hello." in rest else ("", wanted("one")))


@EVERY
def test_of_half_a_call_nothing_is_whole(dialect: Dialect) -> None:
    """Cut anywhere, the answer is a legal stream, and a call that is said to be whole has whole arguments."""
    for ready in formats(dialect.name):
        tokens = ready.encode("So:\n" * (not dialect.calls[0].head_only) + written(dialect, "types"))
        whole, _ = parser_helpers.read(ready, tokens)
        complete = "".join(segment.text for segment in whole if isinstance(segment, Arguments))
        for end in range(len(dialect.name) % parser_helpers.STEP, len(tokens), parser_helpers.STEP):
            said, _ = parser_helpers.read(ready, tokens[:end], natural=False)
            if any(isinstance(segment, Close) for segment in said):
                assert calls_of(said) == wanted("types")
            reader = ready.create_reader(RenderedPrompt((), ""), parser_helpers.conversation())
            told = "".join(one.text for one in reader.feed(tokens[:end]) if isinstance(one, Arguments))
            assert complete.startswith(told), "what was said of the arguments is never revised"


@EVERY
def test_markers_in_prose_are_prose(dialect: Dialect) -> None:
    for ready in formats(dialect.name):
        form: Any = ready
        for marker in dialect.all_markers:
            if any(marker in side for side in (*(dialect.think or ()), *(dialect.answer or ()))):
                continue
            text = f"One writes {marker} before a call, like {marker}nothing."
            said, _ = parser_helpers.read(form, form.encode(text))
            assert not calls_of(said)
            assert "before a call, like" in "".join(segment.text for segment in said if isinstance(segment, Say))


@EVERY
def test_a_tool_that_was_not_offered_is_text(dialect: Dialect) -> None:
    for ready in formats(dialect.name):
        text = written(dialect, "one").replace("add", "subtract")
        said, _ = parser_helpers.read(ready, ready.encode(text))
        assert not calls_of(said) and not any(isinstance(segment, Call) for segment in said)


@EVERY
def test_the_grammar_takes_what_is_written_and_no_other_tool(dialect: Dialect) -> None:
    for ready in formats(dialect.name):
        talk = parser_helpers.conversation(tool_choice="required")
        for name in ("one", "two", "types", "none"):
            assert accepts(ready, _spoken(dialect, name), talk), name
        assert not accepts(ready, "Hello.", talk)
        assert not accepts(ready, _spoken(dialect, "one").replace("add", "subtract"), talk)


STRICT: dict[str, Any] = {
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
STEER = CustomTool(name="steer", format=GrammarFormat(syntax="regex", definition="go [0-9]{1,3}"))
HELD = ToolTable.from_request(
    [FunctionTool(name="first", parameters=STRICT, strict=True), FunctionTool(name="none"), STEER]
)


def random_answer(ready: ModelFormat, talk: Any, chance: random.Random, most: int = 700) -> list[int] | None:
    """Tokens that a model which knows nothing might say under the grammar; None where it came to no end."""
    lark = ready.build_grammar(RenderedPrompt((), "", False), talk)
    assert lark is not None
    matcher = LLMatcher(_tokenizer(ready), LLMatcher.grammar_from_lark(lark), log_level=0)
    end = (*ready.stop_ids, *ready.encode("<|im_end|>"))[0]
    said: list[int] = []
    while len(said) < most and not matcher.is_stopped():
        bias = matcher.compute_logit_bias()
        allowed = [token for token, weight in enumerate(bias) if weight]
        ends = [token for token in allowed if token == end]
        if ends and (len(said) > 60 or chance.random() < 0.5):
            return said
        markers = [token for token in allowed if token >= 256 and token not in ends]
        # Of all bytes, few lead anywhere: what a call is made of comes more often.
        pots = [markers, [token for token in allowed if token < 128 and chr(token) in '"}]),>|<\n'], allowed]
        token = chance.choice(chance.choice([pot for pot in pots if pot and pot != ends]))
        if token in ends:
            continue
        assert matcher.consume_token(token)
        said.append(token)
    return said if matcher.is_stopped() else None


@EVERY
def test_whatever_the_grammar_lets_through_is_read_as_a_whole_and_valid_call(dialect: Dialect) -> None:
    chance, whole = random.Random(f"answers in {dialect.name}"), 0
    for number in range(parser_helpers.SOUPS // 10 if parser_helpers.FULL_COUNTS else 12):
        ready = formats(dialect.name)[number % 2]
        talk = parser_helpers.conversation(tools=HELD, tool_choice="required")
        tokens = random_answer(ready, talk, chance)
        if tokens is None:
            continue
        said, reader = parser_helpers.read(ready, tokens, talk=talk)
        text = ready.decode(tokens)
        assert not reader.call_failed, text
        calls = calls_of(said)
        assert calls and all(arguments is not ... for _, arguments in calls), text
        for name, arguments in calls:
            if name == "steer":
                assert re.fullmatch("go [0-9]{1,3}", arguments), text
            else:
                jsonschema.validate(arguments, STRICT if name == "first" else {"type": "object"})
        assert not "".join(segment.text for segment in said if isinstance(segment, Say)).strip(), text
        whole += 1
    assert whole > parser_helpers.SOUPS // 100, "many come to an end"


NEW = [dialect for dialect in CALLING if dialect.name not in parser_helpers.NAMES]
LOOSE = [
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
BITS = [
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


def soup(dialect: Dialect, chance: random.Random) -> str:
    """Nonsense made of its own markers, of pieces of calls, and of whole ones."""
    markers = [*dialect.all_markers, *(marker[: len(marker) // 2] for marker in dialect.all_markers)]
    wholes = [written(dialect, name) for name in ("one", "none", "types")]
    halves = [whole[: chance.randrange(len(whole))] for whole in wholes]
    pots = chance.choice(
        ([markers, LOOSE, BITS], [markers, LOOSE, BITS, wholes, halves], [wholes, LOOSE], [markers, BITS])
    )
    return "".join(chance.choice(chance.choice(pots)) for _ in range(chance.randint(1, 30)))


@pytest.mark.parametrize("dialect", NEW, ids=lambda dialect: dialect.name)
@pytest.mark.timeout(1200)
def test_soup_of_its_own_markers_is_a_legal_stream_in_every_cut(dialect: Dialect) -> None:
    chance = random.Random(f"soup of {dialect.name}")
    for number in range(parser_helpers.SOUPS if parser_helpers.FULL_COUNTS else parser_helpers.SOUPS // 4):
        ready = chance.choice(formats(dialect.name))
        tokens = ready.encode(soup(dialect, chance))
        options = {"thinking": bool(dialect.think) and chance.random() < 0.3, "natural": chance.random() < 0.7}
        whole, reader = parser_helpers.read(ready, tokens, **options)
        for cuts in (range(len(tokens)), parser_helpers.random_cuts(len(tokens), chance)):
            said, again = parser_helpers.read(ready, tokens, cuts, **options)
            assert said == whole, f"soup {number}"
            assert (again.reasoning_tokens, again.call_failed) == (reader.reasoning_tokens, reader.call_failed)
        drive(whole, natural=options["natural"], broken=reader.call_failed)


def _spoken(dialect: Dialect, name: str) -> str:
    """The call, what its values hold inside as JSON: it is that by which a grammar holds them."""
    return written(dialect, name).replace('"b": None', '"b": null')


def accepts(ready: ModelFormat, text: str, talk: Any) -> bool:
    lark = ready.build_grammar(RenderedPrompt((), "", False), talk)
    assert lark is not None
    tokens = _tokenizer(ready)
    source = LLMatcher.grammar_from_lark(lark)
    assert LLMatcher.validate_grammar(source, tokens) == "", lark
    matcher = LLMatcher(tokens, source, log_level=0)
    ids = ready.encode(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and not matcher.is_error() and matcher.is_accepting())


_TOKENIZERS: dict[int, LLTokenizer] = {}


def _tokenizer(ready: ModelFormat) -> LLTokenizer:
    if id(ready) not in _TOKENIZERS:
        assert isinstance(ready, TemplateFormat)
        size = 256 + len(ready._vocabulary.added_tokens)
        _TOKENIZERS[id(ready)] = LLTokenizer(TokenizerWrapper(Wrapped(ready, size)))
    return _TOKENIZERS[id(ready)]


@pytest.mark.parametrize("unit", ['functools[{"a":[', 'functools[{"arguments":{"a":['])
def test_nonsense_is_not_read_again_without_end(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins like a call again and again, each time inside the last one's value, costs little more than its length."""
    looked: list[int] = []
    advance = Extent.advance

    def counted(extent: Extent, text: str, at: int) -> int:
        end = advance(extent, text, at)
        looked.append(end - at)
        return end

    monkeypatch.setattr(Extent, "advance", counted)
    ready = formats("phi4-mini")[0]
    parser_helpers.read(ready, ready.encode(unit * 1000))
    assert sum(looked) < MAX_HOLD_BACK_CHARS + len(unit) * 1000 + 1000 * 2 * MIN_HOLD_BACK_CHARS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral-v11", "[TOOL_CALLS]" + "x" * 100_000 + '[TOOL_CALLS][{"arguments": {"a": "' + "y" * 60_000 + '"}, "name": "add"}]'),
        ("cohere", "<co>" + "x" * 90_000 + '<|START_ACTION|>[{"parameters": {"a": "' + "y" * 35_000 + '"}, "tool_name": "add"}]<|END_ACTION|>'),
    ],
)  # fmt: skip
def test_what_was_waited_for_in_vain_counts_alike_in_every_cut(name: str, text: str) -> None:
    ready = formats(name)[0]
    tokens = ready.encode(text)
    whole, _ = parser_helpers.read(ready, tokens)
    for step in (97, 5000):
        assert parser_helpers.lines(
            parser_helpers.read(ready, tokens, range(0, len(tokens), step))[0]
        ) == parser_helpers.lines(whole)


@EVERY
def test_a_schema_may_be_nonsense(dialect: Dialect) -> None:
    """What a client says of its tool's parameters is not ours to believe."""
    for parameters in (
        {"properties": ["a"]},
        {"type": 3, "properties": {"a": 7, "b": {"type": ["string", 4]}}},
        {"required": "a"},
    ):
        table = ToolTable.from_request([FunctionTool(name=name, parameters=parameters) for name in ("add", "write")])
        talk = parser_helpers.conversation(tools=table)
        for ready in formats(dialect.name):
            said, _ = parser_helpers.read(ready, ready.encode(written(dialect, "one")), talk=talk)
            assert [name for name, arguments in calls_of(said) if arguments is not ...] == ["add"]


def test_a_users_word_opens_no_reasoning() -> None:
    dialect = DIALECTS["mistral-v11"]
    template = ChatTemplate("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}")
    ready = TemplateFormat(dialect, ByteVocabulary((), ("<s>",)), template)
    for opener, _ in dialect.think_markers:
        asked = parser_helpers.conversation(items=(InputMessage(role="user", content=f"What is {opener} for?"),))
        assert not ready.render_prompt(asked, now=parser_helpers.NOW).in_reasoning


# What real models write that the frames do not write by themselves

ODD = [
    # As the API writes it: the function inside an object of its own.
    ("hermes", '<tool_call>\n{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}\n</tool_call>', [("add", {"a": 1})]),
    ("hermes", '<tool_call>{"function": {"arguments": {"a": 1}, "name": "add"}, "type": "function"}</tool_call><tool_call>{"id": "x", "function": {"name": "now"}}</tool_call>', [("add", {"a": 1}), ("now", {})]),
    ("hermes", '<tool_call>{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}, "type": "function"}', [("add", {"a": 1})]),
    ("llama3", '{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}', [("add", {"a": 1})]),
    ("mistral", '[TOOL_CALLS][{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}, {"type": "function", "function": {"name": "now", "arguments": {}}, "id": "123456789"}]', [("add", {"a": 1}), ("now", {})]),
    ("xlam", '[{"function": {"name": "now"}}, {"function": {"name": "add", "arguments": {"a": 1}}}]', [("now", {}), ("add", {"a": 1})]),
    ("glm", "<tool_call>\nadd\n<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", [("add", {"a": 1})]),
    ("glm", "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>\n<tool_call>add<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>", [("add", {"a": 1}), ("add", {"a": 2})]),
    ("glm", "<tool_call>write<arg_key>text</arg_key><arg_value>\nx\n</arg_value>", [("write", {"text": "\nx\n"})]),
    ("glm", "<tool_call>write<arg_key>first name</arg_key><arg_value>x</arg_value></tool_call>", [("write", {"first name": "x"})]),
    ("qwen3-coder", "<tool_call>\n<function=write>\n<parameter=first name>\nx\n</parameter>\n<parameter=user's>\ny\n</parameter>\n</function>\n</tool_call>", [("write", {"first name": "x", "user's": "y"})]),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="write">\n<parameter name="text">x</parameter>\n</minimax:tool_call>', [("write", {"text": "x"})]),
    ("minimax-m2", "<minimax:tool_call><invoke name=add><parameter name='a'>1</parameter></invoke></minimax:tool_call>", [("add", {"a": 1})]),
    ("deepseek-v3.2", '<｜DSML｜tool><｜DSML｜invoke name="write"><｜DSML｜parameter name="text" string="true">x\n</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool>', [("write", {"text": "x\n"})]),
    ("deepseek-v4", '<｜DSML｜ calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="a">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜ calls>', [("add", {"a": 1})]),
    ("deepseek-v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("add", {"a": 1})]),
    ("deepseek-v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', [("add", {"a": 1})]),
    ("kimi-k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a":1}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>', [("add", {"a": 1}), ("now", {})]),
    ("mistral-v11", '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", {"a": 1}), ("now", {})]),
    ("mistral-v11", '<think>\nHm.</think>\n[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", {"a": 1}), ("now", {})]),
    ("minimax-m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="write">\n]<]minimax[>[<path>a]<]minimax[>[</path>\n]<]minimax[>[<tags>]<]minimax[>[<item>u]<]minimax[>[</item>]<]minimax[>[<item>v w]<]minimax[>[</item>]<]minimax[>[</tags>\n]<]minimax[>[<deep>]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[<y>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</y>]<]minimax[>[</deep>\n]<]minimax[>[<yes>true]<]minimax[>[</yes>]<]minimax[>[<yes>false]<]minimax[>[</yes>\n]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>', [("write", {"path": "a", "tags": ["u", "v w"], "deep": {"x": "1", "y": ["2"]}, "yes": True})]),
    ("minimax-m3", ']<]minimax[>[<invoke name="write">]<]minimax[>[<deep>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<b>1]<]minimax[>[</b>]<]minimax[>[</deep>]<]minimax[>[<tags>["]<]minimax[>[</tags>"]]<]minimax[>[</tags>]<]minimax[>[</invoke>', [("write", {"deep": {"item": "a", "b": "1"}, "tags": ["]<]minimax[>[</tags>"]})]),
    ("qwen3-coder", '<function=write>\n<parameter=arguments>\n{"text": "a\\ud800b"}\n</parameter>\n</function>', [("write", {"text": "a\ufffdb"})]),
    ("qwen3-coder", "<function=write>\n<parameter=text>\nsee:\n<parameter=text>\nx\n</parameter>\n</function>", [("write", {"text": "see:\n<parameter=text>\nx"})]),
    ("qwen3-coder", '<function=write>\n<parameter=tags>\n["\n</parameter>\n</function>"]\n</parameter>\n</function>', [("write", {"tags": '["\n</parameter>\n</function>"]'})]),
    ("kimi-k3", '<|open|>call tool="write" index="1"<|sep|><|open|>argument key="tags" type="array"<|sep|>["<|close|>argument<|sep|><|close|>call<|sep|>"]<|close|>argument<|sep|><|close|>call<|sep|>', [("write", {"tags": ["<|close|>argument<|sep|><|close|>call<|sep|>"]})]),
    ("kimi-k3", '<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>', [("now", {})]),
    ("kimi-k2", '<|tool_call_begin|>functions.add:0{"a": 1}<|tool_call_end|>', [("add", {"a": 1})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="arguments" string="false">{"a": 1, "b": 2}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', [("add", {"a": 1, "b": 2})]),
    ("deepseek-v3.2", '<｜DSML｜function_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="arguments" string="false">{}</｜DSML｜parameter><｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>', [("add", {"a": 1})]),
    ("functiongemma", '<start_function_call>call:write{yes:<escape>true<escape>,path:<escape>7<escape>,tags:<escape>["u"]<escape>}<end_function_call>', [("write", {"yes": True, "path": "7", "tags": ["u"]})]),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"arguments": {}, "name": "now"}]', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '{"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}', [("add", {"a": 1}), ("now", {})]),
    ("llama3", '{"type": "function", "name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
    ("llama4-pythonic", '{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
    ("llama4-pythonic", '<|python_start|>{"name": "add", "parameters": {"a": 1}}<|python_end|>', [("add", {"a": 1})]),
    ("llama4-pythonic", "[add(a=1, b=2), write(path='x', yes=True, tags=['u'], mode=None)]", [("add", {"a": 1, "b": 2}), ("write", {"path": "x", "yes": True, "tags": ["u"], "mode": None})]),
    ("olmo3", "<function_calls>\nadd(a=1)\nwrite(text='''x\n\"y\"''')\n</function_calls>", [("add", {"a": 1}), ("write", {"text": 'x\n"y"'})]),
    ("lfm2", r"""<|tool_call_start|>[write(text="\ud83d\ude00 \033[1m \x41 \'", deep={"a\"b": (1, 2)})]<|tool_call_end|>""", [("write", {"text": "😀 \033[1m A '", "deep": {'a"b': [1, 2]}})]),
    ("gemma4", '<|tool_call>call:write{path:<|"|>a "b"<|"|>,deep:{x:[1,2,{y:<|"|>z<|"|>}]},yes:true}<tool_call|>', [("write", {"path": 'a "b"', "deep": {"x": [1, 2, {"y": "z"}]}, "yes": True})]),
]  # fmt: skip
TEXT = [
    ("llama3", '{"city": "x", "name": "add"}'),
    ("llama3", '{"name": "add", "age": 3}'),
    ("llama3", 'Here: {"name": "add", "parameters": {"a": 1}}'),
    ("xlam", '[{"name": "add", "age": 3}]'),
    ("pythonic", "[1, 2, 3]"),
]


@pytest.mark.parametrize(("name", "text", "calls"), ODD, ids=lambda value: value if isinstance(value, str) else "")
def test_what_models_write_besides(name: str, text: str, calls: list[tuple[str, Any]]) -> None:
    for ready in formats(name):
        tokens = ready.encode(text)
        said, _ = parser_helpers.read(ready, tokens)
        assert calls_of(said) == calls
        assert not "".join(segment.text for segment in said if isinstance(segment, Say)).strip()
        assert parser_helpers.read(ready, tokens, range(len(tokens)))[0] == said


@pytest.mark.parametrize(("name", "text"), TEXT)
def test_what_only_looks_like_a_call_is_text(name: str, text: str) -> None:
    for ready in formats(name):
        said, _ = parser_helpers.read(ready, ready.encode(text))
        assert "".join(segment.text for segment in said if isinstance(segment, Say)) == text


def test_a_native_id_is_kept() -> None:
    text = written(DIALECTS["kimi-k2"], "one").replace(":0", ":7")
    said, _ = parser_helpers.read(formats("kimi-k2")[0], formats("kimi-k2")[0].encode(text))
    assert [one.call_id for one in said if isinstance(one, Call)] == ["functions.add:7"]


ENUMS: dict[str, Any] = {
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


@EVERY
def test_choices_behind_references_are_choices(dialect: Dialect) -> None:
    talk = parser_helpers.conversation(
        tools=ToolTable.from_request([FunctionTool(name="f", parameters=ENUMS, strict=True)]), tool_choice="required"
    )
    offer = talk.tools.find_tool("f")
    assert offer is not None
    for values, good in (
        ({"a": "red", "b": "x", "c": "blue"}, True),
        ({"a": "green", "b": "x", "c": "blue"}, False),
        ({"a": "red", "b": "y", "c": "blue"}, False),
    ):
        text = next(
            call for frame in dialect.calls if (call := frame.write_calls([(offer, json.dumps(values))])) is not None
        )
        ready = formats(dialect.name)[0]
        assert accepts(ready, text, talk) == good


@pytest.mark.parametrize("name", ["llama3", "pythonic", "llama4-pythonic", "xlam"])
def test_text_that_begins_like_a_call_is_no_way_around_what_is_strict(name: str) -> None:
    talk = parser_helpers.conversation(
        tools=ToolTable.from_request([FunctionTool(name="add", parameters=parser_helpers.ADD, strict=True)])
    )
    offer, dialect = talk.tools.find_tool("add"), DIALECTS[name]
    assert offer is not None
    text = next(call for frame in dialect.calls if (call := frame.write_calls([(offer, '{"a": "x"}')])) is not None)
    assert not accepts(formats(name)[0], text, talk)
    assert accepts(formats(name)[0], text.replace('"x"', "5"), talk)
    assert accepts(formats(name)[0], "Hello there.", talk)
