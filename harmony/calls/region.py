"""The frame of calls that are read when they are whole: a region of the answer, and what is made of its text."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.harmony.calls.base import DelimitedCall
from antiphon.harmony.calls.region_parsers import PARSERS
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tools import INPUT, ToolSpec

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
MAX_OPENER_CHARS = 4096
"""Characters in which an opener has to be found."""


class RegionParser(Struct, frozen=True, kw_only=True):
    """What is made of a region's text. `opener`: how it begins, with groups that a transform may name."""

    content: str
    arguments: dict[str, Any]
    transform: Any = None
    transform_each: bool = False
    opener: re.Pattern[str] | None = None

    def parse_calls(self, text: str, head: int) -> list[tuple[str, Any]]:
        """Names and arguments in a text whose opener takes `head` characters. Raises `Malformed`."""
        scope: dict[str, Any] = {}
        if self.opener is not None:
            found = self.opener.match(text[:MAX_OPENER_CHARS])
            if found is None:
                raise MalformedText("the opener is another")
            head, scope = found.end(), {key: value for key, value in found.groupdict().items() if value is not None}
        try:
            value = PARSERS[self.content](text[head:], self.arguments)
            if self.transform is None:
                made = value
            elif self.transform_each:
                made = [_fill_transform(self.transform, {**scope, **item}) for item in value]
            else:
                made = _fill_transform(self.transform, {**scope, "content": value})
            return [_name_and_arguments(one) for one in (made if isinstance(made, list) else [made])]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise MalformedText(str(error)) from error


class RegionCall(DelimitedCall, frozen=True, kw_only=True):
    """`open … closer`: a closer is one text, or several with blanks between. Nothing is said before the closer."""

    closers: tuple[tuple[str, ...], ...]
    region: RegionParser

    @property
    def markers(self) -> Sequence[str]:
        """All markers it is made of."""
        return (self.open, *(text for closer in self.closers for text in closer))

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Read the calls of a region."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        body = yield from self._read_body(reader)
        calls = self.region.parse_calls(f"{self.open}{body}", len(self.open))
        known = []
        for name, value in calls:
            with contextlib.suppress(MalformedText):  # the others stand
                offer = reader.require_tool(name)
                known.append((offer, _encode_arguments(offer, value)))
        if not known:
            raise MalformedText("no call")
        for offer, text in known:
            reader.begin_call(offer)
            reader.emit_arguments(text)
            reader.close_item()

    def _read_body(self, reader: TapeReader) -> Parser[str]:
        """Skip up to a closer and the closer; what stood before it. Raises `Malformed`."""
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        closers = [[spell(text) for text in closer] for closer in self.closers]
        stops = literals(*(closer[0] for closer in closers), controls=True)
        body: list[str] = []
        while (yield from tape.wait_more()):
            if count := min(tape.count_clear(stops), json_stream.PIECE_CHARS):
                body.append(tape.peek_original(count))
                tape.skip(count)
            elif (stop := (yield from tape.match_literal(stops))) is not None:
                begun = [closer for closer in closers if closer[0] == stop]
                for closer in begun:
                    if (yield from self._skip_closer(reader, closer)):
                        return "".join(body)
                if not begun:
                    break
                body.append(tape.peek_original(len(stop)))
                tape.skip(len(stop))
        if tape.ended and tape.natural:  # what ends a region may be what ends the answer, which is not read
            return "".join(body)
        raise MalformedText("no end")

    def _skip_closer(self, reader: TapeReader, closer: Sequence[str]) -> Parser[bool]:
        tape = reader.tape
        place = tape.position()
        for text in closer:
            yield from tape.skip_whitespace()
            if not (yield from tape.skip_literal(text)):
                tape.rewind(place)
                return False
        return True

    def grammar_rule(self, offer: ToolSpec, grammar: GrammarBuilder) -> str | None:  # noqa: ARG002  none is known
        """None: what such a region may hold is a program's to say, not a grammar's."""
        return None

    def write_call(self, offer: ToolSpec, arguments: str) -> str | None:  # noqa: ARG002  nobody said how
        """None: a response template says how calls are read, not how they are written."""
        return None


def _encode_arguments(offer: ToolSpec, value: Any) -> str:
    """Arguments as JSON; strings where the schema wants something else as that. Raises `Malformed` for what is none."""
    if offer.kind == "custom":
        text = value.get(INPUT) if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise MalformedText(INPUT)
        return text
    value = {} if value is None else json.loads(value) if isinstance(value, str) and value[:1] == "{" else value
    if not isinstance(value, dict):
        raise MalformedText("no arguments")
    schema = offer.parameters or {}
    properties = schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    try:
        members = [
            f"{schema_values.encode_string(key)}: {_encode_member(inner, known.get(key), schema)}"
            for key, inner in value.items()
        ]
    except (ValueError, RecursionError) as error:
        raise MalformedText(str(error)) from error
    return f"{{{', '.join(members)}}}"


def _encode_member(value: Any, part: object, schema: Mapping[str, Any]) -> str:
    allowed = schema_values.allowed_types(part, schema)
    if isinstance(value, str) and allowed and "string" not in allowed:
        return schema_values.cast_value(value, allowed)
    return schema_values.encode_json(value)


def _name_and_arguments(value: Any) -> tuple[str, Any]:
    function = value.get("function", value)
    name, arguments = function["name"], function.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError("a name is no string")
    return name, arguments


def _fill_transform(transform: Any, scope: Mapping[str, Any]) -> Any:
    """A transform with its places filled."""
    if isinstance(transform, dict):
        return {key: _fill_transform(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_fill_transform(value, scope) for value in transform]
    place = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if place is None:
        return transform
    value: Any = scope
    for key in place[1].split("."):
        value = value[key]
    return value
