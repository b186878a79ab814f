"""Time to the first token of a next turn after a restart, with prefixes on disk and without.

    python -m bench.prefix_disk

The model has the shape of Qwen3-0.6B in int8 and runs in a worker process. A first turn of some thousand tokens is
answered and its pages are written. Then the worker is restarted for every sample, and the next turn is sent, which
begins like the first and has `NEW_TOKENS` tokens more. The start itself is not measured. The pages are still in the
system's memory, as after the restart of a server on a running machine.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

from antiphon.engine.options import EngineOptions
from antiphon.engine.prefix_disk.page_id import TOKENS_PER_PAGE
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Chunk, Job, Sampling
from bench.install import BENCH_DIR
from bench.random_models import create_model
from bench.stats import markdown_table

PROMPT_LENGTHS = (2000, 8000)
NEW_TOKENS, OUTPUT_TOKENS = 50, 32
MAX_WRITE_SECONDS = 120.0
_numbers = itertools.count()


def make_options(folder: Path, *, with_disk: bool) -> EngineOptions:
    """Returns options of the engine, whose cache folder is `folder`."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return EngineOptions(
        device="cpu",
        quantization="int8",
        force_quantization=True,
        max_model_len=16_384,
        kv_cache_gib=3.0,
        prefix_cache_disk=8.0 if with_disk else None,
    )


async def run_job(engine: ProcessEngine, tokens: list[int], max_tokens: int) -> tuple[float, list[Chunk]]:
    """Returns the seconds to the first token, and all chunks."""
    chunks: list[Chunk] = []
    first: list[float] = []

    def receive(chunk: Chunk) -> None:
        chunks.append(chunk)
        if chunk.tokens and not first:
            first.append(time.perf_counter() - started_at)

    sampling = Sampling(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
    started_at = time.perf_counter()
    await engine.generate(Job(id=f"job{next(_numbers)}", tokens=tuple(tokens), sampling=sampling), receive)
    return first[0], chunks


async def write_first_turn(model: Path, folder: Path, tokens: list[int]) -> list[int]:
    """Runs the first turn and waits until its pages are written. Returns the tokens of the next turn."""
    engine = ProcessEngine(model, make_options(folder, with_disk=True))
    pages = folder / "antiphon" / "prefixes"
    await engine.start()
    num_before = len(list(pages.glob("*.page")))
    _, chunks = await run_job(engine, tokens, OUTPUT_TOKENS)
    text = [*tokens, *(token for chunk in chunks for token in chunk.tokens)]
    started_at = time.perf_counter()
    expected = num_before + (len(text) - 1) // TOKENS_PER_PAGE
    while len(list(pages.glob("*.page"))) < expected and time.perf_counter() - started_at < MAX_WRITE_SECONDS:
        await asyncio.sleep(0.01)
    written = time.perf_counter() - started_at
    size = sum(path.stat().st_size for path in pages.glob("*.page"))
    print(
        f"{len(tokens)} tokens: pages written {written:.2f} s after the job, {size / 2**20:.0f} MiB in all", flush=True
    )
    await engine.close()
    return [*text, *(1000 + 7 * index for index in range(NEW_TOKENS))]


async def measure_restart(model: Path, folder: Path, tokens: list[int], *, with_disk: bool) -> tuple[float, int]:
    """Starts a worker and runs the next turn. Returns the seconds to its first token, and its cached tokens."""
    engine = ProcessEngine(model, make_options(folder, with_disk=with_disk))
    await engine.start()
    try:
        await run_job(engine, [3, 1, 4, 1, 5], 4)
        seconds, chunks = await run_job(engine, tokens, 1)
    finally:
        await engine.close()
    return seconds, chunks[0].cached_tokens


async def run_benchmark(repeats: int, lengths: list[int], folder: Path) -> None:
    """Prints the table."""
    model = create_model("small")
    rows = []
    for length in lengths:
        first = [100 + (length + 7 * index + index * index) % 50_000 for index in range(length)]
        tokens = await write_first_turn(model, folder, first)
        samples: dict[bool, list[float]] = {True: [], False: []}
        cached = 0
        for _ in range(repeats):
            for with_disk in (True, False):
                seconds, num_cached = await measure_restart(model, folder, tokens, with_disk=with_disk)
                samples[with_disk].append(seconds)
                cached = max(cached, num_cached)
                print(f"{length} tokens, {'disk' if with_disk else 'no disk'}: {seconds:.2f} s", flush=True)
        on_disk, without = (statistics.median(samples[with_disk]) for with_disk in (True, False))
        rows.append((f"{length}", f"{cached}", f"{without:.2f}", f"{on_disk:.2f}", f"{without / on_disk:.1f} ×"))
    print(markdown_table(("prompt", "read", "computed, s", "from disk, s", "ratio"), rows))


def main() -> None:
    """Measures all lengths."""
    parser = argparse.ArgumentParser(description="Measures the first turn after a restart with prefixes on disk.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=PROMPT_LENGTHS)
    options = parser.parse_args()
    BENCH_DIR.mkdir(exist_ok=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True)
    with tempfile.TemporaryDirectory(dir=BENCH_DIR, prefix="cache-") as folder:
        asyncio.run(run_benchmark(options.repeats, options.lengths, Path(folder)))
    print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
