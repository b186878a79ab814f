"""A repository's own word on how its answers are read: the `response_template` of a `tokenizer_config.json`, version 1.

Source: transformers' documentation of response parsing. Where it says what one of our frames says, that frame is taken,
with its grammar and its arguments as they come; else a :class:`RegionFrame` reads a call when it is whole. What this
module cannot read, it refuses to: then the chat template decides, as it does without.
"""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.calls.json_array import JsonArrayCall
from antiphon.harmony.calls.json_object import JsonCall
from antiphon.harmony.calls.region import RegionCall, RegionParser
from antiphon.harmony.calls.region_parsers import PARSERS, parse_tag_pattern
from antiphon.harmony.dialect import Dialect

DIALECT_NAME = "response-template"
REASONING_FIELDS = ("thinking", "reasoning_content", "reasoning")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_WHITESPACE_PATTERN = re.compile(r"\\s[*+]?|\[ \]\*| \*")
_PATTERN_CHARS = set("()[]{}.*+?^$|")


class UnsupportedTemplate(ValueError):  # noqa: N818  it is no fault of anybody's
    """A template that says more than can be read here."""


def parse_response_template(template: object) -> Dialect:
    """The dialect that a response template tells of. Raises `Unreadable`."""
    if not isinstance(template, Mapping) or template.get("version", 1) != 1:
        raise UnsupportedTemplate("its version is not known")
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
    frames = _parse_calls(fields["tool_calls"]) if "tool_calls" in fields else ()
    return Dialect(name=DIALECT_NAME, models="as the repository says", think=think, answer=answer, calls=frames)


def _opener_and_closer(field: object) -> tuple[str, str]:
    """The first opener and the first closer of a field."""
    opener, closer = _parse_anchors(field, "open"), _parse_anchors(field, "close")
    if len(opener[0]) != 1 or len(closer[0]) != 1:
        raise UnsupportedTemplate("a field begins or ends with a pattern")
    return opener[0][0], closer[0][0]


def _parse_calls(field: object) -> tuple[CallFormat, ...]:
    if not isinstance(field, Mapping):
        raise UnsupportedTemplate("tool_calls is no field")
    content, arguments = field.get("content", "text"), field.get("content_args") or {}
    if not isinstance(arguments, Mapping):
        raise UnsupportedTemplate("its content_args are no object")
    _check_content(str(content), arguments)
    openers, closers = _parse_anchors(field, "open"), _parse_anchors(field, "close")
    plain = content == "json" and not arguments and "open" in field and len(closers[0]) == 1
    shape = _member_names(field.get("transform"))
    if plain and shape is not None:
        name, said = shape
        kind = JsonArrayCall if field.get("transform_each") or field.get("transform") is None else JsonCall
        return tuple(kind(open=way[0], close=closers[0][0], name=name, arguments=(said,)) for way in openers)
    region = RegionParser(
        opener=_compile_pattern(field.get("open_pattern")),
        content=str(content),
        arguments=dict(arguments),
        transform=field.get("transform"),
        transform_each=bool(field.get("transform_each")),
    )
    return tuple(RegionCall(open=way[0], closers=tuple(map(tuple, closers)), region=region) for way in openers)


def _check_content(content: str, arguments: Mapping[str, Any]) -> None:
    """Raises `Unreadable` where text could not be parsed so, whatever it is."""
    if content not in PARSERS:
        raise UnsupportedTemplate(f"it has content of kind {content!r}")
    if content == "xml-inline" and parse_tag_pattern(arguments.get("tag_pattern")) is None:
        raise UnsupportedTemplate(
            f"the tag_pattern {arguments.get('tag_pattern')!r} is more than texts around a key and a value"
        )
    inner = arguments.get("value_parser")
    if isinstance(inner, Mapping):
        _check_content(inner.get("name", "text"), inner.get("args") or {})


def _compile_pattern(pattern: object) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(str(pattern), re.DOTALL)
    except re.error as error:
        raise UnsupportedTemplate(f"the pattern {pattern!r}: {error}") from error


def _member_names(transform: object) -> tuple[str, str] | None:
    """The members that hold a call's name and arguments, where a transform does no more than name them."""
    if transform is None:
        return "name", "arguments"
    function = transform.get("function", transform) if isinstance(transform, Mapping) else {}
    words = [function.get("name"), function.get("arguments")] if isinstance(function, Mapping) else []
    found = [re.fullmatch(r"\{(?:content\.)?(\w+)\}", word) if isinstance(word, str) else None for word in words]
    name, said = (one[1] if one else None for one in found) if len(found) == 2 else (None, None)
    return (name, said) if name and said else None


def _parse_anchors(field: object, word: str) -> list[list[str]]:
    """The ways in which a field begins or ends, each as texts between which blanks may stand. Raises `Unreadable`."""
    if not isinstance(field, Mapping):
        raise UnsupportedTemplate("a field is no object")
    literal, pattern = field.get(word), field.get(f"{word}_pattern")
    texts = [literal] if isinstance(literal, str) else literal
    if isinstance(texts, list) and texts and all(isinstance(text, str) and text for text in texts):
        return [[text] for text in texts]
    if not isinstance(pattern, str):
        raise UnsupportedTemplate(f"a field has no {word}")
    parts = _literals_of(pattern, whole=word == "close")
    if not parts:
        raise UnsupportedTemplate(f"{word}_pattern {pattern!r} does not begin with a text")
    return [parts if word == "close" else parts[:1]]


def _literals_of(pattern: str, *, whole: bool) -> list[str]:
    """The texts of a pattern, between which blanks may stand; `whole`: all of it has to be that."""
    parts, at = [""], 0
    while at < len(pattern):
        if blanks := _WHITESPACE_PATTERN.match(pattern, at):
            parts.append("")
            at = blanks.end()
            continue
        letter = pattern[at]
        if letter in _PATTERN_CHARS:
            if letter in "*+?{" and parts[-1]:
                parts[-1] = parts[-1][:-1]
            if whole or letter == "|":
                raise UnsupportedTemplate(f"a pattern such as {pattern!r}")
            break
        at += 1
        if letter == "\\":
            letter = _ESCAPES.get(pattern[at : at + 1], pattern[at : at + 1])
            if letter.isalnum():
                raise UnsupportedTemplate(f"a pattern such as {pattern!r}")
            at += 1
        parts[-1] += letter
    return [part for part in parts if part]
