"""Turns exported as files: each file does what the turn did."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.snapshot.stream_text import format_stream
from tests.app.inspection.inspector import TOOLS, Inspector
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import scripted_registry, serve

HOSTILE = "it's \"quoted\" $HOME `id` \\ \u2028 END-OF-REQUEST\nEND-OF-REQUEST\n'''"
BODY: dict[str, Any] = {"model": "scripted", "input": "Search", "tools": TOOLS, "store": False, "stream": True}


def stream_turn(inspector: Inspector, body: dict[str, Any]) -> tuple[str, bytes]:
    """Streams a response. Returns its id and the stream."""
    response = inspector.client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    created = json.loads(next(line for line in response.iter_lines() if line.startswith("data: "))[6:])
    recorder = inspector.server.context.turn_manager.recorder
    assert recorder is not None
    wait_with_progress(lambda: not recorder.num_packing, "the record is packed")
    return created["response"]["id"], response.content


def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, **options)


def export(inspector: Inspector, turn_id: str, form: str) -> str:
    response = inspector.get(f"/turns/{turn_id}/export/{form}")
    assert response.status_code == 200, response.text
    assert (
        response.headers["content-disposition"].startswith("attachment")
        and turn_id in response.headers["content-disposition"]
    )
    return response.text


def test_script_plays_the_turn(inspector: Inspector, tmp_path: Path) -> None:
    turn_id, stream = stream_turn(inspector, BODY)
    path = tmp_path / "turn.toml"
    path.write_text(export(inspector, turn_id, "script"), encoding="utf-8")
    with serve(lambda: scripted_registry(path)) as played, Inspector(played) as other:
        _, replayed = stream_turn(other, BODY)
    assert format_stream(replayed) == format_stream(stream)


def test_cassette_replays_the_turn(inspector: Inspector, tmp_path: Path) -> None:
    turn_id, stream = stream_turn(inspector, BODY)
    path = tmp_path / "turn.toml"
    path.write_text(export(inspector, turn_id, "cassette"), encoding="utf-8")
    [exchange] = read_cassette(path)
    frames = exchange.response.frames
    assert frames is not None and b"".join(frame.data for frame in frames) == stream
    assert exchange.request.path == "/v1/responses" and json.loads(exchange.request.body) == BODY


@pytest.mark.parametrize("api", ["chat", "messages", "completions"])
def test_cassettes_of_the_other_apis_are_whole(inspector: Inspector, api: str) -> None:
    message = [{"role": "user", "content": "Hi"}]
    path, body = {
        "chat": ("chat/completions", {"messages": message}),
        "messages": ("messages", {"messages": message, "max_tokens": 99}),
        "completions": ("completions", {"prompt": "Hi"}),
    }[api]
    inspector.client.post(f"/v1/{path}", json={"model": "scripted", **body}).raise_for_status()
    turn_id = inspector.get("/turns", limit=1).json()["data"][0]["id"]
    assert f"/v1/{path}" in export(inspector, turn_id, "cassette")


def test_test_passes_in_an_empty_project(inspector: Inspector, tmp_path: Path) -> None:
    turn_id, _ = stream_turn(inspector, BODY)
    file = tmp_path / f"test_{turn_id}.py"
    file.write_text(export(inspector, turn_id, "test"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = run(command, cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    file.write_text(file.read_text(encoding="utf-8").replace("I look.", "I see.", 1), encoding="utf-8")
    failed = run(command, cwd=tmp_path)
    assert failed.returncode == 1, "another output is another stream"


def test_test_of_a_turn_with_sealed_reasoning_passes_elsewhere(inspector: Inspector, tmp_path: Path) -> None:
    """Agents send reasoning back that only this server can open."""
    first = inspector.client.post(
        "/v1/responses", json=BODY | {"stream": False, "include": ["reasoning.encrypted_content"]}
    )
    output = first.json()["output"]
    assert output[0]["encrypted_content"]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "found"}
        for item in output
        if item["type"] == "function_call"
    ]
    question = {"role": "user", "content": "Search"}
    turn_id, _ = stream_turn(inspector, BODY | {"input": [question, *output, *outputs]})
    file = tmp_path / f"test_{turn_id}.py"
    file.write_text(export(inspector, turn_id, "test"), encoding="utf-8")
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)], cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_test_of_a_turn_that_continues_another_passes(inspector: Inspector, tmp_path: Path) -> None:
    first = inspector.client.post("/v1/responses", json=BODY | {"stream": False, "store": True}).json()
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Search: found"}
    turn_id, _ = stream_turn(inspector, BODY | {"previous_response_id": first["id"], "input": [output]})
    file = tmp_path / f"test_{turn_id}.py"
    file.write_text(export(inspector, turn_id, "test"), encoding="utf-8")
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)], cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("form", ["curl", "python"])
def test_requests_are_sent_again_as_they_were(inspector: Inspector, tmp_path: Path, form: str) -> None:
    turn_id = inspector.ask(HOSTILE)
    command = {"curl": ["bash"], "python": [sys.executable]}[form]
    file = tmp_path / "program"
    file.write_text(export(inspector, turn_id, form), encoding="utf-8")
    env = {"PATH": os.environ["PATH"], "ANTIPHON_API_KEY": "unused"}
    done = run([*command, str(file)], env=env)
    assert done.returncode == 0 and "Hello there" in done.stdout, done.stdout + done.stderr
    latest = inspector.get("/turns", limit=1).json()["data"][0]["id"]
    assert latest != turn_id
    sent = [json.loads(inspector.get(f"/turns/{each}/request").text) for each in (turn_id, latest)]
    assert sent[0] == sent[1] and sent[0]["input"] == HOSTILE


def test_exports_that_cannot_be_made_say_why(inspector: Inspector) -> None:
    turn_id = inspector.ask()
    assert inspector.get(f"/turns/{turn_id}/export/other").status_code == 404
    message = [{"role": "user", "content": "Hi"}]
    inspector.client.post("/v1/chat/completions", json={"model": "scripted", "messages": message}).raise_for_status()
    chat = inspector.get("/turns", limit=1).json()["data"][0]["id"]
    refused = inspector.get(f"/turns/{chat}/export/test")
    assert refused.status_code == 400 and "Responses API" in refused.json()["error"]["message"]
