"""Decides how jobs continue whose worker has exited: which of them run again, and which of these alone."""

from collections.abc import Iterable

from antiphon.engine.process.jobs.pending import PendingJob
from antiphon.engine.protocol import Fault

MAX_CONTINUATIONS = 3
"""Number of times that a job continues after its worker has exited."""
SUSPECT_CRASHES = 2
"""Number of crashes at which a job was present, from which on it runs alone."""
TRIED_ALONE = "a request that was present at two crashes runs alone"
STOPPED_ALONE = Fault("server_error", "The engine stopped again while it ran this request alone.", retryable=False)
STOPPED_TOO_OFTEN = Fault("engine_unavailable", "The engine stopped too often during this request.", retryable=True)


class CrashRecovery:
    """The jobs that may be what ends the workers.

    A job that was present at two crashes is a *suspect*. Suspects run alone, one after the other, and the other jobs
    wait. A suspect that gets a token has passed the place of the last crash and is none any more. If the worker exits
    first, that job ends with a fault, and no other.
    """

    def __init__(self) -> None:
        self._suspects: dict[str, PendingJob] = {}
        self.alone: PendingJob | None = None
        """The suspect in the worker."""

    @property
    def has_suspects(self) -> bool:
        """True while jobs other than the next suspect have to wait."""
        return bool(self._suspects)

    def may_run(self, pending: PendingJob | None, *, worker_is_empty: bool) -> bool:
        """Tells whether a job may be sent to the worker now; None stands for one that has not arrived."""
        if not self._suspects:
            return True
        return worker_is_empty and self.alone is None and pending is next(iter(self._suspects.values()))

    def begin_run(self, pending: PendingJob) -> None:
        """Notes that a job is sent to the worker."""
        if self._suspects:
            self.alone = pending

    def record_crash(self, present: Iterable[PendingJob], fault: Fault, *, continues: bool) -> None:
        """Ends the run of each job that was in the worker. A job that does not continue ends with a fault.

        With `continues` False, a job continues only if it was not admitted, and once.
        """
        alone, self.alone = self.alone, None
        for pending in present:
            pending.num_crashes += 1
            if pending is alone:
                pending.fail(STOPPED_ALONE)
            elif pending.num_crashes > (MAX_CONTINUATIONS if continues else 1):
                pending.fail(STOPPED_TOO_OFTEN if continues else fault)
            elif pending.is_admitted and not (continues and pending.can_continue):
                pending.fail(fault)
            else:
                pending.end_run()
                if pending.num_crashes >= SUSPECT_CRASHES:
                    self._suspects[pending.job.id] = pending
        if alone is not None:
            self.clear(alone)

    def clear(self, pending: PendingJob) -> bool:
        """Removes a job that is no suspect any more, or has ended. Returns whether others may run now."""
        if self._suspects.get(pending.job.id) is not pending:
            return False
        del self._suspects[pending.job.id]
        if self.alone is pending:
            self.alone = None
        return True

    def reset(self) -> None:
        """Forgets all jobs, which have ended."""
        self._suspects.clear()
        self.alone = None
