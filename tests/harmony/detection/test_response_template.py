"""`response_template` of a model repository: parsed into a dialect, or rejected with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from antiphon.harmony.calls.text_span import TextSpanCall
from antiphon.harmony.detection.detect import bytes_format, load_format
from antiphon.harmony.detection.response_template import DIALECT_NAME, UnsupportedTemplate, parse_response_template
from antiphon.state.segments import Say, Think
from tests.harmony import parser_helpers
from tests.harmony.response_templates import TEMPLATES, build_formats, build_template

TOOL_SCHEMAS = [
    {"type": "function", "function": {"name": offer.model_name, "parameters": offer.parameters or {}}}
    for offer in parser_helpers.TOOLS
    if offer.kind == "function"
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_calls_are_parsed_for_any_split(name: str) -> None:
    calls, text = TEMPLATES[name]
    for model_format in build_formats(build_template(calls)):
        tokens = model_format.encode(f"<think>Hm.</think>So:\n{text}")
        segments, _ = parser_helpers.parse_tokens(model_format, tokens)
        assert isinstance(segments[0], Think) and isinstance(segments[1], Say)
        assert parser_helpers.collect_calls(segments) == [("add", {"a": 1}), ("now", {})]
        parser_helpers.check_machine_accepts(segments, natural=True, call_failed=False)
        for cut in range(len(tokens)):
            assert parser_helpers.parse_tokens(model_format, tokens, [cut])[0] == segments
        assert parser_helpers.parse_tokens(model_format, tokens, range(len(tokens)))[0] == segments


@pytest.mark.parametrize("name", TEMPLATES)
def test_truncated_call_is_never_complete(name: str) -> None:
    calls, text = TEMPLATES[name]
    for model_format in build_formats(build_template(calls)):
        tokens = model_format.encode(text)
        for end in range(len(tokens)):
            segments, _ = parser_helpers.parse_tokens(model_format, tokens[:end], natural=False)
            assert parser_helpers.collect_calls(segments) in (
                [],
                [("add", ...)],
                [("add", {"a": 1})],
                [("add", {"a": 1}), ("now", ...)],
            ) or parser_helpers.collect_calls(segments) == [("add", {"a": 1}), ("now", {})]


def test_custom_string_delimiters_allow_any_content() -> None:
    calls, _ = TEMPLATES["keys without marks"]
    (model_format, _) = build_formats(build_template(calls))
    segments, _ = parser_helpers.parse_tokens(
        model_format, model_format.encode('<|tool>call:write{path:<q>a "b", c:1<q>,yes:true,tags:[<q>u<q>]}<tool|>')
    )
    assert parser_helpers.collect_calls(segments) == [("write", {"path": 'a "b", c:1', "yes": True, "tags": ["u"]})]


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
def test_malformed_calls_are_text(name: str, text: str) -> None:
    for model_format in build_formats(build_template(TEMPLATES[name][0])):
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text))
        assert "".join(segment.text for segment in segments if isinstance(segment, Say)) == text


def test_lone_surrogate_is_replaced() -> None:
    (model_format, _) = build_formats(build_template(TEMPLATES["keys without marks"][0]))
    segments, _ = parser_helpers.parse_tokens(
        model_format, model_format.encode('<|tool>call:write{path:"\\ud800"}<tool|>')
    )
    assert parser_helpers.collect_calls(segments) == [("write", {"path": "\ufffd"})]


@pytest.mark.parametrize(
    ("name", "repeated", "suffix"),
    [
        ("tags", " ", "x</function></call>"),
        ("keys without marks", "<q>", "}<tool|>"),
        ("tags", "<call>", ""),
    ],
)
def test_parsing_takes_linear_time(name: str, repeated: str, suffix: str) -> None:
    """Text that was held back in vain is not scanned again for every later chunk."""
    (model_format, _) = build_formats(build_template(TEMPLATES[name][0]))
    prefix = {"tags": "<call><function=add><parameter=a>", "keys without marks": "<|tool>call:add{a:"}[name]
    tokens = model_format.encode(prefix + repeated * 20_000 + suffix)
    segments, _ = parser_helpers.parse_tokens(model_format, tokens, range(0, len(tokens), 500))
    assert not any(arguments is not ... for _, arguments in parser_helpers.collect_calls(segments))


def test_unknown_tools_are_not_called() -> None:
    for calls, text in TEMPLATES.values():
        for model_format in build_formats(build_template(calls)):
            for altered in (text.replace("add", "subtract").replace("now", "then"), text[: len(text) // 2]):
                segments, _ = parser_helpers.parse_tokens(
                    model_format, model_format.encode(altered + "\n\nthe end"), natural=False
                )
                assert not [
                    arguments
                    for name, arguments in parser_helpers.collect_calls(segments)
                    if name not in ("add", "now")
                ]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"version": 2, "fields": {"content": {}}}, "version"),
        ({"fields": {}}, "no fields"),
        (build_template({"open": "<a>", "close": "</a>", "content": "yaml"}), "'yaml'"),
        (build_template({"open": "<a>", "close_pattern": "</a>|</b>", "content": "json"}), "pattern"),
        (build_template({"open": "<a>", "close": "</a>", "content": "xml-inline"}), "tag_pattern"),
        (
            build_template(
                {
                    "open": "<a>",
                    "close": "</a>",
                    "content": "xml-inline",
                    "content_args": {"tag_pattern": r"<p=(\w+)>(?P<value>.*?)</p>"},
                }
            ),
            "tag_pattern",
        ),
        (build_template({"open_pattern": "<a>|<b>", "close": "</a>", "content": "json"}), "pattern"),
        (build_template({"open_pattern": "(?P<name>[", "close": "</a>", "content": "json"}), "pattern"),
        (build_template({"open_pattern": r"\w+", "close": "</a>", "content": "json"}), "pattern"),
    ],
)
def test_unsupported_templates_are_rejected(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedTemplate, match=reason):
        parse_response_template(spec)


def test_templates_map_to_existing_call_formats() -> None:
    format_types = {
        name: type(parse_response_template(build_template(calls)).calls[0]) for name, (calls, _) in TEMPLATES.items()
    }
    region_formats = {name for name, format_type in format_types.items() if format_type is TextSpanCall}
    assert region_formats == {"tags", "keys in tags", "keys without marks", "lines"}


def write_model_folder(folder: Path, chat_template: str, spec: object) -> Path:
    """Writes the tokenizer and configuration files of a model with this chat template and response template."""
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    settings = {"chat_template": chat_template, "response_template": spec}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_response_template_of_a_model_is_used(tmp_path: Path) -> None:
    loaded = load_format(write_model_folder(tmp_path, "{{ messages }}", build_template(TEMPLATES["tags"][0])))
    assert loaded.format.name == DIALECT_NAME and "response_template" in loaded.reason
    assert load_format(tmp_path, "plain").format.name == "plain"


def test_matching_known_dialect_takes_precedence(tmp_path: Path) -> None:
    spec = build_template({"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True})
    loaded = load_format(write_model_folder(tmp_path, "{{ messages }} <tool_call> </tool_call>", spec))
    assert loaded.format.name == "hermes" and "response_template agrees" in loaded.reason


def test_unsupported_template_is_reported_in_the_reason(tmp_path: Path) -> None:
    loaded = load_format(write_model_folder(tmp_path, "{{ messages }} <tool_call>", {"version": 9}))
    assert loaded.format.name == "hermes" and "not used: its version" in loaded.reason


def test_response_template_is_not_a_named_dialect() -> None:
    with pytest.raises(KeyError):
        bytes_format(DIALECT_NAME)


@pytest.mark.parametrize("name", TEMPLATES)
def test_transformers_parses_the_same(name: str) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    calls, text = TEMPLATES[name]
    spec = build_template({**calls, "repeats": not name.startswith("a list")})
    parsed = parsing.parse_response(f"<think>Hm.</think>So:\n{text}", spec, prefix="", tools=TOOL_SCHEMAS)
    parsed_calls = parsed["tool_calls"]
    functions = [call.get("function", call) for call in parsed_calls]
    assert [(function["name"], function["arguments"]) for function in functions] == [("add", {"a": 1}), ("now", {})]
    assert parsed["thinking"] == "Hm." and parsed["content"] == "So:"


def test_arguments_that_look_like_json_and_are_none_are_text() -> None:
    calls, _ = TEMPLATES["keys in tags"]
    for value in ("{", '{"a": 1', '{"a": "\\ud83d"', "{NaN}"):
        text = f"<call><k>tool</k><v>add</v><k>args</k><v>{value}</v></call>"
        for model_format in build_formats(build_template(calls)):
            segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text))
            assert "".join(segment.text for segment in segments if isinstance(segment, Say)) == text


def test_first_of_two_arguments_of_one_name_counts_and_keys_can_be_encoded() -> None:
    for name, text, expected in (
        (
            "tags",
            "<call><function=add><parameter=a>1</parameter><parameter=a>2</parameter></function></call>",
            {"a": 1},
        ),
        ("lines", "<run>add\na: 1\na: 2\n</run>", {"a": 1}),
        (
            "keys in tags",
            r'<call><k>tool</k><v>add</v><k>args</k><v>{"a": 1, "\ud83d": 2}</v></call>',
            {"a": 1, "\ufffd": 2},
        ),
    ):
        for model_format in build_formats(build_template(TEMPLATES[name][0])):
            segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text))
            assert parser_helpers.collect_calls(segments) == [("add", expected)]
