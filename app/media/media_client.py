"""Asks the sandbox's processes about pictures and PDFs, and remembers which bytes cannot be read."""

import structlog

from antiphon.app.media.media_fault import MediaFault, raise_fault
from antiphon.app.media.media_queue import MediaQueue
from antiphon.app.media.prepared_image import KnownImages
from antiphon.app.sandbox.media.media_process import MediaAnswer, MediaProcess
from antiphon.app.sandbox.media.messages import FaultReply, MediaRequest
from antiphon.app.sandbox.sandbox_process import SandboxError

MAX_KNOWN_FAULTS = 4096
PASSING_FAULTS = frozenset({"busy", "unavailable"})
"""Faults of the server. The same bytes have all others again, so they are not read again."""
_log = structlog.get_logger(__name__)


class MediaClient:
    """Exchanges messages with processes that run `module`."""

    def __init__(self, module: str, num_processes: int, cpu_limit_s: float) -> None:
        self._queue = MediaQueue([MediaProcess(module, cpu_limit_s) for _ in range(num_processes)])
        self._faults: KnownImages[FaultReply] = KnownImages(MAX_KNOWN_FAULTS)
        self._has_told = False

    @property
    def processes(self) -> tuple[MediaProcess, ...]:
        """The processes, running or not."""
        return self._queue.processes

    @property
    def num_restarts(self) -> int:
        """Number of processes that ended during a message."""
        return sum(process.num_restarts for process in self.processes)

    async def ask(self, owner: str, place: bytes, request: MediaRequest, data: bytes) -> MediaAnswer:
        """Returns the answer. Raises `MediaFault`; one that lasts is remembered under `place`."""
        if (fault := self._faults.get(place)) is not None:
            raise_fault(fault)
        try:
            answer = await self._queue.exchange(owner, request, data)
        except SandboxError as error:
            raise refuse(str(error)) from error
        self._tell_missing()
        if isinstance(answer.reply, FaultReply):
            if answer.reply.code not in PASSING_FAULTS:
                self._faults.put(place, answer.reply)
            raise_fault(answer.reply)
        return answer

    def _tell_missing(self) -> None:
        """Logs once which limits the system does not offer to the processes."""
        if self._has_told:
            return
        self._has_told = True
        missing = next((process.missing for process in self.processes if process.pid is not None), ())
        if missing:
            _log.info(f"Media   : this system does not offer {', '.join(missing)} to processes that read files")

    async def close(self) -> None:
        """Ends the processes."""
        await self._queue.close()


def refuse(reason: str) -> MediaFault:
    """Logs a reason for the operator. Returns the fault for the client, which does not name it."""
    _log.error(f"Media   : {reason}")
    return MediaFault("unavailable")
