"""Pictures that wait for a process: owners take turns, so that one with many pictures does not hold up the others."""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from antiphon.app.media.media_fault import MediaFault
from antiphon.app.sandbox.media.media_process import MediaAnswer, MediaProcess
from antiphon.app.sandbox.media.messages import MediaRequest

MAX_WAITING_MEDIA = 1024
"""Messages that may wait for a process, of all owners together."""
MAX_WAITING_OF_OWNER = 512
"""Messages of one owner that may wait. A request may have a hundred pictures."""


class _Waiting(Struct, frozen=True, eq=False):
    request: MediaRequest
    payload: bytes
    answer: asyncio.Future[MediaAnswer]


class MediaQueue:
    """Hands messages to processes, each of which answers one at a time. Belongs to one event loop."""

    def __init__(self, processes: Sequence[MediaProcess], max_waiting: int = MAX_WAITING_MEDIA) -> None:
        self.processes = tuple(processes)
        self._idle = deque(self.processes)
        self._executor = ThreadPoolExecutor(len(self.processes), "media")
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self._num_waiting = 0
        self._max_waiting = max_waiting

    async def exchange(self, owner: str, request: MediaRequest, payload: bytes) -> MediaAnswer:
        """Returns the answer. Raises `MediaFault` "busy" if too many wait, or `SandboxError`.

        If the caller is cancelled while the message waits, it is dropped.
        """
        queue = self._waiting.get(owner)
        if self._num_waiting >= self._max_waiting or (queue is not None and len(queue) >= MAX_WAITING_OF_OWNER):
            raise MediaFault("busy")
        waiting = _Waiting(request, payload, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(owner, deque()).append(waiting)
        self._num_waiting += 1
        self._start_next()
        return await waiting.answer

    def _start_next(self) -> None:
        """Gives each idle process the next message of the owner whose turn it is."""
        while self._idle and (waiting := self._pop_next()) is not None:
            task = asyncio.create_task(self._run(self._idle.popleft(), waiting))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _pop_next(self) -> _Waiting | None:
        while self._waiting:
            owner, queue = self._waiting.popitem(last=False)
            waiting = queue.popleft()
            self._num_waiting -= 1
            if queue:
                self._waiting[owner] = queue
            if not waiting.answer.done():  # else its caller was cancelled
                return waiting
        return None

    async def _run(self, process: MediaProcess, waiting: _Waiting) -> None:
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._executor, process.ask, waiting.request, waiting.payload)
        except Exception as error:  # noqa: BLE001  the caller gets it
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
        else:
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
            elif answer.descriptor is not None:
                os.close(answer.descriptor)
        finally:
            self._idle.append(process)
            self._start_next()

    async def close(self) -> None:
        """Drops what waits, kills the processes and waits for the messages that run."""
        for queue in self._waiting.values():
            for waiting in queue:
                waiting.answer.cancel()
        self._waiting.clear()
        self._num_waiting = 0
        for process in self.processes:
            process.close()
        if self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown()
