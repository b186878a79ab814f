"""The worker process: serving, crashes and hangs of every kind, restarts, loading, and its exit with the parent."""

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

import msgspec
import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.jobs.recovery import STOPPED_ALONE
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
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import Chunk, EngineError, EngineStats, Fault, Job, Sampling, TokenLogprob
from tests.counts import FULL_COUNTS
from tests.engine.chunk_stream import collect_chunks, get_error_code, stream_chunks
from tests.engine.fake_core import OUTPUT_TOKEN
from tests.syntax import ROOT

FAKE_CORE = "tests.engine.fake_core:build_fake_core"
HANGING_TIMEOUTS = WorkerTimeouts(step_timeout=1.0, load_timeout=20, min_restart_delay=0.01, max_restart_delay=0.2)
SHORT_TIMEOUTS = WorkerTimeouts(
    step_timeout=2.0, load_timeout=20, wait_timeout=20, min_restart_delay=0.01, max_restart_delay=0.2
)


@asynccontextmanager
async def run_engine(
    folder: Path | str = "", timeouts: WorkerTimeouts = SHORT_TIMEOUTS, **options: Any
) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(folder, EngineOptions(**options), core_factory=FAKE_CORE, timeouts=timeouts)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def make_job(name: str, prompt: str = "hello", max_tokens: int | None = 5, **options: Any) -> Job:
    return Job(id=name, tokens=tuple(prompt.encode()), sampling=Sampling(max_tokens=max_tokens), **options)


def join_tokens(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.tokens]


def process_exists(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def wait_until_unready(engine: ProcessEngine, *parts: str) -> bool:
    """Waits until the engine's unready reason contains all `parts`. Returns whether it did within 10 s."""
    for _ in range(1000):
        if all(part in str(engine.unready_reason()) for part in parts):
            return True
        await asyncio.sleep(0.01)
    return False


def read_cpu_ticks(pid: int | None) -> int:
    """Returns the CPU time that the process has used, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()
    return int(fields[13]) + int(fields[14])


def count_sockets(pid: int | None) -> int:
    return sum(str(path.readlink()).startswith("socket:") for path in Path(f"/proc/{pid}/fd").iterdir())


async def wait_for_exit(pid: int) -> bool:
    for _ in range(500):
        if not process_exists(pid):
            return True
        await asyncio.sleep(0.01)
    return False


COMMANDS: list[Command] = [
    StartCommand("a:b", "/models", EngineOptions(device="cpu", max_num_seqs=4, kv_cache_gib=0.5)),
    AddJob(make_job("one", deadline=1.5)),
    AddJob(Job(id="two", tokens=tuple(range(100_000)), sampling=Sampling(logit_bias={3: -1.0}, stop_ids=(7,)))),
    CancelJob("one"),
    PingCommand(),
    StopCommand(),
]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000, 1 << 20])
def test_messages_decode_from_any_split(size: int) -> None:
    encoded = b"".join(
        encode_message(command) for command in (COMMANDS if size > 3 else [o for o in COMMANDS if o != COMMANDS[2]])
    )
    reader = command_decoder()
    decoded = [
        command for start in range(0, len(encoded), size) for command in reader.feed(encoded[start : start + size])
    ]
    assert decoded == (COMMANDS if size > 3 else [o for o in COMMANDS if o != COMMANDS[2]])


def test_step_report_round_trips() -> None:
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


def test_exit_descriptions() -> None:
    assert "memory" in describe_exit(-signal.SIGKILL) and "SIGKILL" in describe_exit(-signal.SIGKILL)
    assert describe_exit(-signal.SIGSEGV) == "killed by signal 11 (Segmentation fault)"
    assert describe_exit(3) == "exit status 3"


async def test_jobs_run_in_another_process() -> None:
    async with run_engine(max_num_seqs=2) as engine:
        assert engine.pid not in (None, os.getpid())
        assert (engine.info.description, engine.unready_reason()) == ("fake core", None)
        results = await asyncio.gather(*(collect_chunks(engine, make_job(str(n), max_tokens=n + 1)) for n in range(6)))
        assert [len(join_tokens(chunks)) for chunks in results] == [1, 2, 3, 4, 5, 6]
        assert all(chunks[0] == Chunk() and chunks[-1].finish == "length" for chunks in results)
        assert (engine.stats().running, engine.stats().waiting, engine.stats().generated_tokens) == (0, 0, 21)
        assert await get_error_code(engine, make_job("r", "REFUSED")) == "grammar_unsupported"


async def test_idle_process_uses_no_cpu() -> None:
    async with run_engine() as engine:
        await collect_chunks(engine, make_job("a"))
        before = read_cpu_ticks(engine.pid)
        await asyncio.sleep(0.5)
        assert read_cpu_ticks(engine.pid) - before <= 2


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("KILLED", "memory ran out"),
        ("SEGFAULT", "Segmentation fault"),
        ("EXIT", "exit status 3"),
        ("HANG", "no answer for 1 s"),
        ("MEMORY", "out of memory (MemoryError: no room for 1 GiB)"),
        ("BUG", "ZeroDivisionError: division by zero"),
        ("POISON", "failed in 3 steps in a row"),
    ],
)
async def test_job_that_ends_the_process_fails_alone(
    marker: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_engine(timeouts=HANGING_TIMEOUTS if marker == "HANG" else SHORT_TIMEOUTS) as engine:
        first_pid = engine.pid
        *others, failed = await asyncio.gather(
            *(collect_chunks(engine, make_job(str(n), max_tokens=100)) for n in range(3)),
            _trigger_fault(engine, marker),
        )
        assert failed[-1].fault is not None and failed[-1].fault.code == "server_error"
        if marker == "POISON":  # its steps fail all jobs before the process ends
            assert all(chunks[-1].fault is not None for chunks in others)
        else:
            assert join_tokens(failed) == [OUTPUT_TOKEN] * 2
            assert [join_tokens(chunks) for chunks in others] == [[OUTPUT_TOKEN] * 100] * 3
            assert all(chunks.count(Chunk()) == 1 and chunks[-1].finish == "length" for chunks in others)
        assert join_tokens(await collect_chunks(engine, make_job("next"))) == [OUTPUT_TOKEN] * 5
        assert engine.pid != first_pid and first_pid is not None and not process_exists(first_pid)
        assert reason in caplog.text and "restart" in caplog.text
        assert (engine.unready_reason(), engine.stats().running) == (None, 0)


async def _trigger_fault(engine: ProcessEngine, marker: str) -> list[Chunk]:
    """Runs jobs that trigger the fault. POISON needs three failed steps, each of which needs a job of its own."""
    await asyncio.sleep(0.05)
    for number in range(5):
        chunks = await collect_chunks(engine, make_job(f"fault {number}", marker, None))
        if engine.unready_reason() is not None or marker != "POISON":
            break
    return chunks


async def test_jobs_fail_with_the_process_if_they_are_not_to_continue() -> None:
    timeouts = msgspec.structs.replace(SHORT_TIMEOUTS, continue_within_s=0.0)
    async with run_engine(timeouts=timeouts) as engine:
        results = await asyncio.gather(
            collect_chunks(engine, make_job("other", max_tokens=None)),
            collect_chunks(engine, make_job("fault", "KILLED", None)),
        )
        for chunks in results:
            fault = chunks[-1].fault
            assert fault is not None and (fault.code, fault.retryable) == ("engine_unavailable", True)
        assert len(join_tokens(await collect_chunks(engine, make_job("next")))) == 5


async def test_job_that_gets_no_process_in_time_fails(tmp_path: Path) -> None:
    timeouts = msgspec.structs.replace(SHORT_TIMEOUTS, continue_within_s=5.0)  # a process starts and fails meanwhile
    async with run_engine(tmp_path, timeouts) as engine:
        stream = stream_chunks(engine, make_job("a", max_tokens=None))
        await anext(stream)
        (tmp_path / "refuse").write_text("the disk is gone", encoding="utf-8")
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        last = [chunk async for chunk in stream][-1]
        assert last.fault is not None and last.fault.code == "engine_unavailable"
        assert "the disk is gone" in last.fault.message


async def test_cancelled_job_ends_between_two_processes(tmp_path: Path) -> None:
    async with run_engine(tmp_path) as engine:
        stream = stream_chunks(engine, make_job("a", max_tokens=None))
        await anext(stream)
        (tmp_path / "slow").touch()
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert await wait_until_unready(engine, "loading")
        await engine.cancel("a")
        assert [chunk async for chunk in stream][-1].finish == "cancelled"
        (tmp_path / "slow").unlink()
        assert len(join_tokens(await collect_chunks(engine, make_job("a")))) == 5, "the job's id is free again"


async def test_full_engine_continues_its_jobs_and_takes_no_others(tmp_path: Path) -> None:
    async with run_engine(tmp_path, max_num_seqs=2, max_waiting=1) as engine:
        running = [asyncio.create_task(collect_chunks(engine, make_job(str(n), max_tokens=60))) for n in range(3)]
        while engine.stats().running < 2:
            await asyncio.sleep(0.005)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert await wait_until_unready(engine, "stopped")
        late = [asyncio.create_task(get_error_code(engine, make_job(f"late {n}"))) for n in range(2)]
        assert [len(join_tokens(chunks)) for chunks in await asyncio.gather(*running)] == [60] * 3
        assert await asyncio.gather(*late) == ["server_is_overloaded"] * 2


async def test_slow_step_is_not_treated_as_hung() -> None:
    async with run_engine() as engine:
        first_pid = engine.pid
        assert len(join_tokens(await collect_chunks(engine, make_job("slow", "SLOW")))) == 5
        await asyncio.sleep(2 * SHORT_TIMEOUTS.step_timeout)  # An idle process is not hung either.
        assert engine.pid == first_pid and engine.unready_reason() is None


async def test_waiting_job_runs_in_the_next_process() -> None:
    async with run_engine(max_num_seqs=1) as engine:
        failing = asyncio.create_task(collect_chunks(engine, make_job("fault", "KILLED", None)))
        await asyncio.sleep(0)
        assert join_tokens(await collect_chunks(engine, make_job("waited"))) == [OUTPUT_TOKEN] * 5
        fault = (await failing)[-1].fault
        assert fault is not None and fault.message == STOPPED_ALONE.message


async def test_closed_stream_frees_its_slot_and_its_job_id() -> None:
    async with run_engine(max_num_seqs=1, max_waiting=0) as engine:
        stream = stream_chunks(engine, make_job("a", max_tokens=None))
        await anext(stream)
        assert await get_error_code(engine, make_job("b")) == "server_is_overloaded"
        await stream.aclose()
        for _ in range(500):
            with contextlib.suppress(EngineError):
                assert join_tokens(await collect_chunks(engine, make_job("a"))) == [OUTPUT_TOKEN] * 5
                return
            await asyncio.sleep(0.01)
        pytest.fail("the slot was never free again")


async def test_excess_jobs_are_rejected_without_a_reply_of_the_process() -> None:
    async with run_engine(max_num_seqs=2, max_waiting=3) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)  # the process cannot answer
        waiting = [asyncio.create_task(collect_chunks(engine, make_job(str(n)))) for n in range(5)]
        await asyncio.sleep(0)
        assert [await get_error_code(engine, make_job(f"more {n}")) for n in range(20)] == ["server_is_overloaded"] * 20
        with pytest.raises(EngineError, match="too many"):
            await engine.wait_ready()
        os.kill(engine.pid, signal.SIGCONT)
        assert [len(join_tokens(chunks)) for chunks in await asyncio.gather(*waiting)] == [5] * 5


async def test_jobs_wait_for_a_restart_until_the_timeout(tmp_path: Path) -> None:
    timeouts = WorkerTimeouts(wait_timeout=0.3, continue_within_s=0.0, min_restart_delay=0.01, max_restart_delay=0.05)
    async with run_engine(tmp_path, timeouts, max_waiting=1, max_num_seqs=1) as engine:
        (tmp_path / "refuse").write_text("the disk is gone", encoding="utf-8")
        await collect_chunks(engine, make_job("fault", "KILLED"))
        waiting = [asyncio.create_task(get_error_code(engine, make_job("0")))]
        given_up = asyncio.create_task(collect_chunks(engine, make_job("1")))
        urgent = make_job("urgent", deadline=0.1)
        await asyncio.sleep(0)
        assert await get_error_code(engine, urgent) == "server_is_overloaded"
        await engine.cancel("1")
        with pytest.raises(EngineError) as caught:
            await given_up
        assert (caught.value.code, caught.value.retryable) == ("cancelled", False)
        assert await get_error_code(engine, urgent) == "deadline_exceeded"
        assert await waiting[0] == "engine_unavailable"
        assert await wait_until_unready(engine, "restarting", "the disk is gone")
        (tmp_path / "refuse").unlink()
        await asyncio.sleep(0.1)
        for _ in range(100):  # each call waits for up to 0.3 s
            with contextlib.suppress(EngineError):
                await engine.wait_ready()
                break
        assert join_tokens(await collect_chunks(engine, make_job("next"))) == [OUTPUT_TOKEN] * 5


async def test_restart_delay_doubles_and_resets_after_a_served_job(caplog: pytest.LogCaptureFixture) -> None:
    async with run_engine() as engine:
        assert (await collect_chunks(engine, make_job("a", "KILLED")))[-1].finish == "error"
        assert [f"in {pause} s" in caplog.text for pause in ("0.01", "0.02", "0.04")] == [True] * 3
        await collect_chunks(engine, make_job("good"))
        caplog.clear()
        await collect_chunks(engine, make_job("b", "KILLED"))
        await engine.wait_ready()
        assert "restart attempt 1 in 0.01 s" in caplog.text


async def test_load_error_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "refuse").write_text("weights are missing; get them", encoding="utf-8")
    statuses: list[str] = []
    engine = ProcessEngine(tmp_path, core_factory=FAKE_CORE, timeouts=SHORT_TIMEOUTS, on_status=statuses.append)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(get_error_code(engine, make_job("early")))
    with pytest.raises(EngineError, match=r"^weights are missing; get them$") as caught:
        await starting
    assert caught.value.code == "model_not_loadable"
    assert await waiting == "engine_unavailable"
    assert statuses == ["loading"]


async def test_job_that_arrives_during_loading_runs_after_it(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    statuses: list[str] = []
    engine = ProcessEngine(tmp_path, core_factory=FAKE_CORE, timeouts=SHORT_TIMEOUTS, on_status=statuses.append)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match="loading"):
        _ = engine.info
    pending = asyncio.create_task(collect_chunks(engine, make_job("early")))
    assert await wait_until_unready(engine, "loading: packing weights")
    (tmp_path / "slow").unlink()
    assert join_tokens(await pending) == [OUTPUT_TOKEN] * 5
    await starting
    assert statuses == ["loading", "loading: packing weights", "ready"]
    await engine.close()


async def test_loading_a_model_reports_each_stage() -> None:
    pytest.importorskip("torch")
    reported: list[str] = []
    engine = ProcessEngine(MODEL_DIR, on_status=reported.append)
    await engine.start()
    await engine.close()
    stages = ["importing torch", "loading weights", "loading kernels", "validating the forward pass", "packing weights"]
    assert [status for status in reported if status.removeprefix("loading: ") in stages] == [
        f"loading: {stage}" for stage in stages
    ]


async def test_loading_without_progress_times_out(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    engine = ProcessEngine(
        tmp_path, core_factory=FAKE_CORE, timeouts=WorkerTimeouts(step_timeout=0.2, load_timeout=1.0)
    )
    with pytest.raises(EngineError, match="no answer for 1 s"):
        await engine.start()


@pytest.mark.parametrize("state", ["loading", "running", "stopped"])
async def test_close_ends_the_process_in_any_state(tmp_path: Path, state: str) -> None:
    if state == "loading":
        (tmp_path / "slow").touch()
    engine = ProcessEngine(tmp_path, core_factory=FAKE_CORE)
    starting = asyncio.create_task(engine.start())
    while engine.pid is None:
        await asyncio.sleep(0.01)
    pid = engine.pid
    if state != "loading":
        await starting
        stream = stream_chunks(engine, make_job("a", max_tokens=None))
        await anext(stream)
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
    await engine.close()
    assert not process_exists(pid)
    if state != "loading":
        last = [chunk async for chunk in stream][-1]
        assert last.fault is not None and last.fault.code == "engine_unavailable"
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert (engine.stats(), engine.pid, engine.unready_reason()) == (EngineStats(), None, "the engine is not running")


@pytest.mark.parametrize("prompt", ["hello", "HANG"])
async def test_process_exits_with_its_parent_even_during_a_step(prompt: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT_SCRIPT.replace("PROMPT", prompt), encoding="utf-8")
    command = (sys.executable, str(script), str(ROOT))
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert process_exists(pid)
    parent.kill()
    await parent.communicate()
    assert await wait_for_exit(pid)


async def test_exception_in_a_callback_ends_only_its_own_job() -> None:
    def fail_on_tokens(chunk: Chunk) -> None:
        if chunk.tokens:
            raise ZeroDivisionError

    async with run_engine() as engine:
        other = asyncio.create_task(collect_chunks(engine, make_job("other", max_tokens=8)))
        with pytest.raises(ZeroDivisionError):
            await engine.generate(make_job("failing", max_tokens=None), fail_on_tokens)
        assert len(join_tokens(await other)) == 8
        for _ in range(500):
            if engine.stats().running == 0:
                break
            await asyncio.sleep(0.01)
        assert engine.stats().running == 0, "the job is cancelled in the process"
        assert len(join_tokens(await collect_chunks(engine, make_job("failing")))) == 5, "the job's id is free again"


@pytest.mark.parametrize("num_chunks", [1, 3, 5])
async def test_cancel_from_within_a_callback_affects_only_its_own_job(num_chunks: int) -> None:
    """Cancelling a task cancels the future that it awaits; the end of the job must not set that future again."""
    chunks: list[Chunk] = []

    def cancel_after(chunk: Chunk) -> None:
        chunks.append(chunk)
        if len(chunks) == num_chunks + 1:
            leaving.cancel()

    async with run_engine() as engine:
        pid, other = engine.pid, asyncio.create_task(collect_chunks(engine, make_job("other", max_tokens=12)))
        leaving = asyncio.create_task(engine.generate(make_job("leaving", max_tokens=5), cancel_after))
        await asyncio.wait({leaving})
        assert len(join_tokens(await other)) == 12 and len(chunks) == num_chunks + 1
        assert len(join_tokens(await collect_chunks(engine, make_job("next")))) == 5 and engine.pid == pid


PARENT_SCRIPT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.process.client import ProcessEngine
from tests.engine.chunk_stream import collect_chunks, get_error_code, stream_chunks

async def main():
    engine = ProcessEngine(core_factory="tests.engine.fake_core:build_fake_core")
    await engine.start()
    num_tokens = 0
    async for chunk in stream_chunks(engine, Job(id="a", tokens=tuple(b"PROMPT"))):
        num_tokens += len(chunk.tokens)
        if num_tokens == 2:
            await asyncio.sleep(0.2)
            print(engine.pid, flush=True)

asyncio.run(main())
"""


async def test_prespawned_worker_is_the_first_process() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as prespawned:
        engine = ProcessEngine(core_factory=FAKE_CORE, timeouts=SHORT_TIMEOUTS, spawn=prespawned)
        await engine.start()
        try:
            assert engine.pid == prespawned.pid
            assert join_tokens(await collect_chunks(engine, make_job("a"))) == [OUTPUT_TOKEN] * 5
            os.kill(prespawned.pid, signal.SIGKILL)
            assert join_tokens(await collect_chunks(engine, make_job("b"))) == [OUTPUT_TOKEN] * 5
            assert engine.pid != prespawned.pid
        finally:
            await engine.close()


async def test_exited_prespawned_worker_is_replaced() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as prespawned:
        os.kill(prespawned.pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, prespawned.pid, os.WEXITED | os.WNOWAIT)
        engine = ProcessEngine(core_factory=FAKE_CORE, timeouts=SHORT_TIMEOUTS, spawn=prespawned)
        await engine.start()
        try:
            assert join_tokens(await collect_chunks(engine, make_job("a"))) == [OUTPUT_TOKEN] * 5
        finally:
            await engine.close()


@pytest.mark.parametrize("module", ["tests.engine.fake_core", "missing.module"])
async def test_import_error_of_a_prespawned_worker_is_raised_at_start(module: str) -> None:
    with PrespawnedWorker(module) as prespawned:
        engine = ProcessEngine(core_factory="missing.module:build", timeouts=SHORT_TIMEOUTS, spawn=prespawned)
        with pytest.raises(LoadError, match="No module named 'missing'"):
            await engine.start()
        assert not process_exists(prespawned.pid)


def test_unused_prespawned_worker_exits() -> None:
    with PrespawnedWorker("tests.engine.fake_core") as prespawned:
        assert process_exists(prespawned.pid)
    assert not process_exists(prespawned.pid)


async def test_terminal_signals_do_not_end_the_process() -> None:
    async with run_engine() as engine:
        assert engine.pid is not None and os.getpgid(engine.pid) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.pid, number)
        assert len(join_tokens(await collect_chunks(engine, make_job("a")))) == 5


@pytest.mark.parametrize("setting", [None, "0"])
async def test_huge_pages_for_large_tensors_are_enabled_by_default(
    setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting is None:
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    else:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", setting)
    async with run_engine() as engine:
        environ = await asyncio.to_thread(Path(f"/proc/{engine.pid}/environ").read_bytes)
    assert f"THP_MEM_ALLOC_ENABLE={setting or 1}".encode() in environ.split(b"\0")


async def test_process_inherits_no_sockets() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.set_inheritable(True)
        async with run_engine() as engine:
            assert count_sockets(engine.pid) == 2, "the connection and the socket for descriptors"


@pytest.mark.slow
async def test_repeated_kills_during_many_streams() -> None:
    kills, streams = (100, 16) if FULL_COUNTS else (10, 4)
    async with run_engine() as engine:
        for number in range(kills):
            tasks = [
                asyncio.create_task(collect_chunks(engine, make_job(f"{number} {n}", max_tokens=60)))
                for n in range(streams)
            ]
            while engine.stats().running < streams:
                await asyncio.sleep(0.005)
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
            for chunks in await asyncio.gather(*tasks):
                assert (len(join_tokens(chunks)), chunks.count(Chunk()), chunks[-1].finish) == (60, 1, "length")
            assert join_tokens(await collect_chunks(engine, make_job(f"next {number}"))) == [OUTPUT_TOKEN] * 5


def test_parent_process_does_not_import_torch() -> None:
    check = "import sys, antiphon.app.cli.commands, antiphon.engine.process.client; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0


def test_loaded_objects_are_frozen_for_garbage_collection() -> None:
    check = """
import gc, sys
from antiphon.engine.process.child.worker import gc_paused
with gc_paused():
    objects = [[] for _ in range(5000)]
    assert not gc.isenabled()
sys.exit(not (gc.isenabled() and gc.get_freeze_count() >= 5000))
"""
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=False).returncode == 0
