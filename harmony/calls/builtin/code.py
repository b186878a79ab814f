"""Reader of the arguments of `code_interpreter`: a JSON object with the code, which is emitted while it is written."""

from antiphon.harmony.calls.builtin.arguments import ArgumentsReader
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.state.segments import Call, Segment


class CodeReader(ArgumentsReader):
    """Reads one call of `code_interpreter`."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._has_code = False

    def finish(self, segments: list[Segment]) -> None:
        """Emits the end of the call. Raises `MalformedText` if it has no code."""
        super().finish(segments)
        if not self._has_code:
            raise MalformedText("no code")
        self.emit_close()

    def parse_arguments(self) -> Parser[None]:
        """Parses the object."""
        tape = self.tape
        yield from tape.skip_whitespace()
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("}")):
            key = yield from json_stream.skip_key(tape)
            if key == "code" and not self._has_code:
                self._has_code = True
                yield from json_stream.read_string(tape, self._take, self._replace)
            else:
                yield from json_stream.read_value(tape, tape.skip)
            yield from json_stream.skip_comma(tape)
        yield from tape.skip_whitespace()
        if (yield from tape.wait_more()):
            raise MalformedText("text after the object")

    def _take(self, count: int) -> None:
        self.emit_text(self.tape.take(count))

    def _replace(self, text: str, count: int) -> None:
        self.tape.skip(count)
        self.emit_text(text)
