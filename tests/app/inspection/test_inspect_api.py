"""`/v1/inspect` over real sockets: what it returns, to whom, and what it refuses."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.inspection.record import TurnRecord
from antiphon.state.table import TABLE
from tests.app.inspection.inspector import SCRIPT, TOOLS, Inspector
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

PARTS = ("", "/events", "/prompt", "/grammar", "/request", "/findings", "/readings/chat")


def test_overview(inspector: Inspector) -> None:
    shown = inspector.get().json()
    assert (shown["mode"], shown["max_bytes"], shown["api_key_required"]) == ("memory", 64 << 20, False)


def test_table_is_that_of_the_machine(inspector: Inspector) -> None:
    table = inspector.get("/table").json()
    assert len(table["cells"]) == len(TABLE)
    assert {"state": "CALL", "input": "STOP", "next": "ENDED", "verbs": ["freeze", "fail"], "guard": None} in table[
        "cells"
    ]


def test_summary_and_record_of_a_turn(inspector: Inspector) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS, temperature=0.5, seed=7)
    [summary] = [each for each in inspector.get("/turns").json()["data"] if each["id"] == turn_id]
    assert (summary["status"], summary["ending"]["cause"], summary["tools"]) == ("completed", "stop_token", ["find"])
    record = inspector.get(f"/turns/{turn_id}").json()
    assert summary.items() <= record.items()
    times = [value for name, value in record["times_ms"].items() if name != "durable"]
    assert times == sorted(times) and times[0] == 0
    [only] = record["rounds"]
    assert (only["prompt_tokens"], only["sampling"]["seed"]) == (record["input_tokens"], 7)
    assert record["dialect"] == "hermes" and record["num_events"] == len(inspector.lines(f"/turns/{turn_id}/events"))


def test_events_have_steps_times_states_and_inputs(inspector: Inspector) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    rows = inspector.lines(f"/turns/{turn_id}/events")
    assert [row["n"] for row in rows] == [row["event"]["sequence_number"] for row in rows] == list(range(len(rows)))
    ends = [row for row in rows if "state" in row]
    assert [row["step"] for row in ends] == list(range(len(ends)))
    assert ends[-1]["state"] == "ENDED" and ends[-1]["inputs"][-1] == "STOP"
    assert [row["at_us"] for row in ends] == sorted(row["at_us"] for row in ends)
    assert inspector.lines(f"/turns/{turn_id}/events", after=2, limit=3) == rows[3:6]
    assert inspector.lines(f"/turns/{turn_id}/events", after=10**6) == []


def test_prompt_has_texts_and_marks_what_was_cached(inspector: Inspector) -> None:
    turn_id = inspector.ask("How is it?")
    record, runs = inspector.get(f"/turns/{turn_id}").json(), inspector.lines(f"/turns/{turn_id}/prompt")
    texts = "".join(text for run in runs for text in run["texts"])
    assert "How is it?" in texts and "<|im_start|>" in texts
    assert sum(len(run["ids"]) for run in runs) == record["input_tokens"]
    assert sum(len(run["ids"]) for run in runs if run["cached"]) == record["cached_tokens"] == 5
    assert runs[0]["n"] == 0 and runs[0]["control"] and runs[0]["texts"] == ["<|im_start|>"]
    assert {text for run in runs if run["control"] for text in run["texts"]} == {"<|im_start|>", "<|im_end|>"}
    part = inspector.lines(f"/turns/{turn_id}/prompt", after=3, limit=4)
    ids = [token for run in runs for token in run["ids"]]
    assert [token for run in part for token in run["ids"]] == ids[4:8]


@pytest.mark.parametrize("api", ["responses", "chat", "messages", "completions"])
def test_readings_are_what_each_api_sends(inspector: Inspector, api: str) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    rows = inspector.lines(f"/turns/{turn_id}/readings/{api}")
    numbers = [row["n"] for row in rows]
    assert numbers == sorted(numbers)
    if api == "responses":
        events = [row["event"] for row in inspector.lines(f"/turns/{turn_id}/events")]
        assert [row["data"] for row in rows[:-1]] == events and rows[-1]["data"] == "[DONE]"
    elif api == "chat":
        assert rows[0]["data"]["choices"][0]["delta"]["role"] == "assistant"
        assert any(
            choice.get("finish_reason") == "tool_calls" for row in rows[:-1] for choice in row["data"]["choices"]
        )
    elif api == "messages":
        assert [rows[0]["name"], rows[-1]["name"]] == ["message_start", "message_stop"]
    else:
        assert rows[-1]["data"] == "[DONE]" and rows[0]["data"]["object"] == "text_completion"


def test_request_is_returned_without_secrets(inspector: Inspector) -> None:
    turn_id = inspector.ask("Hi", metadata={"api_key": "a-secret-key-of-someone"})
    response = inspector.get(f"/turns/{turn_id}/request")
    assert response.json()["input"] == "Hi" and response.json()["metadata"] == {"api_key": "REDACTED"}


def test_grammar_of_a_forced_call(inspector: Inspector) -> None:
    forced = inspector.ask("Search", tools=TOOLS, tool_choice="required")
    assert "find" in inspector.get(f"/turns/{forced}/grammar").text
    assert inspector.get(f"/turns/{inspector.ask()}/grammar").text == ""


def test_findings_are_those_of_the_checker(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    replayed = {"checked": True, "reason": None}
    assert inspector.get(f"/turns/{turn_id}/findings").json() == {
        "object": "list", "data": [], "complete": True, "replay": replayed
    }  # fmt: skip
    open_log = TurnRecord.open_log

    def open_damaged(record: TurnRecord) -> Any:
        log = open_log(record)
        del log.entries[3]
        return log

    monkeypatch.setattr(TurnRecord, "open_log", open_damaged)
    found = inspector.get(f"/turns/{turn_id}/findings").json()["data"]
    assert any(each["event"] == 3 and each["level"] == "error" for each in found)
    assert [each["event"] for each in found if each["code"] == "replay"] == [3]


def test_turn_that_runs_is_followed_and_ends_although_it_is_watched(inspector: Inspector) -> None:
    """A viewer is no reader: the turn of a client that leaves ends, although a page follows it."""
    server, lines = inspector.server, list[dict[str, Any]]()
    body = {"model": "scripted", "input": "Wait", "stream": True, "store": False}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as response:
        stream = response.iter_lines()
        created = json.loads(next(line for line in stream if line.startswith("data: ")).removeprefix("data: "))
        turn_id = created["response"]["id"]

        def follow() -> None:
            url = f"/v1/inspect/turns/{turn_id}/events"
            with inspector.client.stream("GET", url, params={"follow": "true"}) as followed:
                lines.extend(json.loads(line) for line in followed.iter_lines() if line)

        watching = threading.Thread(target=follow)
        watching.start()
        wait_with_progress(lambda: inspector.get(f"/turns/{turn_id}").json()["status"] == "in_progress", "it runs")
        [live] = [turn for turn in read_frame(inspector)["turns"] if turn["id"] == turn_id]
        assert live["api"] == "responses" and live["stage"] in ("prefill", "decode")
        assert live["background"] is False
    watching.join(HANG_TIMEOUT_S)
    assert lines[-1]["event"]["type"] == "response.failed" or lines[-1]["state"] == "ENDED"
    assert inspector.get(f"/turns/{turn_id}").json()["ending"]["cause"] == "client_left"
    rows = inspector.lines(f"/turns/{turn_id}/events")
    assert [row["event"] for row in rows] == [row["event"] for row in lines]


def read_frame(inspector: Inspector) -> dict[str, Any]:
    """Returns the first frame of the live view."""
    with inspector.client.stream("GET", "/v1/inspect/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        line = next(line for line in response.iter_lines() if line.startswith("data: "))
    frame: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return frame


def test_live_view_has_engines_and_processes(inspector: Inspector) -> None:
    frame = read_frame(inspector)
    [engine] = frame["engines"]
    assert engine["model"] == "scripted" and engine["max_num_seqs"] == 64
    assert frame["processes"][0]["resident_bytes"] > 1 << 20


def test_viewer_that_does_not_read_delays_no_stream(inspector: Inspector) -> None:
    turn_id = inspector.ask("x" * 20_000)
    address = (inspector.server.context.settings.host, inspector.server.port)
    with socket.create_connection(address) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET /v1/inspect/turns/{turn_id}/events?follow=true HTTP/1.1\r\nhost: localhost\r\n"
        silent.sendall(f"{head}authorization: Bearer {inspector.server.context.page_key}\r\n\r\n".encode())
        for _ in range(3):
            inspector.ask()


def test_viewers_that_leave_are_forgotten(inspector: Inspector) -> None:
    server = inspector.server
    body = {"model": "scripted", "input": "Wait", "background": True, "store": True}
    turn_id = inspector.client.post("/v1/responses", json=body).json()["id"]
    recorder = server.context.turn_manager.recorder
    assert recorder is not None
    record = recorder.find("", turn_id)
    assert record is not None
    log = record.open_log()
    for _ in range(20):
        with inspector.client.stream(
            "GET", f"/v1/inspect/turns/{turn_id}/events", params={"follow": "true"}
        ) as followed:
            next(followed.iter_lines())
    wait_with_progress(lambda: not log.open_readers, "no viewer is left")
    assert inspector.client.post(f"/v1/responses/{turn_id}/cancel").json()["status"] == "cancelled"
    assert inspector.get(f"/turns/{turn_id}").json()["ending"]["cause"] == "cancelled"


@pytest.mark.parametrize("path", ["/live", "/turns/resp_1/events?follow=true"])
def test_head_is_refused(inspector: Inspector, path: str) -> None:
    assert inspector.client.head(f"/v1/inspect{path}").status_code == 405


def test_list_is_filtered_and_paged(inspector: Inspector) -> None:
    ids = [inspector.ask(f"question {number} of the list") for number in range(4)]
    found = inspector.get("/turns", text="OF THE LIST").json()
    assert [each["id"] for each in found["data"]] == ids[::-1] and found["searched"] == 1000
    page = inspector.get("/turns", text="of the list", limit=3).json()
    assert page["has_more"] and [each["id"] for each in page["data"]] == ids[:0:-1]
    rest = inspector.get("/turns", text="of the list", after=ids[1]).json()
    assert [each["id"] for each in rest["data"]] == ids[:1] and not rest["has_more"]
    call = inspector.ask("Search", tools=TOOLS)
    assert [each["id"] for each in inspector.get("/turns", tool="find", limit=1).json()["data"]] == [call]
    for query in ({"status": "failed"}, {"api": "messages"}, {"ending": "deadline"}, {"model": "no"}, {"until": 1}):
        assert inspector.get("/turns", **query).json()["data"] == []
    assert inspector.get("/turns", ending="stop_token", api="responses", status="completed", since=1).json()["data"]


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        *(("/turns", {"limit": limit}, "limit") for limit in ("0", "201", "x", "1.5")),
        ("/turns", {"after": "resp_unknown"}, "after"),
        *(("/turns", {"since": since}, "since") for since in ("soon", "nan", "inf")),
        ("/turns", {"until": "x"}, "until"),
        *(("/turns", {name: "other"}, name) for name in ("status", "api", "ending")),
        ("/turns", {"text": "x" * 257}, "text"),
        ("/turns/ID/events", {"after": "-2"}, "after"),
        ("/turns/ID/events", {"limit": "0"}, "limit"),
        ("/turns/ID/events", {"follow": "maybe"}, "follow"),
        ("/turns/ID/prompt", {"limit": "999999999"}, "limit"),
    ],
)
def test_bad_values_are_refused_by_name(inspector: Inspector, path: str, query: dict[str, str], param: str) -> None:
    response = inspector.get(path.replace("ID", inspector.ask()), **query)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("turn_id", ["resp_unknown", "a%2Fb", "x" * 200])
def test_unknown_turns_are_not_found(inspector: Inspector, turn_id: str, part: str) -> None:
    response = inspector.get(f"/turns/{turn_id}{part}")
    assert response.status_code == 404 and response.json()["error"]["message"]


def test_forgotten_turn_is_gone_and_its_response_is_not(inspector: Inspector) -> None:
    turn_id = inspector.ask("Keep the response", store=True)
    assert inspector.client.delete(f"/v1/inspect/turns/{turn_id}").json()["deleted"]
    assert inspector.client.get(f"/v1/responses/{turn_id}").status_code == 200
    shown = inspector.get(f"/turns/{turn_id}").json()
    assert shown["recorded"] is False and "missing" in shown["request"], "a stored response is shown by its events"
    assert "missing" in inspector.get(f"/turns/{turn_id}/prompt").json()
    assert inspector.lines(f"/turns/{turn_id}/events")[-1]["event"]["type"] == "response.completed"
    gone = inspector.ask("Forget all")
    inspector.client.delete(f"/v1/inspect/turns/{gone}")
    assert inspector.get(f"/turns/{gone}").status_code == 404


def test_record_of_a_deleted_response_is_gone(inspector: Inspector) -> None:
    turn_id = inspector.ask("Delete me", store=True)
    assert inspector.client.delete(f"/v1/responses/{turn_id}").status_code == 200
    message = [{"role": "user", "content": "Delete me, too"}]
    body = {"model": "scripted", "messages": message, "store": True, "n": 2}
    completion = inspector.client.post("/v1/chat/completions", json=body).json()["id"]
    assert inspector.get(f"/turns/{completion}").status_code == 200
    choices = [each["id"] for each in inspector.get("/turns", limit=2).json()["data"]]
    assert inspector.client.delete(f"/v1/chat/completions/{completion}").status_code == 200
    for each in (turn_id, *choices):
        assert inspector.get(f"/turns/{each}").status_code == 404


def test_turns_of_the_other_apis_are_listed(inspector: Inspector) -> None:
    message = [{"role": "user", "content": "Hi"}]
    for path, api, body in (
        ("chat/completions", "chat", {"messages": message}),
        ("completions", "completions", {"prompt": "Hi"}),
        ("messages", "messages", {"messages": message, "max_tokens": 9}),
        ("responses/compact", "compact", {"input": "Hi"}),
    ):
        reply = inspector.client.post(f"/v1/{path}", json={"model": "scripted", **body}).raise_for_status().json()
        [turn] = inspector.get("/turns", limit=1).json()["data"]
        assert turn["api"] == api
        assert inspector.get(f"/turns/{reply['id']}").json()["id"] == turn["id"], "the client's id finds it"


# Access


@pytest.mark.parametrize("path", ["", "/turns", "/table", "/live", "/turns/resp_1/events"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "key=KEY"}])
def test_page_key_is_required(recording_server: RunningServer, path: str, headers: dict[str, str]) -> None:
    sent = {name: value.replace("KEY", recording_server.context.page_key) for name, value in headers.items()}
    response = httpx.get(f"{recording_server.url}/inspect{path}?key={recording_server.context.page_key}", headers=sent)
    assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_page_key"
    assert recording_server.context.page_key not in response.text


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_are_refused(inspector: Inspector, site: str) -> None:
    response = inspector.client.get("/v1/inspect/turns", headers={"sec-fetch-site": site})
    assert response.status_code == 403


def test_no_cors_headers_are_sent() -> None:
    with serve(SCRIPT, allowed_origins=("*",)) as server, Inspector(server) as inspector:
        origin = {"origin": "https://elsewhere.example"}
        replies = [
            inspector.client.get("/v1/inspect/turns", headers=origin),
            httpx.options(f"{server.url}/inspect/turns", headers=origin | {"access-control-request-method": "GET"}),
        ]
    for reply in replies:
        assert not [name for name in reply.headers if name.startswith("access-control")]
    assert replies[0].headers["cache-control"] == "no-store" and "authorization" in replies[0].headers["vary"].lower()
    assert replies[1].status_code >= 400, "a preflight is not answered"


def test_owners_see_their_own_turns_only() -> None:
    with (
        serve(SCRIPT, api_keys=("first-key", "second-key"), inspect="memory") as server,
        Inspector(server, "first-key") as first,
        Inspector(server, "second-key") as second,
        Inspector(server, "wrong") as third,
    ):
        turn_id = first.ask()
        assert server.context.page_key == ""
        assert third.get("/turns").status_code == 401
        assert [each["id"] for each in first.get("/turns").json()["data"]] == [turn_id]
        assert second.get("/turns").json()["data"] == []
        for part in PARTS:
            assert second.get(f"/turns/{turn_id}{part}").status_code == 404
            assert first.get(f"/turns/{turn_id}{part}").status_code == 200
        assert second.client.delete(f"/v1/inspect/turns/{turn_id}").status_code == 404


def test_recording_is_off_with_keys_and_says_so() -> None:
    with serve(SCRIPT, api_keys=("first-key",)) as server, Inspector(server, "first-key") as inspector:
        assert inspector.get().json()["mode"] == "off"
        turn_id = inspector.ask(store=True)
        assert inspector.get(f"/turns/{turn_id}").json()["recorded"] is False
        [*_, last] = inspector.lines(f"/turns/{turn_id}/events")
        assert last["inputs"] is None and last["at_us"] is None


def test_stored_turns_are_listed_after_a_restart_and_without_recording(tmp_path: Path) -> None:
    store_file = tmp_path / "responses.db"
    with serve(SCRIPT, store_file=store_file) as server, Inspector(server) as inspector:
        times = inspector.get(f"/turns/{inspector.ask(store=True)}").json()["times_ms"]
        assert times["durable"] >= times["ended"] > 0
        inspector.client.delete(f"/v1/responses/{inspector.get('/turns').json()['data'][0]['id']}")
        ids = [inspector.ask(f"question {number}", store=True) for number in range(3)]
        unstored = inspector.ask("not stored")
        listed = inspector.get("/turns").json()["data"]
        assert [each["id"] for each in listed] == [unstored, *ids[::-1]], "each once"
    with serve(SCRIPT, store_file=store_file, inspect="off") as server, Inspector(server) as inspector:
        listed = inspector.get("/turns").json()["data"]
        assert [each["id"] for each in listed] == ids[::-1]
        assert {each["ending"]["cause"] for each in listed} == {"stop_token"} and not any(
            each["recorded"] for each in listed
        )
        page = inspector.get("/turns", after=ids[1], limit=1).json()
        assert [each["id"] for each in page["data"]] == [ids[0]] and not page["has_more"]
        assert inspector.get(f"/turns/{ids[0]}").json()["ending"]["detail"]
        assert inspector.client.delete(f"/v1/responses/{ids[0]}").status_code == 200
        assert [each["id"] for each in inspector.get("/turns").json()["data"]] == ids[:0:-1]
        assert inspector.get(f"/turns/{ids[0]}").status_code == 404
