"""Two real servers behind Antiphon, killed again and again: no client's stream shows it.

Every round begins streams and kills servers while these are in the middle: one of two, whose streams continue at the other;
both at once; one, then the other. With both gone, the streams wait and continue after the restart. Most streams are calls of
a strict tool, long enough to be cut: over the seam, each must be valid. `ANTIPHON_TEST_FULL=1` kills llama.cpp 100 times,
until 200 calls were cut, and vLLM, whose start takes a minute or more, 16 times.
"""

import json
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from antiphon.engine.remote.options import RemoteTimeouts
from tests.codex.codex_process import API_KEY
from tests.counts import FULL_COUNTS
from tests.invariants import check_stream
from tests.progress import wait_with_progress
from tests.prove.live_engines import KINDS, VLLM_FLAGS, Kind, LiveServer, serve_over
from tests.serving import RunningServer

MIN_COUNTS: dict[Kind, tuple[int, int]] = (
    {"vllm": (16, 40), "llama.cpp": (100, 200)} if FULL_COUNTS else {"vllm": (2, 2), "llama.cpp": (4, 4)}
)
"""Kills of servers that had streams, and calls that were cut."""
ROUNDS = (((0,), ()), ((0, 1), ()), ((1,), ()), ((0,), (1,)), ((1,), (0,)))
"""Indices of the servers that a round kills first, and later. If the first one has no streams, the other is."""
NUM_STREAMS, NUM_TEXTS = 4, 1
"""Streams of a round. The last ones are text of a fixed length, all others are calls."""
TEXT_TOKENS = 200
MIN_WORDS, MAX_WORDS = 6, 9
"""Words of a call. Behind a seam, random weights leave the grammar at nearly every token, which takes two requests each."""
MAX_DELTAS = 4
"""A call has more deltas. So far, at most, streams are when a server is killed."""
PATIENT = RemoteTimeouts(continue_within_s=900.0, retry_window_s=900.0, health_timeout_s=60.0)
"""A busy machine may stop this process for longer than the usual limits, at which a new job is refused."""
TOOL = {
    "type": "function",
    "name": "list_words",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "words": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[a-z]{2,4}$"},
                "minItems": MIN_WORDS,
                "maxItems": MAX_WORDS,
            },
        },
        "required": ["words"],
        "additionalProperties": False,
    },
}
DELTAS = ("response.function_call_arguments.delta", "response.output_text.delta")
LLAMA_OPTIONS = {"num_slots": NUM_STREAMS, "slot_context": 2048}


class ClientStream:
    """A stream that a client reads in a thread of `pool`."""

    def __init__(self, pool: ThreadPoolExecutor, server: RunningServer, number: int, *, is_call: bool) -> None:
        self.is_call, self.num_deltas = is_call, 0
        self._fields: dict[str, Any] = {"max_output_tokens": TEXT_TOKENS, "temperature": 0}
        if is_call:
            self._fields = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
            self._fields |= {"max_output_tokens": 1500}
        self._future: Future[dict[str, Any]] = pool.submit(self._read, server, number)

    def _read(self, server: RunningServer, number: int) -> dict[str, Any]:
        client = OpenAI(base_url=server.url, api_key=API_KEY, max_retries=0)
        events = []
        with client.responses.create(
            model="tiny",
            input=f"words {number}",
            reasoning={"effort": "none"},
            stream=True,
            store=False,
            **self._fields,
        ) as stream:
            for event in stream:
                events.append(event.to_dict())
                self.num_deltas += event.type in DELTAS
        return check_stream(events)

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def check(self) -> str:
        """Waits for the end, and checks the response. Returns its id."""
        response = self._future.result()
        if not self.is_call:  # random weights may end a text
            assert response["usage"]["output_tokens"] == TEXT_TOKENS or response["status"] == "completed", response
            return str(response["id"])
        assert response["status"] == "completed", response
        (call,) = (item for item in response["output"] if item["type"] == "function_call")
        arguments = json.loads(call["arguments"])
        assert arguments.keys() == {"words"} and MIN_WORDS <= len(arguments["words"]) <= MAX_WORDS
        assert all(re.fullmatch("[a-z]{2,4}", word) for word in arguments["words"])
        return str(response["id"])


class KilledPair:
    """Two servers, and Antiphon in front of them."""

    def __init__(self, servers: Sequence[LiveServer], antiphon: RunningServer) -> None:
        self.servers, self.antiphon = servers, antiphon
        self.num_kills = Counter[int]()
        """Kills by index, of servers that had streams in the middle."""

    def kill(self, indices: Sequence[int]) -> None:
        """Kills servers one after the other, without waiting in between."""
        running = [self.count_running(index) for index in indices]
        for index, count in zip(indices, running, strict=True):
            self.num_kills[index] += count > 0
            self.servers[index].kill()

    def count_running(self, index: int) -> int:
        """Returns the number of streams that have a token of this server."""
        return int(self.antiphon.engine.replicas[index].stats.running)

    def restart(self, pool: ThreadPoolExecutor, indices: Sequence[int]) -> None:
        """Starts servers at the same time."""
        list(pool.map(lambda index: self.servers[index].start(), indices))

    def wait_ready(self) -> None:
        """Waits until both servers take jobs."""
        replicas = self.antiphon.engine.replicas
        wait_until(lambda: all(replica.profile is not None for replica in replicas), "a handshake")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits as long as this process or a server of its makes progress."""
    wait_with_progress(condition, what)


@contextmanager
def run_pair(kind: Kind) -> Iterator[KilledPair]:
    flags = VLLM_FLAGS if kind == "vllm" else ()
    servers = [LiveServer(kind, *flags, name=f"-{number}", **LLAMA_OPTIONS) for number in range(2)]
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            list(pool.map(LiveServer.start, servers))
        with serve_over(*(server.url for server in servers), timeouts=PATIENT) as antiphon:
            yield KilledPair(servers, antiphon)
    finally:
        for server in servers:
            server.terminate()


def find_cut_ids(records: Sequence[logging.LogRecord]) -> Counter[str]:
    """Returns how often each response continued after tokens, by its id."""
    lines = (record.getMessage() for record in records)
    found = (re.match(r"job (\S+) is tried again after (\d+) tokens", line) for line in lines)
    return Counter(match[1] for match in found if match and match[2] != "0")


def run_round(pair: KilledPair, pool: ThreadPoolExecutor, number: int, rng: random.Random) -> list[tuple[str, bool]]:
    """Runs streams while servers are killed, and starts these again. Returns the streams' ids, and if they are calls."""
    pair.wait_ready()
    streams = [
        ClientStream(pool, pair.antiphon, NUM_STREAMS * number + index, is_call=index < NUM_STREAMS - NUM_TEXTS)
        for index in range(NUM_STREAMS)
    ]

    def wait_for_deltas(count: int) -> None:
        starts = [stream.num_deltas for stream in streams]
        wait_until(
            lambda: all(
                stream.is_done or stream.num_deltas >= start + count
                for stream, start in zip(streams, starts, strict=True)
            ),
            "the streams stand still",
        )

    first, second = map(list, ROUNDS[number % len(ROUNDS)])
    wait_for_deltas(rng.randint(1, MAX_DELTAS))
    if not pair.count_running(first[0]):
        first, second = [1 - index for index in first], [1 - index for index in second]
    pair.kill(first)
    if second:
        wait_for_deltas(1)
        pair.kill(second)
    dead = (*first, *second)
    if len(dead) == 1:  # they continue at the other server
        wait_until(lambda: all(stream.is_done for stream in streams), "the streams stand still")
    pair.restart(pool, dead)
    return [(stream.check(), stream.is_call) for stream in streams]


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", KINDS)
def test_streams_continue_when_servers_are_killed(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antiphon.engine.remote.engine")
    (min_kills, min_calls), rng, number = MIN_COUNTS[kind], random.Random(1), 0
    num_calls, num_cut_calls, num_cuts = 0, 0, 0
    with run_pair(kind) as pair, ThreadPoolExecutor(2 * NUM_STREAMS) as pool:
        while pair.num_kills.total() < min_kills or num_cut_calls < min_calls:
            assert number < 3 * min_kills, "most kills hit no stream"
            streams = run_round(pair, pool, number, rng)
            cuts = find_cut_ids(caplog.records)
            num_calls += sum(is_call for _, is_call in streams)
            num_cut_calls += sum(is_call and response_id in cuts for response_id, is_call in streams)
            num_cuts += cuts.total()
            caplog.clear()
            number += 1
        assert pair.antiphon.engine.stats().failed_jobs == 0
        assert set(pair.num_kills) == {0, 1}
    print(
        f"{kind}: {pair.num_kills.total()} kills {dict(pair.num_kills)} in {number} rounds; {num_cuts} continuations; "
        f"{num_cut_calls} of {num_calls} calls were cut, all are valid"
    )
