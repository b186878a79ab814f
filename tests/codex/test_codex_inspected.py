"""A turn of the real Codex on the embedded model, which it does not store, is found while it runs and after it."""

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.snapshot.stream_text import format_stream
from tests.app.inspection.inspector import Inspector
from tests.codex.codex_process import CodexCli, CodexRun
from tests.codex.embedded_registry import load_model_format, needs_weights, serve_embedded
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

WEBSOCKET = ("model_providers.antiphon.supports_websockets=true",)
SERVER = partial(serve_embedded, inspect="memory")


@needs_weights
@pytest.mark.parametrize("options", [(), WEBSOCKET], ids=["POST", "WebSocket"])
def test_turn_is_found_while_it_runs_and_after_it(
    codex: CodexCli, server: RunningServer, options: tuple[str, ...], tmp_path: Path
) -> None:
    runs: list[CodexRun] = []
    states: dict[str, set[str]] = {}
    with Inspector(server) as inspector:
        known = {turn["id"] for turn in inspector.get("/turns").json()["data"]}
        thread = threading.Thread(target=lambda: runs.append(codex.exec(server, "run `echo antiphon-7391`", *options)))
        thread.start()

        def has_ended() -> bool:
            for turn in inspector.get("/turns").json()["data"]:
                if turn["id"] not in known:
                    states.setdefault(turn["id"], set()).add(turn["status"])
            return not thread.is_alive()

        wait_with_progress(has_ended, "Codex does not end")
        assert has_ended() and runs[0].exit_code == 0, runs[0]
        assert any("in_progress" in each for each in states.values()), states
        [completed] = runs[0].events_of_type("turn.completed")
        turns = [inspector.get(f"/turns/{turn_id}").json() for turn_id in states]
        assert all(turn["status"] == "completed" for turn in turns)
        generated = [turn for turn in turns if turn["output_tokens"]]
        assert sum(turn["input_tokens"] for turn in generated) == completed["usage"]["input_tokens"]
        for turn in generated:
            check_turn(inspector, turn, tmp_path)


def check_turn(inspector: Inspector, turn: dict[str, Any], folder: Path) -> None:
    """Checks the prompt of a turn, and that its exports do what it did."""
    runs = inspector.lines(f"/turns/{turn['id']}/prompt", limit=100_000)
    assert sum(len(each["ids"]) for each in runs) == turn["input_tokens"]
    reading = inspector.lines(f"/turns/{turn['id']}/readings/responses")
    expected = format_stream([line["data"] for line in reading if isinstance(line["data"], dict)])
    body = json.loads(inspector.get(f"/turns/{turn['id']}/request").text)
    script, cassette = folder / f"{turn['id']}.toml", folder / f"{turn['id']}.cassette.toml"
    if "previous_response_id" not in body:  # else the prompt needs the turn before it, which no other server has
        script.write_text(inspector.get(f"/turns/{turn['id']}/export/script").text, encoding="utf-8")
        for item in body["input"]:
            item.pop("encrypted_content", None)  # the other server cannot open it
        body = {name: value for name, value in body.items() if name != "type"} | {"stream": True}
        registry = scripted_registry(script, model_format=load_model_format(), names=("antiphon",))
        with serve(registry) as played, Inspector(played) as other:
            replayed = other.client.post("/v1/responses", json=body)
        assert format_stream(replayed.content) == expected
    cassette.write_text(inspector.get(f"/turns/{turn['id']}/export/cassette").text, encoding="utf-8")
    [exchange] = read_cassette(cassette)
    assert exchange.response is not None and exchange.response.frames is not None
    assert format_stream(b"".join(frame.data for frame in exchange.response.frames)) == expected
    test = folder / f"test_{turn['id']}.py"
    test.write_text(inspector.get(f"/turns/{turn['id']}/export/test").text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, cwd=folder)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
