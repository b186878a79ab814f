"""Latency that `antiphon check --proxy` adds: `python -m bench.proxy_overhead`.

A server in a process of its own writes the time into each event, one event every `EVENT_INTERVAL_S` seconds. The client
subtracts it from the time of arrival, without the proxy and through it, in alternating rounds. The proxy, a third
process, checks every event. Printed are the time to the first event, from the request on, and the time from the
server's write of an event to the client's read, as median and p99 of all rounds; and the time of short requests that
follow each other, which a proxy answers without the pauses in which caches go cold and connections are closed.
"""

import argparse
import asyncio
import json
import re
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence

from antiphon.kit.checker.stream import check_events
from antiphon.kit.proxy.check_proxy import open_check_proxy
from antiphon.kit.proxy.exchange import ServerExchange
from antiphon.kit.proxy.server import run_server
from bench.scripted_server import start_server_module
from bench.stats import quantile
from bench.stream_client import LAST_CHUNK, StreamClient

EVENT_INTERVAL_S = 0.02
EVENTS = 100
STREAM_COUNTS = (1, 16)
REQUESTS = 50
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
DELTA = re.compile(rb'"delta":"(\d+) "')
Latencies = tuple[list[float], list[float]]
"""Time to the first event, and time of each event from server to client, in milliseconds."""


class TimedStream:
    """The events of a legal stream, whose deltas are the times at which they are written."""

    def __init__(self) -> None:
        self._number = 0
        self._text = ""

    def begin(self) -> list[dict[str, object]]:
        response = make_response("in_progress", [])
        return [
            self._number_event("response.created", response=response),
            self._number_event("response.in_progress", response=response),
            self._number_event("response.output_item.added", output_index=0, item=ITEM),
            self._number_event("response.content_part.added", **PLACE, part=PART),
        ]

    def write_time(self) -> dict[str, object]:
        delta = f"{time.monotonic_ns()} "
        self._text += delta
        return self._number_event("response.output_text.delta", **PLACE, delta=delta, logprobs=[])

    def end(self) -> list[dict[str, object]]:
        part = PART | {"text": self._text}
        item = ITEM | {"status": "completed", "content": [part]}
        return [
            self._number_event("response.output_text.done", **PLACE, text=self._text, logprobs=[]),
            self._number_event("response.content_part.done", **PLACE, part=part),
            self._number_event("response.output_item.done", output_index=0, item=item),
            self._number_event("response.completed", response=make_response("completed", [item])),
        ]

    def _number_event(self, kind: str, **fields: object) -> dict[str, object]:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def make_response(status: str, output: list[object]) -> dict[str, object]:
    """Returns a Response with all keys."""
    is_completed = status == "completed"
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 1, "output_tokens": EVENTS, "total_tokens": EVENTS + 1, **details}
    nulls = (
        "incomplete_details previous_response_id instructions error reasoning max_output_tokens max_tool_calls "
        "service_tier safety_identifier prompt_cache_key top_logprobs"
    ).split()
    return dict.fromkeys(nulls) | {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "completed_at": 2 if is_completed else None,
        "status": status,
        "model": "timed",
        "output": output,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "temperature": 1.0,
        "usage": usage if is_completed else None,
        "store": False,
        "background": False,
        "metadata": {},
    }


async def answer_timed(exchange: ServerExchange) -> None:
    """Writes a timed stream."""
    await exchange.read_body()
    if exchange.request.method == "GET":
        await exchange.send_json(200, {"object": "list", "data": []})
        return
    stream = TimedStream()
    exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
    started_at = time.monotonic()
    for event in stream.begin():
        exchange.write_data(frame(event))
    for index in range(EVENTS):
        exchange.write_data(frame(stream.write_time()))
        await asyncio.sleep(max(started_at + (index + 1) * EVENT_INTERVAL_S - time.monotonic(), 0))
    for event in stream.end():
        exchange.write_data(frame(event))
    exchange.write_data(b"data: [DONE]\n\n")
    exchange.end_reply()


def frame(event: dict[str, object]) -> bytes:
    """Returns an event as it is sent."""
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def measure_latencies(port: int, streams: int) -> Latencies:
    """Reads concurrent streams to their ends."""
    body = {"model": "timed", "input": "Go", "stream": True}
    clients = [StreamClient(port, body) for _ in range(streams)]
    running = {client.socket.fileno(): client for client in clients}
    tails = dict.fromkeys(running, b"")
    firsts: dict[int, float] = {}
    latencies: list[float] = []
    with select.epoll() as poll:
        for fd in running:
            poll.register(fd, select.EPOLLIN)
        while running:
            for fd, _ in poll.poll():
                data = running[fd].socket.recv(1 << 18)
                now_ns = time.monotonic_ns()
                if not data:
                    raise ConnectionError(tails[fd][-300:])
                firsts.setdefault(fd, (time.perf_counter() - running[fd].started_at) * 1e3)
                received = tails[fd] + data
                end = 0
                for match in DELTA.finditer(received):
                    latencies.append((now_ns - int(match[1])) / 1e6)
                    end = match.end()
                tails[fd] = received[end:][-4096:]
                if received.endswith(LAST_CHUNK):
                    poll.unregister(fd)
                    running.pop(fd).socket.close()
    return list(firsts.values()), latencies


def measure_requests(port: int) -> list[float]:
    """Returns the milliseconds of short requests, one after the other, each on a connection of its own."""
    durations = []
    for _ in range(REQUESTS):
        started_at = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.recv(1 << 16)
        durations.append((time.perf_counter() - started_at) * 1e3)
    return durations


def run_rounds(rounds: int) -> dict[tuple[int, str], Latencies]:
    """Returns all samples by (number of streams, path)."""
    samples: dict[tuple[int, str], Latencies] = {}
    with (
        start_server_module("bench.proxy_overhead", "--serve") as (_, server_port),
        start_server_module("bench.proxy_overhead", "--proxy", str(server_port)) as (_, proxy_port),
    ):
        ports = {"direct": server_port, "through the proxy": proxy_port}
        for round_index in range(-1, rounds):  # the first round is the warm-up
            for name, port in ports.items():
                durations = measure_requests(port)
                if round_index >= 0:
                    samples.setdefault((0, name), ([], []))[0].extend(durations)
            for streams in STREAM_COUNTS:
                for name, port in ports.items():
                    firsts, latencies = measure_latencies(port, streams)
                    if round_index >= 0:
                        all_firsts, all_latencies = samples.setdefault((streams, name), ([], []))
                        all_firsts += firsts
                        all_latencies += latencies
    return samples


async def serve_timed() -> None:
    """Serves timed streams on a free port, which is printed."""
    async with run_server(answer_timed, "127.0.0.1", 0) as port:
        print(port, flush=True)
        await asyncio.Event().wait()


async def serve_proxy(server_port: str) -> None:
    """Runs the proxy on a free port, which is printed."""
    async with open_check_proxy(f"http://127.0.0.1:{server_port}", "127.0.0.1", 0, discard_report) as url:
        print(url.rsplit(":", 1)[1].partition("/")[0], flush=True)
        await asyncio.Event().wait()


def discard_report(report: object) -> None:
    """Takes a report, as the command does, but prints nothing."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds, default 10")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--proxy", metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve:
        asyncio.run(serve_timed())
        sys.exit()
    if args.proxy:
        asyncio.run(serve_proxy(args.proxy))
        sys.exit()
    stream = TimedStream()
    events = [*stream.begin(), stream.write_time(), *stream.end()]
    assert not check_events(events), check_events(events)
    print(
        f"Milliseconds, medians of {args.rounds} rounds, p99 in parentheses; an event every {EVENT_INTERVAL_S * 1e3:g} ms\n"
    )
    print("| streams | path | first event | each event |\n|---|---|---|---|")
    for (streams, name), latencies in run_rounds(args.rounds).items():
        cells = (
            f"{statistics.median(values):.2f} ({quantile(values, 0.99):.2f})" if values else "" for values in latencies
        )
        print(f"| {streams or 'short requests'} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
