"""Reader of the text of `apply_patch`: a patch of several files, of which each becomes an item.

Lines pass as they are written. Only one that begins with `*` is held until its end, since it may begin the next file:

    *** Begin Patch
    *** Add File: a.md          Call("create_file", "a.md")
    +Title                      Arguments of the line and its end
    *** Delete File: b.md       Close, Call("delete_file", "b.md")
    *** End Patch               Close

Models that no grammar binds leave out the first and the last line, write text around them, or wrap the patch in a JSON
object with one string.
"""

import re

from antiphon.events.builtin_calls import PatchKind
from antiphon.harmony.calls.builtin.arguments import ArgumentsReader
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.state.segments import Call, Segment

MAX_OPERATIONS = 256
"""Maximum number of files in one call. A patch ends after them."""
_FILE_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File:(.*)", re.DOTALL)
_KINDS: dict[str, PatchKind] = {"Add": "create_file", "Update": "update_file", "Delete": "delete_file"}
_BEGIN, _END, _MOVE = "*** Begin Patch", "*** End Patch", "*** Move to:"
_EMPTY_FILE = "+\n"
"""Diff of an empty file: clients reject an empty diff."""


class PatchReader(ArgumentsReader):
    """Reads one call of `apply_patch`."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._held: list[str] | None = None  # pieces of a line that begins with "*"
        self._at_line_start = True
        self._kind: PatchKind | None = None  # of the open item
        self._has_diff = False
        self._num_operations = 0
        self._ended = False
        self._is_plain = False  # the text is a patch, and not an object with one

    def begin(self, segments: list[Segment]) -> None:
        """Emits nothing: each file is a call of its own."""

    def feed(self, text: str, segments: list[Segment]) -> None:
        """Reads more of the text. Once it is known to be a patch, it passes without the parser."""
        if self._is_plain:
            self.segments = segments
            self._read_lines(text)
        else:
            super().feed(text, segments)

    def finish(self, segments: list[Segment]) -> None:
        """Ends the last item. Raises `MalformedText` if the text changes no file."""
        super().finish(segments)
        if self._held is not None:
            self._read_marker("".join(self._held))
        self._end_operation()
        if not self._num_operations:
            raise MalformedText("no operation")

    def parse_arguments(self) -> Parser[None]:
        """Parses the text, or the object that has it as its only string."""
        tape = self.tape
        yield from tape.skip_whitespace()
        if (yield from tape.matches_here("{")):
            yield from tape.expect("{")
            yield from json_stream.skip_key(tape)
            yield from json_stream.read_string(tape, self._take_lines, self._replace_lines)
            yield from json_stream.skip_other_members(tape)
            yield from tape.expect("}")
            return
        if (yield from tape.wait_more()):
            self._take_lines(len(tape.text) - tape.index)
        self._is_plain = True

    def _take_lines(self, count: int) -> None:
        self._read_lines(self.tape.take(count))

    def _replace_lines(self, text: str, count: int) -> None:
        self.tape.skip(count)
        self._read_lines(text)

    def _read_lines(self, text: str) -> None:
        if not self._at_line_start and self._held is None and "\n" not in text and not self._ended:
            self._add_diff(text)  # most pieces are a part of a line
            return
        position = 0
        while position < len(text) and not self._ended:
            newline = text.find("\n", position)
            end = newline + 1 if newline >= 0 else len(text)
            if self._at_line_start and text[position] == "*":
                self._held = []
            piece, position = text[position:end], end
            self._at_line_start = newline >= 0
            if self._held is None:
                self._add_diff(piece)
                continue
            self._held.append(piece)
            if newline >= 0:
                line, self._held = "".join(self._held), None
                self._read_marker(line)

    def _read_marker(self, line: str) -> None:
        """Reads a whole line that begins with an asterisk."""
        content = line.rstrip("\r\n")
        if header := _FILE_HEADER.fullmatch(content):
            self._begin_operation(_KINDS[header[1]], header[2].strip(" \t"))
        elif content.startswith(_MOVE):
            raise MalformedText(content)
        elif content.startswith(_END):
            self._ended = True
        elif not content.startswith(_BEGIN):
            self._add_diff(line)  # as the mark of the file's end in an update

    def _begin_operation(self, kind: PatchKind, path: str) -> None:
        self._end_operation()
        if not path:
            raise MalformedText("no path")
        if self._num_operations == MAX_OPERATIONS:
            self._ended = True
            return
        self._num_operations += 1
        self._kind, self._has_diff = kind, False
        self.segments.append(Call(self.call.name, "apply_patch", self.call.call_id, operation=kind, path=path))

    def _end_operation(self) -> None:
        if self._kind is None:
            return
        if not self._has_diff and self._kind == "update_file":
            raise MalformedText("no change")
        if not self._has_diff and self._kind == "create_file":
            self.emit_text(_EMPTY_FILE)
        self._kind = None
        self.emit_close()

    def _add_diff(self, text: str) -> None:
        """Emits text of the open item's diff. Text before the first file and in a removal has no meaning."""
        if self._kind in ("create_file", "update_file"):
            self._has_diff = True
            self.emit_text(text)
