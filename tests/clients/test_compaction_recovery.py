"""`kill -9` of the server while it generates the summary of a conversation: the response ends, and the next one works."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.reading_script import ASKED
from tests.clients.sdk_helpers import Json, get, parse_events
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import read_until_ready
from tests.syntax import ROOT

CONTEXT_MANAGEMENT: Any = [{"type": "compaction", "compact_threshold": 1000}]
LONG = "Nothing but words. " * 100
SUMMARY = {"name": "summary", "when": [ASKED], "output": ["The summary. The word is zebra."]}
STALL = {"name": "stall", "when": [ASKED, "Wait."], "output": ["The", {"stall": True}]}
ANSWERS: list[Json] = [
    {"name": "after", "when": ["The summary. The word is zebra."], "output": ["Zebra."]},
    {"name": "lost", "output": ["The prompt lacks the summary."]},
]


@contextmanager
def run_server(
    folder: Path, script: list[Json], *options: str
) -> Iterator[tuple[openai.OpenAI, subprocess.Popen[str]]]:
    """Runs a server process over the store in the folder. Yields a client and the process."""
    path = folder / "script.toml"
    path.write_text("".join(map(write_reply, script)), encoding="utf-8")
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(path)]
    command += ["--port", "0", "--store", str(folder / "responses.db"), "--log-format", "json", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            (url,) = read_until_ready(process.stderr)["base_urls"]
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=HANG_TIMEOUT_S) as client:
                yield client, process
        finally:
            process.kill()


def write_reply(reply: Json) -> str:
    """Returns a reply as TOML, whose strings and arrays are those of JSON."""
    steps = [_write_step(step) for step in reply["output"]]
    when = json.dumps(reply.get("when", []))
    return f'[[reply]]\nname = "{reply["name"]}"\nwhen = {when}\noutput = [{", ".join(steps)}]\n'


def _write_step(step: Any) -> str:
    if not isinstance(step, dict):
        return json.dumps(step)
    return "{stall = true}" if "stall" in step else f"{{pause = {step['pause']}}}"


def begin_compaction(client: openai.OpenAI, **fields: Any) -> tuple[Any, list[Json]]:
    """Begins a response. Returns its stream and its events up to the one that says that the summary is generated."""
    stream = client.responses.create(model="scripted", context_management=CONTEXT_MANAGEMENT, stream=True, **fields)
    events: list[Json] = []
    for event in stream:
        events.append(event.to_dict())
        if event.type == "response.compaction.compacting":
            return stream, events
    raise AssertionError(f"no compaction: {events}")


def wait_until_stored(folder: Path, last_event: Json, response_id: str) -> None:
    """Waits until the store has an event of a response. Those of a foreground response are shown before."""
    query = "SELECT 1 FROM events WHERE response = ? AND number = ?"
    with closing(sqlite3.connect(folder / "responses.db")) as database:
        key = (response_id, last_event["sequence_number"])
        wait_with_progress(lambda: database.execute(query, key).fetchone(), "the event is stored")


def kill_in_the_summary(folder: Path, *options: str, **fields: Any) -> list[Json]:
    """Kills the server of a response while its summary is generated. Returns the events until then."""
    with run_server(folder, [STALL, SUMMARY, *ANSWERS], *options) as (client, process):
        items: Any = [{"role": "user", "content": text} for text in ("The word is zebra. " + LONG, "Which word?")]
        first = client.responses.create(model="scripted", input=items, context_management=CONTEXT_MANAGEMENT)
        assert first.output_text == "Zebra."
        stream, events = begin_compaction(client, input=f"Wait. {LONG}", previous_response_id=first.id, **fields)
        wait_until_stored(folder, events[-1], events[0]["response"]["id"])
        process.kill()
        process.wait()
        stream.close()
    return events


def test_kill_during_the_summary_freezes_the_compaction(tmp_path: Path) -> None:
    events = kill_in_the_summary(tmp_path, "--show-uncommitted")
    killed_id = events[0]["response"]["id"]
    with run_server(tmp_path, [SUMMARY, *ANSWERS]) as (client, _):
        wait_with_progress(lambda: client.responses.retrieve(killed_id).status != "in_progress", "it does not end")
        killed = client.responses.retrieve(killed_id)
        assert killed.status == "failed" and killed.error is not None and killed.error.code == "server_restarted"
        (item,) = killed.output
        assert item.to_dict() == events[2]["item"] | {"encrypted_content": ""}
        wire = parse_events(get(f"{client.base_url}responses/{killed_id}?stream=true").content)
        assert wire[: len(events)] == events and check_stream(wire)["output"] == [item.to_dict()]
        for management, kinds in (([], ["message"]), (CONTEXT_MANAGEMENT, ["compaction", "message"])):
            following = client.responses.create(
                model="scripted", input="And?", previous_response_id=killed_id, context_management=management
            )
            assert [each.type for each in following.output] == kinds
            assert following.output_text == "Zebra.", (management, following.usage)


@pytest.mark.parametrize("background", [False, True])
def test_summary_continues_after_a_kill(tmp_path: Path, *, background: bool) -> None:
    events = kill_in_the_summary(tmp_path, background=background)
    killed_id = events[0]["response"]["id"]
    with run_server(tmp_path, [SUMMARY, *ANSWERS]) as (client, _):
        wait_with_progress(lambda: client.responses.retrieve(killed_id).status != "in_progress", "it does not end")
        wire = parse_events(get(f"{client.base_url}responses/{killed_id}?stream=true").content)
        assert wire[: len(events)] == events
        response = check_stream(wire)
        assert (response["status"], [each["type"] for each in response["output"]]) == (
            "completed",
            ["compaction", "message"],
        )
        assert response["output"][1]["content"][0]["text"] == "Zebra."
