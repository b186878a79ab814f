"""SIGHUP: reads files again, or ends a server whose terminal was closed."""

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable


def handle_hangup(end: Callable[[], None], reload: Callable[[], Awaitable[object]]) -> None:
    """Makes SIGHUP end a server that runs in a terminal, as SIGTERM does, because its terminal was closed.

    Other servers read their files again, as service managers expect of it.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    in_terminal = sys.stderr is not None and sys.stderr.isatty()
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[object]] = set()

    async def run_reload() -> object:
        return await reload()

    def handle() -> None:
        if in_terminal:
            end()
            return
        task = loop.create_task(run_reload(), name="reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, handle)
