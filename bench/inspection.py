"""Cost of recording turns: CPU time and bytes of a token, and memory of a full ring: `python -m bench.inspection`.

The times are medians over rounds that alternate between the modes, in one process with a scripted engine, one token a
step. All threads are the loop's, that which packs, and the writer of the store. The memory is measured in processes of their own, since freed memory of one ring is used by the next.
"""

import argparse
import ctypes
import gc
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from antiphon.app.inspection.process_memory import read_resident_bytes
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turn_types.turn_stats import TurnOrigin
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.manager import TurnManager
from bench import scripted_server
from tests.log_store import make_log_store
from tests.serving import scripted_registry

OUTPUT_TOKENS = 1024
NUM_ROUNDS, TURNS_PER_ROUND = 15, 6
WARM_UP_TURNS, NUM_TURNS = 700, 10_000
PROMPT_CHARS = 3_000
RING_MIB = 64


def measure_cpu_s() -> float:
    """Returns the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure_tokens(recorder: TurnRecorder | None, store: ResponseStore | None) -> tuple[float, float]:
    """Returns the CPU microseconds per token of some turns: of the event loop, and of all threads.

    With a store, they are stored there.
    """
    registry = scripted_server.build_registry([(OUTPUT_TOKENS, 1)])
    body = {"model": "scripted", "input": scripted_server.case_prompt(OUTPUT_TOKENS, 1), "store": store is not None}
    parsed = read_responses_request(body, registry)
    manager = TurnManager(store or make_log_store(), TurnCapacity(()), new_id=new_id, recorder=recorder)
    start, loop_start = measure_cpu_s(), time.thread_time()
    for _ in range(TURNS_PER_ROUND):
        log = await manager.start_turn(parsed.model, parsed.spec, "", TurnOrigin(body=msgspec.json.encode(body)))
        await log.wait_finished()
        await log.wait_kept()
    if recorder is not None:
        await recorder.close()
    scale = 1e6 / TURNS_PER_ROUND / OUTPUT_TOKENS
    return (time.thread_time() - loop_start) * scale, (measure_cpu_s() - start) * scale


def measure_bytes(path: Path) -> None:
    """Prints how many bytes the store has for a token and for a turn besides its events."""
    with closing(sqlite3.connect(path)) as connection:
        recorded = "response IN (SELECT id FROM turn_records)"
        queries = {
            "events a token": f"SELECT sum(length(data)) FROM events WHERE {recorded}",
            "details a token": "SELECT sum(length(detail)) FROM events",
            "record a turn": "SELECT sum(length(data) + length(blocks)) FROM turn_records",
            "blocks of all": "SELECT sum(length(key) + length(data)) FROM prompt_blocks",
        }
        [(num_turns,)] = connection.execute("SELECT count(*) FROM turn_records")
        counts = {"token": num_turns * OUTPUT_TOKENS, "turn": num_turns, "all": 1}
        for name, query in queries.items():
            size = connection.execute(query).fetchone()[0] / counts[name.split()[-1]]
            print(f"{name:16} {size:9.1f} bytes")


async def measure_memory(ring_mib: int) -> float:
    """Returns the growth of resident memory in MiB over many turns with a ring of this size; 0: without recording."""
    registry = scripted_registry([{"name": "words", "output": ["word " * 40], "tokens_per_chunk": 4}])
    recorder = TurnRecorder(ring_mib << 20) if ring_mib else None
    manager = TurnManager(make_log_store(), TurnCapacity(()), new_id=new_id, recorder=recorder)
    source, before = random.Random(1), 0.0
    for number in range(WARM_UP_TURNS + NUM_TURNS):
        text = "".join(source.choices("abcdefghij klmno", k=PROMPT_CHARS))
        parsed = read_responses_request({"model": "scripted", "input": text, "store": False}, registry)
        origin = TurnOrigin(body=text.encode())
        log = await manager.start_turn(parsed.model, parsed.spec, str(number % 5), origin)
        await log.wait_finished()
        if number == WARM_UP_TURNS:
            before = read_resident_mib()
    return read_resident_mib() - before


def read_resident_mib() -> float:
    """Returns the resident memory of this process, after what is free was returned to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return read_resident_bytes()[0].resident_bytes / 2**20


async def compare_tokens() -> None:
    """Prints the CPU time of a token with and without recording, in memory and in a store; then the bytes there."""
    samples: dict[str, list[tuple[float, float]]] = {"off": [], "memory": [], "stored": [], "recorded": []}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "responses.db"
        store = SqliteStore(path)
        for _ in range(NUM_ROUNDS):
            for mode, values in samples.items():
                is_recorded, is_stored = mode in ("memory", "recorded"), mode in ("stored", "recorded")
                recorder = TurnRecorder(RING_MIB << 20, uses_store=is_stored) if is_recorded else None
                values.append(await measure_tokens(recorder, store if is_stored else None))
        await store.close()
        measure_bytes(path)
    for mode, values in samples.items():
        loop, process = map(statistics.median, zip(*values, strict=True))
        print(f"{mode:8} {loop:6.2f} µs of CPU a token on the event loop, {process:6.2f} in all threads")
    for with_it, without in (("memory", "off"), ("recorded", "stored")):
        pairs = list(zip(samples[with_it], samples[without], strict=True))
        loop, process = (statistics.median(on[index] - off[index] for on, off in pairs) for index in range(2))
        print(f"{with_it} adds {loop:6.2f} µs on the event loop, {process:6.2f} in all threads")


def main() -> None:
    """Runs the benchmark, or with a size in MiB one measurement of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ring_mib", type=int, nargs="?", help="measure the memory of a ring of this size only")
    if (size := parser.parse_args().ring_mib) is not None:
        print(uvloop.run(measure_memory(size)))
        return
    uvloop.run(compare_tokens())
    for size in (0, RING_MIB):
        done = subprocess.run(
            [sys.executable, "-m", "bench.inspection", str(size)], check=True, capture_output=True, text=True
        )
        print(f"ring of {size:2} MiB, {NUM_TURNS} turns: {float(done.stdout):6.1f} MiB")


if __name__ == "__main__":
    main()
