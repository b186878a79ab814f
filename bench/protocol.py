"""CPU time of a token between the engine and the socket, by stage: `python -m bench.protocol`.

All results are microseconds of CPU time per token, measured in one run, in rounds that alternate over all cases;
printed are the medians over the rounds. The total is the CPU time of a server process with a scripted engine. Clients in
another process read it over loopback and poll every millisecond. With `--blocking-clients` they sleep until data
arrives, and waking them counts as CPU time of the server. The remainder is the part of the total that no stage accounts
for: event loop, ASGI and HTTP. The results are for comparing stages and versions on one machine.
"""

import argparse
import asyncio
import itertools
import resource
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import uvloop

from antiphon.app.requests.responses import request as responses
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.core.dice import DICE_KEY_BYTES, TurnDice
from antiphon.app.turns.core.inputs import AdmittedInput, to_token_input
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.engine.protocol import Chunk, Job
from antiphon.events import sse
from bench import scripted_server
from bench.reader_cost import PROMPT_TIME, READER_LENGTHS, measure_cpu, measure_dialects
from tests.engine.chunk_stream import stream_chunks

OUTPUT_TOKENS = 1024
CHUNK_SIZES = (1, 4, 16)
"""Tokens per engine chunk, and so per write to the socket."""
OUTPUT_LENGTHS = (256, 1024, 4096)
STREAM_COUNTS = (1, 16, 64)
MAX_STREAMS, MAX_LANES = 64, 16
REPLIES_PER_SAMPLE = 8
"""Replies over which the costs of the engine and of socket writes are averaged."""
READ_STAGE = "detokenize, parse the dialect"
PROCESS_STAGE = "stop strings, limits, state machine"
Samples = dict[Any, list[float]]
"""CPU microseconds per token of every round, by case."""
Rows = dict[str, Sequence[float | None]]


class StageTimer:
    """The stages of one reply of `OUTPUT_TOKENS` tokens, `chunk_size` tokens per chunk.

    The constructor runs all stages once and keeps their results, so that each stage can be timed alone.
    """

    def __init__(self, chunk_size: int) -> None:
        registry = scripted_server.build_registry([(OUTPUT_TOKENS, chunk_size)])
        body = {"model": "scripted", "input": scripted_server.case_prompt(OUTPUT_TOKENS, chunk_size)}
        request = responses.read_responses_request(body, registry)
        self.engine, self.model_format, self.spec = request.model.engine, request.model.format, request.spec
        self.prompt = self.model_format.render_prompt(self.spec.prompt_input, now=PROMPT_TIME)
        self.chunks = asyncio.run(self._generate_chunks())
        core = self._create_core()
        self.steps = [core.apply(AdmittedInput()), *self._process_chunks(core)]
        self.log = self._build_log()
        self.writes = [
            b"".join([sse.frame_event(event, sse.encode_event(event)) for event in step]) for step in self.steps if step
        ]

    async def _generate_chunks(self) -> list[Chunk]:
        return [chunk async for chunk in stream_chunks(self.engine, Job(id="x", tokens=self.prompt.tokens))][1:]

    def _create_core(self) -> TurnCore:
        turn_prompt = PromptTokenCache().render(self.model_format, "", self.spec.prompt_input, PROMPT_TIME)
        rules, base = self.spec.build_rules(), self.spec.base_response
        return TurnCore(rules, turn_prompt, base, dice=TurnDice(bytes(DICE_KEY_BYTES)), clock=lambda: 0)

    def _process_chunks(self, core: TurnCore) -> Iterator[list[Any]]:
        for chunk in self.chunks:
            yield core.apply(to_token_input(chunk))

    def _build_log(self) -> EventLog:
        log = EventLog(self.spec.base_response, "")
        for step in self.steps:
            log.append_step(step)
        return log

    def run_engine(self) -> None:
        """Plays the script in `REPLIES_PER_SAMPLE` concurrent jobs, including the event loop between the chunks."""

        async def read_job(number: int) -> None:
            async for _ in stream_chunks(self.engine, Job(id=str(number), tokens=self.prompt.tokens)):
                pass

        async def read_jobs() -> None:
            await asyncio.gather(*map(read_job, range(REPLIES_PER_SAMPLE)))

        uvloop.run(read_jobs())

    def read_chunks(self) -> None:
        """Converts token ids to segments."""
        reader = self.model_format.create_reader(self.prompt, self.spec.prompt_input)
        for chunk in self.chunks:
            reader.feed(chunk.tokens)

    def process_chunks(self) -> None:
        """Converts token ids to events. This includes `read_chunks`."""
        core = self._create_core()
        core.apply(AdmittedInput())
        for _ in self._process_chunks(core):
            pass

    def build_log(self) -> None:
        """Encodes the events and appends them to an event log."""
        self._build_log()

    def frame_events(self) -> None:
        """Frames the encoded events of the log as server-sent events."""
        for entry in self.log.entries:
            sse.frame_event(entry.event, entry.data)

    def write_sockets(self, port: int) -> None:
        """Writes as many bytes to sockets as the server does, and nothing else."""
        size = sum(map(len, self.writes)) // len(self.writes)
        count = len(self.writes) * REPLIES_PER_SAMPLE // MAX_STREAMS
        uvloop.run(scripted_server.time_socket_writes(port, MAX_STREAMS, b"x" * size, count))

    def measure_stages(self, port: int) -> dict[str, float]:
        """Runs each stage once. Returns CPU microseconds per token by stage."""
        cpu_s = {
            "engine: play the script": measure_cpu(self.run_engine) / REPLIES_PER_SAMPLE,
            READ_STAGE: measure_cpu(self.read_chunks),
            PROCESS_STAGE: measure_cpu(self.process_chunks),
            "event log: encode and append": measure_cpu(self.build_log),
            "frame": measure_cpu(self.frame_events),
            "write to the socket": measure_cpu(partial(self.write_sockets, port)) / REPLIES_PER_SAMPLE,
        }
        cpu_s[PROCESS_STAGE] -= cpu_s[READ_STAGE]
        return {name: seconds / OUTPUT_TOKENS * 1e6 for name, seconds in cpu_s.items()}


def run_rounds(rounds: int, *, http: bool, blocking: bool) -> tuple[Samples, Samples, Samples]:
    """Returns the samples of the stages by (chunk size, stage), of the dialects, and of the server.

    Keys of the server's samples are (streams, chunk size, output length) and (API, chunk size).
    """
    server_cases = [(streams, chunk_size, OUTPUT_TOKENS) for streams in STREAM_COUNTS for chunk_size in CHUNK_SIZES]
    other_lengths = [length for length in OUTPUT_LENGTHS if length != OUTPUT_TOKENS]
    server_cases += [(MAX_STREAMS, chunk_size, length) for length in other_lengths for chunk_size in CHUNK_SIZES[:2]]
    server_cases += [(streams, 1, 1) for streams in STREAM_COUNTS]
    timers = {chunk_size: StageTimer(chunk_size) for chunk_size in CHUNK_SIZES}
    stages, dialects, totals = Samples(), Samples(), Samples()
    replies = sorted({(length, chunk_size) for _, chunk_size, length in server_cases})
    with (
        scripted_server.start_sink() as sink_port,
        scripted_server.start_scripted_server(replies) as (pid, port),
    ):
        for round_index in range(-1, rounds):  # the first round is the warm-up
            for chunk_size in CHUNK_SIZES:
                costs = timers[chunk_size].measure_stages(sink_port)
                add_samples(stages, round_index, {(chunk_size, name): cost for name, cost in costs.items()})
            add_samples(dialects, round_index, measure_dialects())
            for api, chunk_size in itertools.product(scripted_server.API_PATHS, CHUNK_SIZES) if http else ():
                cost = measure_server(pid, port, (MAX_STREAMS, chunk_size, OUTPUT_TOKENS), api=api, blocking=blocking)
                add_samples(totals, round_index, {(api, chunk_size): cost})
            for lanes, size in itertools.product((MAX_LANES, 1), CHUNK_SIZES) if http else ():
                cost = measure_server(pid, port, (MAX_LANES, size, OUTPUT_TOKENS), lanes=lanes, blocking=blocking)
                add_samples(totals, round_index, {("lanes", lanes, size): cost})
            for case in server_cases if http else ():
                add_samples(totals, round_index, {case: measure_server(pid, port, case, blocking=blocking)})
        if http:
            check_write_count(port)
    return stages, dialects, totals


def measure_server(
    pid: int, port: int, case: tuple[int, int, int], *, api: str = "Responses", lanes: int = 0, blocking: bool
) -> float:
    """Returns the server's CPU microseconds per token. `case`: streams, tokens per chunk, tokens per reply."""
    streams, chunk_size, length = case
    cpu_before = scripted_server.process_cpu_seconds(pid)
    if lanes:
        scripted_server.read_websockets(port, streams // lanes, lanes, length, chunk_size, blocking=blocking)
    else:
        scripted_server.read_streams(port, streams, length, chunk_size, api=api, blocking=blocking)
    return (scripted_server.process_cpu_seconds(pid) - cpu_before) / streams / length * 1e6


def add_samples(samples: Samples, round_index: int, costs: dict[Any, float]) -> None:
    """Adds the results of a round, except those of the warm-up."""
    if round_index >= 0:
        for key, cost in costs.items():
            samples.setdefault(key, []).append(cost)


def check_write_count(port: int) -> None:
    """Asserts that the server writes once per engine chunk, since the tables count tokens per write."""
    for chunk_size in CHUNK_SIZES:
        reply = scripted_server.read_streams(port, 1, OUTPUT_TOKENS, chunk_size, keep_all=True)[0]
        writes, expected = len(scripted_server.split_chunks(reply)), OUTPUT_TOKENS // chunk_size
        assert abs(writes - expected) <= 4, f"{writes} writes for {expected} engine chunks"


def print_table(title: str, columns: Sequence[int], rows: Rows) -> None:
    """Prints a Markdown table."""
    print(f"\n| {title} | {' | '.join(map(str, columns))} |\n|---|{'---|' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join('' if cell is None else f'{cell:.2f}' for cell in cells)} |")


def print_tables(stages: Samples, dialects: Samples, totals: Samples) -> None:
    """Prints all tables."""
    medians = {
        key: statistics.median(costs) for samples in (stages, dialects, totals) for key, costs in samples.items()
    }
    names = list(dict.fromkeys(name for _, name in stages))
    rows: Rows = {name: [medians[size, name] for size in CHUNK_SIZES] for name in names}
    if totals:
        total = [medians[MAX_STREAMS, chunk_size, OUTPUT_TOKENS] for chunk_size in CHUNK_SIZES]
        remainder = [
            cost - sum(medians[chunk_size, name] for name in names)
            for cost, chunk_size in zip(total, CHUNK_SIZES, strict=True)
        ]
        rows |= {"remainder: event loop, ASGI, HTTP, request": remainder, f"**total, {MAX_STREAMS} streams**": total}
    print_table("tokens per write", CHUNK_SIZES, rows)
    kinds = list(dict.fromkeys(kind for kind, _ in dialects))
    print_table(
        f"{READ_STAGE}, token by token; output length",
        READER_LENGTHS,
        {kind: [medians[kind, length] for length in READER_LENGTHS] for kind in kinds},
    )
    if totals:
        print_server_tables(medians)


def print_server_tables(medians: dict[Any, float]) -> None:
    """Prints the totals by number of streams, lanes and output length, and the cost of a request."""
    by_streams: Rows = {
        f"{streams} {'stream' if streams == 1 else 'streams'}": [
            medians[streams, size, OUTPUT_TOKENS] for size in CHUNK_SIZES
        ]
        for streams in STREAM_COUNTS
    }
    print_table(f"total, {OUTPUT_TOKENS} tokens; tokens per write", CHUNK_SIZES, by_streams)
    by_api: Rows = {api: [medians[api, size] for size in CHUNK_SIZES] for api in scripted_server.API_PATHS}
    for api in ("Chat", "Messages"):
        by_api[f"{api} / Responses"] = [medians[api, size] / medians["Responses", size] for size in CHUNK_SIZES]
    print_table(f"total, {MAX_STREAMS} streams; tokens per write", CHUNK_SIZES, by_api)
    by_lanes: Rows = {f"{lanes}": [medians["lanes", lanes, size] for size in CHUNK_SIZES] for lanes in (1, MAX_LANES)}
    print_table(f"lanes of each WebSocket, {MAX_LANES} streams; tokens per write", CHUNK_SIZES, by_lanes)
    request_us = medians[MAX_STREAMS, 1, 1]
    by_length: Rows = {}
    for label, us in (("", 0.0), (", without the request", request_us)):
        for size in CHUNK_SIZES[:2]:
            by_length[f"{size} per write{label}"] = [
                medians[MAX_STREAMS, size, length] - us / length for length in OUTPUT_LENGTHS
            ]
    print_table(f"total, {MAX_STREAMS} streams; output length", OUTPUT_LENGTHS, by_length)
    print(f"\nA request with one output token: {request_us:.0f} µs at {MAX_STREAMS} streams.")


def main() -> None:
    """Measures and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, default 3")
    parser.add_argument("--no-http", action="store_true", help="measure only the stages, without a server")
    parser.add_argument("--blocking-clients", action="store_true", help="let the clients sleep until data arrives")
    args = parser.parse_args()
    print(f"CPU µs per token, medians of {args.rounds} alternating rounds; ", end="")
    print(f"msgspec {version('msgspec')}, uvloop {version('uvloop')}")
    print_tables(*run_rounds(args.rounds, http=not args.no_http, blocking=args.blocking_clients))
    print(f"\nPeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
