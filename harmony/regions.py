"""The frame of calls that are read when they are whole: a region of the answer, and what is made of its text."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from harmony import cast, jsontext
from harmony.between import INPUT, Between
from harmony.grammar import Grammar
from harmony.lexer import Malformed, Stops, Wait
from harmony.reader import TapeReader
from harmony.tools import Offered

_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
LONGEST, LONGEST_NAME = 4096, 256
"""Characters in which an opener and a key have to be found."""
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Stand around the number of a string that was taken out; nobody has characters for these."""
Arguments = Mapping[str, Any]


class Region(Struct, frozen=True, kw_only=True):
    """What is made of a region's text. `opener`: how it begins, with groups that a transform may name."""

    content: str
    arguments: dict[str, Any]
    transform: Any = None
    each: bool = False
    opener: re.Pattern[str] | None = None

    def calls(self, text: str, head: int) -> list[tuple[str, Any]]:
        """Names and arguments in a text whose opener takes `head` characters. Raises `Malformed`."""
        scope: dict[str, Any] = {}
        if self.opener is not None:
            found = self.opener.match(text[:LONGEST])
            if found is None:
                raise Malformed("the opener is another")
            head, scope = found.end(), {key: value for key, value in found.groupdict().items() if value is not None}
        try:
            value = PARSERS[self.content](text[head:], self.arguments)
            if self.transform is None:
                made = value
            elif self.each:
                made = [_shaped(self.transform, {**scope, **item}) for item in value]
            else:
                made = _shaped(self.transform, {**scope, "content": value})
            return [_call(one) for one in (made if isinstance(made, list) else [made])]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Malformed(str(error)) from error


class RegionFrame(Between, frozen=True, kw_only=True):
    """`open … closer`: a closer is one text, or several with blanks between. Nothing is said before the closer."""

    closers: tuple[tuple[str, ...], ...]
    region: Region

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return (self.open, *(text for closer in self.closers for text in closer))

    def read(self, reader: TapeReader) -> Wait[None]:
        """Read the calls of a region."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.spell(self.open))
        body = yield from self._body(reader)
        calls = self.region.calls(f"{self.open}{body}", len(self.open))
        known = []
        for name, value in calls:
            with contextlib.suppress(Malformed):  # the others stand
                offer = reader.offered(name)
                known.append((offer, _said(offer, value)))
        if not known:
            raise Malformed("no call")
        for offer, text in known:
            reader.begin(offer)
            reader.make(text)
            reader.close()

    def _body(self, reader: TapeReader) -> Wait[str]:
        """Skip up to a closer and the closer; what stood before it. Raises `Malformed`."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        closers = [[spell(text) for text in closer] for closer in self.closers]
        stops = Stops([closer[0] for closer in closers], controls=True)
        body: list[str] = []
        while (yield from tape.more()):
            if count := min(tape.clear(stops), jsontext.PIECE):
                body.append(tape.alphabet.written(tape.peek(count)))
                tape.skip(count)
            elif (stop := (yield from tape.at(stops))) is not None:
                for closer in closers:
                    if closer[0] == stop and (yield from self._closes(reader, closer)):
                        return "".join(body)
                if all(closer[0] != stop for closer in closers):
                    break
                body.append(tape.alphabet.written(tape.peek(len(stop))))
                tape.skip(len(stop))
        if tape.ended and tape.natural:  # what ends a region may be what ends the answer, which is not read
            return "".join(body)
        raise Malformed("no end")

    def _closes(self, reader: TapeReader, closer: Sequence[str]) -> Wait[bool]:
        tape = reader.tape
        place = tape.place()
        for text in closer:
            yield from tape.blanks()
            if not (yield from tape.literal(text)):
                tape.rewind(place)
                return False
        return True

    def grammar(self, offer: Offered, grammar: Grammar) -> str | None:  # noqa: ARG002  none is known
        """None: what such a region may hold is a program's to say, not a grammar's."""
        return None

    def one(self, offer: Offered, arguments: str) -> str | None:  # noqa: ARG002  nobody said how
        """None: a response template says how calls are read, not how they are written."""
        return None


def _said(offer: Offered, value: Any) -> str:
    """Arguments as JSON; strings where the schema wants something else as that. Raises `Malformed` for what is none."""
    if offer.kind == "custom":
        text = value.get(INPUT) if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise Malformed(INPUT)
        return text
    value = {} if value is None else json.loads(value) if isinstance(value, str) and value[:1] == "{" else value
    if not isinstance(value, dict):
        raise Malformed("no arguments")
    schema = offer.parameters or {}
    properties = schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    try:
        members = [f"{cast.quote(key)}: {_member(inner, known.get(key), schema)}" for key, inner in value.items()]
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return f"{{{', '.join(members)}}}"


def _member(value: Any, part: object, schema: Mapping[str, Any]) -> str:
    allowed = cast.types(part, schema)
    if isinstance(value, str) and allowed and "string" not in allowed:
        return cast.cast(value, allowed)
    return cast.dump(value)


def _call(value: Any) -> tuple[str, Any]:
    function = value.get("function", value)
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError("a name is no string")
    return name, arguments


def _shaped(transform: Any, scope: Mapping[str, Any]) -> Any:
    """A transform with its places filled."""
    if isinstance(transform, dict):
        return {key: _shaped(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_shaped(value, scope) for value in transform]
    place = _PLACE.fullmatch(transform) if isinstance(transform, str) else None
    if place is None:
        return transform
    value: Any = scope
    for key in place[1].split("."):
        value = value[key]
    return value


# What a region may hold


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
    found = _TAG.fullmatch(pattern) if isinstance(pattern, str) else None
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
