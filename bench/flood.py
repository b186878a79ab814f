"""A burst of 1 000 requests: latency of the rejections, and of `/health` during the burst.

    python -m bench.flood

The connections are opened beforehand. Then one process sends all requests as fast as it can, while another polls
`/health`. The server is a process of its own whose engine runs 64 sequences and queues 64. Latencies are milliseconds
from the last byte of the request to the complete response.
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

from bench import scripted_server

MAX_NUM_SEQS = 64
MAX_WAITING = 64
OUTPUT_TOKENS = 200
BODY = json.dumps(
    {"model": "scripted", "input": scripted_server.case_prompt(OUTPUT_TOKENS, 1), "stream": False}
).encode()
GENERATION_REQUEST = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
) % (len(BODY), BODY)
HEALTH_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH_INTERVAL_S = 0.005
REQUESTS_PER_POLL = 10
"""Requests to send before responses are read: if all were sent first, the measured latencies would be too long."""


class Connection:
    """A connection with at most one request in flight."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._response = b""
        self._sent_at = 0.0

    def send_request(self, request: bytes) -> None:
        """Sends a request and starts its clock."""
        self._response = b""
        self.socket.sendall(request)
        self._sent_at = time.perf_counter()

    def read_response(self) -> tuple[str, float] | None:
        """Reads available data. Returns the status and the latency in ms once the response is complete, else None."""
        self._response += self.socket.recv(1 << 16)
        head, _, body = self._response.partition(b"\r\n\r\n")
        if not head:
            raise ConnectionError("the server closed the connection without a response")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or -1)
        latency_ms = (time.perf_counter() - self._sent_at) * 1e3
        return (self._response[9:12].decode(), latency_ms) if len(body) == length else None


def send_burst(port: int, count: int, rate: float) -> dict[str, list[float]]:
    """Sends `count` requests, `rate` per second, or if 0 all at once. Returns latencies in ms by status."""
    connections = [Connection(port) for _ in range(count)]
    time.sleep(1)  # until the server has accepted all of them
    waiting: dict[int, Connection] = {}
    latencies: dict[str, list[float]] = {}
    with select.epoll() as poll:

        def read_responses(timeout_s: float) -> None:
            for fd, _ in poll.poll(timeout_s):
                if response := waiting[fd].read_response():
                    poll.unregister(fd)
                    del waiting[fd]
                    latencies.setdefault(response[0], []).append(response[1])

        for index, connection in enumerate(connections, 1):
            connection.send_request(GENERATION_REQUEST)
            waiting[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
            if index % REQUESTS_PER_POLL == 0:
                read_responses(REQUESTS_PER_POLL / rate if rate else 0)
        while waiting:
            read_responses(60)
    return latencies


def poll_health(port: int) -> None:
    """Requests `/health` every 5 ms until stdin is closed, then prints the latencies as JSON."""
    connection, latencies = Connection(port), list[float]()
    while not select.select([sys.stdin], [], [], HEALTH_INTERVAL_S)[0]:
        connection.send_request(HEALTH_REQUEST)
        while not (response := connection.read_response()):
            pass
        latencies.append(response[1])
    print(json.dumps(latencies))


@contextmanager
def health_probe(port: int, latencies: dict[str, list[float]]) -> Iterator[None]:
    """Runs `poll_health` in a process of its own during the block and adds its result to `latencies`."""
    command = [sys.executable, "-m", "bench.flood", "--probe", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1)  # until it has started
        yield
        latencies["health"] = json.loads(process.communicate()[0])


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of requests, default 1000")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; default 0: all at once")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        poll_health(args.probe)
        return
    cases = [(OUTPUT_TOKENS, 1)]
    with scripted_server.start_scripted_server(cases, max_num_seqs=MAX_NUM_SEQS, max_waiting=MAX_WAITING) as (_, port):
        send_burst(port, 1, 0)
        latencies: dict[str, list[float]] = {}
        with health_probe(port, latencies):
            latencies |= send_burst(port, args.count, args.rate)
    print("| status | responses | p50 ms | p99 ms | max ms |\n|---|---|---|---|---|")
    for status, values in sorted(latencies.items()):
        percentiles = statistics.quantiles(values, n=100) if len(values) > 1 else values * 99
        print(
            f"| {status} | {len(values)} | {statistics.median(values):.1f} | {percentiles[98]:.1f} | {max(values):.1f} |"
        )


if __name__ == "__main__":
    main()
