"""Repeats a turn: applies its journal to a new core, which must give the events that are kept.

The inputs go through reader, stop filter and state machine as they did in the first run. Ids of items come from the
turn's dice again, and a sealed text is the same if the server's secret is. One replay serves the continuation of a turn
and the verification of its record.
"""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from itertools import islice

import msgspec

from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.compaction import CompactionJob
from antiphon.app.turns.continuation.journal import RoundMark, SummaryMark, decode_inputs
from antiphon.app.turns.core.inputs import ResultInput, RoundInput, StepInput, SummaryInput
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.jobs import replace_prompt
from antiphon.app.turns.media.resolver import NO_MEDIA, TurnMedia
from antiphon.app.turns.prompts.spoken_items import list_items
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.engine.protocol import Job
from antiphon.events import sse
from antiphon.events.base import Event
from antiphon.state.segments import McpResult
from antiphon.state.table import IllegalInput

Unfinished = RoundMark | SummaryMark | ResultInput
"""Inputs that the world completes or takes part in: those with a prompt, and results of calls."""


class ReplayError(Exception):
    """The stored inputs do not give the stored events. The message says where."""


def apply_journal(core: TurnCore, journal: bytes) -> Generator[Unfinished, StepInput, list[bytes]]:
    """Applies the inputs of a step and returns its events, encoded. Yields unfinished inputs, and takes whole ones.

    Raises `ValueError` or `IllegalInput` if the step cannot be applied.
    """
    events: list[Event] = []
    for each in decode_inputs(journal):
        events += core.apply((yield each) if isinstance(each, Unfinished) else each)
    core.take_detail()
    return [sse.encode_event(event) for event in events]


class JournalReplay:
    """Applies journals to a new core. `prompts` are those of the jobs of the turn's rounds."""

    def __init__(self, core: TurnCore, prompts: Sequence[TurnPrompt]) -> None:
        self.core, self._prompts = core, prompts
        has_approved = core.calls.rules is not None and bool(core.calls.rules.approved)
        # The first job has the first prompt, unless calls run before it that the client has approved.
        self._following = islice(prompts, 0 if has_approved else 1, None)

    def apply_step(self, journal: bytes) -> list[bytes]:
        """Returns the events of a step, encoded. Raises `ValueError` or `IllegalInput` if it cannot be applied."""
        replay = apply_journal(self.core, journal)
        try:
            unfinished = next(replay)
            while True:
                unfinished = replay.send(self._restore_prompt(unfinished))
        except StopIteration as end:
            events: list[bytes] = end.value
            return events

    def _restore_prompt(self, step: Unfinished) -> StepInput:
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


class TurnRebuild:
    """Brings the core of a turn that another process began to the end of its log.

    `job` is its first one, `media` are its images. `compaction` and `rounds` make later prompts and jobs, as they did
    in the other process.
    """

    def __init__(
        self,
        log: EventLog,
        core: TurnCore,
        job: Job,
        media: TurnMedia = NO_MEDIA,
        compaction: CompactionJob | None = None,
        rounds: RoundPlanner | None = None,
    ) -> None:
        self.log, self.core, self.media, self.rounds = log, core, media, rounds
        self._job, self._compaction = job, compaction

    async def replay(self) -> None:
        """Repeats the log, in a thread where no prompt is rendered: it may be long.

        Raises `ReplayError`, and `ApiError` or `RenderError` if a later prompt cannot be rendered again.
        """
        replay = self._apply_steps()
        unfinished = await asyncio.to_thread(next, replay, None)
        while unfinished is not None:
            step = await self._complete_input(unfinished)
            unfinished = await asyncio.to_thread(_send, replay, step)
        if self.core.is_ended:
            raise ReplayError("the stored inputs end the turn, and the stored events do not")
        if self.rounds is not None:
            figures = self.core.figures
            rounds = (*figures.done_rounds, figures.round)
            calls = [call.call for each in rounds for call in each.calls]
            self.rounds.tools.resume(calls, rounds[0].prompt.prompt_input.items)

    @property
    def job(self) -> Job:
        """The job of the rest: with the tokens so far, if the engine had admitted it."""
        current = self.core.figures.round
        if not current.is_admitted:
            return self._job
        return msgspec.structs.replace(self._job, generated=tuple(current.generated_tokens))

    @property
    def compaction(self) -> CompactionJob | None:
        """The compaction with which the rest begins, with the tokens so far; None if none is left."""
        compaction, summary = self._compaction, self.core.reading.summary
        if compaction is None or summary is None or not summary.is_open:
            return None
        if not summary.is_admitted:
            return compaction
        job = msgspec.structs.replace(compaction.job, generated=tuple(summary.generated_tokens))
        return msgspec.structs.replace(compaction, job=job)

    def _apply_steps(self) -> Generator[Unfinished, StepInput, None]:
        """Applies the stored steps. Raises `ReplayError` if the events of one differ from the stored ones."""
        for step in split_steps(self.log.entries):
            first = step[0].event.sequence_number
            try:
                events = yield from apply_journal(self.core, step[-1].encode_journal())
            except (IllegalInput, ValueError) as error:
                raise ReplayError(f"the step at event {first} cannot be repeated: {error}") from error
            if events != [entry.data for entry in step]:
                raise ReplayError(f"the inputs of the step at event {first} give other events than the stored ones")

    async def _complete_input(self, step: Unfinished) -> StepInput:
        """Returns an input with its prompt, which is rendered as in the other process and has the tokens of there."""
        if isinstance(step, SummaryMark):
            return await self._complete_summary(step)
        if isinstance(step, RoundMark):
            return await self._complete_round(step)
        if self.rounds is not None and isinstance(step.result, McpResult):
            await self.rounds.restore_images(step.output)
        return step

    async def _complete_summary(self, mark: SummaryMark) -> SummaryInput:
        if self._compaction is None:
            raise ReplayError("the stored turn has no compaction")
        compacted = await self._compaction.finish(self.core.reading.summary_text)
        if compacted.content != mark.content:
            raise ReplayError("the summary gives another compaction than the stored one")
        if compacted.prompt is None or compacted.job is None:
            return SummaryInput(mark.content)
        prompt = compacted.prompt.replace_tokens(mark.tokens)
        self._job = replace_prompt(compacted.job, prompt)
        return SummaryInput(mark.content, prompt)

    async def _complete_round(self, mark: RoundMark) -> RoundInput:
        following = None if self.rounds is None else await self.rounds.plan_next(self.core)
        if following is None:
            raise ReplayError("the stored turn has another round than is possible here")
        prompt = following.prompt.replace_tokens(mark.read_prompt(self.core.figures.round))
        self._job = replace_prompt(following.job, prompt)
        return RoundInput(prompt)


def _send(replay: Generator[Unfinished, StepInput, None], step: StepInput) -> Unfinished | None:
    """Continues a replay with a whole input. Returns the next unfinished one; None at the end."""
    try:
        return replay.send(step)
    except StopIteration:
        return None


def split_steps(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """Yields the entries of each step, whose last one has its journal. The end of another process has none."""
    start = 0
    for number, entry in enumerate(entries, 1):
        if entry.journal or number == len(entries):
            yield entries[start:number]
            start = number
