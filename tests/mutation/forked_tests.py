"""`python -m tests.mutation.forked_tests JOB`: runs the tests of many mutants of one module, after importing them once.

pytest collects the tests, then a copy of the process (`os.fork`) runs them for each mutant, in which the functions of the
module have the mutant's code. So a mutant costs the time of its tests, without that of imports.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from tests.mutation.code_swap import SwapError, swap_code
from tests.mutation.second_conditions import SecondConditionMutant

ForkVerdict = Literal["killed", "survived", "late", "not swapped"]
PASSED, FAILED, NOT_SWAPPED = 0, 1, 3
"""Exit codes of a fork."""
MIN_LIMIT_S = 30.0
LIMIT_FACTOR = 6
"""Limit of a mutant's time: a multiple of the time without a mutant. A loop that never ends is a kill."""
POLL_INTERVAL_S = 0.01


class ForkJob(Struct, frozen=True, kw_only=True):
    """Mutants of one module. All have the same tests."""

    module: str
    """Import name of the module."""
    file: str
    mutants: tuple[SecondConditionMutant, ...]
    report_fd: int
    """File descriptor to which one line with a `ForkVerdict` is written for each mutant, in their order."""


class ForkedTests:
    """A pytest plugin that takes the place of the loop over the tests."""

    def __init__(self, job: ForkJob) -> None:
        self._job = job
        self._code = Path(job.file).read_text(encoding="utf-8")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests without a mutant, then with each one. Without one they must pass."""
        if session.testsfailed or not session.items:
            raise session.Interrupted("the tests cannot be collected")
        start = time.monotonic()
        if self._run_fork(session, None, limit_s=600) != "survived":
            raise session.Interrupted("the tests fail without a mutant")
        limit_s = max(MIN_LIMIT_S, LIMIT_FACTOR * (time.monotonic() - start))
        for mutant in self._job.mutants:
            verdict = self._run_fork(session, mutant, limit_s)
            os.write(self._job.report_fd, f"{verdict}\n".encode())
        return True

    def _run_fork(self, session: pytest.Session, mutant: SecondConditionMutant | None, limit_s: float) -> ForkVerdict:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.setsid()  # what the tests start ends with them
            self._run_and_exit(session, mutant)
        exit_code = _wait_for(pid, limit_s)
        if exit_code is None:
            return "late"
        return {PASSED: "survived", NOT_SWAPPED: "not swapped"}.get(exit_code, "killed")  # type: ignore[return-value]

    def _run_and_exit(self, session: pytest.Session, mutant: SecondConditionMutant | None) -> None:
        exit_code = FAILED
        try:
            if mutant is not None:
                swap_code(self._job.module, self._code, mutant.apply(self._code))
            exit_code = _run_items(session)
        except SwapError:
            exit_code = NOT_SWAPPED
        finally:
            os._exit(exit_code)


def _run_items(session: pytest.Session) -> int:
    """Runs the tests up to the first failure. Returns the exit code."""
    following = [*session.items[1:], None]
    for item, next_item in zip(session.items, following, strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        if session.testsfailed or session.shouldstop or session.shouldfail:
            session._setupstate.teardown_exact(None)
            return FAILED
    return PASSED


def _wait_for(pid: int, limit_s: float) -> int | None:
    """Returns the exit code of a fork and ends all that it has started; None if it ran past the limit."""
    deadline = time.monotonic() + limit_s
    exit_code: int | None = None
    while exit_code is None and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        exit_code = os.waitstatus_to_exitcode(status) if ended else None
        if not ended:
            time.sleep(POLL_INTERVAL_S)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if exit_code is None:
        os.waitpid(pid, 0)
    return exit_code


def read_reports(fd: int) -> Iterator[ForkVerdict]:
    """Yields the verdicts as they come, until the writer has closed its end."""
    with os.fdopen(fd, encoding="utf-8") as lines:
        for line in lines:
            yield line.strip()  # type: ignore[misc]


def main(path: str) -> int:
    """Runs the job of a file. Returns pytest's exit code."""
    job = msgspec.json.decode(Path(path).read_bytes(), type=ForkJob)
    args = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *job.mutants[0].tests]
    return int(pytest.main(args, plugins=[ForkedTests(job)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
