"""The machine: one per response, and the only place where events are said.

Two rules.

1. Order is decided by the table and by nothing else. A letter is looked up in the state the machine is in; where
   there is no cell, `IllegalInput` is raised before anything has changed.
2. What is said is what is kept. The items of the Response are the very objects that `output_item.done` carried;
   ids are minted once, when an item opens, and are never looked up, compared or patched afterwards.

Theory of operation. A dialect's segments come in through `feed`; each is turned into letters (text into up to
three: leading blank, body, trailing blank), each letter into a cell, each cell into verbs. A verb speaks through
the open draft, which speaks through the voice, which numbers. The lifecycle (queue, begin, remind, stop, cut,
fail, cancel) comes in through methods of those names. Every call returns the events it caused, in order.

A blank is held, not said, until it is known what follows: text makes it part of the text, anything else drops it.
So no client ever sees a message made of the line feeds between reasoning and a call.

The machine does not know tokens, time, randomness or who listens: ids, the clock and the seal are arguments.
"""

from collections import deque
from collections.abc import Callable
from typing import Literal, get_args

import msgspec

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import Status
from antiphon.events.response import IncompleteDetails, OutputItem, Response, ResponseError, Usage
from antiphon.state.drafts import (
    CustomDraft,
    Draft,
    FunctionDraft,
    MessageDraft,
    PartKind,
    ReasoningAs,
    ReasoningDraft,
    Seal,
)
from antiphon.state.emitter import Place, Voice
from antiphon.state.ids import Ids, Mint
from antiphon.state.segments import Arguments, Call, Cite, Close, Refuse, Say, Scored, Segment, Think, Whole
from antiphon.state.table import BLANK, GUARDS, TABLE, Guard, IllegalInput, Letter, State, Verb
from antiphon.state.whitespace import EMPTY, Piece, split

CutReason = Literal["max_output_tokens", "content_filter"]
STOPPED_IN_CALL = "the model stopped inside a tool call"
_SIGNS = {Cite: Letter.CITE, Call: Letter.CALL, Close: Letter.CLOSE, Whole: Letter.WHOLE}
_OF_PLAIN_TEXT = (ReasoningDraft, FunctionDraft, CustomDraft)


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What an ending has to tell besides its name."""

    reason: CutReason = "max_output_tokens"
    code: str = "server_error"
    message: str = STOPPED_IN_CALL


class Machine:
    """Turns one response's segments into its events.

    `head` is the Response with every echoed field set; `clock` gives whole seconds since 1970; `usage` is asked once,
    by the ending; `seal(text)` gives a reasoning item's `encrypted_content`; `reasoning_as` says how it is told.
    """

    def __init__(
        self,
        head: Response,
        *,
        ids: Ids,
        clock: Callable[[], int],
        usage: Callable[[], Usage | None] = lambda: None,
        seal: Seal | None = None,
        reasoning_as: ReasoningAs = "content",
    ) -> None:
        self.state = State.NEW
        self.response = head
        self.dropped = ""
        """Blanks that were not said, in order: with the deltas they make up all the text that was fed."""
        self.trace: deque[tuple[State, Letter]] = deque(maxlen=64)
        """The latest steps, for the log when something of ours breaks."""
        self._mint, self._clock, self._usage = Mint(ids), clock, usage
        self._seal, self._reasoning_as = seal, reasoning_as
        self._voice = Voice()
        self._output: list[OutputItem] = []
        self._draft: Draft | None = None
        self._held = EMPTY
        self._segment: Segment | None = None  # what is being read, and the piece of it
        self._piece = EMPTY
        self._ending = _Ending()

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been said."""
        return self.state is State.ENDED

    def feed(self, segment: Segment) -> list[Event]:
        """Read one segment; empty text is no letter. Raises `IllegalInput`, and is as before, where it may not come."""
        self._segment = segment
        if type(segment) is Say:  # nearly all are; each pattern that does not match costs as much as saying it
            self._text(Letter.SAY, segment.text, segment.logprobs)
        else:
            self._other(segment)
        return self._voice.collect()

    def _other(self, segment: Segment) -> None:
        match segment:
            case Think(text):
                self._text(Letter.THINK, text)
            case Refuse(text):
                self._text(Letter.REFUSE, text)
            case Arguments(text):
                if text:
                    self._piece = Piece(text)
                    self._step(Letter.ARGUMENTS)
            case _:
                self._step(_SIGNS[type(segment)])

    def queue(self) -> list[Event]:
        """It waits for the engine."""
        return self._end(Letter.QUEUE)

    def begin(self) -> list[Event]:
        """The engine has admitted it."""
        return self._end(Letter.BEGIN)

    def remind(self) -> list[Event]:
        """Nothing has happened for a while: say the last stage again. Legal before the first item only."""
        return self._end(Letter.REMIND)

    def stop(self) -> list[Event]:
        """The model has ended its turn. Inside a call this fails the response."""
        return self._end(Letter.STOP)

    def cut(self, reason: CutReason = "max_output_tokens") -> list[Event]:
        """The turn was cut by a limit."""
        return self._end(Letter.CUT, _Ending(reason=reason))

    def fail(self, code: str, message: str) -> list[Event]:
        """The turn broke."""
        return self._end(Letter.FAIL, _Ending(code=code, message=message))

    def cancel(self) -> list[Event]:
        """Nobody wants the rest."""
        return self._end(Letter.CANCEL)

    def _end(self, letter: Letter, ending: _Ending = _Ending()) -> list[Event]:  # noqa: B008  # it is frozen
        before, self._segment, self._ending = (self._segment, self._ending), None, ending
        try:
            self._step(letter)
        except IllegalInput:
            self._segment, self._ending = before
            raise
        return self._voice.collect()

    def _text(self, letter: Letter, text: str, scored: tuple[Scored, ...] = ()) -> None:
        # A blank before more of the open text would be held within this call only: it stays with it.
        for number, (piece, blank) in enumerate(split(text, scored, joined=letter is self._continued)):
            if number and self.ended:
                self.dropped += piece.text  # an earlier piece of the same text ended the response
                continue
            self._piece = piece
            self._step(BLANK[letter] if blank else letter)

    def _step(self, letter: Letter) -> None:
        at = self.state, letter
        try:
            state, verbs, guard = _CELLS[at]
        except KeyError:
            raise IllegalInput(*at) from None
        if guard and not self._holds(guard):
            raise IllegalInput(*at, guard)
        self.trace.append(at)
        for verb in verbs:
            verb(self)
        self.state = state

    @property
    def _continued(self) -> Letter | None:
        """Which text is more of what is open."""
        if isinstance(self._draft, MessageDraft):
            return Letter.SAY if self._draft.kind == "text" else Letter.REFUSE
        return Letter.THINK if self.state is State.REASONING else None

    def _holds(self, guard: Guard) -> bool:
        if guard == "no item yet":
            return not self._output
        draft = self._draft
        if not isinstance(draft, MessageDraft):
            return False
        if guard == "text part open":
            return draft.kind == "text"
        return isinstance(self._segment, Say) and self._segment.phase == draft.phase

    # Verbs of the open item

    def _open(self) -> None:
        self._draft = self._new_draft()
        self._draft.open()

    def _new_draft(self) -> Draft:
        segment = self._segment
        match segment:
            case Think():
                return ReasoningDraft(self._place("rs"), self._voice, self._reasoning_as, self._seal)
            case Say(phase=phase):
                return MessageDraft(self._place("msg"), self._voice, phase, "text")
            case Refuse():
                return MessageDraft(self._place("msg"), self._voice, None, "refusal")
            case Call(kind="custom"):
                return CustomDraft(self._place("ctc"), self._voice, segment, self._mint.of_call(segment.call_id))
            case Call():
                return FunctionDraft(self._place("fc"), self._voice, segment, self._mint.of_call(segment.call_id))
            case _:  # pragma: no cover  # the table opens on these letters only
                raise AssertionError(segment)

    def _place(self, prefix: str) -> Place:
        return Place(self._mint(prefix), len(self._output))

    def _grow(self) -> None:
        draft, piece = self._draft, self._piece
        if isinstance(draft, MessageDraft):
            kind: PartKind = "refusal" if type(self._segment) is Refuse else "text"
            if draft.kind != kind:
                self._flush()
                draft.turn(kind)
            whole = piece if self._held is EMPTY else self._take() + piece
            draft.grow(whole.text, whole.logprobs)
        elif isinstance(draft, _OF_PLAIN_TEXT):
            draft.grow((self._take() + piece).text)

    def _cite(self) -> None:
        if isinstance(self._draft, MessageDraft) and isinstance(self._segment, Cite):
            self._draft.cite(self._segment.annotation, self._segment.length)

    def _close(self, status: Status = "completed") -> None:
        if self._draft:
            self._output.append(self._draft.close(status))
        self._draft = None

    def _cut(self) -> None:
        self._close("incomplete")

    def _freeze(self) -> None:
        self._drop()
        if self._draft:
            self._output.append(self._draft.freeze())
        self._draft = None

    def _whole(self) -> None:
        if isinstance(self._segment, Whole):
            item = self._segment.item
            if not item.id:
                item = msgspec.structs.replace(item, id=self._mint("cmp"))
            self._voice.item_added(len(self._output), item)
            self._voice.item_done(len(self._output), item)
            self._output.append(item)

    # Verbs of the held blank

    def _hold(self) -> None:
        if self._draft is None and self._output:
            self._discard()  # it follows an item: only before the first one does a blank belong to what comes next
        else:
            self._held += self._piece

    def _discard(self) -> None:
        self.dropped += self._piece.text

    def _flush(self) -> None:
        held = self._take()
        if held.text and isinstance(self._draft, MessageDraft):
            self._draft.grow(held.text, held.logprobs if self._draft.kind == "text" else ())

    def _drop(self) -> None:
        self.dropped += self._take().text

    def _take(self) -> Piece:
        held, self._held = self._held, EMPTY
        return held

    # Verbs of the response

    def _create(self) -> None:
        queued = self.trace[-1][1] is Letter.QUEUE
        self._become(status="queued" if queued else "in_progress")
        self._voice.lifecycle(ev.Created, self.response)

    def _queue(self) -> None:
        self._voice.lifecycle(ev.Queued, self.response)

    def _begin(self) -> None:
        self._become(status="in_progress")
        self._voice.lifecycle(ev.InProgress, self.response)

    def _remind(self) -> None:
        event = ev.Queued if self.state is State.QUEUED else ev.InProgress
        self._voice.lifecycle(event, self.response)

    def _complete(self) -> None:
        self._become(status="completed", completed_at=self._clock(), usage=self._usage())
        self._voice.lifecycle(ev.Completed, self.response)

    def _incomplete(self) -> None:
        details = IncompleteDetails(reason=self._ending.reason)
        self._become(status="incomplete", incomplete_details=details, usage=self._usage())
        self._voice.lifecycle(ev.Incomplete, self.response)

    def _fail(self) -> None:
        error = ResponseError(code=self._ending.code, message=self._ending.message)
        self._become(status="failed", error=error, usage=self._usage())
        self._voice.error(error.code, error.message)
        self._voice.lifecycle(ev.Failed, self.response)

    def _cancel(self) -> None:
        # No SDK knows a cancelled event, and a reader must not hang; incomplete is the one that none takes for a fault.
        self._become(status="cancelled", usage=self._usage())
        self._voice.lifecycle(ev.Incomplete, self.response)

    def _become(self, **changes: object) -> None:
        self.response = msgspec.structs.replace(self.response, output=tuple(self._output), **changes)


_VERBS: dict[Verb, Callable[[Machine], None]] = {verb: getattr(Machine, f"_{verb}") for verb in get_args(Verb)}
_CELLS = {at: (cell.next, tuple(_VERBS[verb] for verb in cell.verbs), GUARDS.get(at)) for at, cell in TABLE.items()}
"""The table as the machine goes by it: the next state, the verbs as functions, the guard."""
