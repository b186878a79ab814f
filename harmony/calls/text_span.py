"""Call format for calls that are parsed once complete: a region of the output, and a parser of its text."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.harmony.calls.base import CallFormat
from antiphon.harmony.calls.span_parsers import PARSERS
from antiphon.harmony.grammar import GrammarBuilder
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tools import INPUT, ToolSpec

_FIELD_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
MAX_OPENER_CHARS = 4096
"""Number of characters within which an opener must match."""


class TextSpanParser(Struct, frozen=True, kw_only=True):
    """Parser of a region's text. `opener`: pattern of its beginning; `transform` may name the groups in it."""

    content: str
    arguments: dict[str, Any]
    transform: Any = None
    transform_each: bool = False
    opener: re.Pattern[str] | None = None

    def parse_calls(self, text: str, opener_length: int) -> list[tuple[str, Any]]:
        """Returns names and arguments of the calls in a text.

        `opener_length`: length of the opener, unless `opener` is a pattern. Raises `MalformedText`.
        """
        scope: dict[str, Any] = {}
        if self.opener is not None:
            match = self.opener.match(text[:MAX_OPENER_CHARS])
            if match is None:
                raise MalformedText("the opener does not match")
            opener_length, scope = (
                match.end(),
                {key: value for key, value in match.groupdict().items() if value is not None},
            )
        try:
            value = PARSERS[self.content](text[opener_length:], self.arguments)
            if self.transform is None:
                result = value
            elif self.transform_each:
                result = [_fill_transform(self.transform, {**scope, **item}) for item in value]
            else:
                result = _fill_transform(self.transform, {**scope, "content": value})
            return [_name_and_arguments(call) for call in (result if isinstance(result, list) else [result])]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise MalformedText(str(error)) from error


class TextSpanCall(CallFormat, frozen=True, kw_only=True):
    """`open … closer`: a closer is one text, or several with blanks between. Nothing is emitted before the closer."""

    closers: tuple[tuple[str, ...], ...]
    region: TextSpanParser

    @property
    def markers(self) -> Sequence[str]:
        """Markers of the format, openers included."""
        return (self.open, *(text for closer in self.closers for text in closer))

    def read_calls(self, reader: TapeReader) -> Parser[None]:
        """Parses the calls of a region."""
        tape = reader.tape
        yield from tape.expect(tape.alphabet.tape_text(self.open))
        body = yield from self._read_body(reader)
        calls = self.region.parse_calls(f"{self.open}{body}", len(self.open))
        valid_calls = []
        for name, value in calls:
            with contextlib.suppress(MalformedText):  # the other calls are kept
                tool = reader.require_tool(name)
                valid_calls.append((tool, _encode_arguments(tool, value)))
        if not valid_calls:
            raise MalformedText("no call")
        reader.unoffered.settle("nothing")
        for tool, text in valid_calls:
            reader.begin_call(tool)
            reader.emit_arguments(text)
            reader.close_item()

    def _read_body(self, reader: TapeReader) -> Parser[str]:
        """Skips text and the closer after it. Returns the text. Raises `MalformedText` if there is no closer."""
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        closers = [[tape_text(text) for text in closer] for closer in self.closers]
        stops = literals(*(closer[0] for closer in closers), controls=True)
        body: list[str] = []
        while (yield from tape.wait_more()):
            if count := min(tape.count_clear(stops), json_stream.PIECE_CHARS):
                body.append(tape.peek_original(count))
                tape.skip(count)
            elif (stop := (yield from tape.match_literal(stops))) is not None:
                candidates = [closer for closer in closers if closer[0] == stop]
                for closer in candidates:
                    if (yield from self._skip_closer(reader, closer)):
                        return "".join(body)
                if not candidates:
                    break
                body.append(tape.peek_original(len(stop)))
                tape.skip(len(stop))
        if tape.ended and tape.ended_naturally:  # the closer may be the stop token, which is not read
            return "".join(body)
        raise MalformedText("no end")

    def _skip_closer(self, reader: TapeReader, closer: Sequence[str]) -> Parser[bool]:
        tape = reader.tape
        start = tape.position()
        for text in closer:
            yield from tape.skip_whitespace()
            if not (yield from tape.skip_literal(text)):
                tape.rewind(start)
                return False
        return True

    def grammar_rule(self, tool: ToolSpec, grammar: GrammarBuilder) -> str | None:  # noqa: ARG002  part of the protocol
        """Returns None: a parser defines the content of a region, and no grammar is known for it."""
        return None

    def write_call(self, tool: ToolSpec, arguments: str) -> str | None:  # noqa: ARG002  part of the protocol
        """Returns None: a response template defines how calls are parsed, not how they are written."""
        return None


def _encode_arguments(tool: ToolSpec, value: Any) -> str:
    """Returns the arguments as JSON. Strings become the type that the schema requires.

    Raises `MalformedText` if the value is not an object or, for a custom tool, not a text.
    """
    if tool.kind == "custom":
        text = value.get(INPUT) if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise MalformedText(INPUT)
        return text
    if isinstance(value, str) and value[:1] == "{":
        with contextlib.suppress(ValueError):
            value = schema_values.parse_json(value)
    value = {} if value is None else value
    if not isinstance(value, dict):
        raise MalformedText("no arguments")
    schema = tool.parameters or {}
    properties = schema.get("properties")
    member_schemas: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    try:
        members = [
            f"{schema_values.encode_string(key)}: {_encode_member(inner, member_schemas.get(key), schema)}"
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
        raise TypeError("the name is not a string")
    return name, arguments


def _fill_transform(transform: Any, scope: Mapping[str, Any]) -> Any:
    """Returns a transform with its placeholders replaced by the values in `scope`."""
    if isinstance(transform, dict):
        return {key: _fill_transform(value, scope) for key, value in transform.items()}
    if isinstance(transform, list):
        return [_fill_transform(value, scope) for value in transform]
    placeholder = _FIELD_PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if placeholder is None:
        return transform
    value: Any = scope
    for key in placeholder[1].split("."):
        value = value[key]
    return value
