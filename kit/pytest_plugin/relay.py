"""A relay in front of a server: it copies bytes between clients and the server, unchanged, and records them.

It knows no HTTP, so cut frames, resets and half-closed connections reach the client as the server made them.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from antiphon.kit.proxy.exchange import reset_connection
from antiphon.kit.pytest_plugin.exchanges import ConnectionRecorder, RelayedExchange

RELAY_READ_BYTES = 65_536


OpenServer = Callable[[], AbstractAsyncContextManager[str]]


class ServerThread:
    """Runs an asynchronous server in a thread with an event loop of its own."""

    def __init__(self, open_server: OpenServer, name: str) -> None:
        self._open_server = open_server
        self.url = ""
        """Base URL of the server."""
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name=name, daemon=True)

    def start(self) -> None:
        """Starts the server, and returns when it listens. Raises the error of a server that cannot."""
        self._thread.start()
        self._is_ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stops the server."""
        if self._loop is not None and self._stopped is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001  raised in the thread of the test
            self._error = error
        finally:
            self._is_ready.set()

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with self._open_server() as self.url:
            self._is_ready.set()
            await self._stopped.wait()


class RecordingRelay(ServerThread):
    """Relays connections to a port of this machine, in a thread of its own."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(self._listen, "antiphon relay")
        self.exchanges: list[RelayedExchange] = []
        """All exchanges, in the order in which their requests came."""
        self._upstream_port = upstream_port
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def _listen(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept_client, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # Only `_listen` cancels. asyncio of Python 3.11 logs an error for a handler that ends as cancelled.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await self._relay_connection(reader, writer)
            finally:
                writer.transport.abort()  # drops nothing, unless the relay stops before the client has read all

    async def _relay_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            reset_connection(writer)
            return
        recorder = ConnectionRecorder(self.exchanges)
        to_server = asyncio.create_task(_copy_bytes(reader, upstream, recorder.add_request_bytes))
        to_client = asyncio.create_task(_copy_bytes(upstream_reader, writer, recorder.add_reply_bytes))
        try:
            await asyncio.wait((to_server, to_client), return_when=asyncio.FIRST_COMPLETED)
            if not to_client.done() and to_server.result():  # the client may send nothing more, and still read
                await to_client
            if to_client.done() and to_client.result():
                await _close(writer)
            else:
                reset_connection(writer)
        finally:
            upstream.transport.abort()
            for copying in (to_server, to_client):
                copying.cancel()
            await asyncio.gather(to_server, to_client, return_exceptions=True)


async def _copy_bytes(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Callable[[bytes], None]
) -> bool:
    """Copies to the end. Returns False if the connection was reset instead."""
    try:
        while data := await reader.read(RELAY_READ_BYTES):
            record(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        return False
    return True


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
