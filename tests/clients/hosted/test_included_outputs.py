"""Outputs of code, results of searches and sources: each reading of a response shows those that its `include` names."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.clients.hosted.tool_servers import (
    Json,
    find_items,
    list_kinds,
    read_events,
    run,
    send,
    serve_hosted,
    serve_tools,
    text_result,
)
from tests.clients.sdk_helpers import get, open_sdk, post
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer

pytest.importorskip("pydantic_monty")

URL = "https://pages.example/a"
CODE, FILES, WEB = "code_interpreter_call", "file_search_call", "web_search_call"
HIDDEN_KEYS = {CODE: "outputs", FILES: "results"}
INCLUDE = [f"{CODE}.outputs", f"{FILES}.results", f"{WEB}.action.sources"]
TOOLS: list[Json] = [
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "file_search", "vector_store_ids": ["vs_docs"]},
    {"type": "web_search"},
]
BODY: Json = {"input": "[run]", "tools": TOOLS}
RECALL: Json = {"role": "user", "content": "[recall]"}


def write_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCRIPT: list[Json] = [
    {"name": "all", "when": ["[recall]", "forty-two", "called Mimi", URL], "output": ["All."]},
    {"name": "none", "when": ["[recall]", "no longer available"], "output": ["None."]},
    {"name": "recall", "when": ["[recall]"], "output": ["Some."]},
    {"name": "end", "when": [URL], "output": ["Done."]},
    {"name": "web", "when": ["called Mimi"], "output": [write_call("web_search", query="cats")]},
    {"name": "files", "when": ["forty-two"], "output": [write_call("file_search", query="the cat")]},
    {"name": "code", "when": ["[run]"], "output": [write_call("code_interpreter", code="print('forty-' + 'two')")]},
]
"""Calls one tool after another. No call contains what its tool returns."""


@contextmanager
def serve_script(folder: Path, **settings: Any) -> Iterator[RunningServer]:
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "cat.md").write_text("The cat is called Mimi.", encoding="utf-8")
    options = {
        "hosted_tools": ("code_interpreter=monty", "web_search=kit/read?query=text"),
        "vector_stores": (f"vs_docs={folder / 'docs'}",),
        **settings,
    }
    with (
        serve_tools(answer=lambda name, arguments: text_result(f"Title: A\nURL: {URL}")) as traffic,
        serve_hosted(SCRIPT, traffic, **options) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve_script(tmp_path_factory.mktemp("included")) as server:
        yield server


def list_shown(value: Any) -> set[str]:
    """Returns the values of `include` whose fields are somewhere in a value. Checks that hidden ones are null."""
    if isinstance(value, list):
        return set().union(*map(list_shown, value))
    if not isinstance(value, dict):
        return set()
    shown = set().union(*map(list_shown, value.values()))
    kind = value.get("type")
    if (key := HIDDEN_KEYS.get(str(kind))) and value.get("status") == "completed":
        assert key in value, "it is null, and not left out"
        shown |= {f"{kind}.{key}"} if value[key] is not None else set()
    if kind == WEB and "sources" in (value.get("action") or {}):
        shown.add(f"{WEB}.action.sources")
    return shown


def read_items(server: RunningServer, path: str, include: list[str]) -> Json:
    reply = get(f"{server.url}/{path}", params={"include[]": include}, timeout=HANG_TIMEOUT_S)
    assert reply.status_code == 200, reply.text
    page: Json = reply.json()
    return page


def list_subsets() -> list[list[str]]:
    return [[], INCLUDE, *([each] for each in INCLUDE)]


@pytest.mark.parametrize("include", list_subsets(), ids=len)
def test_reply_shows_what_the_request_includes(server: RunningServer, include: list[str]) -> None:
    body = {**BODY, "include": include}
    response = run(server, body)
    assert list_kinds(response) == [CODE, FILES, WEB, "message"]
    events = read_events(send(server, {**body, "stream": True}))
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert list_shown(done) == list_shown(events[-1]) == list_shown(response) == set(include)
    assert list_shown(send(server, body).json()) == set(include)
    assert list_shown(send(server, {**body, "store": False}).json()) == set(include)


def test_stored_response_shows_what_each_reading_includes(server: RunningServer) -> None:
    created = send(server, {**BODY, "background": True, "include": INCLUDE}).json()
    path = f"{server.url}/responses/{created['id']}"
    wait_with_progress(lambda: get(path).json()["status"] == "completed", "the response did not end")
    readings: dict[str, list[Json]] = {}
    for include in list_subsets():
        query = {"include[]": include}
        assert list_shown(get(path, params=query).json()) == set(include)
        events = read_events(get(path, params={**query, "stream": "true"}))
        check_stream(events)
        assert list_shown(events) == set(include)
        later = read_events(get(path, params={**query, "stream": "true", "starting_after": 5}))
        assert later == events[6:]
        readings[",".join(include)] = events
    assert list_shown(post(f"{path}/cancel").json()) == set()
    assert get(path, params={"include": "unknown"}).status_code == 400
    whole = [drop_outputs(event) for event in readings[",".join(INCLUDE)]]
    assert all([drop_outputs(event) for event in events] == whole for events in readings.values())


def drop_outputs(value: Any) -> Any:
    if isinstance(value, list):
        return [drop_outputs(each) for each in value]
    if isinstance(value, dict):
        return {key: drop_outputs(each) for key, each in value.items() if key not in ("outputs", "results", "sources")}
    return value


@pytest.mark.parametrize("include", list_subsets(), ids=len)
def test_lists_show_what_they_include(server: RunningServer, include: list[str]) -> None:
    conversation = post(f"{server.url}/conversations").json()["id"]
    first = run(server, {**BODY, "conversation": conversation})
    path = f"conversations/{conversation}/items"
    assert list_shown(read_items(server, path, include)) == set(include)
    items = [item for item in first["output"] if item["type"] != "message"]
    single = [read_items(server, f"{path}/{item['id']}", include) for item in items]
    assert list_shown(single) == set(include)
    whole = send(server, {**BODY, "include": INCLUDE}).json()["output"]
    resent = send(server, {"input": [*whole, RECALL]}).json()
    assert list_shown(read_items(server, f"responses/{resent['id']}/input_items", include)) == set(include)
    copied = post(f"{server.url}/conversations").json()["id"]
    reply = post(f"{server.url}/conversations/{copied}/items", json={"items": whole}, params={"include[]": include})
    assert list_shown(reply.json()) == set(include)


@pytest.mark.parametrize("store", [True, False])
def test_websocket_shows_what_each_frame_includes(server: RunningServer, *, store: bool) -> None:
    def receive(**fields: Any) -> list[Json]:
        websocket.send(json.dumps({"type": "response.create", "model": "scripted", "store": store, **fields}))
        events: list[Json] = []
        while not events or events[-1]["type"] != "response.completed":
            events.append(json.loads(websocket.recv(timeout=HANG_TIMEOUT_S)))
            assert events[-1]["type"] != "error", events[-1]
        return events

    with connect(f"{server.url.replace('http', 'ws')}/responses", max_size=None) as websocket:
        for include in list_subsets():
            events = receive(**BODY, include=include)
            assert list_shown(events) == set(include)
            last = receive(input=[RECALL], previous_response_id=events[-1]["response"]["id"])
            assert find_items(last[-1]["response"], "message")[0]["content"][0]["text"] == "All."


def test_batch_shows_what_each_line_includes(server: RunningServer) -> None:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/responses",
         "body": {"model": "scripted", **BODY, "include": include}}
        for number, include in enumerate([[], INCLUDE])
    ]  # fmt: skip
    with open_sdk(server) as (client, _):
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("lines.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
        wait_with_progress(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch did not end")
        output = client.files.content(str(client.batches.retrieve(batch.id).output_file_id)).text
    replies = {row["custom_id"]: row["response"]["body"] for row in map(json.loads, output.splitlines())}
    assert [list_shown(replies[number]) for number in "01"] == [set(), set(INCLUDE)]


def recall(server: RunningServer, **body: Any) -> str:
    """Returns what the model says of the outputs that it reads in a later turn."""
    return str(find_items(run(server, {"input": [RECALL], **body}), "message")[0]["content"][0]["text"])


def test_model_reads_hidden_outputs_in_later_turns(tmp_path: Path) -> None:
    """They are found by the response, by the conversation and by the ids of resent items, also after a restart."""
    question = {"role": "user", "content": "[run]"}
    store = {"store_file": tmp_path / "responses.db", "file_store": False}
    with serve_script(tmp_path, **store) as server:
        conversation = post(f"{server.url}/conversations").json()["id"]
        first = run(server, BODY)
        run(server, {**BODY, "conversation": conversation})
        lost = run(server, {**BODY, "store": False})
        requests: list[Json] = [
            {"previous_response_id": first["id"]},
            {"conversation": conversation},
            {"input": [question, *first["output"], RECALL]},
            {"input": [question, *first["output"], RECALL], "store": False},
            {"input": [question, *({"id": item["id"]} for item in first["output"]), RECALL]},
        ]
        assert list_shown([first, lost]) == set()
        assert [recall(server, **request) for request in requests] == ["All."] * len(requests)
        assert recall(server, input=[question, *lost["output"], RECALL]) == "None."
    with serve_script(tmp_path, **store) as server:
        assert [recall(server, **request) for request in requests] == ["All."] * len(requests)


def test_outputs_that_a_client_sends_are_kept_as_sent(server: RunningServer) -> None:
    whole = send(server, {**BODY, "include": INCLUDE}).json()["output"]
    changed = [{**item, "outputs": []} if item["type"] == CODE else item for item in whole]
    assert recall(server, input=[*changed, RECALL]) == "Some."


def test_outputs_of_another_key_are_not_found(tmp_path: Path) -> None:
    with serve_script(tmp_path, api_keys=("sk-one", "sk-two")) as server:
        first = run(server, BODY, "sk-one")
        resent = {"input": [*first["output"], RECALL]}
        said = [
            find_items(run(server, resent, key), "message")[0]["content"][0]["text"] for key in ("sk-one", "sk-two")
        ]
    assert said == ["All.", "None."]
