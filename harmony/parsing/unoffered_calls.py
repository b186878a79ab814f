"""Notes about calls of tools that were not offered: the name that the model wrote, where, and what became of the call.

A parser tries several call formats at one place, so a note is certain only once all of them have failed, or one has
succeeded. The notes are for people who look at a turn: no segment depends on them.
"""

import re
from typing import Literal

from msgspec import structs

from antiphon.harmony.parsing.tape import Tape, TapeMark
from antiphon.harmony.tools import ToolTable, UnofferedCall

MAX_NOTES = 64
"""Notes about one output. A model that repeats a call for ever writes no more of them."""
MAX_OFFERED_NAMES = 32
"""Names of offered tools in a note."""
_PLAUSIBLE_NAME = re.compile(r"[^\s<>{}()\[\]\"'`\ud800-\udfff]{0,127}[\w-]")
"""Text in the place of a name that may be one. A quoted marker can have any text behind it, also other markers."""


class UnofferedCalls:
    """Collects the notes of one output. `tools` are those that may be called."""

    def __init__(self, tape: Tape, tools: ToolTable) -> None:
        self.notes: list[UnofferedCall] = []
        """Notes that were not taken yet."""
        self._tape, self._tools, self._num_notes = tape, tools, 0
        self._start = 0
        self._last: tuple[str, int] | None = None
        """Name of the latest note, and where it ends."""
        self._refused: dict[str, tuple[int, int]] = {}
        """Tokens of the calls that were refused, by name, until it is certain that no other format reads them."""

    def begin(self, mark: TapeMark) -> None:
        """Sets where the next call may begin."""
        self._start = self._tape.token_at(mark)

    def refuse(self, name: str) -> None:
        """Takes the name of a call whose tool may not be called. The position is behind the name.

        The dialect's own format comes first. What a later one takes for the name at the same place may be none.
        """
        place = self._start, self._tape.num_tokens_read
        if _PLAUSIBLE_NAME.fullmatch(name) and all(known == place for known in self._refused.values()):
            self._refused[name] = place

    def clear(self) -> None:
        """Forgets the refused calls, because another format has read a call there."""
        self._refused.clear()

    def settle(self, became: Literal["text", "nothing"], *, is_plain: bool = False) -> None:
        """Writes the notes of the refused calls."""
        for name, (first, end) in self._refused.items():
            self._add(UnofferedCall(name=name, became=became, first_token=first, end_token=end, is_plain=is_plain))
        self._refused.clear()

    def accept(self, name: str) -> None:
        """Writes the note of a call that is returned although its tool was not offered."""
        end = self._tape.num_tokens_read
        self._add(UnofferedCall(name=name, became="call", first_token=self._start, end_token=end))

    def _add(self, note: UnofferedCall) -> None:
        place = note.name, note.end_token
        if self._num_notes == MAX_NOTES or place == self._last:
            return  # the marker of a section became text, and so did the one of the call in it
        self._last = place
        self._num_notes += 1
        if self._num_notes == 1:
            names = [tool.model_name for tool in self._tools]
            note = structs.replace(note, offered=tuple(names[:MAX_OFFERED_NAMES]), num_offered=len(names))
        self.notes.append(note)
