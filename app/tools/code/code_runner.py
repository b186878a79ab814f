"""Runs the code of `code_interpreter` in worker processes of pydantic-monty, an interpreter of a subset of Python.

A container is a session of that interpreter in a process of its own: its variables last from call to call. The process
has no environment, and the code reaches no file and no network. The interpreter limits
memory, recursion and time; the parent kills a process that does not answer. Whatever the code does, `CodeRunner.run`
returns an outcome.
"""

import asyncio
import importlib.util
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.app.tools.code.code_cells import clean_traceback, is_parse_error, list_cells

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, AsyncMontySession, CollectString

log = logging.getLogger(__name__)

MAX_CODE_BYTES = 256 * 1024
_MAX_TRACEBACK_BYTES = 8 * 1024
"""Tracebacks quote lines of the code, which have any length."""
_MAX_KEPT_OUTPUT_BYTES = 1 << 20
"""Length of the output at which a run is ended. More than is shown, so that a long table does not end a run."""
_MAX_SUSPENSIONS = 100_000
"""Calls of a session that its parent answers: attempts to open files, sleeps."""
_ENDED = "The process that runs the code has failed."
_SPARE_PROCESSES = 8
"""Processes that have not ended yet while the next ones start."""


class CodeLimits(Struct, frozen=True, kw_only=True):
    """Limits of the containers and of one run."""

    run_timeout_s: float = 10.0
    """Time of one run, with its sleeps."""
    grace_timeout_s: float = 2.0
    """Time after it in which the interpreter ends the run itself. Then its process is killed."""
    idle_timeout_s: float = 1200.0
    """Time after its last run in which a container keeps its variables."""
    memory_bytes: int = 128 << 20
    recursion_depth: int = 500
    log_bytes: int = 64 * 1024
    """The part of a run's output that is shown."""
    containers: int = 64
    concurrent_runs: int = 4


class CodeOutcome(Struct, frozen=True, kw_only=True):
    """The output of one run: what it printed, the value of its last expression, the traceback of its exception.

    `error` is one sentence if the sandbox ended the run or could not run it. An exception of the code is no error.
    """

    logs: str
    error: str | None = None

    def as_text(self) -> str:
        """Returns what the model reads."""
        return "\n".join(part for part in (self.logs, self.error) if part)


class _CodeContainer:
    """The variables of one container, in `session` while its process lives. `users` counts runs that want it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.session: AsyncMontySession | None = None
        self.users = 0
        self.lock = asyncio.Lock()
        self.idle_timer: asyncio.TimerHandle | None = None


def check_extra() -> None:
    """Raises `ValueError` if the packages that run code are not installed."""
    if importlib.util.find_spec("pydantic_monty") is None:
        raise ValueError("code_interpreter needs a package that is not installed: pip install 'antiphon[code]'")


class CodeRunner:
    """The containers of a server. `new_id` makes an id from its prefix.

    When there is no room for a container, the one whose last run is longest ago loses its variables: one of the owner
    who has most, so that nobody displaces the containers of others by opening many.
    """

    def __init__(self, new_id: Callable[[str], str], limits: CodeLimits | None = None) -> None:
        self._new_id = new_id
        self._limits = limits or CodeLimits()
        self._containers: dict[str, _CodeContainer] = {}
        """By id, the one whose last run is longest ago first."""
        self._places = asyncio.Semaphore(self._limits.concurrent_runs)
        self._pool: AsyncMonty | None = None
        self._pool_lock = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def new_container_id(self) -> str:
        """Returns the id of a new container. It gets a process with its first run."""
        return self._new_id("cntr")

    async def run(self, owner: str, container_id: str, code: str) -> CodeOutcome:
        """Runs code in a container of the owner. One that is unknown, or was idle for too long, has no variables.

        A run that is cancelled, or that meets a limit of time or memory, costs its container the variables.
        """
        if self._is_closed:
            return CodeOutcome(logs="", error="The server is shutting down.")
        if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
            return CodeOutcome(logs="", error=f"The code is longer than {MAX_CODE_BYTES} bytes. Run a shorter part.")
        container = self._containers.get(container_id)
        if container is not None and container.owner != owner:
            return CodeOutcome(logs="", error=f"Container with id '{container_id}' not found.")
        if container is None and not self._make_room():
            return CodeOutcome(logs="", error="All containers of the server are running code. Try again later.")
        container = container or _CodeContainer(owner)
        self._containers.pop(container_id, None)
        self._containers[container_id] = container
        container.users += 1
        if container.idle_timer is not None:
            container.idle_timer.cancel()
        try:
            async with container.lock, self._places:
                return await self._run_cell(container, code)
        finally:
            container.users -= 1
            if container.users == 0 and self._containers.get(container_id) is container:
                self._start_idle_timer(container_id, container)

    async def close(self) -> None:
        """Ends all containers and their processes."""
        self._is_closed = True
        for container_id in list(self._containers):
            self._drop_container(container_id)
        await asyncio.gather(*self._ends, return_exceptions=True)
        async with self._pool_lock:
            if self._pool is not None:
                await self._pool.__aexit__(None, None, None)
                self._pool = None

    # --- One run

    async def _run_cell(self, container: _CodeContainer, code: str) -> CodeOutcome:
        from pydantic_monty import CollectString, MontyError  # noqa: PLC0415  an extra

        output = CollectString(_MAX_KEPT_OUTPUT_BYTES)
        traceback, error, is_lost = "", None, True
        try:
            async with asyncio.timeout(self._limits.run_timeout_s + self._limits.grace_timeout_s):
                session = container.session = container.session or await self._open_session()
                traceback, error = await self._feed_cells(session, code, output)
            is_lost = session.worker_pid is None or error in (self._timeout_error(), self._memory_error())
        except TimeoutError:
            error = self._timeout_error()
        except (MontyError, RuntimeError, OSError) as failure:
            error = self._describe_failure(failure)
        finally:
            if is_lost:
                self._end_session(container)
        if is_lost:
            error = f"{error or _ENDED} The container has no variables now."
        return CodeOutcome(logs=self._join_logs(output.output, traceback), error=error)

    async def _feed_cells(
        self, session: "AsyncMontySession", code: str, output: "CollectString"
    ) -> tuple[str, str | None]:
        """Runs the first variant of the code that is Python. Returns the traceback, and the error if it met a limit."""
        from pydantic_monty import MontyRuntimeError, MontySyntaxError  # noqa: PLC0415  an extra

        traceback = ""
        for cell in list_cells(code):
            try:
                await session.feed_run(cell, print_callback=output)
            except MontySyntaxError as error:
                traceback = clean_traceback(error.display())
                if not is_parse_error(traceback):
                    return traceback, None
            except MontyRuntimeError as error:
                return clean_traceback(error.display()), self._describe_limit(error.exception(), output.output)
            else:
                return "", None
        return traceback, None

    def _describe_limit(self, error: BaseException, output: str) -> str | None:
        """Returns a sentence about the limit that ended a run, or None for an exception of the code."""
        text = str(error)
        if isinstance(error, TimeoutError) and "limit exceeded" in text:
            return self._timeout_error()
        if not isinstance(error, MemoryError):
            return None
        if len(output.encode()) >= _MAX_KEPT_OUTPUT_BYTES - self._limits.log_bytes:
            return f"The run was ended because it printed more than {_MAX_KEPT_OUTPUT_BYTES} bytes."
        return self._memory_error()

    def _describe_failure(self, failure: Exception) -> str:
        """Returns a sentence about a process that ended, hung or did not start. The server's log has the details."""
        log.warning("The sandbox of code_interpreter failed: %s", failure)
        if getattr(failure, "timed_out", False):
            return self._timeout_error()
        return _ENDED

    def _timeout_error(self) -> str:
        """Says that time ran out. The interpreter may have stopped anywhere, so its memory is not used again."""
        return f"The run was ended because it took more than {self._limits.run_timeout_s:g} s."

    def _memory_error(self) -> str:
        """Says that memory ran out. The variables may fill it, so that no further run would succeed."""
        return f"The run was ended because it needed more than {self._limits.memory_bytes >> 20} MiB of memory."

    def _join_logs(self, output: str, traceback: str) -> str:
        traceback = _cut_bytes(traceback, _MAX_TRACEBACK_BYTES)
        output = _cut_bytes(output, self._limits.log_bytes - len(traceback.encode()))
        separator = "\n" if output and traceback and not output.endswith("\n") else ""
        return output + separator + traceback

    # --- Containers and their processes

    def _make_room(self) -> bool:
        """Drops a container if there are as many as may be. Returns whether there is room."""
        if len(self._containers) < self._limits.containers:
            return True
        counts = Counter(container.owner for container in self._containers.values())
        idle = [key for key, container in self._containers.items() if container.users == 0]
        if not idle:
            return False
        self._drop_container(max(idle, key=lambda key: counts[self._containers[key].owner]))
        return True

    def _start_idle_timer(self, container_id: str, container: _CodeContainer) -> None:
        loop = asyncio.get_running_loop()
        container.idle_timer = loop.call_later(self._limits.idle_timeout_s, self._drop_container, container_id)

    def _drop_container(self, container_id: str) -> None:
        container = self._containers.pop(container_id)
        if container.idle_timer is not None:
            container.idle_timer.cancel()
        self._end_session(container)

    def _end_session(self, container: _CodeContainer) -> None:
        """Ends the process of a container in a task of its own, which a cancelled run does not wait for."""
        if (session := container.session) is not None:
            container.session = None
            end = asyncio.get_running_loop().create_task(_exit_session(session))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    async def _open_session(self) -> "AsyncMontySession":
        pool = await self._start_pool()
        session = pool.checkout(
            limits={
                "max_feed_duration_secs": self._limits.run_timeout_s,
                "max_memory": self._limits.memory_bytes,
                "max_recursion_depth": self._limits.recursion_depth,
                "max_suspensions": _MAX_SUSPENSIONS,
            }
        )
        return await session.__aenter__()

    async def _start_pool(self) -> "AsyncMonty":
        from pydantic_monty import AsyncMonty  # noqa: PLC0415  an extra

        async with self._pool_lock:
            if self._is_closed:
                raise RuntimeError("the server is shutting down")
            if self._pool is None:
                limits = self._limits
                pool = AsyncMonty(
                    min_processes=0,
                    max_processes=limits.containers + _SPARE_PROCESSES,
                    checkout_timeout=limits.run_timeout_s,
                    request_timeout=limits.run_timeout_s + limits.grace_timeout_s / 2,
                    max_checkouts_per_worker=1,
                )
                await pool.__aenter__()
                self._pool = pool
            return self._pool


async def _exit_session(session: "AsyncMontySession") -> None:
    from pydantic_monty import MontyError  # noqa: PLC0415  an extra

    try:
        await session.__aexit__(None, None, None)
    except (MontyError, RuntimeError, OSError) as error:
        log.warning("A process of code_interpreter did not end in order: %s", error)


def _cut_bytes(text: str, limit: int) -> str:
    """Returns the text, or its beginning with a note if it has more bytes than the limit."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return text
    note = f"\n[Cut: {len(encoded)} bytes in all.]\n"
    return encoded[: max(limit - len(note), 0)].decode(errors="ignore") + note
