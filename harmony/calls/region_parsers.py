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

LONGEST_NAME = 256
"""Characters in which a key has to end."""
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Stand around the number of a string that was taken out; nobody has characters for these."""
Arguments = Mapping[str, Any]


def _text(text: str, arguments: Arguments) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _json(text: str, arguments: Arguments) -> Any:
    """JSON; keys may lack quotation marks, strings may stand between marks of their own."""
    strings: list[str] = []
    working = text.replace(_OPEN, "").replace(_CLOSE, "")
    for opener, closer in arguments.get("string_delims", ()):
        working = _taken_out(working, opener, closer, strings)
    if arguments.get("unquoted_keys"):
        working = re.sub(r"(?<=[{,])(\w+):", r'"\1":', working)
    try:
        value = json.loads(working, parse_constant=_no_constant)
    except ValueError:
        if arguments.get("allow_non_json"):
            return _text(text, arguments)
        raise
    return _restored(value, strings) if strings else value


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _taken_out(text: str, opener: str, closer: str, strings: list[str]) -> str:
    """The text with the number of each string in its place; they are added to `strings`."""
    parts, at = [], 0
    while (start := text.find(opener, at)) >= 0 and (end := text.find(closer, start + len(opener))) >= 0:
        parts += [text[at:start], f'"{_OPEN}{len(strings)}{_CLOSE}"']
        strings.append(text[start + len(opener) : end])
        at = end + len(closer)
    return "".join([*parts, text[at:]])


def _restored(value: Any, strings: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {_restored(key, strings): _restored(inner, strings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner, strings) for inner in value]
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


class Tag(Struct, frozen=True):
    """The texts before a key, between it and its value (blanks may stand between these), and behind that."""

    before: str
    between: tuple[str, ...]
    behind: str
    trims: bool

    def find(self, text: str, at: int) -> tuple[str, str, int] | None:
        """The next key and value, and where they end. Raises `ValueError` for a key without a value."""
        start = text.find(self.before, at)
        if start < 0:
            return None
        start += len(self.before)
        middle = text.find(self.between[0], start, start + LONGEST_NAME)
        place = middle + len(self.between[0])
        for more in self.between[1:]:
            place += len(text[place : place + LONGEST_NAME]) - len(text[place : place + LONGEST_NAME].lstrip())
            if not text.startswith(more, place):
                raise ValueError(more)
            place += len(more)
        end = text.find(self.behind, place) if middle >= 0 else -1
        if end < 0:
            raise ValueError(self.behind)
        value = text[place:end]
        return text[start:middle], value.strip() if self.trims else value, end + len(self.behind)


def tag_of(pattern: object) -> Tag | None:
    """What a `tag_pattern` says; None where it says more than a :class:`Tag` can."""
    return _tag(pattern) if isinstance(pattern, str) else None


@lru_cache(maxsize=64)
def _tag(pattern: str) -> Tag | None:
    found = _TAG.fullmatch(pattern)
    if found is None:
        return None
    between = tuple(filter(None, map(_plain, found["between"].split(r"\s*"))))
    trims = found["trims"] != "" or found["between"].endswith(r"\s*")
    return Tag(_plain(found["before"]), between, _plain(found["behind"]), trims) if between else None


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], text)


def _tags(text: str, arguments: Arguments) -> dict[str, Any]:
    """Keys and values in tags."""
    tag, found, at = tag_of(arguments["tag_pattern"]), dict[str, Any](), 0
    while tag is not None and (one := tag.find(text, at)) is not None:
        key, raw, at = one
        value = _inner(raw, arguments)
        if key in found and arguments.get("merge_duplicates"):
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _lines(text: str, arguments: Arguments) -> dict[str, Any]:
    """Lines of a key and a value."""
    sign = arguments.get("kv_sep", ":")
    lines = (line.strip() for line in text.split(arguments.get("line_sep", "\n")))
    pairs = (line.split(sign, 1) for line in lines if sign in line)
    return {key.strip(): _inner(value.strip(), arguments) for key, value in pairs}


def _inner(text: str, arguments: Arguments) -> Any:
    parser = arguments.get("value_parser")
    return text if parser is None else PARSERS[parser.get("name", "text")](text, parser.get("args", {}))


PARSERS: Mapping[str, Callable[[str, Arguments], Any]] = {
    "text": _text,
    "int": lambda text, arguments: int(_text(text, arguments)),
    "float": lambda text, arguments: float(_text(text, arguments)),
    "bool": lambda text, arguments: _text(text, arguments).lower() in ("true", "1"),
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
"""By the names that response templates have for them."""
