"""The frame of calls that are read when they are whole: a region of the answer, and what is made of its text."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.harmony.calls.base import INPUT, Between
from antiphon.harmony.calls.region_parsers import PARSERS
from antiphon.harmony.grammar import Grammar
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at
from antiphon.harmony.tools import Offered

_PLACE = re.compile(r"\{(\w+(?:\.\w+)*)\}")
LONGEST = 4096
"""Characters in which an opener has to be found."""


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
        stops = stops_at(*(closer[0] for closer in closers), controls=True)
        body: list[str] = []
        while (yield from tape.more()):
            if count := min(tape.clear(stops), json_stream.PIECE):
                body.append(tape.ahead(count))
                tape.skip(count)
            elif (stop := (yield from tape.at(stops))) is not None:
                begun = [closer for closer in closers if closer[0] == stop]
                for closer in begun:
                    if (yield from self._closes(reader, closer)):
                        return "".join(body)
                if not begun:
                    break
                body.append(tape.ahead(len(stop)))
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
        members = [
            f"{schema_values.quote(key)}: {_member(inner, known.get(key), schema)}" for key, inner in value.items()
        ]
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return f"{{{', '.join(members)}}}"


def _member(value: Any, part: object, schema: Mapping[str, Any]) -> str:
    allowed = schema_values.types(part, schema)
    if isinstance(value, str) and allowed and "string" not in allowed:
        return schema_values.cast(value, allowed)
    return schema_values.dump(value)


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
