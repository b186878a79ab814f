"""Converts a repository's `response_template` (in its `tokenizer_config.json`, version 1) to a dialect.

Source: transformers' documentation of response parsing. If the template describes a call format of this package, that
format is used, with its grammar and its streamed arguments; otherwise a `TextSpanCall` parses each call once it is
complete. An unsupported template raises `UnsupportedTemplate`; the caller then uses the dialect detected otherwise.
"""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.calls.json_array import JsonArrayCall
from antiphon.harmony.calls.json_object import JsonCall
from antiphon.harmony.calls.span_parsers import PARSERS, parse_tag_pattern
from antiphon.harmony.calls.text_span import TextSpanCall, TextSpanParser
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.patterns import find_complex_part

DIALECT_NAME = "response-template"
REASONING_FIELDS = ("thinking", "reasoning_content", "reasoning")
_PATTERN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_WHITESPACE_PATTERN = re.compile(r"\\s[*+]?|\[ \]\*| \*")
_PATTERN_CHARS = set("()[]{}.*+?^$|")


class UnsupportedTemplate(ValueError):  # noqa: N818  not a fault: the chat template is used instead
    """Raised for a template with features that are not supported here."""


def parse_response_template(template: object) -> Dialect:
    """Returns the dialect that a response template describes. Raises `UnsupportedTemplate`."""
    if not isinstance(template, Mapping) or template.get("version", 1) != 1:
        raise UnsupportedTemplate("its version is not supported")
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise UnsupportedTemplate("it has no fields")
    think = next((_opener_and_closer(fields[name]) for name in REASONING_FIELDS if name in fields), None)
    content = fields.get("content")
    answer = (
        _opener_and_closer(content)
        if isinstance(content, Mapping) and {"open", "open_pattern"} & content.keys()
        else None
    )
    calls = _parse_calls(fields["tool_calls"]) if "tool_calls" in fields else ()
    return Dialect(name=DIALECT_NAME, models="from the repository", think=think, answer=answer, calls=calls)


def _opener_and_closer(field: object) -> tuple[str, str]:
    """Returns the first opener and the first closer of a field."""
    opener, closer = _parse_anchors(field, "open"), _parse_anchors(field, "close")
    if len(opener[0]) != 1 or len(closer[0]) != 1:
        raise UnsupportedTemplate("a reasoning or content field begins or ends with a pattern of several texts")
    return opener[0][0], closer[0][0]


def _parse_calls(field: object) -> tuple[CallFormat, ...]:
    if not isinstance(field, Mapping):
        raise UnsupportedTemplate("tool_calls is not an object")
    content, arguments = field.get("content", "text"), field.get("content_args") or {}
    if not isinstance(arguments, Mapping):
        raise UnsupportedTemplate("its content_args is not an object")
    _check_content(str(content), arguments)
    openers, closers = _parse_anchors(field, "open"), _parse_anchors(field, "close")
    is_plain_json = content == "json" and not arguments and "open" in field and len(closers[0]) == 1
    members = _member_names(field.get("transform"))
    if is_plain_json and members is not None:
        name_member, arguments_member = members
        call_format = JsonArrayCall if field.get("transform_each") or field.get("transform") is None else JsonCall
        return tuple(
            call_format(open=opener[0], close=closers[0][0], name=name_member, arguments=(arguments_member,))
            for opener in openers
        )
    region = TextSpanParser(
        opener=_compile_pattern(field.get("open_pattern")),
        content=str(content),
        arguments=dict(arguments),
        transform=field.get("transform"),
        transform_each=bool(field.get("transform_each")),
    )
    return tuple(TextSpanCall(open=opener[0], closers=tuple(map(tuple, closers)), region=region) for opener in openers)


def _check_content(content: str, arguments: Mapping[str, Any]) -> None:
    """Raises `UnsupportedTemplate` for a kind of content that has no parser."""
    if content not in PARSERS:
        raise UnsupportedTemplate(f"content of kind {content!r} is not supported")
    if content == "xml-inline" and parse_tag_pattern(arguments.get("tag_pattern")) is None:
        raise UnsupportedTemplate(
            f"the tag_pattern {arguments.get('tag_pattern')!r} is not made of texts around a key and a value"
        )
    inner = arguments.get("value_parser")
    if isinstance(inner, Mapping):
        _check_content(inner.get("name", "text"), inner.get("args") or {})


def _compile_pattern(pattern: object) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(str(pattern), re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedTemplate(f"the pattern {str(pattern)[:200]!r} is invalid: {error}") from error
    if part := find_complex_part(compiled.pattern):
        raise UnsupportedTemplate(f"the pattern {str(pattern)[:200]!r} may take long to match because of {part[:40]!r}")
    return compiled


def _member_names(transform: object) -> tuple[str, str] | None:
    """Returns the members that hold a call's name and arguments, if the transform only names them."""
    if transform is None:
        return "name", "arguments"
    function = transform.get("function", transform) if isinstance(transform, Mapping) else {}
    references = [function.get("name"), function.get("arguments")] if isinstance(function, Mapping) else []
    matches = [
        re.fullmatch(r"\{(?:content\.)?(\w+)\}", reference) if isinstance(reference, str) else None
        for reference in references
    ]
    name, arguments = (match[1] if match else None for match in matches) if len(matches) == 2 else (None, None)
    return (name, arguments) if name and arguments else None


def _parse_anchors(field: object, word: str) -> list[list[str]]:
    """Returns the alternative openers or closers of a field. Raises `UnsupportedTemplate`.

    Each alternative is a list of texts between which blanks may occur.
    """
    if not isinstance(field, Mapping):
        raise UnsupportedTemplate("a field is not an object")
    literal, pattern = field.get(word), field.get(f"{word}_pattern")
    texts = [literal] if isinstance(literal, str) else literal
    if isinstance(texts, list) and texts and all(isinstance(text, str) and text for text in texts):
        return [[text] for text in texts]
    if not isinstance(pattern, str):
        raise UnsupportedTemplate(f"a field has no {word}")
    parts = _literals_of(pattern, entire=word == "close")
    if not parts:
        raise UnsupportedTemplate(f"{word}_pattern {pattern!r} does not begin with literal text")
    return [parts if word == "close" else parts[:1]]


def _literals_of(pattern: str, *, entire: bool) -> list[str]:
    r"""Returns the texts at the start of a pattern, between which blanks may occur.

    `entire`: the pattern must consist of nothing else. Raises `UnsupportedTemplate`.

    Example: `</a>\s*</b>` gives `["</a>", "</b>"]`.
    """
    parts, at = [""], 0
    while at < len(pattern):
        if whitespace := _WHITESPACE_PATTERN.match(pattern, at):
            parts.append("")
            at = whitespace.end()
            continue
        char = pattern[at]
        if char in _PATTERN_CHARS:
            if char in "*+?{" and parts[-1]:
                parts[-1] = parts[-1][:-1]
            if entire or char == "|":
                raise UnsupportedTemplate(f"the pattern {pattern!r} is not supported")
            break
        at += 1
        if char == "\\":
            char = _PATTERN_ESCAPES.get(pattern[at : at + 1], pattern[at : at + 1])
            if char.isalnum():
                raise UnsupportedTemplate(f"the pattern {pattern!r} is not supported")
            at += 1
        parts[-1] += char
    return [part for part in parts if part]
