"""Parsers of a region's content, by the names that response templates use: text, JSON, tags, lines.

Each parser scans the text once, so its run time is bounded whatever a model writes. Raises `ValueError` for text of
another kind.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from antiphon.harmony.parsing.schema_values import parse_json

MAX_KEY_CHARS = 256
"""Number of characters within which a key must end."""
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Private characters around the index of an extracted string. They are removed from the model's text first."""
ParserArguments = Mapping[str, Any]


def _parse_text(text: str, arguments: ParserArguments) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _parse_json(text: str, arguments: ParserArguments) -> Any:
    """Parses JSON. Options allow keys without quotes and strings between other delimiters."""
    strings: list[str] = []
    working = text.replace(_OPEN, "").replace(_CLOSE, "")
    for opener, closer in arguments.get("string_delims", ()):
        working = _extract_strings(working, opener, closer, strings)
    if arguments.get("unquoted_keys"):
        working = re.sub(r"(?<=[{,])(\w+):", r'"\1":', working)
    try:
        value = parse_json(working)
    except ValueError:
        if arguments.get("allow_non_json"):
            return _parse_text(text, arguments)
        raise
    return _restore_strings(value, strings) if strings else value


def _extract_strings(text: str, opener: str, closer: str, strings: list[str]) -> str:
    """Returns the text with each delimited string replaced by its index in `strings`, where it is appended."""
    parts, index = [], 0
    while (start := text.find(opener, index)) >= 0 and (end := text.find(closer, start + len(opener))) >= 0:
        parts += [text[index:start], f'"{_OPEN}{len(strings)}{_CLOSE}"']
        strings.append(text[start + len(opener) : end])
        index = end + len(closer)
    return "".join([*parts, text[index:]])


def _restore_strings(value: Any, strings: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {_restore_strings(key, strings): _restore_strings(inner, strings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restore_strings(inner, strings) for inner in value]
    match = re.fullmatch(f"{_OPEN}(\\d+){_CLOSE}", value) if isinstance(value, str) else None
    return strings[int(match[1])] if match else value


_LITERAL = r"(?:[^\\()\[\].*+?{}^$|]|\\\W|\\n)"
_TAG = re.compile(
    rf"(?P<before>{_LITERAL}+)"
    r"\(\?P<key>(?:\[\^(?:[^\]\\]|\\n)+\]|\\w|\.)[+*]\??\)"
    rf"(?P<between>(?:{_LITERAL}|\\s\*)+)"
    r"\(\?P<value>\.\*\?\)"
    rf"(?P<trims>(?:\\s\*)?)(?P<behind>{_LITERAL}+)"
)
"""Pattern of a supported `tag_pattern`: texts around a key and a value. Others could backtrack without bound."""


class TagPattern(Struct, frozen=True):
    """Texts before a key, between it and its value (with blanks between these), and after the value."""

    before: str
    between: tuple[str, ...]
    behind: str
    trims: bool

    def find_pair(self, text: str, at: int) -> tuple[str, str, int] | None:
        """Returns the next key, its value, and the index of their end; None if there is no further key.

        Raises `ValueError` for a key without a value.
        """
        start = text.find(self.before, at)
        if start < 0:
            return None
        start += len(self.before)
        middle = text.find(self.between[0], start, start + MAX_KEY_CHARS)
        index = middle + len(self.between[0])
        for separator in self.between[1:]:
            index += len(text[index : index + MAX_KEY_CHARS]) - len(text[index : index + MAX_KEY_CHARS].lstrip())
            if not text.startswith(separator, index):
                raise ValueError(separator)
            index += len(separator)
        end = text.find(self.behind, index) if middle >= 0 else -1
        if end < 0:
            raise ValueError(self.behind)
        value = text[index:end]
        return text[start:middle], value.strip() if self.trims else value, end + len(self.behind)


def parse_tag_pattern(pattern: object) -> TagPattern | None:
    """Parses a `tag_pattern`. Returns None if a `TagPattern` cannot express it."""
    return _compile_tag_pattern(pattern) if isinstance(pattern, str) else None


@lru_cache(maxsize=64)
def _compile_tag_pattern(pattern: str) -> TagPattern | None:
    match = _TAG.fullmatch(pattern)
    if match is None:
        return None
    between = tuple(filter(None, map(_unescape, match["between"].split(r"\s*"))))
    trims = match["trims"] != "" or match["between"].endswith(r"\s*")
    return TagPattern(_unescape(match["before"]), between, _unescape(match["behind"]), trims) if between else None


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def _parse_tags(text: str, arguments: ParserArguments) -> dict[str, Any]:
    """Parses keys and values in tags."""
    tag, members, index = parse_tag_pattern(arguments["tag_pattern"]), dict[str, Any](), 0
    while tag is not None and (pair := tag.find_pair(text, index)) is not None:
        key, raw, index = pair
        value = _parse_value(raw, arguments)
        if key in members and arguments.get("merge_duplicates"):
            members[key] = [*(members[key] if isinstance(members[key], list) else [members[key]]), value]
        else:
            members.setdefault(key, value)
    return members


def _parse_lines(text: str, arguments: ParserArguments) -> dict[str, Any]:
    """Parses lines, each with a key and a value."""
    separator = arguments.get("kv_sep", ":")
    lines = (line.strip() for line in text.split(arguments.get("line_sep", "\n")))
    members: dict[str, Any] = {}
    for key, value in (line.split(separator, 1) for line in lines if separator in line):
        members.setdefault(key.strip(), _parse_value(value.strip(), arguments))
    return members


def _parse_value(text: str, arguments: ParserArguments) -> Any:
    parser = arguments.get("value_parser")
    return text if parser is None else PARSERS[parser.get("name", "text")](text, parser.get("args", {}))


PARSERS: Mapping[str, Callable[[str, ParserArguments], Any]] = {
    "text": _parse_text,
    "int": lambda text, arguments: int(_parse_text(text, arguments)),
    "float": lambda text, arguments: float(_parse_text(text, arguments)),
    "bool": lambda text, arguments: _parse_text(text, arguments).lower() in ("true", "1"),
    "json": _parse_json,
    "xml-inline": _parse_tags,
    "kv-lines": _parse_lines,
}
"""Parsers by the names that response templates use."""
