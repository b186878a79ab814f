"""gpt-oss: messages between control tokens. Reads what models write, not only what they should.

    <|start|>HEADER<|message|>BODY<|end|> or <|call|> or <|return|>

The prompt ends in `<|start|>assistant`, so an answer begins inside a header. Control tokens are boundaries wherever
they stand, and never text. A call is whole at `<|call|>`; at any other end only if its arguments are one whole JSON
object by then. How a prompt is made is not known here.
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
_ANY_CONTROL = literals(controls=True)


class GptOssReader(TapeReader):
    """Reads message after message."""

    def __init__(self, alphabet: MarkerAlphabet, conversation: PromptInput) -> None:
        super().__init__(alphabet, conversation)
        spell = alphabet.tape_text
        self._headers = HeaderParser(alphabet)
        self._start, self._called = spell("<|start|>"), spell("<|call|>")
        self._ends = {spell("<|end|>"), spell("<|return|>"), self._called}
        self._nexts = {self._start, spell("<|channel|>")}

    def parse_turn(self) -> Parser[None]:
        """Read the whole answer."""
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
        header = yield from self._read_header(role)
        tape.skip(header.length + header.has_message_marker)
        offer = self._tool_of(header)
        if offer is not None:
            try:
                yield from self._read_call(offer)
            except MalformedText:
                yield from self.abandon_call()
            return
        written = bool(header.recipient and (header.has_message_marker or self._text_ahead()))
        if written:
            # A call of what is no tool is text, its header with it: it tells what the model wanted.
            tape.rewind(mark)
            tape.skip(header.role_length)
            self._emit_text(header, header.length - header.role_length + header.has_message_marker)
        tape.release()
        yield from self._read_body(header, spoken=written)

    def _read_header(self, role: HeaderStart) -> Parser[MessageHeader]:
        """Wait until it is settled what of the text here is a header."""
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
        """The tool to which the message is a call."""
        if not header.recipient or not (header.has_message_marker or self._text_ahead().startswith("{")):
            return None
        try:
            return self.require_tool(header.recipient.removeprefix("functions."))
        except MalformedText:
            return None

    def _emit_text(self, header: MessageHeader, count: int) -> None:
        if header.channel == "analysis":
            self.emit_reasoning(count)
        else:
            self.emit_text(count, _PHASES.get(header.channel))

    def _read_body(self, header: MessageHeader, *, spoken: bool) -> Parser[None]:
        """Read text up to its end, or to the next header where the end is missing."""
        tape = self.tape
        while (yield from tape.wait_more()):
            if count := tape.count_clear(_ANY_CONTROL):
                self._emit_text(header, count)
                spoken = True
                continue
            here = tape.peek()
            if spoken:
                self.close_item()
                spoken = False
            if here in self._nexts:
                return
            tape.skip(1)
            if here in self._ends:
                return
            # Any other control token parts the text, and the header holds for what comes after it, too.

    def _read_call(self, offer: ToolSpec) -> Parser[None]:
        """Read a call's body. Raises `Malformed` if it ends before it is whole."""
        tape = self.tape
        self.begin_call(offer)
        whole = _JsonCompletion()
        if offer.kind == "custom":
            whole.text = not (yield from self._read_json_input())
            whole.done = not whole.text
        while (yield from tape.wait_more()):
            if count := tape.count_clear(_ANY_CONTROL):
                whole.feed(tape.peek(count))
                self.take_arguments(count)
                continue
            here = tape.peek()
            if here != self._called and not whole:
                raise MalformedText("half a call")
            tape.skip(here in self._ends)
            self.close_item()
            return
        if not whole:
            raise MalformedText("half a call")
        self.close_item()

    def _read_json_input(self) -> Parser[bool]:
        """Read a custom tool's text if it is spelled `{"input": "…"}`. Raises `Malformed` if that has no end."""
        tape = self.tape
        mark = tape.mark()
        if not (yield from self._opens_input()):
            tape.rewind(mark)
            tape.release()
            return False
        tape.release()
        yield from json_stream.read_string(tape, self.take_arguments, self.emit_arguments)
        yield from tape.skip_whitespace()
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
        return key == INPUT and (yield from self.tape.stands_here('"'))


class _JsonCompletion:
    """Whether arguments are one whole JSON object. A custom tool's raw `text` never says that it is over."""

    def __init__(self) -> None:
        self.text = False
        self.done = False
        self._begun = False
        self._good = True
        self._extent = json_stream.Extent()

    def __bool__(self) -> bool:
        return not self.text and self.done and self._good

    def feed(self, text: str) -> None:
        """More arguments."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
            self._good = text[:1] in {"{", ""}
        end = 0 if self.done else self._extent.advance(text, 0)
        self.done = self.done or self._extent.done
        if end < len(text):
            self._good = self._good and not text[end:].strip()
