"""The values of a call whose arguments are key and value in tags: where each ends, and what it is as JSON.

What was said is never revised: strings are said as they are read, everything else once its end is seen. A value may
hold any of the tags: one counts only where what follows it goes on as a call does.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at
from antiphon.harmony.tools import Offered

WRAPPED = "arguments"
_JSON = frozenset({"number", "integer", "boolean", "null", "object", "array"})
_SAID = {"true": schema_values.TEXT, "string": schema_values.TEXT, "false": _JSON}


class Tags(Protocol):
    """The texts of a frame's tags, as `harmony.calls.xml_tags.TaggedFrame` has them."""

    @property
    def open(self) -> str: ...  # noqa: D102

    @property
    def close(self) -> str: ...  # noqa: D102

    @property
    def head(self) -> str: ...  # noqa: D102

    @property
    def foot(self) -> str: ...  # noqa: D102

    @property
    def key(self) -> str: ...  # noqa: D102

    @property
    def key_end(self) -> str: ...  # noqa: D102

    @property
    def value(self) -> str: ...  # noqa: D102

    @property
    def value_end(self) -> str: ...  # noqa: D102

    @property
    def typed(self) -> str: ...  # noqa: D102

    @property
    def outer(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def trims(self) -> bool: ...  # noqa: D102

    def parse(self, text: str) -> tuple[str, dict[str, str]]: ...  # noqa: D102


_NAMED = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"']\S*))(?P<rest>.*)""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*["']?([^"'\s]*)["']?""")


def named(text: str) -> tuple[str, dict[str, str]]:
    """The name in a tag, with quotation marks or without, and the attributes behind it."""
    found = _NAMED.fullmatch(text)
    if found is None:
        return text, {}
    name = next(group for group in (found["double"], found["single"], found["bare"]) if group is not None)
    return name, dict(_ATTRIBUTE.findall(found["rest"]))


def whole(reader: TapeReader, each: Callable[[Callable[[int], None]], Wait[None]]) -> Wait[str]:
    """Read a value that is said when it has ended; of one that does not end, say what there is. Raises `Malformed`.

    `each` reads to its end and gives the lengths of its pieces. JSON is read as JSON: a string in it may hold any tag.
    """
    tape, held = reader.tape, list[str]()

    def hold(count: int) -> None:
        held.append(tape.ahead(count))
        tape.skip(count)

    if tape.peek() in ("[", "{"):
        mark = tape.mark()
        try:
            yield from json_stream.value(tape, hold)
        except Malformed:
            tape.rewind(mark)
            held.clear()
        tape.release()
    try:
        yield from each(hold)
    except Malformed:
        reader.make("".join(held))
        raise
    return "".join(held)


class Values:
    """Says the values of one call: as members of an object, or for a custom tool as the one text there is."""

    def __init__(self, reader: TapeReader, frame: Tags, offer: Offered) -> None:
        self._reader, self._frame, self._offer = reader, frame, offer
        self._root: Mapping[str, Any] = offer.parameters or {}
        properties = self._root.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._said: set[str] = set()
        self._name = ""
        spell = reader.tape.alphabet.spell
        self._tags = [spell(tag) for tag in (frame.value_end, frame.key, frame.foot)]
        self._open, self._close, self._head = spell(frame.open), spell(frame.close), spell(frame.head)
        trimmed = self._tags if frame.trims else self._tags[1:]
        self._stops = stops_at(self._tags[0], *("\n" + tag for tag in trimmed), controls=True)
        self._outer = [spell(text) for text in frame.outer]

    def read(self, name: str, attributes: Mapping[str, str]) -> Wait[None]:
        """Read a value, from behind its opening tag to behind its closing one."""
        tape, custom = self._reader.tape, self._offer.kind == "custom"
        self._name = name
        if self._frame.value:
            yield from tape.blanks()
            yield from tape.expect(tape.alphabet.spell(self._frame.value))
        if self._frame.trims:
            yield from tape.literal("\n")
        yield from tape.more()
        if name in self._said or (custom and self._said):
            yield from self._each(tape.skip)
        elif custom:
            yield from self._each(self._reader.arguments)
            self._said.add(name)
        elif name == WRAPPED and self._properties and name not in self._properties:
            yield from self._wrapped()
        else:
            yield from self._member(name, attributes.get(self._frame.typed, ""))
            self._said.add(name)

    def end(self) -> None:
        """Close the object. One without members is left to the machine."""
        if self._said and self._offer.kind == "function":
            self._reader.make("}")

    def _member(self, name: str, typed: str) -> Wait[None]:
        reader = self._reader
        reader.make(("{" if not self._said else ", ") + schema_values.quote(name) + ": ")
        allowed = schema_values.types(self._properties.get(name), self._root)
        if typed in _SAID or typed in _JSON:  # the model says itself what it means
            allowed = _SAID.get(typed, _JSON)
        if schema_values.streams(allowed, reader.tape.peek()):
            reader.make('"')
            yield from self._each(lambda count: reader.make(schema_values.quote(reader.tape.ahead(count))[1:-1], count))
            reader.make('"')
        else:
            text = yield from whole(reader, self._each)
            reader.make(schema_values.as_json(text) if allowed is _JSON else schema_values.cast(text, allowed))

    def _wrapped(self) -> Wait[None]:
        """Read a parameter that no tool has and that holds them all, as some models write it."""
        members = schema_values.members((yield from whole(self._reader, self._each)))
        for name, value in members.items():
            if name not in self._said:
                self._reader.make(f"{'{' if not self._said else ', '}{schema_values.quote(name)}: {value}")
                self._said.add(name)

    def _each(self, take: Callable[[int], None]) -> Wait[None]:
        """Give `take` the lengths of the value's pieces, up to its end. Raises `Malformed` where there is none."""
        tape = self._reader.tape
        while (yield from tape.more()):
            if count := tape.clear(self._stops):
                take(count)
            elif tag := (yield from tape.at(self._stops)):
                bare = tag.removeprefix("\n")
                if bare not in self._tags:
                    break
                if (yield from self._ends(bare, len(tag))):
                    return
                take(len(tag))
        raise Malformed("no end")

    def _ends(self, tag: str, count: int) -> Wait[bool]:
        """Whether this tag ends the value; then skip it, or only the newline before it if it says more than that."""
        tape = self._reader.tape
        mark = tape.mark()
        tape.skip(count)
        try:
            ends = yield from self._goes_on(tag)
        except Malformed:
            ends = False
        if not ends or tag != self._tags[0]:
            tape.rewind(mark)
            tape.skip(count - len(tag) if ends else 0)
        tape.release()
        return ends

    def _goes_on(self, tag: str) -> Wait[bool]:
        """Whether what follows the tag is what follows the end of a value. Raises `Malformed`."""
        tape, (value_end, key, foot) = self._reader.tape, self._tags
        if tag == key:
            word = yield from tape.word(tape.alphabet.spell(self._frame.key_end))
            return self._frame.parse(word)[0] in self._properties.keys() - self._said - {self._name}
        yield from tape.blanks()
        if not (yield from tape.more()):
            return tag == value_end or tape.natural
        after = (self._close, self._open, self._head, *self._outer)
        follow = (key, foot, *after) if tag == value_end else after
        for literal in filter(None, follow):
            if (yield from tape.sees(literal, cut=tag == value_end)):
                return True
        return tape.controlled()
