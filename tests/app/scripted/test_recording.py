"""Recordings of an engine's token streams, and their replay through every API."""

import asyncio
import json
import os
import re
import stat
import time
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from antiphon.app.options.serve_options import ServeError, ServeOptions
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.scripted.recording_engine import RecordingEngine
from antiphon.app.scripted.recording_file import RecordingFile, format_toml
from antiphon.app.scripted.replay import create_scripted_engine, record_engine
from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Chunk, EngineError, Job, Sampling, TokenLogprob
from antiphon.engine.scripted.engine import ScriptedEngine, load_script, parse_script
from antiphon.engine.scripted.script import ScriptError, load_recording, prompt_key
from antiphon.harmony.detection.detect import LoadedFormat, bytes_format
from tests.conftest import StartServer
from tests.engine.chunk_stream import stream_chunks
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry
from tests.snapshots.cases import TOOLS

CALL = '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": "[call]", "output": ["<think>\nHm.\n</think>\n\n", CALL], "tokens_per_chunk": 3},
    {"name": "fault", "when": "[fault]", "output": ["Hel", {"fault": "on fire", "code": "server_error"}]},
    {"name": "full", "when": "[full]", "output": [{"refuse": "full", "code": "server_is_overloaded"}]},
    {"name": "long", "when": "[long]", "output": ["one two"], "finish": "length"},
    {"name": "stall", "when": "[stall]", "output": ["Hel", {"stall": True}]},
    {"name": "text", "output": ["Hello,", {"pause": 0.2}, ' \x7f\u2028"é" you.'], "cached_tokens": 3},
]
MODEL = "scripted"


def record(start: StartServer, file: Path, script: list[dict[str, Any]] = SCRIPT) -> RunningServer:
    """Starts a server whose engine is recorded."""
    [model] = scripted_registry(script).served
    options = ServeOptions(engine="scripted", record=file)
    engine = record_engine(options, model.engine, LoadedFormat(model.format, ""), MODEL)
    return start(ModelRegistry([structs.replace(model, engine=engine)]))


def replay(start: StartServer, file: Path) -> RunningServer:
    """Starts a server that replays a recording."""
    engine, loaded, name = asyncio.run(create_scripted_engine(ServeOptions(engine="scripted", script=file)))
    [model] = scripted_registry(SCRIPT).served
    return start(ModelRegistry([structs.replace(model, names=(name,), engine=engine, format=loaded.format)]))


def respond(server: RunningServer, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": text, "tools": TOOLS, **fields}
    reply = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    data: dict[str, Any] = reply.json()
    return data


def content_of(response: dict[str, Any]) -> Any:
    """Returns what a response says, without its ids and times."""
    if "error" in response and "output" not in response:
        return response
    items = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    return items, response["status"], response["usage"], response["incomplete_details"], response["error"]


@pytest.mark.parametrize("name", ["text", "call", "fault", "full", "long"])
def test_replay_says_what_was_recorded(start_server: StartServer, tmp_path: Path, name: str) -> None:
    file = tmp_path / "turns.toml"
    recorded = respond(record(start_server, file), f"Play [{name}].")
    assert content_of(respond(replay(start_server, file), f"Play [{name}].")) == content_of(recorded)


def test_replay_keeps_chunks_and_pauses(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    server = record(start_server, file, [{**SCRIPT[-1], "tokens_per_chunk": 0}])
    streams = [read_stream(server), read_stream(replay(start_server, file))]
    (events, duration), (replayed, replayed_duration) = streams
    assert [event.get("delta") for event in replayed] == [event.get("delta") for event in events]
    assert duration >= 0.2 and replayed_duration >= 0.19
    recording, num_pauses = re.subn(r"pause = [\d.]+", "pause = 600", file.read_text())
    file.write_text(recording.replace("pause_scale = 1.0", "pause_scale = 0"))
    assert num_pauses and read_stream(replay(start_server, file))[0], "no pause is kept: the request would time out"


def read_stream(server: RunningServer) -> tuple[list[dict[str, Any]], float]:
    started = time.monotonic()
    reply = httpx.post(
        f"{server.url}/responses", json={"model": MODEL, "input": "Go.", "stream": True}, timeout=HANG_TIMEOUT_S
    )
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines], time.monotonic() - started


def test_one_recording_plays_through_every_api(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    server = record(start_server, file)
    response = httpx.post(f"{server.url}/responses", json={"model": MODEL, "input": "Go."}).json()
    text = response["output"][0]["content"][0]["text"]
    player = replay(start_server, file)
    messages = [{"role": "user", "content": "Go."}]
    chat = httpx.post(f"{player.url}/chat/completions", json={"model": MODEL, "messages": messages}).json()
    assert chat["choices"][0]["message"]["content"] == text
    assert chat["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
    body = {"model": MODEL, "messages": messages, "max_tokens": 100}
    assert httpx.post(f"{player.url}/messages", json=body).json()["content"][0]["text"] == text
    tokens = httpx.post(f"{player.root}/tokenize", json={"model": MODEL, "messages": messages}).json()["tokens"]
    completion = httpx.post(f"{player.url}/completions", json={"model": MODEL, "prompt": tokens, "max_tokens": 100})
    assert completion.json()["choices"][0]["text"] == text


def test_other_prompts_are_a_clear_error(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    respond(record(start_server, file), "Go.")
    reply = respond(replay(start_server, file), "Stop.")
    assert "answers the very prompt that it was recorded with" in reply["error"]["message"]
    file.write_text(file.read_text().replace("\ncached_tokens", '\nwhen = ["Stop."]\ncached_tokens', 1))
    assert respond(replay(start_server, file), "Stop.")["status"] == "completed"


def test_same_prompt_again_plays_the_next_recording(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    server = record(start_server, file, [{"name": each, "output": [each]} for each in ("one", "two")])
    texts = [respond(server, "Go.")["output"][0]["content"][0]["text"] for _ in range(2)]
    player = replay(start_server, file)
    replayed = [respond(player, "Go.")["output"][0]["content"][0]["text"] for _ in range(3)]
    assert texts == ["one", "two"] and replayed == ["one", "two", "two"]


def test_cancelled_job_is_recorded_as_cancelled(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    server = record(start_server, file)
    body = {"model": MODEL, "input": "Play [stall].", "stream": True}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
        lines = reply.iter_lines()
        while "output_text.delta" not in next(lines):
            pass
        assert "reply" not in tomllib.loads(file.read_text())
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while server.context.turn_manager.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    [reply_table] = tomllib.loads(file.read_text())["reply"]
    assert reply_table["output"][-1] == {"ids": [], "finish": "cancelled"}
    assert respond(replay(start_server, file), "Play [stall].", tools=[])["status"] == "cancelled"


def test_stop_string_ends_the_replayed_turn_where_it_ended_the_recorded_one(
    start_server: StartServer, tmp_path: Path
) -> None:
    file = tmp_path / "turns.toml"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Go."}], "stop": ["llo"]}
    servers = [record(start_server, file)]
    replies = [httpx.post(f"{servers[0].url}/chat/completions", json=body).json()]
    replies.append(httpx.post(f"{replay(start_server, file).url}/chat/completions", json=body).json())
    assert [reply["choices"][0]["message"]["content"] for reply in replies] == ["He", "He"]
    assert replies[0]["usage"] == replies[1]["usage"]


def test_prefill_is_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"

    async def run() -> None:
        engine = make_recording_engine(file)
        await engine.start()
        await engine.generate(Job(id="a", tokens=(1, 2), prefill_only=True), lambda _: None)
        await engine.close()

    asyncio.run(run())
    assert tomllib.loads(file.read_text()).keys() == {"recording"}


def make_recording_engine(file: Path, *replies: dict[str, Any]) -> RecordingEngine:
    model_format = bytes_format("hermes")
    script = parse_script({"reply": list(replies) or SCRIPT})
    inner = ScriptedEngine(script, encode=model_format.encode, decode=model_format.decode)
    options = ServeOptions(engine="scripted", record=file)
    engine = record_engine(options, inner, LoadedFormat(model_format, ""), MODEL)
    assert isinstance(engine, RecordingEngine) and unwrap_engine(engine) is inner
    return engine


async def test_requested_log_probabilities_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    engine = make_recording_engine(file, {"name": "a", "output": ["ab"]})
    await engine.start()
    job = Job(id="a", tokens=(1, 2), sampling=Sampling(top_logprobs=2))
    recorded = [chunk async for chunk in stream_chunks(engine, job)]
    await engine.close()
    # Other figures than those that the scripted engine invents.
    file.write_text(file.read_text().replace("[-0.125, [", "[-0.5, ["))
    player, _, _ = await create_scripted_engine(ServeOptions(engine="scripted", script=file))
    chunks = [chunk async for chunk in stream_chunks(player, structs.replace(job, id="b"))]
    assert [chunk.tokens for chunk in chunks] == [chunk.tokens for chunk in recorded]
    assert chunks[1].logprobs == (structs.replace(recorded[1].logprobs[0], logprob=-0.5),)
    assert chunks[2] == recorded[2]
    plain = [chunk async for chunk in stream_chunks(player, Job(id="c", tokens=(1, 2)))]
    assert not any(chunk.logprobs for chunk in plain)
    fewer = Job(id="d", tokens=(1, 2), sampling=Sampling(top_logprobs=1))
    assert [
        len(entry.top) for chunk in [c async for c in stream_chunks(player, fewer)] for entry in chunk.logprobs
    ] == [1, 1]


class _LateStop(ScriptedEngine):
    """Ends a job with `stop` without a stop token, as some remote servers do."""

    async def generate(self, job: Job, on_chunk: Any) -> None:
        on_chunk(Chunk())
        on_chunk(Chunk(tokens=(65,), logprobs=(TokenLogprob(65, -1.0),)))
        on_chunk(Chunk(tokens=(66,), finish="stop", cached_tokens=2))


async def test_end_without_a_stop_token_gets_none_in_the_replay(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    model_format = bytes_format("hermes")
    inner = _LateStop(parse_script({"reply": SCRIPT[-1:]}), encode=model_format.encode)
    options = ServeOptions(engine="scripted", record=file)
    engine = record_engine(options, inner, LoadedFormat(model_format, ""), MODEL)
    await engine.start()
    await engine.generate(Job(id="a", tokens=(1, 2)), lambda _: None)
    player, _, _ = await create_scripted_engine(ServeOptions(engine="scripted", script=file))
    chunks = [chunk async for chunk in stream_chunks(player, Job(id="a", tokens=(1, 2)))]
    assert [(chunk.tokens, chunk.finish, chunk.cached_tokens) for chunk in chunks] == [
        ((), None, 2),
        ((65,), None, 0),
        ((66,), "stop", 0),
    ]


def test_file_is_readable_text_for_its_owner_only(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    respond(record(start_server, file), "Go \x00\x7f on.")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert '# "H"' in text and "user" in text and tomllib.loads(text)
    [reply] = load_script(file)
    assert reply.prompt.startswith("sha256:") and reply.tokens_per_chunk == 0
    recording = load_recording(file)
    assert recording is not None and (recording.model, recording.dialect) == (MODEL, "hermes")
    assert recording.engine.max_model_len == 131_072


def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    file.write_text("x")
    with pytest.raises(ServeError, match="the file exists"):
        RecordingFile(file, lambda _: "")
    with pytest.raises(ServeError, match="none is not a folder"):
        RecordingFile(tmp_path / "none" / "turns.toml", lambda _: "")
    assert file.read_text() == "x"


async def test_file_is_created_when_the_engine_has_started(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    engine = make_recording_engine(file)
    assert not file.exists()
    file.write_text("x")
    with pytest.raises(LoadError, match="cannot be created: File exists"):
        await engine.start()
    assert file.read_text() == "x"


async def test_missing_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"
    engine = make_recording_engine(file)
    await engine.start()
    await engine.close()
    head = file.read_text() + '\n[[reply]]\nname = "a"\noutput = []\n'
    file.write_text(head.replace('tokenizer = ""', 'tokenizer = "/no/such/model"'))
    with pytest.raises(ServeError, match="recorded with the tokenizer /no/such/model, which cannot be loaded; name"):
        await create_scripted_engine(ServeOptions(engine="scripted", script=file))
    file.write_text(head.replace('model = "', 'modle = "'))
    with pytest.raises(ScriptError, match="recording: Object"):
        await create_scripted_engine(ServeOptions(engine="scripted", script=file))


def test_overloaded_and_cancelled_jobs_before_admission(tmp_path: Path) -> None:
    file = tmp_path / "turns.toml"

    async def run() -> None:
        engine = make_recording_engine(file, {"name": "full", "output": [{"refuse": "no", "code": "invalid_request"}]})
        await engine.start()
        with pytest.raises(EngineError, match="no"):
            await engine.generate(Job(id="a", tokens=(1, 2)), lambda _: None)
        await engine.close()

    asyncio.run(run())
    [reply] = load_script(file)
    assert reply.refusal is not None and (reply.refusal.refuse, reply.refusal.code) == ("no", "invalid_request")


@pytest.mark.parametrize(
    "value",
    ["", 'a"b\\c\n\t\x00\x7f\x85\u2028é😀', 0, -1, 1.5, 1e-9, True, [], [1, [2.5, "x"]], {"a b": {"c": [1]}, "d": ""}],
)
def test_values_survive_toml(value: object) -> None:
    assert tomllib.loads(f"# {format_toml(str(value))}\nkey = {format_toml(value)}") == {"key": value}


def test_prompt_key_is_of_all_ids() -> None:
    assert len({prompt_key(ids) for ids in [(), (1,), (11,), (1, 1), (1, 2), (2, 1)]}) == 6


def test_block_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "turns.toml"
    real_write = os.write
    calls: list[int] = []

    def fill_disk(descriptor: int, data: bytes) -> int:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data if len(calls) == 1 else data[: len(data) // 2])

    async def run() -> None:
        engine = make_recording_engine(file)
        monkeypatch.setattr("antiphon.app.scripted.recording_file.os.write", fill_disk)
        await engine.start()
        await engine.generate(Job(id="a", tokens=(1, 2)), lambda _: None)
        monkeypatch.undo()
        await engine.generate(Job(id="b", tokens=(1, 2)), lambda _: None)
        await engine.close()

    asyncio.run(run())
    assert len(calls) == 3
    [reply] = load_script(file)
    assert reply.name == "turn-2"
