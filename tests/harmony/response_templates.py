"""Response templates of model repositories, each with two calls as its model writes them."""

from typing import Any

from antiphon.harmony.detection.response_template import parse_response_template
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.vocabulary import ByteVocabulary

FUNCTION_TRANSFORM = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

MEMBERS_TRANSFORM = {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.args}"}}

THINK_FIELD = {"open": "<think>", "close": "</think>"}

TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"open": "<call>", "close": "</call>", "repeats": True, "content": "json"},
        '<call>{"name": "add", "arguments": {"a": 1}}</call><call>{"name": "now", "arguments": {}}</call>'),
    "a list as the API has it": ({"open": "[CALLS]", "close": "[/CALLS]", "content": "json"},
        '[CALLS][{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}, {"type": "function", "function": {"name": "now", "arguments": {}}}][/CALLS]'),
    "json by other names": ({"open": ["<call>", "<CALL>"], "close": "</call>", "content": "json", "transform": MEMBERS_TRANSFORM},
        '<CALL>{"tool": "add", "args": {"a": 1}}</call><call>{"tool": "now", "args": {}}</call>'),
    "a list": ({"open": "[CALLS]", "close": "[/CALLS]", "content": "json", "transform_each": True,
                "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}},
        '[CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}][/CALLS]'),
    "tags": ({"open_pattern": r"\s*<call>\s*<function=(?P<name>[^>\n]+)>", "close_pattern": r"</function>\s*</call>",
              "content": "xml-inline", "transform": FUNCTION_TRANSFORM, "repeats": True,
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
              "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}, "transform": FUNCTION_TRANSFORM},
        "<|tool>call:add{a:1}<tool|><|tool>call:now{}<tool|>"),
    "lines": ({"open_pattern": r"<run>(?P<name>\w+)\n", "close": ["</run>", "<eos>"], "content": "kv-lines",
              "transform": FUNCTION_TRANSFORM},
        "<run>add\na: 1\n</run><run>now\n</run>"),
}  # fmt: skip


def build_template(calls: dict[str, Any]) -> dict[str, Any]:
    fields = {"thinking": THINK_FIELD, "content": {"close_pattern": "(?:<eos>|<end>)"}, "tool_calls": calls}
    return {"start_anchor": "<|im_start|>assistant\n", "fields": fields}


def build_formats(spec: dict[str, Any]) -> list[TemplateFormat]:
    dialect = parse_response_template(spec)
    markers = tuple(marker for marker in dialect.all_markers if marker.startswith(("<", "[")))
    byte_markers, token_markers = ((), ("<|im_start|>", "<|im_end|>")), (markers, ("<|im_start|>", "<|im_end|>"))
    return [
        TemplateFormat(dialect, ByteVocabulary(*vocabulary_args), ChatTemplate("{{ messages }}"))
        for vocabulary_args in (byte_markers, token_markers)
    ]
