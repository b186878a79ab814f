"""A thousand requests at once: how soon the refused ones hear of it, and how soon health answers meanwhile.

    python -m tests.bench.flood

The connections are open before; then every request is sent as fast as one process can, and health is asked by another
one. The server is a process of its own whose engine takes 64 turns and lets 64 wait. Milliseconds, from the last byte
sent to the whole answer.
"""

import argparse
import json
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench import scripted_server

BODY = json.dumps({"model": "scripted", "input": "say 200 by 1.", "stream": False}).encode()
ASK = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Line:
    """One connection, one request."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._said = b""
        self._begun = 0.0

    def ask(self, request: bytes) -> None:
        """Send it."""
        self._said = b""
        self.socket.sendall(request)
        self._begun = time.perf_counter()

    def hear(self) -> tuple[str, float] | None:
        """Read what is there; the status and the milliseconds it took, once the answer is whole."""
        self._said += self.socket.recv(1 << 16)
        head, _, body = self._said.partition(b"\r\n\r\n")
        if not head:
            raise ConnectionError("closed without an answer")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
        took = (time.perf_counter() - self._begun) * 1e3
        return (self._said[9:12].decode(), took) if len(body) == length else None


def flood(port: int, count: int, rate: float) -> dict[str, list[float]]:
    """Milliseconds by what was answered; `rate` requests a second, 0: all at once."""
    lines = [Line(port) for _ in range(count)]
    time.sleep(1)  # the server has taken them, too
    waiting: dict[int, Line] = {}
    found: dict[str, list[float]] = {}
    with select.epoll() as poll:

        def hear(seconds: float) -> None:
            for number, _ in poll.poll(seconds):
                if answer := waiting[number].hear():
                    poll.unregister(number)
                    del waiting[number]
                    found.setdefault(answer[0], []).append(answer[1])

        for number, line in enumerate(lines):
            line.ask(ASK % (len(BODY), BODY))
            waiting[line.socket.fileno()] = line
            poll.register(line.socket, select.EPOLLIN)
            if number % 10 == 9:  # who only sends hears late
                hear(10 / rate if rate else 0)
        while waiting:
            hear(60)
    return found


def probe(port: int) -> None:
    """Ask for health every five milliseconds until nobody listens any more; print what it took."""
    line, took = Line(port), list[float]()
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        line.ask(HEALTH)
        while not (answer := line.hear()):
            pass
        took.append(answer[1])
    print(json.dumps(took))


@contextmanager
def probed(port: int, found: dict[str, list[float]]) -> Iterator[None]:
    """`probe` in a process of its own, meanwhile."""
    words = [sys.executable, "-m", "tests.bench.flood", "--probe", str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        time.sleep(1)  # it has begun
        yield
        found["health"] = json.loads(child.communicate()[0])


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--count", type=int, default=1000)
    words.add_argument("--rate", type=float, default=0.0, help="requests a second; 0: all at once")
    words.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.probe:
        probe(asked.probe)
        return
    with scripted_server.server([(200, 1)], max_num_seqs=64, max_waiting=64) as (_, port):
        flood(port, 1, 0)
        found: dict[str, list[float]] = {}
        with probed(port, found):
            found |= flood(port, asked.count, asked.rate)
    print("| answer | count | median ms | 99 % | worst |\n|---|---|---|---|---|")
    for name, took in sorted(found.items()):
        cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
        print(f"| {name} | {len(took)} | {statistics.median(took):.1f} | {cuts[98]:.1f} | {max(took):.1f} |")


if __name__ == "__main__":
    main()
