"""gpt-oss: messages between control tokens. Reads what models write, not only what they should.

    <|start|>HEADER<|message|>BODY<|end|> or <|call|> or <|return|>

The prompt ends in `<|start|>assistant`, so an answer begins inside a header. Control tokens are boundaries wherever
they stand, and never text. A call is whole at `<|call|>`; at any other end only if its arguments are one whole JSON
object by then. How a prompt is made is not known here.
"""

from antiphon.events.items import Phase
from antiphon.harmony.calls.base import INPUT
from antiphon.harmony.format import Conversation
from antiphon.harmony.gptoss.header import Header, Headers, Role
from antiphon.harmony.parsing import json_stream
from antiphon.harmony.parsing.reader import TapeReader
from antiphon.harmony.parsing.tape import Malformed, Wait, stops_at
from antiphon.harmony.tokens.detokenizer import Alphabet
from antiphon.harmony.tools import Offered

MARKERS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
_PHASES: dict[str, Phase] = {"commentary": "commentary", "final": "final_answer"}
_ANY = stops_at(controls=True)


class GptOssReader(TapeReader):
    """Reads message after message."""

    def __init__(self, alphabet: Alphabet, conversation: Conversation) -> None:
        super().__init__(alphabet, conversation)
        spell = alphabet.spell
        self._headers = Headers(alphabet)
        self._start, self._called = spell("<|start|>"), spell("<|call|>")
        self._ends = {spell("<|end|>"), spell("<|return|>"), self._called}
        self._nexts = {self._start, spell("<|channel|>")}

    def turn(self) -> Wait[None]:
        """Read the whole answer."""
        role: Role = "given"
        while (yield from self.tape.more()):
            if self.tape.peek() == self._start:
                self.tape.skip(1)
                role = "started"
            else:
                yield from self._message(role)
                role = "missing"

    def _message(self, role: Role) -> Wait[None]:
        tape = self.tape
        mark = tape.mark()
        header = yield from self._header(role)
        tape.skip(header.size + header.messaged)
        offer = self._tool(header)
        if offer is not None:
            try:
                yield from self._call(offer)
            except Malformed:
                yield from self.ruin()
            return
        written = bool(header.recipient and (header.messaged or self._words()))
        if written:
            # A call of what is no tool is text, its header with it: it tells what the model wanted.
            tape.rewind(mark)
            tape.skip(header.role)
            self._speak(header, header.size - header.role + header.messaged)
        tape.release()
        yield from self._body(header, spoken=written)

    def _header(self, role: Role) -> Wait[Header]:
        """Wait until it is settled what of the text here is a header."""
        tape = self.tape
        while True:
            text = self._headers.ahead(tape.text, tape.pos)
            following = tape.peek(len(text) + 1)[len(text) :]
            header = self._headers.judge(text, following if following or tape.ended else None, role)
            if header is not None:
                return header
            yield

    def _words(self) -> str:
        return self._headers.ahead(self.tape.text, self.tape.pos).strip()

    def _tool(self, header: Header) -> Offered | None:
        """The tool to which the message is a call."""
        if not header.recipient or not (header.messaged or self._words().startswith("{")):
            return None
        try:
            return self.offered(header.recipient.removeprefix("functions."))
        except Malformed:
            return None

    def _speak(self, header: Header, count: int) -> None:
        if header.channel == "analysis":
            self.think(count)
        else:
            self.say(count, _PHASES.get(header.channel))

    def _body(self, header: Header, *, spoken: bool) -> Wait[None]:
        """Read text up to its end, or to the next header where the end is missing."""
        tape = self.tape
        while (yield from tape.more()):
            if count := tape.clear(_ANY):
                self._speak(header, count)
                spoken = True
                continue
            here = tape.peek()
            if spoken:
                self.close()
                spoken = False
            if here in self._nexts:
                return
            tape.skip(1)
            if here in self._ends:
                return
            # Any other control token parts the text, and the header holds for what comes after it, too.

    def _call(self, offer: Offered) -> Wait[None]:
        """Read a call's body. Raises `Malformed` if it ends before it is whole."""
        tape = self.tape
        self.begin(offer)
        whole = _Whole()
        if offer.kind == "custom":
            whole.text = not (yield from self._spelled())
            whole.done = not whole.text
        while (yield from tape.more()):
            if count := tape.clear(_ANY):
                whole.feed(tape.peek(count))
                self.arguments(count)
                continue
            here = tape.peek()
            if here != self._called and not whole:
                raise Malformed("half a call")
            tape.skip(here in self._ends)
            self.close()
            return
        if not whole:
            raise Malformed("half a call")
        self.close()

    def _spelled(self) -> Wait[bool]:
        """Read a custom tool's text if it is spelled `{"input": "…"}`. Raises `Malformed` if that has no end."""
        tape = self.tape
        mark = tape.mark()
        if not (yield from self._opens_input()):
            tape.rewind(mark)
            tape.release()
            return False
        tape.release()
        yield from json_stream.string(tape, self.arguments, self.make)
        yield from tape.blanks()
        yield from tape.expect("}")
        yield from tape.blanks()
        return True

    def _opens_input(self) -> Wait[bool]:
        try:
            yield from self.tape.blanks()
            yield from self.tape.expect("{")
            key = yield from json_stream.key(self.tape)
        except Malformed:
            return False
        return key == INPUT and (yield from self.tape.sees('"'))


class _Whole:
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
