"""Repeats a turn: applies its journal to a new core, which must give the events that are kept.

The inputs go through reader, stop filter and state machine as they did in the first run. Ids of items come from the
turn's dice again, and a sealed text is the same if the server's secret is. One replay serves the continuation of a turn
and the verification of its record.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.continuation.journal import RoundMark, SummaryMark, decode_inputs
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn
from antiphon.app.turns.continuation.turn_head import Seal
from antiphon.app.turns.core.dice import TurnDice
from antiphon.app.turns.core.inputs import RoundInput, StepInput, SummaryInput
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.prompts.spoken_items import list_items
from antiphon.engine.protocol import Job
from antiphon.events import sse
from antiphon.harmony.format import ModelFormat
from antiphon.state.table import IllegalInput


class ReplayError(Exception):
    """The stored inputs do not give the stored events. The message says where."""


class JournalReplay:
    """Applies journals to a new core. `prompts` are those of the jobs of the turn's rounds."""

    def __init__(self, core: TurnCore, prompts: Sequence[TurnPrompt]) -> None:
        self.core, self._prompts = core, prompts
        has_approved = core.calls.rules is not None and bool(core.calls.rules.approved)
        # The first job has the first prompt, unless calls run before it that the client has approved.
        self._following = islice(prompts, 0 if has_approved else 1, None)

    def apply_step(self, journal: bytes) -> list[bytes]:
        """Returns the events of a step, encoded. Raises `ValueError` or `IllegalInput` if it cannot be applied."""
        steps = decode_inputs(journal)
        events = [event for each in steps for event in self.core.apply(self._restore_prompt(each))]
        self.core.take_detail()
        return [sse.encode_event(event) for event in events]

    def _restore_prompt(self, step: StepInput) -> StepInput:
        """Returns an input with its prompt."""
        if isinstance(step, SummaryMark):
            return SummaryInput(step.content, self._prompts[0] if step.has_prompt else None)
        if not isinstance(step, RoundMark):
            return step
        # A round without a prompt was never admitted by the engine, so nothing depends on its prompt.
        following, done = next(self._following, self._prompts[-1]), self.core.figures.round
        items = (*done.prompt.prompt_input.items, *list_items(done, self.core.machine.output))
        prompt_input = msgspec.structs.replace(following.prompt_input, items=items)
        return RoundInput(msgspec.structs.replace(following, prompt_input=prompt_input))


class CoreRebuild:
    """Rebuilds the core of a turn that another process began, from the turn's log."""

    def __init__(
        self,
        stored: ContinuableTurn,
        log: EventLog,
        form: ModelFormat,
        *,
        dice: TurnDice,
        clock: Callable[[], float],
        seal: Seal,
    ) -> None:
        self._stored, self._log, job = stored, log, stored.job
        prompt = stored.head.build_prompt(form, log.owner, stored.prompt_end.build_prompt(job.tokens))
        prompt = msgspec.structs.replace(prompt, grammar=job.grammar)
        self.core = stored.head.create_core(prompt, log.base_response, dice, lambda: int(clock()), seal)
        self._replay = JournalReplay(self.core, [prompt])

    def replay(self) -> None:
        """Brings the core to the end of the log. Raises `ReplayError`. Call it in a thread: a log may be long."""
        for step in split_steps(self._log.entries):
            self._replay_step(step)
        if self.core.needs_no_more:
            raise ReplayError("the stored inputs end the turn, and the stored events do not")

    def _replay_step(self, step: Sequence[LogEntry]) -> None:
        """Applies the inputs of a stored step. Raises `ReplayError` if its events differ from the stored ones."""
        first = step[0].event.sequence_number
        try:
            events = self._replay.apply_step(step[-1].encode_journal())
        except (IllegalInput, ValueError) as error:
            raise ReplayError(f"the step at event {first} cannot be repeated: {error}") from error
        if events != [entry.data for entry in step]:
            raise ReplayError(f"the inputs of the step at event {first} give other events than the stored ones")

    def continue_job(self) -> Job:
        """Returns the job of the rest: with the tokens so far, if the engine had admitted it."""
        current = self.core.figures.round
        if not current.is_admitted:
            return self._stored.job
        return msgspec.structs.replace(self._stored.job, generated=tuple(current.generated_tokens))


def split_steps(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """Yields the entries of each step, whose last one has its journal. The end of another process has none."""
    start = 0
    for number, entry in enumerate(entries, 1):
        if entry.journal or number == len(entries):
            yield entries[start:number]
            start = number
