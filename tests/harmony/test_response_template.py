"""A repository's own word on how its answers are read: taken where it can be, refused with a reason where not."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from antiphon.harmony.calls.region import RegionCall
from antiphon.harmony.detect import bytes_format, load_format
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.response_template import DIALECT_NAME, UnsupportedTemplate, parse_response_template
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Say, Think
from tests.harmony import parser_helpers
from tests.harmony.test_every_dialect import calls_of
from tests.harmony.test_soup import drive

FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
MEMBERS = {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.args}"}}
THINK = {"open": "<think>", "close": "</think>"}
SCHEMAS = [
    {"type": "function", "function": {"name": offer.model_name, "parameters": offer.parameters or {}}}
    for offer in parser_helpers.TOOLS
    if offer.kind == "function"
]
TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"open": "<call>", "close": "</call>", "repeats": True, "content": "json"},
        '<call>{"name": "add", "arguments": {"a": 1}}</call><call>{"name": "now", "arguments": {}}</call>'),
    "a list as the API has it": ({"open": "[CALLS]", "close": "[/CALLS]", "content": "json"},
        '[CALLS][{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}, {"type": "function", "function": {"name": "now", "arguments": {}}}][/CALLS]'),
    "json by other names": ({"open": ["<call>", "<CALL>"], "close": "</call>", "content": "json", "transform": MEMBERS},
        '<CALL>{"tool": "add", "args": {"a": 1}}</call><call>{"tool": "now", "args": {}}</call>'),
    "a list": ({"open": "[CALLS]", "close": "[/CALLS]", "content": "json", "transform_each": True,
                "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}},
        '[CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}][/CALLS]'),
    "tags": ({"open_pattern": r"\s*<call>\s*<function=(?P<name>[^>\n]+)>", "close_pattern": r"</function>\s*</call>",
              "content": "xml-inline", "transform": FUNCTION, "repeats": True,
              "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"}},
        "<call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</call>\n<call><function=now></function></call>"),
    "keys in tags": (
        {
            "open": "<call>",
            "close": "</call>",
            "content": "xml-inline",
            "repeats": True,
            "content_args": {
                "tag_pattern": r"<k>(?P<key>.*?)</k>\s*<v>(?P<value>.*?)</v>",
                "value_parser": {"name": "json", "args": {"allow_non_json": True}},
            },
            "transform": {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.args}"}},
        },
        '<call><k>tool</k><v>add</v><k>args</k>\n<v>{"a": 1}</v></call><call><k>args</k><v>{}</v><k>tool</k><v>now</v></call>',
    ),
    "keys without marks": ({"open_pattern": r"<\|tool>call:(?P<name>\w+)", "close": "<tool|>", "content": "json",
              "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}, "transform": FUNCTION},
        "<|tool>call:add{a:1}<tool|><|tool>call:now{}<tool|>"),
    "lines": ({"open_pattern": r"<run>(?P<name>\w+)\n", "close": ["</run>", "<eos>"], "content": "kv-lines",
              "transform": FUNCTION},
        "<run>add\na: 1\n</run><run>now\n</run>"),
}  # fmt: skip


def template(calls: dict[str, Any]) -> dict[str, Any]:
    fields = {"thinking": THINK, "content": {"close_pattern": "(?:<eos>|<end>)"}, "tool_calls": calls}
    return {"start_anchor": "<|im_start|>assistant\n", "fields": fields}


def formats(spec: dict[str, Any]) -> list[TemplateFormat]:
    known = parse_response_template(spec)
    markers = tuple(marker for marker in known.all_markers if marker.startswith(("<", "[")))
    plain, added = ((), ("<|im_start|>", "<|im_end|>")), (markers, ("<|im_start|>", "<|im_end|>"))
    return [TemplateFormat(known, ByteVocabulary(*words), ChatTemplate("{{ messages }}")) for words in (plain, added)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_read_as_it_says_in_every_cut(name: str) -> None:
    calls, text = TEMPLATES[name]
    for ready in formats(template(calls)):
        tokens = ready.encode(f"<think>Hm.</think>So:\n{text}")
        said, _ = parser_helpers.read(ready, tokens)
        assert isinstance(said[0], Think) and isinstance(said[1], Say)
        assert calls_of(said) == [("add", {"a": 1}), ("now", {})]
        drive(said, natural=True, broken=False)
        for cut in range(len(tokens)):
            assert parser_helpers.read(ready, tokens, [cut])[0] == said
        assert parser_helpers.read(ready, tokens, range(len(tokens)))[0] == said


@pytest.mark.parametrize("name", TEMPLATES)
def test_of_half_a_call_nothing_is_whole(name: str) -> None:
    calls, text = TEMPLATES[name]
    for ready in formats(template(calls)):
        tokens = ready.encode(text)
        for end in range(len(tokens)):
            said, _ = parser_helpers.read(ready, tokens[:end], natural=False)
            assert calls_of(said) in (
                [],
                [("add", ...)],
                [("add", {"a": 1})],
                [("add", {"a": 1}), ("now", ...)],
            ) or calls_of(said) == [("add", {"a": 1}), ("now", {})]


def test_strings_between_marks_of_their_own_hold_anything() -> None:
    calls, _ = TEMPLATES["keys without marks"]
    (ready, _) = formats(template(calls))
    said, _ = parser_helpers.read(
        ready, ready.encode('<|tool>call:write{path:<q>a "b", c:1<q>,yes:true,tags:[<q>u<q>]}<tool|>')
    )
    assert calls_of(said) == [("write", {"path": 'a "b", c:1', "yes": True, "tags": ["u"]})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys without marks", "<|tool>call:add{a:NaN}<tool|>"),
        ("keys without marks", "<|tool>call:add{a:1e999}<tool|>"),
        ("keys without marks", "<|tool>call:add" + "[" * 5000 + "<tool|>"),
        ("keys without marks", "<|tool>call:add{a:" + "[" * 990 + "]" * 990 + "}<tool|>"),
        ("keys without marks", '<|tool>call:add"hello"<tool|>'),
        ("keys without marks", "<|tool>call:add[1]<tool|>"),
        ("keys without marks", "<|tool>call:apply_patch{patch:<q>x<q>}<tool|>"),
        ("tags", "<call><function=apply_patch><parameter=patch>x</parameter></function></call>"),
        ("json by other names", '<call>{"tool": 3}</call>'),
        ("lines", "<run></run>"),
    ],
)
def test_what_cannot_be_a_call_is_text(name: str, text: str) -> None:
    for ready in formats(template(TEMPLATES[name][0])):
        said, _ = parser_helpers.read(ready, ready.encode(text))
        assert "".join(one.text for one in said if isinstance(one, Say)) == text


def test_half_a_character_is_replaced() -> None:
    (ready, _) = formats(template(TEMPLATES["keys without marks"][0]))
    said, _ = parser_helpers.read(ready, ready.encode('<|tool>call:write{path:"\\ud800"}<tool|>'))
    assert calls_of(said) == [("write", {"path": "\ufffd"})]


@pytest.mark.parametrize(
    ("name", "unit", "after"),
    [
        ("tags", " ", "x</function></call>"),
        ("keys without marks", "<q>", "}<tool|>"),
        ("tags", "<call>", ""),
    ],
)
def test_reading_is_not_slower_the_longer_it_is(name: str, unit: str, after: str) -> None:
    """Looked at is counted, not time: what was held back for nothing is not looked at again and again."""
    (ready, _) = formats(template(TEMPLATES[name][0]))
    head = {"tags": "<call><function=add><parameter=a>", "keys without marks": "<|tool>call:add{a:"}[name]
    tokens = ready.encode(head + unit * 20_000 + after)
    said, _ = parser_helpers.read(ready, tokens, range(0, len(tokens), 500))
    assert not any(arguments is not ... for _, arguments in calls_of(said))


def test_what_is_no_call_is_text() -> None:
    for calls, text in TEMPLATES.values():
        for ready in formats(template(calls)):
            for other in (text.replace("add", "subtract").replace("now", "then"), text[: len(text) // 2]):
                said, _ = parser_helpers.read(ready, ready.encode(other + "\n\nthe end"), natural=False)
                assert not [arguments for name, arguments in calls_of(said) if name not in ("add", "now")]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"version": 2, "fields": {"content": {}}}, "version"),
        ({"fields": {}}, "no fields"),
        (template({"open": "<a>", "close": "</a>", "content": "yaml"}), "'yaml'"),
        (template({"open": "<a>", "close_pattern": "</a>|</b>", "content": "json"}), "pattern"),
        (template({"open": "<a>", "close": "</a>", "content": "xml-inline"}), "tag_pattern"),
        (
            template(
                {
                    "open": "<a>",
                    "close": "</a>",
                    "content": "xml-inline",
                    "content_args": {"tag_pattern": r"<p=(\w+)>(?P<value>.*?)</p>"},
                }
            ),
            "tag_pattern",
        ),
        (template({"open_pattern": "<a>|<b>", "close": "</a>", "content": "json"}), "pattern"),
        (template({"open_pattern": "(?P<name>[", "close": "</a>", "content": "json"}), "pattern"),
        (template({"open_pattern": r"\w+", "close": "</a>", "content": "json"}), "pattern"),
    ],
)
def test_what_cannot_be_read_is_refused(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedTemplate, match=reason):
        parse_response_template(spec)


def test_where_it_says_what_a_frame_says_the_frame_is_taken() -> None:
    kinds = {name: type(parse_response_template(template(calls)).calls[0]) for name, (calls, _) in TEMPLATES.items()}
    regions = {name for name, kind in kinds.items() if kind is RegionCall}
    assert regions == {"tags", "keys in tags", "keys without marks", "lines"}


def save(folder: Path, chat: str, spec: object) -> Path:
    """A model's small files."""
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    settings = {"chat_template": chat, "response_template": spec}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_a_folder_that_has_one_is_read_by_it(tmp_path: Path) -> None:
    chosen = load_format(save(tmp_path, "{{ messages }}", template(TEMPLATES["tags"][0])))
    assert chosen.format.name == DIALECT_NAME and "response_template" in chosen.reason
    assert load_format(tmp_path, "plain").format.name == "plain"


def test_where_it_says_what_is_known_the_known_dialect_stays(tmp_path: Path) -> None:
    spec = template({"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True})
    chosen = load_format(save(tmp_path, "{{ messages }} <tool_call> </tool_call>", spec))
    assert chosen.format.name == "hermes" and "says the same" in chosen.reason


def test_one_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    chosen = load_format(save(tmp_path, "{{ messages }} <tool_call>", {"version": 9}))
    assert chosen.format.name == "hermes" and "not used: its version" in chosen.reason


def test_it_is_none_of_those_that_have_names() -> None:
    with pytest.raises(KeyError):
        bytes_format(DIALECT_NAME)


@pytest.mark.parametrize("name", TEMPLATES)
def test_transformers_reads_the_same(name: str) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    calls, text = TEMPLATES[name]
    spec = template({**calls, "repeats": not name.startswith("a list")})
    told = parsing.parse_response(f"<think>Hm.</think>So:\n{text}", spec, prefix="", tools=SCHEMAS)
    found = told["tool_calls"]
    functions = [call.get("function", call) for call in found]
    assert [(one["name"], one["arguments"]) for one in functions] == [("add", {"a": 1}), ("now", {})]
    assert told["thinking"] == "Hm." and told["content"] == "So:"
