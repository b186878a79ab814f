"""Runs the calls of a turn that the server makes, one after another, each once its arguments are stored."""

import asyncio
from collections.abc import Callable

from antiphon.app.tools.runners import fail_call
from antiphon.app.turns.core.inputs import FailInput, ResultInput
from antiphon.app.turns.jobs import end_task
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.app.turns.step_writer import StepWriter

MAX_STORE_WAIT_S = 30.0
"""Time for which a call of a tool waits until the store has it. It is never run before."""
UNKNOWN_OUTCOME = (
    "The server that ran this call has ended, so its outcome is unknown: it may have had an effect. It was not run "
    "again."
)
UNKEPT_MESSAGE = "The server could not store the call of a tool, so it did not run it."


class DueCalls:
    """The calls of one turn. They run beside the engine's job, which continues meanwhile.

    `on_broken` is called if calls beside a job have ended the turn, or have failed.
    """

    def __init__(self, writer: StepWriter, rounds: RoundPlanner, on_broken: Callable[[], None]) -> None:
        self._writer, self._core, self._rounds, self._on_broken = writer, writer.core, rounds, on_broken
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Runs the call that is due, and those that follow it."""
        core, writer = self._core, self._writer
        while (due := core.calls.due) is not None and not core.is_ended:
            writer.write_events()
            if not await self._is_kept():
                writer.apply(FailInput("server_error", UNKEPT_MESSAGE, "store_unavailable"))
                break
            writer.apply(await self._rounds.run_call(core.figures.round, due))
            writer.write_events()

    async def end_interrupted(self) -> None:
        """Ends the call that was due in another process, which may have made it, and runs those behind it.

        Its outcome is unknown, and it is not made again.
        """
        due = self._core.calls.due
        if due is None:
            return
        if not due.call.is_invented:
            outcome = fail_call(due.call, due.arguments, UNKNOWN_OUTCOME)
            self._writer.apply(ResultInput(outcome.result, outcome.output, len(outcome.output.encode())))
            self._writer.write_events()
        await self.run()

    def start(self) -> None:
        """Runs the call that is due in a task, unless calls run. A call that broke such a task is not run again."""
        if self._core.calls.due is None:
            return
        if self._task is None or (self._task.done() and self._task.exception() is None):
            self._task = asyncio.create_task(self.run(), name=f"tools-{self._writer.log.id}")
            self._task.add_done_callback(self._check_task)

    async def wait_ended(self) -> None:
        """Waits for the calls that run. Raises what has broken them."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Ends the calls that run."""
        if self._task is not None:
            await end_task(self._task)

    async def _is_kept(self) -> bool:
        """Tells whether the store has all events, so that a call which a crash interrupts is never run again."""
        try:
            async with asyncio.timeout(MAX_STORE_WAIT_S):
                return await self._writer.log.wait_kept()
        except TimeoutError:
            return False

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() or self._core.is_ended:
            self._on_broken()
