"""Reader of gpt-oss answers: messages between control tokens, as models write them, not only as they should.

    <|start|>HEADER<|message|>BODY<|end|> or <|call|> or <|return|>

The prompt ends in `<|start|>assistant`, so an answer begins inside a header. Control tokens are boundaries wherever
they occur, and never text. A call is complete at `<|call|>`; at any other end, only if its arguments are one complete
JSON object by then. This module does not know how a prompt is rendered.
"""

from antiphon.events.items import Phase
from antiphon.harmony.format import PromptInput
from antiphon.harmony.gptoss.header import HeaderParser, HeaderStart, MessageHeader
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import MalformedText, Parser, literals
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet
from antiphon.harmony.tools import INPUT, ToolSpec

MARKERS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
_PHASES: dict[str, Phase] = {"commentary": "commentary", "final": "final_answer"}
INVENTED_SHELL = "container.exec"
"""Recipient by which the model calls a shell that was not named so."""
_ANY_CONTROL = literals(controls=True)


class GptOssReader(TapeReader):
    """Reads the messages of one answer."""

    def __init__(self, alphabet: MarkerAlphabet, conversation: PromptInput) -> None:
        super().__init__(alphabet, conversation)
        tape_text = alphabet.tape_text
        self._headers = HeaderParser(alphabet)
        self._start, self._called = tape_text("<|start|>"), tape_text("<|call|>")
        self._ends = {tape_text("<|end|>"), tape_text("<|return|>"), self._called}
        self._nexts = {self._start, tape_text("<|channel|>")}

    def parse_turn(self) -> Parser[None]:
        """Reads the whole answer."""
        role: HeaderStart = "given"
        while (yield from self.tape.wait_more()):
            if self.tape.peek() == self._start:
                self.tape.skip(1)
                role = "started"
            else:
                yield from self._read_message(role)
                role = "missing"

    def _read_message(self, role: HeaderStart) -> Parser[None]:
        tape = self.tape
        mark = tape.mark()
        self.unoffered.begin(mark)
        header = yield from self._read_header(role)
        tape.skip(header.length + header.has_message_marker)
        tool = self._tool_of(header)
        if tool is not None:
            try:
                yield from self._read_call(tool)
            except MalformedText:
                yield from self.abandon_call()
            return
        header_is_text = bool(header.recipient and (header.has_message_marker or self._text_ahead()))
        if header_is_text:
            # A call of an unknown tool is text, and so is its header: it shows what the model tried to call.
            tape.rewind(mark)
            tape.skip(header.role_length)
            self._emit_text(header, header.length - header.role_length + header.has_message_marker)
            self.unoffered.settle("text")
        self.unoffered.clear()
        tape.release()
        yield from self._read_body(header, has_text=header_is_text)

    def _read_header(self, role: HeaderStart) -> Parser[MessageHeader]:
        """Waits until it is clear which part of the text here is a header, and returns it."""
        tape = self.tape
        while True:
            text = self._headers.header_text(tape.text, tape.index)
            following = tape.peek(len(text) + 1)[len(text) :]
            header = self._headers.classify(text, following if following or tape.ended else None, role)
            if header is not None:
                return header
            yield

    def _text_ahead(self) -> str:
        return self._headers.header_text(self.tape.text, self.tape.index).strip()

    def _tool_of(self, header: MessageHeader) -> ToolSpec | None:
        """Returns the tool that the message calls, or None if it is not a call."""
        if not header.recipient or not (header.has_message_marker or self._text_ahead().startswith("{")):
            return None
        shell = self.find_builtin_tool("shell")
        if header.recipient == INVENTED_SHELL and shell is not None:
            return shell
        try:
            return self.require_tool(header.recipient.removeprefix("functions."))
        except MalformedText:
            return None

    def _emit_text(self, header: MessageHeader, count: int) -> None:
        if header.channel == "analysis":
            self.emit_reasoning(count)
        else:
            self.emit_text(count, _PHASES.get(header.channel))

    def _read_body(self, header: MessageHeader, *, has_text: bool) -> Parser[None]:
        """Reads text up to its end, or to the next header if the end is missing."""
        tape = self.tape
        while (yield from tape.wait_more()):
            if count := tape.count_clear(_ANY_CONTROL):
                self._emit_text(header, count)
                has_text = True
                continue
            control_mark = tape.peek()
            if has_text:
                self.close_item()
                has_text = False
            if control_mark in self._nexts:
                return
            tape.skip(1)
            if control_mark in self._ends:
                return
            # Any other control token splits the text; the header applies to the text after it, too.

    def _read_call(self, tool: ToolSpec) -> Parser[None]:
        """Reads a call's body. Raises `MalformedText` if it ends before it is complete."""
        tape = self.tape
        self.begin_call(tool)
        completion = _JsonCompletion()
        if tool.kind == "custom":
            completion.text = not (yield from self._read_json_input())
            completion.done = not completion.text
        while (yield from tape.wait_more()):
            if count := tape.count_clear(_ANY_CONTROL):
                completion.feed(tape.peek(count))
                self.take_arguments(count)
                continue
            control_mark = tape.peek()
            if control_mark != self._called and not completion:
                raise MalformedText("incomplete call")
            tape.skip(control_mark in self._ends)
            self.close_item()
            return
        if not completion:
            raise MalformedText("incomplete call")
        self.close_item()

    def _read_json_input(self) -> Parser[bool]:
        """Reads a custom tool's text if it is written `{"input": "…"}`. Raises `MalformedText` if that does not end."""
        tape = self.tape
        mark = tape.mark()
        if not (yield from self._opens_input()):
            tape.rewind(mark)
            tape.release()
            return False
        tape.release()
        yield from json_stream.read_string(tape, self.take_arguments, self.emit_arguments)
        yield from json_stream.skip_other_members(tape)
        yield from tape.expect("}")
        yield from tape.skip_whitespace()
        return True

    def _opens_input(self) -> Parser[bool]:
        try:
            yield from self.tape.skip_whitespace()
            yield from self.tape.expect("{")
            key = yield from json_stream.skip_key(self.tape)
        except MalformedText:
            return False
        return key == INPUT and (yield from self.tape.matches_here('"'))


class _JsonCompletion:
    """Tells whether arguments are one complete JSON object. Raw `text` of a custom tool never is."""

    def __init__(self) -> None:
        self.text = False
        self.done = False
        self._started = False
        self._is_object = True
        self._extent = json_stream.Extent()

    def __bool__(self) -> bool:
        return not self.text and self.done and self._is_object

    def feed(self, text: str) -> None:
        """Reads more of the arguments."""
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
            self._is_object = text[:1] in {"{", ""}
        end = 0 if self.done else self._extent.advance(text, 0)
        self.done = self.done or self._extent.done
        if end < len(text):
            self._is_object = self._is_object and not text[end:].strip()
