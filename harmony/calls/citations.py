"""Citations inside the text: `<co>what was cited</co: 0:[1],2:[0]>`, as Cohere's models write them.

The numbers before the brackets count the tool calls of the conversation; those inside count a call's results, which a
client sends as one. The marks are no part of the text; what is cited stands in the message's annotations.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.events.inputs import AnyInput, InputCustomCall, InputFunctionCall
from antiphon.events.items import FileCitation
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals

MAX_CITATION_CHARS = 2048
"""Characters that are held back for the end of a citation."""
_SOURCES = re.compile(r"\d+:\[[\d, ]*\](?:, ?\d+:\[[\d, ]*\])*")
_NUMBER = re.compile(r"(\d+):\[")


class CitationFormat(Struct, frozen=True):
    """`open` TEXT `close` SOURCES `end`."""

    open: str
    close: str
    end: str = ">"

    def read_citation(
        self, reader: TapeReader, items: Sequence[AnyInput], others: Sequence[str], *, thinking: bool
    ) -> Parser[None]:
        """Read a citation and say what was cited, and of what; of reasoning, the former. Raises `Malformed`.

        `others`: what cannot stand in it, as it stands on the tape.
        """
        tape, spell = reader.tape, reader.tape.alphabet.tape_text
        yield from tape.expect(spell(self.open))
        place = tape.position()
        text = yield from tape.skip_until(literals(spell(self.close), *others, controls=True), MAX_CITATION_CHARS)
        yield from tape.expect(spell(self.close))
        sources = yield from tape.skip_word(spell(self.end))
        if not _SOURCES.fullmatch(sources.strip()):
            raise MalformedText(sources)
        after = tape.position()
        tape.rewind(place)
        if thinking:
            reader.emit_reasoning(len(text))
        else:
            reader.emit_text(len(text))
            written = tape.alphabet.original_text(text).rstrip()
            for source in _cited_calls(sources, items) if written else ():
                reader.emit_citation(source, len(written))
        tape.skip(after[0] - tape.index)


def _cited_calls(sources: str, items: Sequence[AnyInput]) -> list[FileCitation]:
    """The calls whose results were cited, each once."""
    calls = [item for item in items if isinstance(item, InputFunctionCall | InputCustomCall)]
    numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(sources))
    found = [(calls[number].call_id, calls[number].name) for number in numbers if number < len(calls)]
    return [FileCitation(file_id=call_id, filename=name, index=0) for call_id, name in found]
