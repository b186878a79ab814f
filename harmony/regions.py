"""The frame of calls that are read when they are whole: a region of the answer, and what is made of its text."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from harmony import cast
from harmony.between import INPUT, Between
from harmony.grammar import Grammar
from harmony.lexer import Malformed, Stops, Wait
from harmony.reader import TapeReader
from harmony.tools import Offered

_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
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
            found = self.opener.match(text)
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
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
        if not calls:
            raise Malformed("no call")
        reader.offered(calls[0][0])
        for name, value in calls:
            try:
                offer = reader.offered(name)
            except Malformed:
                continue  # the others stand
            reader.begin(offer)
            reader.make(_said(offer, value))
            reader.close()

    def _body(self, reader: TapeReader) -> Wait[str]:
        """Skip up to a closer and the closer; what stood before it. Raises `Malformed`."""
        tape, spell = reader.tape, reader.tape.alphabet.spell
        closers = [[spell(text) for text in closer] for closer in self.closers]
        stops = Stops([closer[0] for closer in closers], controls=True)
        body: list[str] = []
        while (yield from tape.more()):
            if count := tape.clear(stops):
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
    """Arguments as JSON; strings where the schema wants something else as that."""
    if offer.kind == "custom":
        text = value.get(INPUT) if isinstance(value, dict) else value
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    if not isinstance(value, dict):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    schema = offer.parameters or {}
    properties = schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    members = (f"{cast.quote(key)}: {_member(inner, known.get(key), schema)}" for key, inner in value.items())
    return f"{{{', '.join(members)}}}"


def _member(value: Any, part: object, schema: Mapping[str, Any]) -> str:
    allowed = cast.types(part, schema)
    if isinstance(value, str) and allowed and "string" not in allowed:
        return cast.cast(value, allowed)
    return json.dumps(value, ensure_ascii=False)


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

    def keep(found: re.Match[str]) -> str:
        strings.append(found[1])
        return f'"{_OPEN}{len(strings) - 1}{_CLOSE}"'

    working = text.replace(_OPEN, "").replace(_CLOSE, "")
    for opener, closer in arguments.get("string_delims", ()):
        working = re.sub(f"{re.escape(opener)}(.*?){re.escape(closer)}", keep, working, flags=re.DOTALL)
    if arguments.get("unquoted_keys"):
        working = re.sub(r"(?<=[{,])\s*(\w+)\s*:", r'"\1":', working)
    try:
        value = json.loads(working)
    except ValueError:
        if arguments.get("allow_non_json"):
            return _text(text, arguments)
        raise
    return _restored(value, strings) if strings else value


def _restored(value: Any, strings: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {_restored(key, strings): _restored(inner, strings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner, strings) for inner in value]
    found = re.fullmatch(f"{_OPEN}(\\d+){_CLOSE}", value) if isinstance(value, str) else None
    return strings[int(found[1])] if found else value


def _tags(text: str, arguments: Arguments) -> dict[str, Any]:
    """Keys and values that a pattern with groups of these names finds."""
    found: dict[str, Any] = {}
    for one in re.finditer(arguments["tag_pattern"], text, re.DOTALL):
        key, value = one["key"], _inner(one.groupdict().get("value") or "", arguments)
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
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
"""By the names that response templates have for them."""
