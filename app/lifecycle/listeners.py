"""Listening sockets: bound by this process, or inherited from a service manager."""

import os
import socket
from collections.abc import MutableMapping

from antiphon.app.options.serve_options import ServeError
from antiphon.app.options.settings import Settings

FIRST_INHERITED_FD = 3
"""Number of the first socket that systemd passes on: sd_listen_fds(3)."""


def bind_socket(settings: Settings) -> socket.socket:
    """Returns a socket that is bound to the configured address but does not listen. Raises `ServeError`."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if settings.reuse_port:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ServeError(f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port") from None
    return listener


def take_inherited_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """Returns the listening socket that a service manager has passed to this process; None if there is none.

    Removes the variables, so that no child process takes the socket for its own. Raises `ServeError`.
    """
    sent = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if sent["LISTEN_PID"] != str(os.getpid()) or not sent["LISTEN_FDS"].isdecimal() or sent["LISTEN_FDS"] == "0":
        return None
    if sent["LISTEN_FDS"] != "1":
        raise ServeError(f"the service manager passes {sent['LISTEN_FDS']} sockets; pass one, for HTTP")
    try:
        os.set_inheritable(FIRST_INHERITED_FD, False)
        listener = socket.socket(fileno=FIRST_INHERITED_FD)
        is_usable = listener.type == socket.SOCK_STREAM and listener.family in (socket.AF_INET, socket.AF_INET6)
    except OSError as error:
        raise ServeError(f"the socket of the service manager cannot be used: {error.strerror or error}") from None
    if not is_usable:
        listener.detach()
        raise ServeError("the socket of the service manager is none for TCP; use ListenStream= with a port")
    return listener
