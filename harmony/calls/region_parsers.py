"""What a region of an answer may hold, by the names that response templates have for it: text, JSON, tags, lines.

Each parser is total in time: what a model writes is looked through once, whatever it is. Raises `ValueError` for text
that is something else.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

MAX_KEY_CHARS = 256
"""Characters in which a key has to end."""
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Stand around the number of a string that was taken out; nobody has characters for these."""
ParserArguments = Mapping[str, Any]


def _parse_text(text: str, arguments: ParserArguments) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _parse_json(text: str, arguments: ParserArguments) -> Any:
    """JSON; keys may lack quotation marks, strings may stand between marks of their own."""
    strings: list[str] = []
    working = text.replace(_OPEN, "").replace(_CLOSE, "")
    for opener, closer in arguments.get("string_delims", ()):
        working = _extract_strings(working, opener, closer, strings)
    if arguments.get("unquoted_keys"):
        working = re.sub(r"(?<=[{,])(\w+):", r'"\1":', working)
    try:
        value = json.loads(working, parse_constant=_refuse_constant)
    except ValueError:
        if arguments.get("allow_non_json"):
            return _parse_text(text, arguments)
        raise
    return _restore_strings(value, strings) if strings else value


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _extract_strings(text: str, opener: str, closer: str, strings: list[str]) -> str:
    """The text with the number of each string in its place; they are added to `strings`."""
    parts, at = [], 0
    while (start := text.find(opener, at)) >= 0 and (end := text.find(closer, start + len(opener))) >= 0:
        parts += [text[at:start], f'"{_OPEN}{len(strings)}{_CLOSE}"']
        strings.append(text[start + len(opener) : end])
        at = end + len(closer)
    return "".join([*parts, text[at:]])


def _restore_strings(value: Any, strings: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {_restore_strings(key, strings): _restore_strings(inner, strings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restore_strings(inner, strings) for inner in value]
    found = re.fullmatch(f"{_OPEN}(\\d+){_CLOSE}", value) if isinstance(value, str) else None
    return strings[int(found[1])] if found else value


_LITERAL = r"(?:[^\\()\[\].*+?{}^$|]|\\\W|\\n)"
_TAG = re.compile(
    rf"(?P<before>{_LITERAL}+)"
    r"\(\?P<key>(?:\[\^(?:[^\]\\]|\\n)+\]|\\w|\.)[+*]\??\)"
    rf"(?P<between>(?:{_LITERAL}|\\s\*)+)"
    r"\(\?P<value>\.\*\?\)"
    rf"(?P<trims>(?:\\s\*)?)(?P<behind>{_LITERAL}+)"
)
"""A pattern of a key and a value between texts. Others could take for ever on what a model writes."""


class TagPattern(Struct, frozen=True):
    """The texts before a key, between it and its value (blanks may stand between these), and behind that."""

    before: str
    between: tuple[str, ...]
    behind: str
    trims: bool

    def find_pair(self, text: str, at: int) -> tuple[str, str, int] | None:
        """The next key and value, and where they end. Raises `ValueError` for a key without a value."""
        start = text.find(self.before, at)
        if start < 0:
            return None
        start += len(self.before)
        middle = text.find(self.between[0], start, start + MAX_KEY_CHARS)
        place = middle + len(self.between[0])
        for more in self.between[1:]:
            place += len(text[place : place + MAX_KEY_CHARS]) - len(text[place : place + MAX_KEY_CHARS].lstrip())
            if not text.startswith(more, place):
                raise ValueError(more)
            place += len(more)
        end = text.find(self.behind, place) if middle >= 0 else -1
        if end < 0:
            raise ValueError(self.behind)
        value = text[place:end]
        return text[start:middle], value.strip() if self.trims else value, end + len(self.behind)


def parse_tag_pattern(pattern: object) -> TagPattern | None:
    """What a `tag_pattern` says; None where it says more than a :class:`Tag` can."""
    return _compile_tag_pattern(pattern) if isinstance(pattern, str) else None


@lru_cache(maxsize=64)
def _compile_tag_pattern(pattern: str) -> TagPattern | None:
    found = _TAG.fullmatch(pattern)
    if found is None:
        return None
    between = tuple(filter(None, map(_unescape, found["between"].split(r"\s*"))))
    trims = found["trims"] != "" or found["between"].endswith(r"\s*")
    return TagPattern(_unescape(found["before"]), between, _unescape(found["behind"]), trims) if between else None


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], text)


def _parse_tags(text: str, arguments: ParserArguments) -> dict[str, Any]:
    """Keys and values in tags."""
    tag, found, at = parse_tag_pattern(arguments["tag_pattern"]), dict[str, Any](), 0
    while tag is not None and (one := tag.find_pair(text, at)) is not None:
        key, raw, at = one
        value = _parse_value(raw, arguments)
        if key in found and arguments.get("merge_duplicates"):
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _parse_lines(text: str, arguments: ParserArguments) -> dict[str, Any]:
    """Lines of a key and a value."""
    sign = arguments.get("kv_sep", ":")
    lines = (line.strip() for line in text.split(arguments.get("line_sep", "\n")))
    pairs = (line.split(sign, 1) for line in lines if sign in line)
    return {key.strip(): _parse_value(value.strip(), arguments) for key, value in pairs}


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
"""By the names that response templates have for them."""
