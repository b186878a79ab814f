"""Passes the listening socket of a running server on to the process that replaces it.

Both processes then accept connections from the same queue, so that none is refused when the old one stops to. The new
process asks for the socket at its start, and tells the old one to drain as soon as it is ready itself. They talk over a
Unix socket in the folder of the runtime file, which only their user can reach.

A port that both bind (SO_REUSEPORT) does not do this: when the old process closes its socket, the kernel resets the
connections that wait to be accepted there.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from antiphon.app.options.serve_options import ServeError
from antiphon.console.runtime_file import check_folder, runtime_folder

TAKE, DRAIN = b"take\n", b"drain\n"
TIMEOUT_S = 30.0
"""Time for each message between the two processes."""
_log = structlog.get_logger(__name__)


def handover_path(port: int) -> Path:
    """Returns the path of the Unix socket of the server on a port."""
    return runtime_folder() / f"{port}.sock"


class RunningPredecessor:
    """A running server whose listening socket this process has taken."""

    def __init__(self, connection: socket.socket, listener: socket.socket) -> None:
        self._connection, self.listener = connection, listener

    def drain(self) -> None:
        """Tells the server to accept no more connections, and to end when its turns have ended."""
        with contextlib.suppress(OSError), self._connection:
            self._connection.sendall(DRAIN)
            self._connection.recv(1)  # it has closed its listening sockets


def take_over(port: int) -> RunningPredecessor | None:
    """Returns the server that runs on a port with its listening socket; None if none runs. Raises `ServeError`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    try:
        check_folder(runtime_folder())
        connection.connect(str(handover_path(port)))
    except OSError:  # no file, one that a killed process has left, or a folder of another user
        connection.close()
        return None
    try:
        connection.sendall(TAKE)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError as error:
        connection.close()
        raise ServeError(f"--replace: the server on port {port} does not answer: {error.strerror or error}") from None
    if not descriptors:
        connection.close()
        raise ServeError(f"--replace: the server on port {port} is ending already; start without --replace")
    listener = socket.socket(fileno=descriptors[0])
    os.set_inheritable(listener.fileno(), False)
    return RunningPredecessor(connection, listener)


class HandoverListener:
    """Waits for a process that replaces this one. `on_drain` ends the acceptance of connections."""

    def __init__(self, listener: socket.socket, on_drain: Callable[[], None]) -> None:
        self._path, self._listener = handover_path(listener.getsockname()[1]), listener
        self._on_drain = on_drain
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to listen, in place of the process that this one replaces. Logs a folder that cannot be used."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            check_folder(self._path.parent)
            bound.setblocking(False)
            partial = self._path.with_suffix(f".{os.getpid()}.new")
            partial.unlink(missing_ok=True)
            bound.bind(str(partial))
            partial.chmod(0o600)
            bound.listen(1)
            status = partial.stat()
            partial.replace(self._path)
        except OSError as error:
            bound.close()
            _log.warning("this server cannot be replaced by --replace", reason=str(error))
            return
        self._socket, self._identity = bound, (status.st_dev, status.st_ino)
        self._task = asyncio.create_task(self._run(bound), name="handover")

    async def close(self) -> None:
        """Stops to listen. The file stays if it is that of another process by now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):
                status = self._path.stat()
                if (status.st_dev, status.st_ino) == self._identity:
                    self._path.unlink()

    async def _run(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(bound)
            with connection:
                try:
                    if await self._serve(loop, connection):
                        return
                except (OSError, TimeoutError) as error:
                    _log.warning("a process that would replace this one has left", reason=str(error))

    async def _serve(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bool:
        """Passes the socket on. Returns True once the other process has taken over."""
        if await asyncio.wait_for(loop.sock_recv(connection, len(TAKE)), TIMEOUT_S) != TAKE:
            return False
        socket.send_fds(connection, [b"\n"], [self._listener.fileno()])
        _log.info("another process is starting in place of this one")
        if await loop.sock_recv(connection, len(DRAIN)) != DRAIN:  # its model may load for hours
            _log.warning("the other process has ended; this one stays")
            return False
        _log.info("another process has taken over")
        self._on_drain()
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.send(b"\n")
        return True
