"""Time to the first token of a round after a call, with the prefix cache and without it.

    python -m bench.rounds

The embedded model calls a tool of the server, whose answer is short, after a conversation of `PROMPT_WORDS` words. The
second round reads the first one from the prefix cache. The same prompt is then computed without it: with a salt of its
own, under which nothing is cached.
"""

import argparse
import asyncio
import statistics
import sys
import time

import msgspec

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Chunk, Job
from tests.codex.test_codex_embedded import load_model_format, make_registry
from tests.snapshots.tool_cases import CALLED
from tests.snapshots.tool_runs import open_run

PROMPT_WORDS = (100, 500, 1000)
WORDS_PER_SENTENCE = 8
Sample = tuple[float, float, int, int]
"""Seconds to the first token of the second round with and without reuse, the length of its prompt, and what is reused."""


class TimedEngine(ProcessEngine):
    """An engine that keeps its jobs, and the time in seconds from each one's start to its first token."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(MODEL_DIR, options)
        self.times: list[tuple[Job, float, int]] = []
        """Job, time to its first token, tokens read from the cache."""

    async def generate(self, job: Job, on_chunk) -> None:  # type: ignore[no-untyped-def]  # as in the base
        started_at, has_token, cached = time.perf_counter(), False, 0

        def time_chunk(chunk: Chunk) -> None:
            nonlocal has_token, cached
            cached = max(cached, chunk.cached_tokens)
            if chunk.tokens and not has_token:
                has_token = True
                self.times.append((job, time.perf_counter() - started_at, cached))
            on_chunk(chunk)

        await super().generate(job, time_chunk)


async def measure(engine: TimedEngine, num_words: int, number: int) -> Sample | None:
    """Returns one sample; None if the model has not called the tool."""
    engine.times.clear()
    words = f"Anna has {number} apples and a red bag. " * (num_words // WORDS_PER_SENTENCE)
    fields = {"input": f"{words}Where is the nearest cafe in Oslo?", "tool_choice": "required", "temperature": 0}
    async with open_run(CALLED, make_registry(engine, load_model_format())) as run:
        log = await run.start_turn(**fields, max_output_tokens=200)
        await log.wait_finished()
    if len(engine.times) < 2:
        return None
    second, reused_s, cached = engine.times[1]
    alone = msgspec.structs.replace(second, id=f"{second.id}-alone", cache_salt=f"{num_words} {number}")
    await engine.generate(alone, lambda _: None)
    *_, (_, alone_s, _) = engine.times
    return reused_s, alone_s, len(second.tokens), cached


async def run_benchmark(num_rounds: int) -> None:
    """Prints one line for each length of the prompt."""
    engine = TimedEngine(EngineOptions(device="cpu"))
    await engine.start()
    try:
        for num_words in PROMPT_WORDS:
            await measure(engine, num_words, 0)
            numbers = range(1, num_rounds + 1)
            samples = [found for number in numbers if (found := await measure(engine, num_words, number))]
            if not samples:
                print(f"{num_words} words: the model has not called the tool")
                continue
            reused, alone = (statistics.median(sample[index] for sample in samples) * 1e3 for index in (0, 1))
            _, _, length, cached = samples[-1]
            print(
                f"prompt of {length} tokens, {cached} of them reused: {reused:.1f} ms, without reuse {alone:.1f} ms, "
                f"ratio {alone / reused:.1f}"
            )
    finally:
        await engine.close()


def main() -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="samples for each length; default: 5")
    asyncio.run(run_benchmark(parser.parse_args().rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
