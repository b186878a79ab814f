"""The state machine of a response: one instance per response, and the only place that emits events.

Two rules.

1. The table alone decides order. An input is looked up in the machine's current state; if there is no cell,
   `IllegalInput` is raised before anything has changed.
2. What is emitted is what is kept. The finished items of the Response are the very objects that `output_item.done`
   carried; ids are minted once, when an item opens, and are never looked up, compared or patched afterwards.

Theory of operation. `feed` takes a dialect's segments. Each segment becomes inputs (text becomes up to three: leading
blank, body, trailing blank), each input selects a cell, and each cell lists verbs. A verb acts on the open draft, which
emits events through the emitter, which numbers them. The lifecycle (queue, begin, keepalive, stop, cut, fail, cancel)
enters through methods of those names. Every call returns the events it caused, in order.

A blank is held, not emitted, until the next input shows where it belongs: more text, or the end of the open message,
emits it as text; anything else drops it. Between items it is dropped at once. So no client ever sees a message made of
the line feeds between reasoning and a call.

The machine does not know tokens, time, randomness or its readers: ids, the clock and the seal are arguments.
"""

from collections.abc import Callable
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.hosted import McpListTools, ToolSearchOutput
from antiphon.events.items import Compaction, Status
from antiphon.events.response import (
    IncompleteDetails,
    OutputItem,
    PromptCacheDiagnostics,
    Response,
    ResponseError,
    Usage,
)
from antiphon.state.call_drafts import CALL_ID_PREFIXES, ShellCallDraft, TextCallDraft, create_call_draft
from antiphon.state.drafts import (
    CompactionDraft,
    ItemDraft,
    MessageDraft,
    OutputSettings,
    PartKind,
    ReasoningDraft,
    RunningDraft,
    Seal,
)
from antiphon.state.emitter import EventEmitter, ItemPosition
from antiphon.state.ids import IdFactory, NewId
from antiphon.state.segments import (
    HOSTED_TOOL_KINDS,
    Arguments,
    Call,
    Cite,
    Close,
    CodeResult,
    Compact,
    CompleteItem,
    FileSearchResult,
    McpResult,
    PlacedLogprob,
    Refuse,
    Result,
    Say,
    Segment,
    Setting,
    Think,
    WebSearchResult,
)
from antiphon.state.server_drafts import (
    ApprovalDraft,
    CreateApprovalId,
    ServerCallDraft,
    create_server_draft,
    emit_found_tools,
    emit_list,
)
from antiphon.state.table import BLANK_INPUTS, CELLS, GUARDS, TABLE, Guard, IllegalInput, Input, State, Verb
from antiphon.state.whitespace import EMPTY_PIECE, TextPiece, split_whitespace

CutReason = Literal["max_output_tokens", "content_filter", "steered"]
MAX_TRACED_STEPS = 64
STOPPED_IN_CALL = "the model stopped inside a tool call"
_SEGMENT_INPUTS = {
    Cite: Input.CITE,
    Close: Input.CLOSE,
    Compact: Input.COMPACT,
    Result: Input.RESULT,
    McpResult: Input.RESULT,
    WebSearchResult: Input.RESULT,
    CodeResult: Input.RESULT,
    FileSearchResult: Input.RESULT,
    CompleteItem: Input.COMPLETE_ITEM,
}
_ITEM_ID_PREFIXES: dict[type[OutputItem], str] = {McpListTools: "mcpl", ToolSearchOutput: "tso", Compaction: "cmp"}
"""Prefix of the id of an item that comes whole, by its class."""
_PLAIN_TEXT_DRAFTS = (ReasoningDraft, TextCallDraft, ServerCallDraft, ApprovalDraft)


class _EndingDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the terminal event besides its type."""

    reason: CutReason = "max_output_tokens"
    code: str = "server_error"
    message: str = STOPPED_IN_CALL


class Machine:
    """Turns one response's segments into its events.

    `base_response` is the Response with every echoed field set. `clock` returns whole seconds since 1970. `usage` and
    `diagnose` are called once, for the terminal event; `diagnose` returns the diagnosis of the prompt cache.
    `seal(text)` returns a reasoning item's `encrypted_content`, `create_approval_id(label, name, arguments)` the id of
    a request to approve a call.
    """

    def __init__(
        self,
        base_response: Response,
        *,
        new_id: NewId,
        clock: Callable[[], int],
        usage: Callable[[], Usage | None] = lambda: None,
        diagnose: Callable[[], PromptCacheDiagnostics | UnsetType] = lambda: UNSET,
        seal: Seal | None = None,
        create_approval_id: CreateApprovalId | None = None,
        settings: OutputSettings = OutputSettings(),  # noqa: B008  # it is frozen
    ) -> None:
        self.state = State.NEW
        self.response = base_response
        self.dropped_text = ""
        """Blanks that were not emitted, in order. Together with the deltas they are all the text that was fed."""
        self.steps = bytearray()
        """Numbers of the cells that have run, in order: see `state.table.CELLS`."""
        self._ids, self._clock, self._usage = IdFactory(new_id), clock, usage
        self._diagnose = diagnose
        self._seal, self._settings = seal, settings
        self._create_approval_id = create_approval_id or (lambda *_: new_id("mcpr"))
        self._emitter = EventEmitter()
        self._output: list[OutputItem] = []
        self._draft: ItemDraft | None = None
        self._has_new_result = False  # from the end of what the server did to the next item
        self._held_blank = EMPTY_PIECE
        self._segment: Segment | None = None  # the segment being read, and the current piece of its text
        self._piece = EMPTY_PIECE
        self._ending = _EndingDetails()

    @property
    def trace(self) -> list[tuple[State, Input]]:
        """State and input of the latest steps, which are logged on an internal error."""
        return [CELLS[number] for number in self.steps[-MAX_TRACED_STEPS:]]

    @property
    def output(self) -> tuple[OutputItem, ...]:
        """The finished items so far."""
        return tuple(self._output)

    @property
    def is_ended(self) -> bool:
        """True once the terminal event has been emitted."""
        return self.state is State.ENDED

    def feed(self, segment: Segment) -> list[Event]:
        """Reads one segment; empty text has no effect. Raises `IllegalInput` and changes nothing if it is illegal."""
        self._segment = segment
        if type(segment) is Say:  # nearly all are; each failed pattern match costs the same as emitting one
            self._feed_text(Input.SAY, segment.text, segment.logprobs)
        else:
            self._feed_other(segment)
        return self._emitter.collect_events()

    def _feed_other(self, segment: Segment) -> None:
        match segment:
            case Think(text):
                self._feed_text(Input.THINK, text)
            case Refuse(text):
                self._feed_text(Input.REFUSE, text)
            case Arguments(text, index):
                if text or index is not None:
                    self._piece = TextPiece(text)
                    self._apply_input(Input.ARGUMENTS)
            case Setting():
                self._piece = EMPTY_PIECE
                self._apply_input(Input.ARGUMENTS)
            case Call(kind=kind):
                self._apply_input(Input.TOOL if kind in HOSTED_TOOL_KINDS else Input.CALL)
            case _:
                self._apply_input(_SEGMENT_INPUTS[type(segment)])

    def queue(self) -> list[Event]:
        """Records that the response waits for the engine."""
        return self._apply_lifecycle(Input.QUEUE)

    def begin(self) -> list[Event]:
        """Records that the engine has admitted the response."""
        return self._apply_lifecycle(Input.BEGIN)

    def keepalive(self) -> list[Event]:
        """Repeats the latest lifecycle event on a silent stream, or the stage of what the server does.

        Legal before the first item, while the server makes the content of one, and after that until the next item.
        """
        return self._apply_lifecycle(Input.KEEPALIVE)

    def stop(self) -> list[Event]:
        """Ends the response because the model has ended its turn. Inside a call this fails the response."""
        return self._apply_lifecycle(Input.STOP)

    def cut(self, reason: CutReason = "max_output_tokens") -> list[Event]:
        """Ends the response as incomplete: a limit cut the turn."""
        return self._apply_lifecycle(Input.CUT, _EndingDetails(reason=reason))

    def steer(self) -> list[Event]:
        """Ends the response as incomplete, because the client has sent more input. Legal between items only."""
        return self._apply_lifecycle(Input.STEER, _EndingDetails(reason="steered"))

    def fail(self, code: str, message: str) -> list[Event]:
        """Ends the response as failed."""
        return self._apply_lifecycle(Input.FAIL, _EndingDetails(code=code, message=message))

    def cancel(self) -> list[Event]:
        """Ends the response as cancelled: the rest of the output is not needed."""
        return self._apply_lifecycle(Input.CANCEL)

    def _apply_lifecycle(self, symbol: Input, ending: _EndingDetails = _EndingDetails()) -> list[Event]:  # noqa: B008  # the default is frozen
        previous, self._segment, self._ending = (self._segment, self._ending), None, ending
        try:
            self._apply_input(symbol)
        except IllegalInput:
            self._segment, self._ending = previous
            raise
        return self._emitter.collect_events()

    def _feed_text(self, symbol: Input, text: str, scored: tuple[PlacedLogprob, ...] = ()) -> None:
        # A blank that leads text of the open item would be held within this call only, so it stays with the text.
        for number, (piece, blank) in enumerate(
            split_whitespace(text, scored, keep_leading=symbol is self._continued_input)
        ):
            if number and self.is_ended:
                self.dropped_text += piece.text  # an earlier piece of the same text ended the response
                continue
            self._piece = piece
            self._apply_input(BLANK_INPUTS[symbol] if blank else symbol)

    def _apply_input(self, symbol: Input) -> None:
        step = self.state, symbol
        try:
            next_state, verbs, guard, number = _STEPS[step]
        except KeyError:
            raise IllegalInput(*step) from None
        if guard and not self._guard_holds(guard):
            raise IllegalInput(*step, guard)
        self.steps.append(number)
        for verb in verbs:
            verb(self)
        self.state = next_state

    @property
    def _continued_input(self) -> Input | None:
        """The text input that continues the open item, or None."""
        if isinstance(self._draft, MessageDraft):
            return Input.SAY if self._draft.part_kind == "text" else Input.REFUSE
        return Input.THINK if self.state is State.REASONING else None

    def _guard_holds(self, guard: Guard) -> bool:
        if guard == "no item yet or after a result":
            return self._has_new_result or not self._output
        draft = self._draft
        if not isinstance(draft, MessageDraft):
            return False
        if guard == "text part open":
            return draft.part_kind == "text"
        return isinstance(self._segment, Say) and self._segment.phase == draft.phase

    # Verbs of the open item

    def _open(self) -> None:
        self._has_new_result = False
        self._draft = self._new_draft()
        self._draft.open()

    def _new_draft(self) -> ItemDraft:
        segment = self._segment
        match segment:
            case Think():
                return ReasoningDraft(self._next_position("rs"), self._emitter, self._settings.reasoning, self._seal)
            case Say(phase=phase):
                return MessageDraft(self._next_position("msg"), self._emitter, phase, "text")
            case Refuse():
                return MessageDraft(self._next_position("msg"), self._emitter, None, "refusal")
            case Call(kind="mcp_approval"):
                return ApprovalDraft(self._next_position("mcpr"), self._emitter, segment, self._create_approval_id)
            case Call(kind=kind) if kind in HOSTED_TOOL_KINDS:
                return create_server_draft(segment, self._next_position(CALL_ID_PREFIXES[kind]), self._emitter)
            case Call(kind=kind, call_id=native):
                position, call_id = self._next_position(CALL_ID_PREFIXES[kind]), self._ids.call_id_for(native)
                return create_call_draft(segment, position, self._emitter, call_id, self._settings)
            case Compact():
                return CompactionDraft(self._next_position("cmp"), self._emitter)
            case _:  # pragma: no cover  # the table opens an item on these inputs only
                raise AssertionError(segment)

    def _next_position(self, prefix: str) -> ItemPosition:
        return ItemPosition(self._ids(prefix), len(self._output))

    def _grow(self) -> None:
        draft, piece = self._draft, self._piece
        if isinstance(draft, MessageDraft):
            kind: PartKind = "refusal" if type(self._segment) is Refuse else "text"
            if draft.part_kind != kind:
                self._flush()
                draft.switch_part(kind)
            full_piece = piece if self._held_blank is EMPTY_PIECE else self._take_held() + piece
            draft.grow(full_piece.text, full_piece.logprobs)
        elif isinstance(draft, _PLAIN_TEXT_DRAFTS) and piece.text:
            draft.grow((self._take_held() + piece).text)
        elif isinstance(draft, ShellCallDraft) and isinstance(segment := self._segment, Arguments | Setting):
            draft.apply(segment)

    def _cite(self) -> None:
        if isinstance(self._draft, MessageDraft) and isinstance(self._segment, Cite):
            self._draft.cite(self._segment.annotation, self._segment.length)

    def _close(self, status: Status = "completed") -> None:
        if self._draft:
            self._output.append(self._draft.close(status))
        self._draft = None

    def _run(self) -> None:
        if isinstance(self._draft, ServerCallDraft):
            self._draft.run()

    def _settle(self) -> None:
        if isinstance(self._draft, RunningDraft) and self._segment is not None:
            self._output.append(self._draft.settle(self._segment))
        self._draft, self._has_new_result = None, True

    def _cut(self) -> None:
        self._close("incomplete")

    def _freeze(self) -> None:
        self._drop()
        if self._draft and (item := self._draft.freeze()):
            self._output.append(item)
        self._draft = None

    def _insert(self) -> None:
        self._has_new_result = False
        if isinstance(self._segment, CompleteItem):
            item = self._segment.item
            if not item.id:
                item = msgspec.structs.replace(item, id=self._ids(_ITEM_ID_PREFIXES[type(item)]))
            position = ItemPosition(item.id, len(self._output))
            if isinstance(item, McpListTools):
                self._output.append(emit_list(item, position, self._emitter))
                return
            if isinstance(item, ToolSearchOutput):
                self._output.append(emit_found_tools(item, position, self._emitter))
                self._has_new_result = True
                return
            self._emitter.emit(ev.ItemAdded, output_index=position.output_index, item=item)
            self._emitter.emit(ev.ItemDone, output_index=position.output_index, item=item)
            self._output.append(item)

    # Verbs of the held blank

    def _hold(self) -> None:
        if self._draft is None and self._output:
            self._discard()  # after an item; only before the first item does a blank belong to the text after it
        else:
            self._held_blank += self._piece

    def _discard(self) -> None:
        self.dropped_text += self._piece.text

    def _flush(self) -> None:
        held = self._take_held()
        if held.text and isinstance(self._draft, MessageDraft):
            self._draft.grow(held.text, held.logprobs if self._draft.part_kind == "text" else ())

    def _drop(self) -> None:
        self.dropped_text += self._take_held().text

    def _take_held(self) -> TextPiece:
        held, self._held_blank = self._held_blank, EMPTY_PIECE
        return held

    # Verbs of the response

    def _create(self) -> None:
        queued = CELLS[self.steps[-1]][1] is Input.QUEUE
        self._update_response(status="queued" if queued else "in_progress")
        self._emitter.emit(ev.Created, response=self.response)

    def _queue(self) -> None:
        self._emitter.emit(ev.Queued, response=self.response)

    def _begin(self) -> None:
        self._update_response(status="in_progress")
        self._emitter.emit(ev.InProgress, response=self.response)

    def _keepalive(self) -> None:
        if isinstance(self._draft, RunningDraft):
            self._draft.emit_stage()
            return
        event = ev.Queued if self.state is State.QUEUED else ev.InProgress
        self._emitter.emit(event, response=self.response)

    def _complete(self) -> None:
        self._end_response(status="completed", completed_at=self._clock())
        self._emitter.emit(ev.Completed, response=self.response)

    def _incomplete(self) -> None:
        details = IncompleteDetails(reason=self._ending.reason)
        self._end_response(status="incomplete", incomplete_details=details)
        self._emitter.emit(ev.Incomplete, response=self.response)

    def _fail(self) -> None:
        error = ResponseError(code=self._ending.code, message=self._ending.message)
        self._end_response(status="failed", error=error)
        self._emitter.emit_error(error.code, error.message)
        self._emitter.emit(ev.Failed, response=self.response)

    def _cancel(self) -> None:
        # No SDK has a cancelled event, and a reader must not hang; no SDK takes `incomplete` for a failure.
        self._end_response(status="cancelled")
        self._emitter.emit(ev.Incomplete, response=self.response)

    def _end_response(self, **changes: object) -> None:
        self._update_response(usage=self._usage(), prompt_cache_diagnostics=self._diagnose(), **changes)

    def _update_response(self, **changes: object) -> None:
        self.response = msgspec.structs.replace(self.response, output=tuple(self._output), **changes)


_VERB_METHODS: dict[Verb, Callable[[Machine], None]] = {verb: getattr(Machine, f"_{verb}") for verb in get_args(Verb)}
_STEPS = {
    step: (cell.next, tuple(_VERB_METHODS[verb] for verb in cell.verbs), GUARDS.get(step), number)
    for number, (step, cell) in enumerate(TABLE.items())
}
"""The table in the form that the machine runs: the next state, the verbs as functions, the guard, the cell's number."""
