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
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING

from antiphon.app.tools.code.code_cells import clean_traceback, is_parse_error, list_cells
from antiphon.app.tools.code.code_outcome import CodeLimits, CodeOutcome, join_logs

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, AsyncMontySession, CollectString

log = logging.getLogger(__name__)

MAX_CODE_BYTES = 256 * 1024
_MAX_KEPT_OUTPUT_BYTES = 1 << 20
"""Length of the output at which a run is ended. More than is shown, so that a long table does not end a run."""
_MAX_SUSPENSIONS = 100_000
"""Calls of a session that its parent answers: attempts to open files, sleeps."""
NOT_FOUND = "Container with id '{id}' not found."
FORGOTTEN = "[The variables of this container were too large to be kept while it was idle. It has none now.]\n"
_ENDED = "The process that runs the code has failed."
_SPARE_PROCESSES = 8
"""Processes that have not ended yet while the next ones start."""


class _CodeContainer:
    """The variables of one container, in `session` while its process lives. `users` counts runs that want it.

    Without a process, `saved` has the variables; None if it has none. `is_forgotten`: they were too large for that.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.session: AsyncMontySession | None = None
        self.saved: bytes | None = None
        self.is_forgotten = False
        self.users = 0
        self.lock = asyncio.Lock()
        self.timers: list[asyncio.TimerHandle] = []

    def stop_timers(self) -> None:
        """Stops what would happen to an idle container."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


def check_extra() -> None:
    """Raises `ValueError` if the packages that run code are not installed."""
    if importlib.util.find_spec("pydantic_monty") is None:
        raise ValueError("code_interpreter needs a package that is not installed: pip install 'antiphon[code]'")


class CodeRunner:
    """The containers of a server. A container gets a process with its first run.

    When there is no room for a container, the one whose last run is longest ago loses its variables: one of the owner
    who has most, so that nobody displaces the containers of others by opening many.
    """

    def __init__(self, limits: CodeLimits | None = None) -> None:
        self._limits = limits or CodeLimits()
        self._containers: dict[str, _CodeContainer] = {}
        """By id, the one whose last run is longest ago first."""
        self._places = asyncio.Semaphore(self._limits.concurrent_runs)
        self._pool: AsyncMonty | None = None
        self._pool_lock = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def sessions(self) -> "dict[str, AsyncMontySession | None]":
        """The sessions of containers by their ids, the one whose last run is longest ago first. None: it has ended."""
        return {container_id: container.session for container_id, container in self._containers.items()}

    def has_container(self, owner: str, container_id: str) -> bool:
        """Tells whether the owner has this container. Those of other owners are as unknown as those that never were."""
        container = self._containers.get(container_id)
        return container is not None and container.owner == owner

    async def run(self, owner: str, container_id: str, code: str, *, may_create: bool = True) -> CodeOutcome:
        """Runs code in a container of the owner, which begins with this run if it is unknown and `may_create` is true.

        A run that is cancelled, or that meets a limit of time or memory, costs its container the variables.
        """
        if self._is_closed:
            return CodeOutcome(logs="", error="The server is shutting down.")
        if len(code.encode(errors="replace")) > MAX_CODE_BYTES:
            return CodeOutcome(logs="", error=f"The code is longer than {MAX_CODE_BYTES} bytes. Run a shorter part.")
        container = self._containers.get(container_id)
        if not may_create if container is None else container.owner != owner:
            return CodeOutcome(logs="", error=NOT_FOUND.format(id=container_id))
        if container is None and not self._make_room(owner):
            return CodeOutcome(logs="", error="All containers of the server are running code. Try again later.")
        container = container or _CodeContainer(owner)
        self._containers.pop(container_id, None)
        self._containers[container_id] = container
        container.users += 1
        container.stop_timers()
        try:
            async with container.lock, self._places:
                return await self._run_cell(container, code)
        finally:
            container.users -= 1
            if container.users == 0 and self._containers.get(container_id) is container:
                self._start_timers(container_id, container)

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

        output, loop = CollectString(_MAX_KEPT_OUTPUT_BYTES), asyncio.get_running_loop()
        traceback, error, is_lost, started_s = "", None, True, loop.time()
        try:
            async with asyncio.timeout(self._limits.run_timeout_s + self._limits.grace_timeout_s):
                session = container.session or await self._restore_session(container)
                started_s = loop.time()
                traceback, error = await self._feed_cells(session, code, output)
            if loop.time() - started_s >= self._limits.run_timeout_s:
                error = error or self._timeout_error()  # the interpreter cuts a sleep short, and continues
            is_lost = session.worker_pid is None or error in (self._timeout_error(), self._memory_error())
        except TimeoutError:
            error = self._timeout_error()
        except (MontyError, RuntimeError, OSError) as failure:
            error = self._describe_failure(failure)
        finally:
            if is_lost:
                container.saved = None
                self._end_session(container)
        if is_lost:
            error = f"{error or _ENDED} The container has no variables now."
        note, container.is_forgotten = FORGOTTEN if container.is_forgotten else "", False
        return CodeOutcome(logs=join_logs(note, output.output, traceback, self._limits.log_bytes), error=error)

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

    # --- Containers and their processes

    def _make_room(self, owner: str) -> bool:
        """Drops a container if there are as many as may be, of all or of one owner. Returns whether there is room."""
        counts = Counter(container.owner for container in self._containers.values())
        is_full = counts[owner] >= self._limits.containers_of_owner
        if not is_full and len(self._containers) < self._limits.containers:
            return True
        idle = [
            key
            for key, container in self._containers.items()
            if container.users == 0 and (not is_full or container.owner == owner)
        ]
        if not idle:
            return False
        self._drop_container(max(idle, key=lambda key: counts[self._containers[key].owner]))
        return True

    def _start_timers(self, container_id: str, container: _CodeContainer) -> None:
        loop, limits = asyncio.get_running_loop(), self._limits
        container.timers = [
            loop.call_later(limits.idle_timeout_s, self._drop_container, container_id),
            loop.call_later(limits.process_idle_timeout_s, lambda: self._track_end(self._save_session(container))),
        ]

    async def _save_session(self, container: _CodeContainer) -> None:
        """Ends the process of an idle container and keeps its variables, unless they are too large."""
        from pydantic_monty import MontyError  # noqa: PLC0415  an extra

        async with container.lock:
            if container.session is None or container.users:
                return
            saved: bytes | None = None
            with suppress(MontyError, RuntimeError, OSError, TimeoutError):
                async with asyncio.timeout(self._limits.grace_timeout_s):
                    saved = await container.session.dump()
            container.is_forgotten = saved is None or len(saved) > self._limits.saved_bytes
            container.saved = None if container.is_forgotten else saved
            self._end_session(container)

    async def _restore_session(self, container: _CodeContainer) -> "AsyncMontySession":
        """Starts the process of a container, with the variables that were kept."""
        session = container.session = await self._open_session()
        if container.saved is not None:
            await session.load_session(container.saved)
            container.saved = None
        return session

    def _drop_container(self, container_id: str) -> None:
        container = self._containers.pop(container_id)
        container.stop_timers()
        self._end_session(container)

    def _end_session(self, container: _CodeContainer) -> None:
        """Ends the process of a container in a task of its own, which a cancelled run does not wait for."""
        if (session := container.session) is not None:
            container.session = None
            self._track_end(_exit_session(session))

    def _track_end(self, work: Coroutine[None, None, None]) -> None:
        end = asyncio.get_running_loop().create_task(work)
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
