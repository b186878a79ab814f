"""The engine's process: it dies in every way, and nobody but the jobs it had in hand hears of it for long."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine, WorkerTimeouts
from antiphon.engine.process.messages import (
    AddJob,
    CancelJob,
    Command,
    PingCommand,
    StartCommand,
    StepReport,
    StopCommand,
    command_decoder,
    encode_message,
    report_decoder,
)
from antiphon.engine.process.spawn import PrespawnedWorker, describe_exit
from antiphon.engine.protocol import Chunk, EngineError, EngineStats, Fault, Job, Sampling, TokenLogprob
from tests.counts import FULL_COUNTS
from tests.engine.chunk_stream import listen
from tests.engine.fake_core import SAID
from tests.syntax import ROOT

CHATTER = "tests.engine.fake_core:chatter"
QUICK = WorkerTimeouts(
    step_timeout=2.0, load_timeout=20, wait_timeout=20, min_restart_delay=0.01, max_restart_delay=0.2
)


@asynccontextmanager
async def running(
    folder: Path | str = "", limits: WorkerTimeouts = QUICK, **options: Any
) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(folder, EngineOptions(**options), core_factory=CHATTER, timeouts=limits)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def job(name: str, prompt: str = "hello", count: int | None = 5, **more: Any) -> Job:
    return Job(id=name, tokens=tuple(prompt.encode()), sampling=Sampling(max_tokens=count), **more)


async def collect(engine: ProcessEngine, asked: Job) -> list[Chunk]:
    return [chunk async for chunk in listen(engine, asked)]


async def code_of(engine: ProcessEngine, asked: Job) -> str:
    with pytest.raises(EngineError) as caught:
        await collect(engine, asked)
    return caught.value.code


def text(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def faces(engine: ProcessEngine, *words: str) -> bool:
    """Whether it comes to have an obstacle with all these words."""
    for _ in range(1000):
        if all(word in str(engine.unready_reason()) for word in words):
            return True
        await asyncio.sleep(0.01)
    return False


def ticks(pid: int | None) -> int:
    """Hundredths of a second that the process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()
    return int(fields[13]) + int(fields[14])


def sockets(pid: int | None) -> int:
    return sum(str(path.readlink()).startswith("socket:") for path in Path(f"/proc/{pid}/fd").iterdir())


async def gone(pid: int) -> bool:
    for _ in range(500):
        if not alive(pid):
            return True
        await asyncio.sleep(0.01)
    return False


ORDERS: list[Command] = [
    StartCommand("a:b", "/models", EngineOptions(device="cpu", max_num_seqs=4, kv_cache_gib=0.5)),
    AddJob(job("one", deadline=1.5)),
    AddJob(Job(id="two", tokens=tuple(range(100_000)), sampling=Sampling(logit_bias={3: -1.0}, stop_ids=(7,)))),
    CancelJob("one"),
    PingCommand(),
    StopCommand(),
]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000, 1 << 20])
def test_messages_survive_any_cut(size: int) -> None:
    sent = b"".join(encode_message(order) for order in (ORDERS if size > 3 else [o for o in ORDERS if o != ORDERS[2]]))
    reader = command_decoder()
    heard = [order for at in range(0, len(sent), size) for order in reader.feed(sent[at : at + size])]
    assert heard == (ORDERS if size > 3 else [o for o in ORDERS if o != ORDERS[2]])


def test_a_step_is_one_message_with_everything_in_it() -> None:
    best = TokenLogprob(3, -0.5, ((3, -0.5), (4, -1.5)))
    step = StepReport(
        (
            ("plain", Chunk(tokens=(70_000,))),
            ("rich", Chunk(tokens=(3,), logprobs=(best,), finish="stop", stop_id=3, prompt_logprobs=(None, best))),
            ("first", Chunk(cached_tokens=12)),
            ("failed", Chunk(finish="error", fault=Fault("server_error", "no", retryable=True))),
        ),
        EngineStats(running=2, generated_tokens=9),
    )
    assert report_decoder().feed(encode_message(step)) == [step]


def test_exits_in_words() -> None:
    assert "memory" in describe_exit(-signal.SIGKILL) and "SIGKILL" in describe_exit(-signal.SIGKILL)
    assert describe_exit(-signal.SIGSEGV) == "died of signal 11 (Segmentation fault)"
    assert describe_exit(3) == "exit status 3"


async def test_jobs_are_served_by_another_process() -> None:
    async with running(max_num_seqs=2) as engine:
        assert engine.pid not in (None, os.getpid())
        assert (engine.info.description, engine.unready_reason()) == ("chatter", None)
        results = await asyncio.gather(*(collect(engine, job(str(n), count=n + 1)) for n in range(6)))
        assert [len(text(chunks)) for chunks in results] == [1, 2, 3, 4, 5, 6]
        assert all(chunks[0] == Chunk() and chunks[-1].finish == "length" for chunks in results)
        assert (engine.stats().running, engine.stats().waiting, engine.stats().generated_tokens) == (0, 0, 21)
        assert await code_of(engine, job("r", "REFUSED")) == "grammar_unsupported"


async def test_an_idle_process_sleeps() -> None:
    async with running() as engine:
        await collect(engine, job("a"))
        before = ticks(engine.pid)
        await asyncio.sleep(0.5)
        assert ticks(engine.pid) - before <= 2


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("KILLED", "memory ran out"),
        ("SEGFAULT", "Segmentation fault"),
        ("EXIT", "exit status 3"),
        ("HANG", "no answer for 2 s"),
        ("MEMORY", "out of memory (MemoryError: no room for 1 GiB)"),
        ("BUG", "ZeroDivisionError: division by zero"),
        ("POISON", "failed in 3 steps in a row"),
    ],
)
async def test_whatever_ends_it_the_next_job_is_served(
    fate: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as engine:
        first = engine.pid
        unlucky = await asyncio.gather(
            *(collect(engine, job(str(n), count=None)) for n in range(3)), _doom(engine, fate)
        )
        for chunks in unlucky:
            last = chunks[-1]
            assert last.finish == "error" and last.fault is not None and last.fault.retryable
        assert text(await collect(engine, job("next"))) == [SAID] * 5
        assert engine.pid != first and first is not None and not alive(first)
        assert reason in caplog.text and "restart" in caplog.text
        assert (engine.unready_reason(), engine.stats().running) == (None, 0)


async def _doom(engine: ProcessEngine, fate: str) -> list[Chunk]:
    """A job that meets its fate; poison takes three steps, and a job for each that the others do not share."""
    await asyncio.sleep(0.05)
    for number in range(5):
        chunks = await collect(engine, job(f"doomed {number}", fate, None))
        if engine.unready_reason() is not None or fate != "POISON":
            break
    return chunks


async def test_a_slow_step_is_no_hung_one() -> None:
    async with running() as engine:
        first = engine.pid
        assert len(text(await collect(engine, job("slow", "SLOW")))) == 5
        await asyncio.sleep(2 * QUICK.step_timeout)  # nor is one that has nothing to do
        assert engine.pid == first and engine.unready_reason() is None


async def test_a_job_that_only_waited_is_served_by_the_next_process() -> None:
    async with running(max_num_seqs=1) as engine:
        doomed = asyncio.create_task(collect(engine, job("doomed", "KILLED", None)))
        await asyncio.sleep(0)
        assert text(await collect(engine, job("waited"))) == [SAID] * 5
        assert (await doomed)[-1].finish == "error"


async def test_a_stream_that_is_left_frees_its_slot_and_its_name_is_free_when_the_process_says_so() -> None:
    async with running(max_num_seqs=1, max_waiting=0) as engine:
        stream = listen(engine, job("a", count=None))
        await anext(stream)
        assert await code_of(engine, job("b")) == "server_is_overloaded"
        await stream.aclose()
        for _ in range(500):
            with contextlib.suppress(EngineError):
                assert text(await collect(engine, job("a"))) == [SAID] * 5
                return
            await asyncio.sleep(0.01)
        pytest.fail("the slot was never free again")


async def test_more_jobs_than_fit_are_refused_without_asking_the_process() -> None:
    async with running(max_num_seqs=2, max_waiting=3) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)  # nobody there to ask
        waiting = [asyncio.create_task(collect(engine, job(str(n)))) for n in range(5)]
        await asyncio.sleep(0)
        assert [await code_of(engine, job(f"more {n}")) for n in range(20)] == ["server_is_overloaded"] * 20
        with pytest.raises(EngineError, match="too many"):
            await engine.wait_ready()
        os.kill(engine.pid, signal.SIGCONT)
        assert [len(text(chunks)) for chunks in await asyncio.gather(*waiting)] == [5] * 5


async def test_jobs_wait_for_a_restart_but_not_for_ever(tmp_path: Path) -> None:
    limits = WorkerTimeouts(wait_timeout=0.3, min_restart_delay=0.01, max_restart_delay=0.05)
    async with running(tmp_path, limits, max_waiting=1, max_num_seqs=1) as engine:
        (tmp_path / "refuse").write_text("the disk is gone", encoding="utf-8")
        await collect(engine, job("doomed", "KILLED"))
        waiting = [asyncio.create_task(code_of(engine, job(str(n)))) for n in range(2)]
        in_haste = job("haste", deadline=0.1)
        await asyncio.sleep(0)
        assert await code_of(engine, in_haste) == "server_is_overloaded"
        await engine.cancel("1")
        assert await waiting[1] == "cancelled"
        assert await code_of(engine, in_haste) == "deadline_exceeded"
        assert await waiting[0] == "engine_unavailable"
        assert await faces(engine, "restarting", "the disk is gone")
        (tmp_path / "refuse").unlink()
        await asyncio.sleep(0.1)
        for _ in range(100):  # each of them waits a while
            with contextlib.suppress(EngineError):
                await engine.wait_ready()
                break
        assert text(await collect(engine, job("next"))) == [SAID] * 5


async def test_pauses_double_and_begin_anew_after_a_served_job(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as engine:
        for name in ("a", "b", "c"):
            assert (await collect(engine, job(name, "KILLED")))[-1].finish == "error"
        assert [f"in {pause} s" in caplog.text for pause in ("0.01", "0.02", "0.04")] == [True] * 3
        await collect(engine, job("good"))
        caplog.clear()
        await collect(engine, job("d", "KILLED"))
        await engine.wait_ready()
        assert "try 1 to restart it in 0.01 s" in caplog.text


async def test_what_cannot_be_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "refuse").write_text("weights are missing; get them", encoding="utf-8")
    told: list[str] = []
    engine = ProcessEngine(tmp_path, core_factory=CHATTER, timeouts=QUICK, on_status=told.append)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(code_of(engine, job("early")))
    with pytest.raises(EngineError, match=r"^weights are missing; get them$") as caught:
        await starting
    assert caught.value.code == "model_not_loadable"
    assert await waiting == "engine_unavailable"
    assert told == ["loading"]


async def test_a_job_that_comes_while_it_loads_is_served_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    told: list[str] = []
    engine = ProcessEngine(tmp_path, core_factory=CHATTER, timeouts=QUICK, on_status=told.append)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="loading"):
        _ = engine.info
    early = asyncio.create_task(collect(engine, job("early")))
    assert await faces(engine, "loading: packing weights")
    (tmp_path / "slow").unlink()
    assert text(await early) == [SAID] * 5
    await starting
    assert told == ["loading", "loading: packing weights", "ready"]
    await engine.close()


async def test_loading_a_model_reports_each_stage() -> None:
    pytest.importorskip("torch")
    reported: list[str] = []
    engine = ProcessEngine(MODEL_DIR, on_status=reported.append)
    await engine.start()
    await engine.close()
    stages = ["importing torch", "loading weights", "validating the forward pass", "packing weights"]
    assert [text for text in reported if text.removeprefix("loading: ") in stages] == [
        f"loading: {stage}" for stage in stages
    ]


async def test_loading_that_gets_nowhere_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    engine = ProcessEngine(tmp_path, core_factory=CHATTER, timeouts=WorkerTimeouts(step_timeout=0.2, load_timeout=1.0))
    with pytest.raises(EngineError, match="no answer for 1 s"):
        await engine.start()


@pytest.mark.parametrize("when", ["loading", "running", "stopped"])
async def test_closing_ends_the_process_whatever_it_does(tmp_path: Path, when: str) -> None:
    if when == "loading":
        (tmp_path / "slow").touch()
    engine = ProcessEngine(tmp_path, core_factory=CHATTER)
    starting = asyncio.create_task(engine.start())
    while engine.pid is None:
        await asyncio.sleep(0.01)
    pid = engine.pid
    if when != "loading":
        await starting
        stream = listen(engine, job("a", count=None))
        await anext(stream)
        if when == "stopped":
            os.kill(pid, signal.SIGSTOP)
    await engine.close()
    assert not alive(pid)
    if when != "loading":
        last = [chunk async for chunk in stream][-1]
        assert last.fault is not None and last.fault.code == "engine_unavailable"
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert (engine.stats(), engine.pid, engine.unready_reason()) == (EngineStats(), None, "the engine is not running")


@pytest.mark.parametrize("prompt", ["hello", "HANG"])
async def test_the_process_dies_with_its_parent_even_in_a_step(prompt: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.replace("PROMPT", prompt), encoding="utf-8")
    command = (sys.executable, str(script), str(ROOT))
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    await parent.communicate()
    assert await gone(pid)


async def test_whoever_hears_badly_ends_its_own_job_only() -> None:
    def deaf(chunk: Chunk) -> None:
        if chunk.tokens:
            raise ZeroDivisionError

    async with running() as engine:
        other = asyncio.create_task(collect(engine, job("other", count=8)))
        with pytest.raises(ZeroDivisionError):
            await engine.generate(job("deaf", count=None), deaf)
        assert len(text(await other)) == 8
        for _ in range(500):
            if engine.stats().running == 0:
                break
            await asyncio.sleep(0.01)
        assert engine.stats().running == 0, "the process was told to let go of it"
        assert len(text(await collect(engine, job("deaf")))) == 5, "its name is free again"


@pytest.mark.parametrize("place", [1, 3, 5])
async def test_whoever_leaves_while_it_hears_leaves_alone(place: int) -> None:
    """A task that waits for a future and is cancelled cancels the future: its end must not be told once more."""
    heard: list[Chunk] = []

    def leave(chunk: Chunk) -> None:
        heard.append(chunk)
        if len(heard) == place + 1:
            leaving.cancel()

    async with running() as engine:
        pid, other = engine.pid, asyncio.create_task(collect(engine, job("other", count=12)))
        leaving = asyncio.create_task(engine.generate(job("leaving", count=5), leave))
        await asyncio.wait({leaving})
        assert len(text(await other)) == 12 and len(heard) == place + 1
        assert len(text(await collect(engine, job("next")))) == 5 and engine.pid == pid


PARENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.process.client import ProcessEngine
from tests.engine.chunk_stream import listen

async def main():
    engine = ProcessEngine(core_factory="tests.engine.fake_core:chatter")
    await engine.start()
    said = 0
    async for chunk in listen(engine, Job(id="a", tokens=tuple(b"PROMPT"))):
        said += len(chunk.tokens)
        if said == 2:
            await asyncio.sleep(0.2)
            print(engine.pid, flush=True)

asyncio.run(main())
"""


async def test_a_process_that_was_begun_before_it_was_asked_is_the_first_and_imports_meanwhile() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as early:
        engine = ProcessEngine(core_factory=CHATTER, timeouts=QUICK, spawn=early)
        await engine.start()
        try:
            assert engine.pid == early.pid
            assert text(await collect(engine, job("a"))) == [SAID] * 5
            os.kill(early.pid, signal.SIGKILL)
            assert text(await collect(engine, job("b"))) == [SAID] * 5
            assert engine.pid != early.pid
        finally:
            await engine.close()


async def test_a_process_that_was_begun_early_and_died_is_replaced() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as early:
        os.kill(early.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, early.pid, os.WEXITED | os.WNOWAIT)
        engine = ProcessEngine(core_factory=CHATTER, timeouts=QUICK, spawn=early)
        await engine.start()
        try:
            assert text(await collect(engine, job("a"))) == [SAID] * 5
        finally:
            await engine.close()


@pytest.mark.parametrize("module", ["tests.engine.fake_core", "missing.module"])
async def test_what_cannot_be_imported_early_is_told_when_it_is_asked_for(module: str) -> None:
    with PrespawnedWorker(module) as early:
        engine = ProcessEngine(core_factory="missing.module:build", timeouts=QUICK, spawn=early)
        with pytest.raises(LoadError, match="No module named 'missing'"):
            await engine.start()
        assert not alive(early.pid)


def test_a_process_that_nobody_asked_anything_does_not_stay() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as early:
        assert alive(early.pid)
    assert not alive(early.pid)


async def test_a_terminals_signals_are_the_parents() -> None:
    async with running() as engine:
        assert engine.pid is not None and os.getpgid(engine.pid) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.pid, number)
        assert len(text(await collect(engine, job("a")))) == 5


@pytest.mark.parametrize("said", [None, "0"])
async def test_large_tensors_are_asked_for_in_huge_pages_unless_the_environment_says_otherwise(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is None:
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    else:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", said)
    async with running() as engine:
        told = await asyncio.to_thread(Path(f"/proc/{engine.pid}/environ").read_bytes)
    assert f"THP_MEM_ALLOC_ENABLE={said or 1}".encode() in told.split(b"\0")


async def test_the_process_holds_nothing_of_its_parents() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.set_inheritable(True)
        async with running() as engine:
            assert sockets(engine.pid) == 1


@pytest.mark.slow
async def test_killed_again_and_again_under_many_streams() -> None:
    kills, streams = (100, 16) if FULL_COUNTS else (10, 4)
    async with running() as engine:
        for number in range(kills):
            tasks = [asyncio.create_task(collect(engine, job(f"{number} {n}", count=None))) for n in range(streams)]
            while engine.stats().running < streams:
                await asyncio.sleep(0.005)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            assert [chunks[-1].finish for chunks in await asyncio.gather(*tasks)] == ["error"] * streams
            assert text(await collect(engine, job(f"next {number}"))) == [SAID] * 5


def test_the_parents_side_needs_no_torch() -> None:
    check = "import sys, antiphon.app.cli, antiphon.engine.process.client; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_what_was_loaded_is_not_looked_through_for_garbage_again() -> None:
    check = """
import gc, sys
from antiphon.engine.process.worker import gc_paused
with gc_paused():
    kept = [[] for _ in range(5000)]
    assert not gc.isenabled()
sys.exit(not (gc.isenabled() and gc.get_freeze_count() >= 5000))
"""
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
