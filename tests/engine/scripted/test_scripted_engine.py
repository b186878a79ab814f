"""The scripted engine keeps the rules of the protocol and plays what its file says."""

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
from tests.engine.chunk_stream import listen

INFO = EngineInfo(max_model_len=64, vocab_size=256, eos_ids=(0,))


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode()


def engine_of(*replies: ScriptedReply, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(replies, encode=encode, decode=decode, info=INFO, **options)


def job_of(text: str = "hi", name: str = "j", **options: Any) -> Job:
    sampling = Sampling(**{key: options.pop(key) for key in list(options) if key in Sampling.__struct_fields__})
    return Job(id=name, tokens=tuple(encode(text)), sampling=sampling, **options)


async def chunks_of(engine: ScriptedEngine, job: Job) -> list[Chunk]:
    return [chunk async for chunk in listen(engine, job)]


def said(chunks: list[Chunk]) -> str:
    return decode([token for chunk in chunks for token in chunk.tokens])


def idle(engine: ScriptedEngine) -> bool:
    stats = engine.stats()
    return stats.running == stats.waiting == stats.running_cache_tokens == 0


@pytest.mark.asyncio
async def test_a_reply_is_admission_then_tokens_then_its_stop_token() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("Hey",), cached_tokens=1))
    chunks = await chunks_of(engine, job_of())
    assert chunks[0] == Chunk(cached_tokens=1)
    assert [chunk.tokens for chunk in chunks[1:]] == [(72,), (101,), (121,), (0,)]
    assert [chunk.finish for chunk in chunks] == [None, None, None, None, "stop"]
    assert chunks[-1].stop_id == 0
    assert idle(engine) and engine.stats().generated_tokens == 4


@pytest.mark.asyncio
async def test_step_sets_the_size_of_chunks_and_a_chunk_never_spans_entries() -> None:
    speak = ("abc", ScriptStep(ids=(1, 2)))
    sizes = {}
    for step in (0, 2):
        chunks = await chunks_of(engine_of(ScriptedReply(name="a", output=speak, tokens_per_chunk=step)), job_of())
        sizes[step] = [len(chunk.tokens) for chunk in chunks]
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
async def test_limits_and_stop_ids_cut_the_reply(
    options: dict[str, Any], text: str, finish: str, stop_id: int | None
) -> None:
    chunks = await chunks_of(
        engine_of(ScriptedReply(name="a", output=("abcd",), tokens_per_chunk=3)), job_of(**options)
    )
    assert (said(chunks), chunks[-1].finish, chunks[-1].stop_id) == (text, finish, stop_id)


@pytest.mark.asyncio
async def test_the_end_of_a_reply_is_as_the_script_says() -> None:
    for reply, text, finish in [
        (ScriptedReply(name="a", output=("x",), finish="length"), "x", "length"),
        (ScriptedReply(name="a", output=("x",), stop_id=7), "x\7", "stop"),
        (ScriptedReply(name="a", output=(ScriptStep(ids=(120, 0, 121)),)), "x\0", "stop"),
        (ScriptedReply(name="a", output=()), "\0", "stop"),
    ]:
        chunks = await chunks_of(engine_of(reply), job_of())
        assert (said(chunks), chunks[-1].finish) == (text, finish)


@pytest.mark.asyncio
async def test_the_context_is_a_limit_and_a_longer_prompt_is_refused() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("x" * 100,), tokens_per_chunk=0))
    chunks = await chunks_of(engine, job_of("p" * 60))
    assert (said(chunks), chunks[-1].finish) == ("xxxx", "length")
    with pytest.raises(EngineError) as caught:
        await chunks_of(engine, job_of("p" * 64))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.asyncio
async def test_replies_are_chosen_by_the_prompt_first_and_then_in_order() -> None:
    engine = engine_of(
        ScriptedReply(name="both", output=("B",), when=("run", "exited")),
        ScriptedReply(name="run", output=("R",), when=("run",)),
        ScriptedReply(name="one", output=("1",)),
        ScriptedReply(name="two", output=("2",)),
    )
    prompts = ["run it", "hello", "run it: exited", "hello", "hello"]
    assert [said(await chunks_of(engine, job_of(prompt)))[0] for prompt in prompts] == ["R", "1", "B", "2", "2"]


@pytest.mark.asyncio
async def test_a_fault_is_the_last_chunk_and_a_refusal_is_raised() -> None:
    engine = engine_of(
        ScriptedReply(name="a", output=("ab", ScriptStep(fault="boom", code="overheated", retryable=True), "never")),
        ScriptedReply(name="b", output=(ScriptStep(refuse="full", code="server_is_overloaded", retryable=True),)),
        ScriptedReply(name="c", output=(ScriptStep(fault="at once"),)),
    )
    chunks = await chunks_of(engine, job_of())
    assert said(chunks) == "ab" and chunks[-1].finish == "error"
    assert chunks[-1].fault is not None and chunks[-1].fault.code == "overheated" and chunks[-1].fault.retryable
    with pytest.raises(EngineError, match="full") as caught:
        await chunks_of(engine, job_of())
    assert (caught.value.code, caught.value.retryable) == ("server_is_overloaded", True)
    assert [chunk.finish for chunk in await chunks_of(engine, job_of())] == [None, "error"]
    assert idle(engine) and engine.stats().failed_jobs == 2


@pytest.mark.asyncio
async def test_log_probabilities_are_invented_deterministically() -> None:
    job = job_of("abc", top_logprobs=2, prompt_logprobs=0)
    engine = engine_of(ScriptedReply(name="a", output=("xy",)))
    first, second = await chunks_of(engine, job), await chunks_of(engine, job)
    assert first == second
    entries = [entry for chunk in first for entry in chunk.logprobs]
    assert [entry.id for entry in entries] == [120, 121, 0]
    assert entries[0].top == ((120, -0.125), (121, -3.125)) and entries[0].logprob == -0.125
    assert first[1].prompt_logprobs[0] is None and len(first[1].prompt_logprobs) == 3
    assert all(not chunk.prompt_logprobs for chunk in first[2:])


@pytest.mark.asyncio
async def test_a_stalled_reply_waits_until_it_is_cancelled() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("x", ScriptStep(stall=True), "y")))
    stream = listen(engine, job_of(name="stuck"))
    assert [await anext(stream), await anext(stream)][1].tokens == (120,)
    asyncio.get_running_loop().call_later(0.01, asyncio.ensure_future, engine.cancel("stuck"))
    assert (await anext(stream)).finish == "cancelled"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await engine.cancel("unknown")
    assert idle(engine)


@pytest.mark.asyncio
async def test_pauses_and_delays_are_silence_before_a_chunk() -> None:
    reply = ScriptedReply(name="a", output=("a", ScriptStep(pause=0.5), ScriptStep(pause=0.25), "b"))
    assert [wait for wait, _ in play_reply(reply, job_of(), INFO, encode, 0.125)] == [0.125, 0.875, 0.125]
    engine = engine_of(ScriptedReply(name="a", output=(ScriptStep(pause=0.02), "b")))
    begin = asyncio.get_running_loop().time()
    await chunks_of(engine, job_of())
    assert asyncio.get_running_loop().time() - begin >= 0.02


@pytest.mark.asyncio
async def test_slots_are_given_in_order_and_closing_a_stream_frees_its_slot() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("x", ScriptStep(stall=True))), max_num_seqs=1, max_waiting=1)
    first, second = listen(engine, job_of(name="1")), listen(engine, job_of(name="2"))
    await anext(first)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0.01)
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    with pytest.raises(EngineError) as caught:
        await anext(listen(engine, job_of(name="3")))
    assert caught.value.code == "server_is_overloaded" and caught.value.retryable
    await first.aclose()
    assert await waiting == Chunk()
    assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    await second.aclose()
    assert idle(engine)


@pytest.mark.asyncio
async def test_a_waiting_job_can_be_cancelled_abandoned_or_run_out_of_time() -> None:
    engine = engine_of(ScriptedReply(name="a", output=(ScriptStep(stall=True),)), max_num_seqs=1)
    holder = listen(engine, job_of(name="holder"))
    await anext(holder)
    waiting = asyncio.ensure_future(anext(listen(engine, job_of(name="w"))))
    await asyncio.sleep(0.01)
    await engine.cancel("w")
    with pytest.raises(EngineError) as caught:
        await waiting
    assert caught.value.code == "cancelled"
    abandoned = asyncio.ensure_future(anext(listen(engine, job_of(name="v"))))
    await asyncio.sleep(0.01)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    with pytest.raises(EngineError) as caught:
        await anext(listen(engine, job_of(name="late", deadline=0.01)))
    assert caught.value.code == "deadline_exceeded"
    assert engine.stats().waiting == 0
    await holder.aclose()
    assert idle(engine)


@pytest.mark.asyncio
async def test_a_deadline_and_a_closing_engine_end_a_running_job_with_a_fault() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("x", ScriptStep(stall=True))))
    late = await chunks_of(engine, job_of(deadline=0.01))
    assert late[-1].fault is not None and late[-1].fault.code == "deadline_exceeded"
    running = asyncio.ensure_future(chunks_of(engine, job_of()))
    await asyncio.sleep(0.01)
    await engine.close()
    fault = (await running)[-1].fault
    assert fault is not None and fault.code == "engine_unavailable"
    with pytest.raises(EngineError, match="stopped"):
        await chunks_of(engine, job_of())
    await engine.start()
    assert idle(engine)


@pytest.mark.asyncio
async def test_sixty_four_jobs_interleave() -> None:
    engine = engine_of(ScriptedReply(name="a", output=("hello",)), max_num_seqs=8)
    results = await asyncio.gather(*(chunks_of(engine, job_of(name=str(n))) for n in range(64)))
    assert {said(chunks) for chunks in results} == {"hello\0"} and idle(engine)


async def test_a_step_is_one_callback_for_all_jobs() -> None:
    engine = engine_of(ScriptedReply(name="r", output=("abc",)))
    heard: list[tuple[str, Any]] = []

    def hear_as(name: str) -> Any:
        return lambda chunk: heard.append((name, asyncio.current_task())) if chunk.tokens else None

    await asyncio.gather(*(engine.generate(job_of(name=name), hear_as(name)) for name in "abc"))
    assert [name for name, _ in heard] == list("abcabcabcabc")  # the stop token is the fourth
    assert {task for _, task in heard} == {None}


async def test_who_hears_may_break_or_leave_and_the_others_go_on() -> None:
    engine = engine_of(ScriptedReply(name="r", output=("abcdef",)))
    works: dict[str, asyncio.Task[None]] = {}
    heard: dict[str, int] = {"breaks": 0, "leaves": 0, "stays": 0}

    def hear_as(name: str) -> Any:
        def hear(chunk: Chunk) -> None:
            heard[name] += len(chunk.tokens)
            if heard[name] == 2 and name == "breaks":
                raise ValueError("enough")
            if heard[name] == 2 and name == "leaves":
                works[name].cancel()

        return hear

    for name in heard:
        works[name] = asyncio.create_task(engine.generate(job_of(name=name), hear_as(name)))
    broken, left, _ = await asyncio.gather(*works.values(), return_exceptions=True)
    assert isinstance(broken, ValueError) and isinstance(left, asyncio.CancelledError)
    assert heard == {"breaks": 2, "leaves": 2, "stays": 7} and idle(engine)


def test_a_file_is_read_whole(tmp_path: Path) -> None:
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
def test_a_faulty_entry_is_named_in_one_line(entry: Any, message: str) -> None:
    with pytest.raises(ScriptError, match=message) as caught:
        parse_script({"reply": [entry]})
    assert "\n" not in str(caught.value)


def test_a_faulty_file_is_named_in_one_line(tmp_path: Path) -> None:
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
async def test_a_script_without_an_answer_says_so_and_a_grammar_changes_nothing() -> None:
    engine = engine_of(ScriptedReply(name="a", output=(), when=("x",)))
    with pytest.raises(EngineError, match="no reply"):
        await chunks_of(engine, job_of("hello"))
    assert said(await chunks_of(engine, job_of("x", grammar="start: A"))) == "\0"


def test_the_light_modules_need_no_torch() -> None:
    code = (
        "import sys, antiphon.engine.scripted.engine; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
