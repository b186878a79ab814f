"""Citations inside the text: `<co>cited text</co: 0:[1],2:[0]>`, as Cohere's models write them.

The numbers before the brackets count the tool calls of the conversation. Those inside count the results of a call,
which a client sends as one. The markers are not part of the text; the sources become annotations of the message.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.events.inputs import AnyInput, InputCustomCall, InputFunctionCall
from antiphon.events.items import FileCitation
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals

MAX_CITATION_CHARS = 2048
"""Limit on the characters held back until the end of a citation."""
_SOURCES_PATTERN = re.compile(r"\d+:\[[\d, ]*\](?:, ?\d+:\[[\d, ]*\])*")
_SOURCE_NUMBER = re.compile(r"(?<!\d)(\d+):\[")


class CitationFormat(Struct, frozen=True):
    """Syntax of a citation: `open` TEXT `close` SOURCES `end`."""

    open: str
    close: str
    end: str = ">"

    def read_citation(
        self, reader: TapeReader, items: Sequence[AnyInput], forbidden: Sequence[str], *, thinking: bool
    ) -> Parser[None]:
        """Parses a citation and emits its text and its sources; in reasoning, only the text.

        `forbidden`: texts that it cannot contain, in the form they have on the tape. Raises `MalformedText`.
        """
        tape, tape_text = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(tape_text(self.open))
        start = tape.position()
        text = yield from tape.skip_until(
            literals(tape_text(self.close), *forbidden, controls=True), MAX_CITATION_CHARS
        )
        yield from tape.expect(tape_text(self.close))
        sources = yield from tape.skip_word(tape_text(self.end))
        if not _SOURCES_PATTERN.fullmatch(sources.strip()):
            raise MalformedText(sources)
        end = tape.position()
        tape.rewind(start)
        if thinking:
            reader.emit_reasoning(len(text))
        else:
            reader.emit_text(len(text))
            cited_text = tape.alphabet.original_text(text).rstrip()
            for source in _cited_calls(sources, items) if cited_text else ():
                reader.emit_citation(source, len(cited_text))
        tape.skip(end[0] - tape.index)


def _cited_calls(sources: str, items: Sequence[AnyInput]) -> list[FileCitation]:
    """Returns the calls whose results are cited, each once."""
    calls = [item for item in items if isinstance(item, InputFunctionCall | InputCustomCall)]
    numbers = dict.fromkeys(int(number) for number in _SOURCE_NUMBER.findall(sources))
    cited = [(calls[number].call_id, calls[number].name) for number in numbers if number < len(calls)]
    return [FileCitation(file_id=call_id, filename=name, index=0) for call_id, name in cited]
