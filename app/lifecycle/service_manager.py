"""Messages to a service manager such as systemd: sd_notify(3) and its watchdog."""

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

from msgspec import Struct

USEC_PER_S = 1e6
"""Microseconds of a second: the unit of systemd's times."""


class ServiceManager(Struct):
    """A service manager that this process reports to; without an address, each report does nothing."""

    address: str = ""
    """Path of its datagram socket; one that begins with `@` is abstract."""
    watchdog_s: float = 0.0
    """Time without a sign of life after which it ends this process; 0: never."""

    def report_ready(self) -> None:
        """Tells that the server accepts requests; `systemctl status` shows it."""
        self._send("READY=1", "STATUS=ready")

    def report_reload(self) -> None:
        """Tells that a reload has begun; `report_ready` tells its end."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(time.clock_gettime(time.CLOCK_MONOTONIC) * USEC_PER_S)}")

    def report_stopping(self) -> None:
        """Tells that the server ends."""
        self._send("STOPPING=1")

    def report_alive(self) -> None:
        """Gives the watchdog a sign of life."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self.address:
            return
        path = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        message = "\n".join(line.replace("\n", " ") for line in lines).encode()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message, path)


def take_service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """Returns the service manager of this process, and removes its variables: child processes do not report."""
    address = environment.pop("NOTIFY_SOCKET", "")
    usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    is_watched = usec.isdecimal() and pid in ("", str(os.getpid()))
    if not address.startswith(("/", "@")):
        return ServiceManager()
    return ServiceManager(address, int(usec) / USEC_PER_S if is_watched else 0.0)
