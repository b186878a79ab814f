"""Brings the core of a turn to where another one was that wrote these entries, and checks that the events are equal.

The stored ids of tokens go through reader, stop filter and state machine as they did in the first run. Ids of items
and sealed texts are taken from the stored events, since they are made only once.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import Purpose
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn
from antiphon.app.turns.core.inputs import AdmittedInput, KeepaliveInput, QueuedInput, StepInput, TokensInput
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.engine.protocol import Job
from antiphon.events import sse
from antiphon.events import stream as ev
from antiphon.events.hosted import ToolSearchOutput
from antiphon.events.items import Compaction, Reasoning
from antiphon.harmony.format import ModelFormat
from antiphon.state.ids import NewId
from antiphon.state.table import IllegalInput, State


class ReplayError(Exception):
    """The stored ids do not give the stored events. The message says where."""


class RecordedIds:
    """Returns the ids of stored events in their order, then new ones; the same for sealed texts."""

    def __init__(self, entries: Sequence[LogEntry], new_id: NewId) -> None:
        self._new_id = new_id
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        self._sealed: defaultdict[Purpose, deque[str]] = defaultdict(deque)
        for entry in entries:
            event = entry.event
            if isinstance(event, ev.ItemAdded):
                call_id = None if isinstance(event.item, ToolSearchOutput) else getattr(event.item, "call_id", None)
                for recorded in (event.item.id, call_id):
                    if recorded:
                        self._ids[recorded.partition("_")[0]].append(recorded)
            elif isinstance(event, ev.ItemDone) and isinstance(event.item, Reasoning) and event.item.encrypted_content:
                self._sealed["reasoning"].append(event.item.encrypted_content)
            elif isinstance(event, ev.ItemDone) and isinstance(event.item, Compaction):
                self._sealed["compaction"].append(event.item.encrypted_content)

    def new_id(self, prefix: str) -> str:
        """Returns the next id with this prefix."""
        ids = self._ids[prefix]
        return ids.popleft() if ids else self._new_id(prefix)

    def take_sealed(self, purpose: Purpose) -> str | None:
        """Returns the next sealed text; None if the stored events have no more."""
        sealed = self._sealed[purpose]
        return sealed.popleft() if sealed else None


class CoreRebuild:
    """Rebuilds the core of a turn that another process began, from the turn's log."""

    def __init__(
        self,
        stored: ContinuableTurn,
        log: EventLog,
        form: ModelFormat,
        *,
        new_id: NewId,
        clock: Callable[[], float],
        seal: Callable[[Purpose, str], str],
    ) -> None:
        self._stored, self._log = stored, log
        recorded, spec = RecordedIds(log.entries, new_id), stored.build_spec(log.base_response)
        prompt = TurnPrompt(
            format=form,
            owner=log.owner,
            prompt_input=spec.prompt_input,
            now=datetime.fromtimestamp(clock(), UTC),
            rendered_tokens=stored.job.tokens,
            prompt=stored.build_prompt(),
            grammar=stored.job.grammar,
        )
        self.core = TurnCore(
            spec.build_rules(),
            prompt,
            log.base_response,
            new_id=recorded.new_id,
            clock=lambda: int(clock()),
            settings=stored.output_settings,
            seal=lambda purpose, text: recorded.take_sealed(purpose) or seal(purpose, text),
        )

    def replay(self) -> None:
        """Brings the core to the end of the log. Raises `ReplayError`. Call it in a thread: a log may be long."""
        for step in split_steps(self._log.entries):
            self._replay_step(step)
        if self.core.needs_no_more:
            raise ReplayError("the stored tokens end the turn, and the stored events do not")

    def _replay_step(self, step: Sequence[LogEntry]) -> None:
        """Applies the input of a stored step. Raises `ReplayError` if its events differ from the stored ones."""
        first = step[0].event.sequence_number
        try:
            events = self.core.apply(_find_input(self.core, step))
        except (IllegalInput, ValueError) as error:
            raise ReplayError(f"the step at event {first} cannot be repeated: {error}") from error
        self.core.take_detail()
        if [sse.encode_event(event) for event in events] != [entry.data for entry in step]:
            raise ReplayError(f"the tokens of the step at event {first} give other events than the stored ones")

    def continue_job(self) -> Job:
        """Returns the job of the rest: with the tokens so far, if the engine had admitted it."""
        current = self.core.figures.round
        if not current.is_admitted:
            return self._stored.job
        return msgspec.structs.replace(self._stored.job, generated=tuple(current.generated_tokens))


def split_steps(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """Yields the entries of each step, whose last one has its detail. The end of another process has none."""
    start = 0
    for number, entry in enumerate(entries, 1):
        if entry.detail is not None or number == len(entries):
            yield entries[start:number]
            start = number


def _find_input(core: TurnCore, step: Sequence[LogEntry]) -> StepInput:
    """Returns the input that gave a stored step. Raises `ReplayError`."""
    detail, state = step[-1].detail, core.machine.state
    if detail is None:
        raise ReplayError("the stored events have no tokens")
    is_queued = isinstance(step[-1].event, ev.Queued)
    if is_queued and state is State.NEW:
        return QueuedInput()
    if state in (State.NEW, State.QUEUED) and not is_queued:
        return AdmittedInput(detail.cached_tokens)
    return TokensInput(detail.tokens) if detail.tokens else KeepaliveInput()
