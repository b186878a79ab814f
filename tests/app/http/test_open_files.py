"""Connections beyond the open files that the process may have: they are closed at once, and those that are open continue."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

NUM_ALLOWED, NUM_REFUSED = 8, 4
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SERVER = partial(serve, [{"name": "any", "output": ["Yes."]}])


@contextmanager
def limit_open_files(count: int) -> Iterator[None]:
    """Lets the process open `count` more files: all numbers below the limit, except these, are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        highest = max(int(entry.name) for entry in Path("/dev/fd").iterdir())
        while (taken := os.dup(0)) <= highest:
            stack.callback(os.close, taken)
        os.close(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + count, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


def ask(client: socket.socket) -> bool:
    """Sends a request. Returns whether it was answered; else the connection was closed."""
    try:
        client.sendall(REQUEST)
        return client.recv(4096).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def test_connection_beyond_the_open_files_is_closed_and_the_others_are_served(server: RunningServer) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(NUM_ALLOWED + NUM_REFUSED + 1)]
        for client in clients:
            client.settimeout(HANG_TIMEOUT_S)
        with limit_open_files(NUM_ALLOWED):
            answered = []
            for client in clients[:-1]:
                client.connect(("127.0.0.1", server.port))
                answered.append(ask(client))
            assert answered == [True] * NUM_ALLOWED + [False] * NUM_REFUSED
            assert all(map(ask, clients[:NUM_ALLOWED])), "open connections go on"
            clients[0].shutdown(socket.SHUT_WR)
            assert clients[0].recv(1) == b"", "the server has closed it"
            clients[-1].connect(("127.0.0.1", server.port))
            assert ask(clients[-1]), "a place is free again"
