"""The scripted engine: it follows the engine protocol and replays the replies of its file."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.protocol import Chunk, EngineError, EngineInfo, Job, Sampling
from antiphon.engine.scripted.engine import (
    ScriptedEngine,
    ScriptedReply,
    ScriptError,
    ScriptStep,
    load_script,
    parse_script,
)
from antiphon.engine.scripted.playback import play_reply
from tests.engine.chunk_stream import collect_chunks, stream_chunks

ENGINE_INFO = EngineInfo(max_model_len=64, vocab_size=256, eos_ids=(0,))


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode()


def make_engine(*replies: ScriptedReply, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(replies, encode=encode, decode=decode, info=ENGINE_INFO, **options)


def make_job(text: str = "hi", name: str = "j", **options: Any) -> Job:
    sampling = Sampling(**{key: options.pop(key) for key in list(options) if key in Sampling.__struct_fields__})
    return Job(id=name, tokens=tuple(encode(text)), sampling=sampling, **options)


def decode_chunks(chunks: list[Chunk]) -> str:
    return decode([token for chunk in chunks for token in chunk.tokens])


def is_idle(engine: ScriptedEngine) -> bool:
    stats = engine.stats()
    return stats.running == stats.waiting == stats.running_cache_tokens == 0


@pytest.mark.asyncio
async def test_reply_is_admission_then_tokens_then_the_stop_token() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("Hey",), cached_tokens=1))
    chunks = await collect_chunks(engine, make_job())
    assert chunks[0] == Chunk(cached_tokens=1)
    assert [chunk.tokens for chunk in chunks[1:]] == [(72,), (101,), (121,), (0,)]
    assert [chunk.finish for chunk in chunks] == [None, None, None, None, "stop"]
    assert chunks[-1].stop_id == 0
    assert is_idle(engine) and engine.stats().generated_tokens == 4


@pytest.mark.asyncio
async def test_tokens_per_chunk_limits_chunks_to_one_output_entry() -> None:
    output = ("abc", ScriptStep(ids=(1, 2)))
    sizes = {}
    for tokens_per_chunk in (0, 2):
        chunks = await collect_chunks(
            make_engine(ScriptedReply(name="a", output=output, tokens_per_chunk=tokens_per_chunk)), make_job()
        )
        sizes[tokens_per_chunk] = [len(chunk.tokens) for chunk in chunks]
    assert sizes == {0: [0, 3, 2, 1], 2: [0, 2, 1, 2, 1]}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "text", "finish", "stop_id"),
    [
        ({"max_tokens": 2}, "ab", "length", None),
        ({"max_tokens": 4}, "abcd", "length", None),
        ({"max_tokens": 5}, "abcd\0", "stop", 0),
        ({"stop_ids": (99,)}, "abc", "stop", 99),
        ({"stop_ids": (99,), "max_tokens": 2}, "ab", "length", None),
        ({"max_tokens": 0}, "", "length", None),
    ],
)
async def test_max_tokens_and_stop_ids_truncate_the_reply(
    options: dict[str, Any], text: str, finish: str, stop_id: int | None
) -> None:
    chunks = await collect_chunks(
        make_engine(ScriptedReply(name="a", output=("abcd",), tokens_per_chunk=3)), make_job(**options)
    )
    assert (decode_chunks(chunks), chunks[-1].finish, chunks[-1].stop_id) == (text, finish, stop_id)


@pytest.mark.asyncio
async def test_finish_reason_follows_the_script() -> None:
    for reply, text, finish in [
        (ScriptedReply(name="a", output=("x",), finish="length"), "x", "length"),
        (ScriptedReply(name="a", output=("x",), stop_id=7), "x\7", "stop"),
        (ScriptedReply(name="a", output=(ScriptStep(ids=(120, 0, 121)),)), "x\0", "stop"),
        (ScriptedReply(name="a", output=()), "\0", "stop"),
    ]:
        chunks = await collect_chunks(make_engine(reply), make_job())
        assert (decode_chunks(chunks), chunks[-1].finish) == (text, finish)


@pytest.mark.asyncio
async def test_context_length_limits_the_reply_and_rejects_long_prompts() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("x" * 100,), tokens_per_chunk=0))
    chunks = await collect_chunks(engine, make_job("p" * 60))
    assert (decode_chunks(chunks), chunks[-1].finish) == ("xxxx", "length")
    with pytest.raises(EngineError) as caught:
        await collect_chunks(engine, make_job("p" * 64))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.asyncio
async def test_replies_are_selected_by_prompt_then_in_order() -> None:
    engine = make_engine(
        ScriptedReply(name="both", output=("B",), when=("run", "exited")),
        ScriptedReply(name="run", output=("R",), when=("run",)),
        ScriptedReply(name="one", output=("1",)),
        ScriptedReply(name="two", output=("2",)),
    )
    prompts = ["run it", "hello", "run it: exited", "hello", "hello"]
    assert [decode_chunks(await collect_chunks(engine, make_job(prompt)))[0] for prompt in prompts] == [
        "R",
        "1",
        "B",
        "2",
        "2",
    ]


@pytest.mark.asyncio
async def test_fault_is_the_last_chunk_and_refusal_is_raised() -> None:
    engine = make_engine(
        ScriptedReply(name="a", output=("ab", ScriptStep(fault="boom", code="overheated", retryable=True), "never")),
        ScriptedReply(name="b", output=(ScriptStep(refuse="full", code="server_is_overloaded", retryable=True),)),
        ScriptedReply(name="c", output=(ScriptStep(fault="at once"),)),
    )
    chunks = await collect_chunks(engine, make_job())
    assert decode_chunks(chunks) == "ab" and chunks[-1].finish == "error"
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "overheated" and chunks[-1].fault.retryable
    with pytest.raises(EngineError, match="full") as caught:
        await collect_chunks(engine, make_job())
    assert (caught.value.code, caught.value.retryable) == ("server_is_overloaded", True)
    assert [chunk.finish for chunk in await collect_chunks(engine, make_job())] == [None, "error"]
    assert is_idle(engine) and engine.stats().failed_jobs == 2


@pytest.mark.asyncio
async def test_scripted_logprobs_are_deterministic() -> None:
    job = make_job("abc", top_logprobs=2, prompt_logprobs=0)
    engine = make_engine(ScriptedReply(name="a", output=("xy",)))
    first, second = await collect_chunks(engine, job), await collect_chunks(engine, job)
    assert first == second
    entries = [entry for chunk in first for entry in chunk.logprobs]
    assert [entry.id for entry in entries] == [120, 121, 0]
    assert entries[0].top == ((120, -0.125), (121, -3.125)) and entries[0].logprob == -0.125
    assert first[1].prompt_logprobs[0] is None and len(first[1].prompt_logprobs) == 3
    assert all(not chunk.prompt_logprobs for chunk in first[2:])


@pytest.mark.asyncio
async def test_stalled_reply_waits_until_it_is_cancelled() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("x", ScriptStep(stall=True), "y")))
    stream = stream_chunks(engine, make_job(name="stuck"))
    assert [await anext(stream), await anext(stream)][1].tokens == (120,)
    asyncio.get_running_loop().call_later(0.01, asyncio.ensure_future, engine.cancel("stuck"))
    assert (await anext(stream)).finish == "cancelled"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await engine.cancel("unknown")
    assert is_idle(engine)


@pytest.mark.asyncio
async def test_pauses_and_delays_precede_the_next_chunk() -> None:
    reply = ScriptedReply(name="a", output=("a", ScriptStep(pause=0.5), ScriptStep(pause=0.25), "b"))
    assert [delay for delay, _ in play_reply(reply, make_job(), ENGINE_INFO, encode, 0.125)] == [0.125, 0.875, 0.125]
    engine = make_engine(ScriptedReply(name="a", output=(ScriptStep(pause=0.02), "b")))
    begin = asyncio.get_running_loop().time()
    await collect_chunks(engine, make_job())
    assert asyncio.get_running_loop().time() - begin >= 0.02


@pytest.mark.asyncio
async def test_slots_are_assigned_in_order_and_freed_by_closing_a_stream() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("x", ScriptStep(stall=True))), max_num_seqs=1, max_waiting=1)
    first, second = stream_chunks(engine, make_job(name="1")), stream_chunks(engine, make_job(name="2"))
    await anext(first)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0.01)
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    with pytest.raises(EngineError) as caught:
        await anext(stream_chunks(engine, make_job(name="3")))
    assert caught.value.code == "server_is_overloaded" and caught.value.retryable
    await first.aclose()
    assert await waiting == Chunk()
    assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    await second.aclose()
    assert is_idle(engine)


@pytest.mark.asyncio
async def test_waiting_job_can_be_cancelled_abandoned_or_time_out() -> None:
    engine = make_engine(ScriptedReply(name="a", output=(ScriptStep(stall=True),)), max_num_seqs=1)
    holder = stream_chunks(engine, make_job(name="holder"))
    await anext(holder)
    waiting = asyncio.ensure_future(anext(stream_chunks(engine, make_job(name="w"))))
    await asyncio.sleep(0.01)
    await engine.cancel("w")
    with pytest.raises(EngineError) as caught:
        await waiting
    assert (caught.value.code, caught.value.retryable) == ("cancelled", False), "its caller gave it up"
    abandoned = asyncio.ensure_future(anext(stream_chunks(engine, make_job(name="v"))))
    await asyncio.sleep(0.01)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    with pytest.raises(EngineError) as caught:
        await anext(stream_chunks(engine, make_job(name="late", deadline=0.01)))
    assert caught.value.code == "deadline_exceeded"
    assert engine.stats().waiting == 0
    await holder.aclose()
    assert is_idle(engine)


@pytest.mark.asyncio
async def test_free_slot_goes_to_the_owner_with_the_fewest() -> None:
    """One client's many jobs do not keep another client's job waiting for all of them."""
    engine = make_engine(ScriptedReply(name="a", output=(ScriptStep(stall=True),)), max_num_seqs=2)
    admitted: list[str] = []
    jobs = {
        name: asyncio.create_task(
            engine.generate(make_job(name=name, owner=name[0]), lambda _, name=name: admitted.append(name))
        )
        for name in ("a1", "a2", "a3", "a4", "b1")
    }
    while engine.stats().waiting != 3:
        await asyncio.sleep(0)
    for name in ("a1", "a2"):
        jobs[name].cancel()
        count = len(admitted)
        while len(admitted) == count:
            await asyncio.sleep(0)
    assert admitted == ["a1", "a2", "b1", "a3"]
    for job in jobs.values():
        job.cancel()
    await asyncio.gather(*jobs.values(), return_exceptions=True)
    assert is_idle(engine)


@pytest.mark.asyncio
@pytest.mark.parametrize("iterations", range(4))
async def test_job_cancelled_while_it_gets_a_slot_is_cancelled(iterations: int) -> None:
    """Its deadline makes the wait a limited one. The cancellation comes some iterations after the slot."""
    engine = make_engine(ScriptedReply(name="a", output=(ScriptStep(stall=True),)), max_num_seqs=1)
    jobs = [
        asyncio.create_task(engine.generate(make_job(name=name, deadline=60.0), lambda _: None)) for name in ("1", "2")
    ]
    while engine.stats().waiting != 1:
        await asyncio.sleep(0)
    jobs[0].cancel()
    while engine.stats().waiting:
        await asyncio.sleep(0)
    for _ in range(iterations):
        await asyncio.sleep(0)
    jobs[1].cancel()
    _, pending = await asyncio.wait(jobs, timeout=10)
    assert not pending and all(job.cancelled() for job in jobs) and is_idle(engine)


@pytest.mark.asyncio
async def test_deadline_and_close_end_a_running_job_with_a_fault() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("x", ScriptStep(stall=True))))
    late = await collect_chunks(engine, make_job(deadline=0.01))
    assert late[-1].fault is not None and late[-1].fault.code == "deadline_exceeded"
    running = asyncio.ensure_future(collect_chunks(engine, make_job()))
    await asyncio.sleep(0.01)
    await engine.close()
    fault = (await running)[-1].fault
    assert fault is not None and fault.code == "engine_unavailable"
    with pytest.raises(EngineError, match="stopped"):
        await collect_chunks(engine, make_job())
    await engine.start()
    assert is_idle(engine)


@pytest.mark.asyncio
async def test_sixty_four_jobs_interleave() -> None:
    engine = make_engine(ScriptedReply(name="a", output=("hello",)), max_num_seqs=8)
    results = await asyncio.gather(*(collect_chunks(engine, make_job(name=str(n))) for n in range(64)))
    assert {decode_chunks(chunks) for chunks in results} == {"hello\0"} and is_idle(engine)


async def test_step_is_one_callback_for_all_jobs() -> None:
    engine = make_engine(ScriptedReply(name="r", output=("abc",)))
    calls: list[tuple[str, Any]] = []

    def make_callback(name: str) -> Any:
        return lambda chunk: calls.append((name, asyncio.current_task())) if chunk.tokens else None

    await asyncio.gather(*(engine.generate(make_job(name=name), make_callback(name)) for name in "abc"))
    assert [name for name, _ in calls] == list("abcabcabcabc")  # the stop token is the fourth
    assert {task for _, task in calls} == {None}


async def test_failing_or_cancelled_callback_does_not_affect_other_jobs() -> None:
    engine = make_engine(ScriptedReply(name="r", output=("abcdef",)))
    tasks: dict[str, asyncio.Task[None]] = {}
    token_counts: dict[str, int] = {"breaks": 0, "leaves": 0, "stays": 0}

    def make_callback(name: str) -> Any:
        def on_chunk(chunk: Chunk) -> None:
            token_counts[name] += len(chunk.tokens)
            if token_counts[name] == 2 and name == "breaks":
                raise ValueError("enough")
            if token_counts[name] == 2 and name == "leaves":
                tasks[name].cancel()

        return on_chunk

    for name in token_counts:
        tasks[name] = asyncio.create_task(engine.generate(make_job(name=name), make_callback(name)))
    failure, cancellation, _ = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert isinstance(failure, ValueError) and isinstance(cancellation, asyncio.CancelledError)
    assert token_counts == {"breaks": 2, "leaves": 2, "stays": 7} and is_idle(engine)


def test_script_file_is_parsed_completely(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(
        '[[reply]]\nname = "a"\nwhen = "x"\noutput = ["t", {pause = 0.5}, {ids = [5]}, {stall = true}]\ntokens_per_chunk = 0\n'
        '[[reply]]\nname = "b"\noutput = [{refuse = "no", code = "c", retryable = true}]\n',
        encoding="utf-8",
    )
    first, second = load_script(path)
    assert first == ScriptedReply(
        name="a",
        when=("x",),
        tokens_per_chunk=0,
        output=("t", ScriptStep(pause=0.5), ScriptStep(ids=(5,)), ScriptStep(stall=True)),
    )
    assert second.refusal == ScriptStep(refuse="no", code="c", retryable=True)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"output": []}, "reply 1: .*name"),
        ({"name": "a"}, "reply 1 .'a'.: .*output"),
        ({"name": "a", "output": [{"paus": 1}]}, r"reply 1 .'a'.: .*paus.*output\[0\]"),
        ({"name": "a", "output": [{"pause": 1, "ids": [1]}]}, "exactly one of"),
        ({"name": "a", "output": ["x", {"refuse": "no"}]}, "first entry"),
        ({"name": "a", "output": [], "finish": "bored"}, "finish"),
        ({"name": "a", "output": [], "wen": "x"}, "wen"),
        ("a", "reply 1: "),
    ],
)
def test_invalid_entry_is_reported_in_one_line(entry: Any, message: str) -> None:
    with pytest.raises(ScriptError, match=message) as caught:
        parse_script({"reply": [entry]})
    assert "\n" not in str(caught.value)


def test_invalid_file_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    for text, message in [
        ("", "no .*reply"),
        ("x = ", "not TOML"),
        ("replies = 1", "'replies'"),
        ('[[reply]]\nname="a"\noutput=[]\n' * 2, "taken by reply 1"),
    ]:
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ScriptError, match=message):
            load_script(path)
    with pytest.raises(ScriptError, match="cannot be read"):
        load_script(tmp_path / "missing.toml")
    with pytest.raises(ScriptError, match="decoder"):
        ScriptedEngine([ScriptedReply(name="a", output=(), when=("x",))], encode=encode)
    with pytest.raises(ScriptError, match="at least one"):
        ScriptedEngine([], encode=encode)


@pytest.mark.asyncio
async def test_unmatched_prompt_is_rejected_and_grammars_are_ignored() -> None:
    engine = make_engine(ScriptedReply(name="a", output=(), when=("x",)))
    with pytest.raises(EngineError, match="no scripted reply"):
        await collect_chunks(engine, make_job("hello"))
    assert decode_chunks(await collect_chunks(engine, make_job("x", grammar="start: A"))) == "\0"


def test_scripted_engine_does_not_import_torch() -> None:
    code = (
        "import sys, antiphon.engine.scripted.engine; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
