"""The process of a server: its listening socket, its service manager, and the server that it replaces."""

import asyncio
import os
import socket
from collections.abc import MutableMapping

from antiphon.app.lifecycle.handover import RunningPredecessor, take_over
from antiphon.app.lifecycle.listeners import bind_socket, take_inherited_socket
from antiphon.app.lifecycle.service_manager import ServiceManager, take_service_manager
from antiphon.app.options.serve_options import ServeError
from antiphon.app.options.settings import Settings


class ServerProcess:
    """This process. `can_be_replaced`: it waits for one that is started with `--replace`."""

    def __init__(
        self,
        manager: ServiceManager | None = None,
        predecessor: RunningPredecessor | None = None,
        *,
        is_inherited: bool = False,
        can_be_replaced: bool = False,
    ) -> None:
        self.manager = manager or ServiceManager()
        self.predecessor, self.is_inherited, self.can_be_replaced = predecessor, is_inherited, can_be_replaced

    async def finish_start(self) -> None:
        """Tells the service manager that the server is ready, and the server that this one replaces to drain."""
        if self.predecessor is not None:
            await asyncio.to_thread(self.predecessor.drain)
        self.manager.report_ready()

    async def keep_alive(self) -> None:
        """Gives the watchdog of the service manager its signs of life, until it is cancelled."""
        while self.manager.watchdog_s:
            self.manager.report_alive()
            await asyncio.sleep(self.manager.watchdog_s / 2)


def open_process(
    settings: Settings, *, replace: bool, environment: MutableMapping[str, str] = os.environ
) -> tuple[ServerProcess, socket.socket]:
    """Returns this process and its listening socket, which is bound at least. Raises `ServeError`.

    The socket is that of the service manager; else with `replace`, that of the server to replace; else a new one.
    """
    manager, inherited = take_service_manager(environment), take_inherited_socket(environment)
    if inherited is not None:
        if replace:
            inherited.close()
            raise ServeError("--replace cannot be used with a socket of the service manager: restart the service")
        return ServerProcess(manager, is_inherited=True), inherited
    predecessor = take_over(settings.port) if replace and settings.port else None
    if predecessor is not None:
        return ServerProcess(manager, predecessor, can_be_replaced=True), predecessor.listener
    return ServerProcess(manager, can_be_replaced=True), bind_socket(settings)
