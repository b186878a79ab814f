"""What a token costs between the engine and the socket, stage by stage: `python -m tests.bench.protocol`.

All figures are microseconds of CPU time per token, taken in one run, in rounds that alternate over all cases, and told
as medians over the rounds. The whole way is the CPU time of a server process whose engine plays a script, read over
loopback by clients in another process, which look every millisecond; with `--waits` they sleep until something comes,
and what it takes to wake them counts as the server's. `rest` is what of it no stage accounts for: the event loop, ASGI
and HTTP.
Figures are for comparing stages and versions on one machine.
"""

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import uvloop

from antiphon.app.event_log import EventLog
from antiphon.app.requests import responses as request
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.engine.protocol import Chunk, Job
from antiphon.events import sse
from antiphon.harmony.detect import bytes_format
from tests.bench import scripted_server
from tests.engine.chunk_stream import listen
from tests.serving import scripted_registry
from tests.state.machine_helpers import Counted

LENGTH = 1024
STEPS = (1, 4, 16)
LENGTHS = (256, 1024, 4096)
STREAMS = (1, 16, 64)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
READ_LENGTHS = (1000, 4000, 16_000)
READ = {
    "gpt-oss": (
        "<|channel|>final<|message|>",
        '<|channel|>commentary to=functions.write <|constrain|>json<|message|>{"text": "',
    ),
    "hermes": ("", '<tool_call>\n{"name": "write", "arguments": {"text": "'),
    "qwen3-coder": ("", "<tool_call>\n<function=write>\n<parameter=text>\n"),
}
"""How a text begins in each dialect, and how a call of a tool with a long text."""
Samples = dict[Any, list[float]]


class Stages:
    """One answer of `LENGTH` tokens, `step` of them a chunk, and what each stage makes of it."""

    def __init__(self, step: int) -> None:
        catalogue = scripted_server.catalogue([(LENGTH, step)])
        body = {"model": "scripted", "input": f"say {LENGTH} by {step}."}
        asked = request.read_responses_request(body, catalogue)
        self.engine, self.form, self.spec = asked.model.engine, asked.model.format, asked.spec
        self.prompt = self.form.render_prompt(self.spec.prompt_input, now=NOW)
        self.chunks = asyncio.run(self._chunks())
        scribe = self._scribe()
        self.steps = [scribe.collect_events(), *self._told(scribe)]
        self.log = self._write()
        self.pieces = [
            b"".join([sse.frame_event(event, sse.encode_event(event)) for event in step]) for step in self.steps if step
        ]

    async def _chunks(self) -> list[Chunk]:
        return [chunk async for chunk in listen(self.engine, Job(id="x", tokens=self.prompt.tokens))][1:]

    def _scribe(self) -> OutputProcessor:
        scribe = OutputProcessor(self.spec, self.prompt, self.form, ids=Counted(), clock=lambda: 0)
        scribe.on_admitted(Chunk())
        return scribe

    def _told(self, scribe: OutputProcessor) -> Iterator[list[Any]]:
        for chunk in self.chunks:
            scribe.process_chunk(chunk)
            yield scribe.collect_events()

    def _write(self) -> EventLog:
        log = EventLog(self.spec.base_response, "")
        for step in self.steps:
            log.append_step(step)
        return log

    def play(self) -> None:
        """The engine's side: its chunks, and the loop's turn between them."""

        async def one(number: int) -> None:
            async for _ in listen(self.engine, Job(id=str(number), tokens=self.prompt.tokens)):
                pass

        async def all_at_once() -> None:
            await asyncio.gather(*map(one, range(8)))

        uvloop.run(all_at_once())

    def read(self) -> None:
        """Detokenise, read the dialect: token ids to segments."""
        reader = self.form.create_reader(self.prompt, self.spec.prompt_input)
        for chunk in self.chunks:
            reader.feed(chunk.tokens)

    def scribe(self) -> None:
        """The same, and stop strings, limits and the machine: to events."""
        for _ in self._told(self._scribe()):
            pass

    def write(self) -> None:
        """Events to the log, encoded."""
        self._write()

    def frame(self) -> None:
        """Log to framed bytes."""
        for frame in self.log.entries:
            sse.frame_event(frame.event, frame.data)

    def send(self, port: int) -> None:
        """Bytes to the kernel: as the event loop writes them, with nothing around."""
        size = sum(map(len, self.pieces)) // len(self.pieces)
        uvloop.run(scripted_server.write(port, 64, b"x" * size, len(self.pieces) // 8))

    def costs(self, port: int) -> dict[str, float]:
        """Each stage once."""
        timed = {
            "engine: plays the script": spent(self.play) / 8,
            "detokenise, read the dialect": spent(self.read),
            "stop strings, limits, machine": spent(self.scribe),
            "log: encode and keep": spent(self.write),
            "frame": spent(self.frame),
            "write to the socket": spent(partial(self.send, port)) / 8,
        }
        timed["stop strings, limits, machine"] -= timed["detokenise, read the dialect"]
        return {name: seconds / LENGTH * 1e6 for name, seconds in timed.items()}


def spent(work: Callable[[], None]) -> float:
    """CPU seconds of this process."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def dialects() -> dict[tuple[str, int], float]:
    """Reading one token at a time, by dialect, what is written, and length."""
    costs = {}
    catalogue = scripted_registry([{"name": "x", "output": ["x"]}])
    tools = [{"type": "function", "name": "write", "parameters": {"properties": {"text": {"type": "string"}}}}]
    asked = request.read_responses_request({"model": "scripted", "input": "Hi", "tools": tools}, catalogue)
    for name, (text, call) in READ.items():
        form = bytes_format(name)
        prompt = form.render_prompt(asked.spec.prompt_input, now=NOW)
        for kind, head in (("text", text), ("a call", call)):
            for length in READ_LENGTHS:
                tokens = form.encode(head + "".join(scripted_server.WORDS) * length)[:length]
                reader = form.create_reader(prompt, asked.spec.prompt_input)

                def read(reader: Any = reader, tokens: list[int] = tokens) -> None:
                    for token in tokens:
                        reader.feed((token,))

                costs[f"{name}, {kind}", length] = spent(read) / length * 1e6
    return costs


def measure(rounds: int, *, http: bool, waits: bool) -> tuple[Samples, Samples, Samples]:
    """All samples: of the stages by (step, stage), of the dialects, of the whole way by (streams, step, length)."""
    ways = [(streams, step, LENGTH) for streams in STREAMS for step in STEPS]
    ways += [(64, step, length) for length in LENGTHS if length != LENGTH for step in STEPS[:2]]
    ways += [(streams, 1, 1) for streams in STREAMS]
    stages = {step: Stages(step) for step in STEPS}
    parts, read, whole = Samples(), Samples(), Samples()
    cases = sorted({(length, step) for _, step, length in ways})
    with scripted_server.sink() as sink, scripted_server.server(cases) as (pid, port):
        for number in range(-1, rounds):  # the first is for warming up
            for step in STEPS:
                keep(parts, number, {(step, name): cost for name, cost in stages[step].costs(sink).items()})
            keep(read, number, dialects())
            for streams, step, length in ways if http else ():
                begun = scripted_server.cpu(pid)
                scripted_server.load(port, streams, length, step, waits=waits)
                cost = (scripted_server.cpu(pid) - begun) / streams / length * 1e6
                keep(whole, number, {(streams, step, length): cost})
        if http:
            check_writes(port)
    return parts, read, whole


def keep(samples: Samples, number: int, costs: dict[Any, float]) -> None:
    """Add what one round found, unless it was for warming up."""
    if number >= 0:
        for key, cost in costs.items():
            samples.setdefault(key, []).append(cost)


def check_writes(port: int) -> None:
    """A token a write is what is claimed: so many chunks must have come."""
    for step in STEPS:
        answer = scripted_server.load(port, 1, LENGTH, step, whole=True)[0]
        count, steps = len(scripted_server.chunks(answer)), LENGTH // step
        assert abs(count - steps) <= 4, f"{count} writes for {steps} steps"


def table(head: str, columns: Any, rows: dict[str, list[float | None]]) -> None:
    """Print a Markdown table."""
    print(f"\n| {head} | {' | '.join(map(str, columns))} |\n|---|{'---|' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join('' if cell is None else f'{cell:.2f}' for cell in cells)} |")


def report(parts: Samples, read: Samples, whole: Samples) -> None:
    """Print all tables."""
    middle = {key: statistics.median(costs) for samples in (parts, read, whole) for key, costs in samples.items()}
    names = list(dict.fromkeys(name for _, name in parts))
    rows: dict[str, list[float | None]] = {name: [middle[step, name] for step in STEPS] for name in names}
    if whole:
        total = [middle[64, step, LENGTH] for step in STEPS]
        rest = [cost - sum(middle[step, name] for name in names) for cost, step in zip(total, STEPS, strict=True)]
        rows |= {"rest: event loop, ASGI, HTTP, the request": list(rest), "**the whole way, 64 streams**": list(total)}
    table("tokens a write", STEPS, rows)
    kinds = list(dict.fromkeys(name for name, _ in read))
    by_dialect: dict[str, list[float | None]] = {kind: [middle[kind, n] for n in READ_LENGTHS] for kind in kinds}
    table("detokenise, read the dialect; a token at a time, by length", READ_LENGTHS, by_dialect)
    if whole:
        by_streams = {f"{n} streams": [middle[n, step, LENGTH] for step in STEPS] for n in STREAMS}
        table(f"the whole way, {LENGTH} tokens; tokens a write", STEPS, by_streams)
        by_length = {f"{step} a write": [middle[64, step, length] for length in LENGTHS] for step in STEPS[:2]}
        alone = middle[64, 1, 1]
        by_length |= {
            f"{step} a write, without the request": [middle[64, step, length] - alone / length for length in LENGTHS]
            for step in STEPS[:2]
        }
        table("the whole way, 64 streams; tokens of the answer", LENGTHS, by_length)
        print(f"\nA request with an answer of one token: {alone:.0f} µs at 64 streams.")


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--no-http", action="store_true", help="leave out what starts a server")
    words.add_argument("--waits", action="store_true", help="let the readers sleep until something comes")
    asked = words.parse_args()
    print(f"CPU µs per token, medians of {asked.rounds} alternating rounds; msgspec {msgspec.__version__}, ", end="")
    print(f"uvloop {uvloop.__version__}")
    report(*measure(asked.rounds, http=not asked.no_http, waits=asked.waits))
    print(f"\nPeak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
