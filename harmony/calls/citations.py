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
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at

LONGEST = 2048
"""Characters that are held back for the end of a citation."""
_SOURCES = re.compile(r"\d+:\[[\d, ]*\](?:, ?\d+:\[[\d, ]*\])*")
_NUMBER = re.compile(r"(\d+):\[")


class Citations(Struct, frozen=True):
    """`open` TEXT `close` SOURCES `end`."""

    open: str
    close: str
    end: str = ">"

    def read(
        self, reader: TapeReader, items: Sequence[AnyInput], others: Sequence[str], *, thinking: bool
    ) -> Wait[None]:
        """Read a citation and say what was cited, and of what; of reasoning, the former. Raises `Malformed`.

        `others`: what cannot stand in it, as it stands on the tape.
        """
        tape, spell = reader.tape, reader.tape.alphabet.spell
        yield from tape.expect(spell(self.open))
        place = tape.place()
        text = yield from tape.until(stops_at(spell(self.close), *others, controls=True), LONGEST)
        yield from tape.expect(spell(self.close))
        sources = yield from tape.word(spell(self.end))
        if not _SOURCES.fullmatch(sources.strip()):
            raise Malformed(sources)
        after = tape.place()
        tape.rewind(place)
        if thinking:
            reader.think(len(text))
        else:
            reader.say(len(text))
            written = tape.alphabet.written(text).rstrip()
            for source in _sources(sources, items) if written else ():
                reader.cite(source, len(written))
        tape.skip(after[0] - tape.pos)


def _sources(sources: str, items: Sequence[AnyInput]) -> list[FileCitation]:
    """The calls whose results were cited, each once."""
    calls = [item for item in items if isinstance(item, InputFunctionCall | InputCustomCall)]
    numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(sources))
    found = [(calls[number].call_id, calls[number].name) for number in numbers if number < len(calls)]
    return [FileCitation(file_id=call_id, filename=name, index=0) for call_id, name in found]
