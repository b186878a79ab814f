"""Cost of API keys: look-up, limits, sums of usage, and a reload with 10 000 keys: `python -m bench.keys`.

Times of calls are CPU times of one process, the median and the least of many rounds. The reload is measured on the event
loop, as the longest time for which a task that only sleeps was late, and in the thread that reads the file.

`--reload-streams 1000` measures another thing: the longest time between two events of that many streams of a server, in
three seconds before reloads and while keys are reloaded three times. On a busy machine it measures the machine.
"""

import argparse
import asyncio
import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.app.keys import reloader
from antiphon.app.keys.key_file import read_key_file
from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.main.launch import tune_gc
from antiphon.app.options.api_keys import ApiKey, KeyLimits
from antiphon.app.store.history.usage_tables import UsageCounts
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.usage.limits import RateLimits
from antiphon.app.usage.meter import UsageMeter
from antiphon.app.usage.recorder import UsageRecorder
from bench.reload_streams import measure_reload_streams, write_keys
from tests.log_store import make_log_store

NUM_ROUNDS, CALLS_PER_ROUND = 101, 1_000
MANY_KEYS = 10_000
NUM_RELOADS = 9


def make_keys(count: int) -> list[ApiKey]:
    limits = KeyLimits(requests_per_minute=10**9, tokens_per_minute=10**9, max_concurrent=100, tokens_per_day=10**9)
    return [
        ApiKey(digest=hashlib.sha256(f"sk-{n}".encode()).digest(), owner=f"owner-{n}", limits=limits)
        for n in range(count)
    ]


def measure_call(name: str, call: Callable[[], object]) -> None:
    """Prints the microseconds of a call: the median and the least of the rounds."""
    times = []
    for _ in range(NUM_ROUNDS):
        start = time.process_time()
        for _ in range(CALLS_PER_ROUND):
            call()
        times.append((time.process_time() - start) / CALLS_PER_ROUND * 1e6)
    sys.stdout.write(f"{name}: {statistics.median(times):.2f} µs, at least {min(times):.2f}\n")


def measure_limits() -> None:
    """Prints the times of limits and of sums of usage, of a key with four limits and of one without."""
    free, limited = ApiKey(digest=b"1" * 32, owner="a"), make_keys(1)[0]
    keys = KeyRing([free, limited])
    usage = UsageRecorder(make_log_store())
    limits = RateLimits(usage.used_tokens)
    meter, counts = UsageMeter(keys, limits, usage), UsageCounts(requests=1, input_tokens=10, output_tokens=10)
    stats = TurnStats(response_id="resp_1", key=limited, model="m", input_tokens=10, output_tokens=10)
    measure_call("limits, key without", lambda: limits.count_request(free))
    measure_call("limits, key with four: check", lambda: limits.count_request(limited))
    measure_call("limits, key with four: check and six headers", lambda: limits.begin_request(limited))
    measure_call("the same for Anthropic's API", lambda: limits.begin_request(limited, is_anthropic=True))
    measure_call("limits, key with four: tokens of a turn", lambda: limits.charge_tokens(limited, 1))
    measure_call("usage, a turn", lambda: usage.add("a", "key_1", "m", counts))
    measure_call("end of a turn: limits and usage", lambda: meter.end_turn(stats, "a"))


async def measure_reload(count: int) -> None:
    """Prints milliseconds: reading the file, replacing the keys, and the longest delay of another task meanwhile."""
    reloader.STABLE_S = 0.0
    tune_gc()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.toml"
        write_keys(path, count, 0)
        keys = KeyRing((), read_key_file(path))
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                start = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - start - 0.001)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.1)
        longest = 0.0
        write_keys(path, count, 1)
        await reloader.Reloader(keys, path).reload()
        watching.cancel()
        read_s, replace_s = list[float](), list[float]()
        for _ in range(NUM_RELOADS):
            start = time.thread_time()
            change = keys.prepare(read_key_file(path))
            read = time.thread_time()
            keys.apply(change)
            read_s.append(read - start)
            replace_s.append(time.thread_time() - read)
    for name, times in (("read the file, in a thread", read_s), ("replace the keys, on the event loop", replace_s)):
        median_ms, least_ms = statistics.median(times) * 1e3, min(times) * 1e3
        sys.stdout.write(f"{count} keys, {name}: {median_ms:.1f} ms of CPU time, at least {least_ms:.1f}\n")
    sys.stdout.write(f"{count} keys, a reload: another task was late by {longest * 1e3:.0f} ms at most\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reload-streams", type=int, metavar="N", help="measure reloads with N streams of a server")
    parser.add_argument("--keys", type=int, default=MANY_KEYS, help="keys in the file that is reloaded")
    args = parser.parse_args()
    if args.reload_streams:
        measure_reload_streams(args.reload_streams, args.keys)
        return
    for count in (10, args.keys):
        ring = KeyRing(make_keys(count))
        measure_call(f"look-up, {count:6} keys", partial(ring.find, b"sk-7"))
    measure_limits()
    asyncio.run(measure_reload(args.keys))


if __name__ == "__main__":
    main()
