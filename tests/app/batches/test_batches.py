"""`/v1/batches` over HTTP on a scripted engine: results, errors, order, cancelling, expiry, priorities, other keys."""

import threading
import time
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.app.batches.batch_client import BatchClient, count_rows, make_lines
from tests.app.server_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT = [
    {"name": "slow", "when": ["SLOW"], "output": ["word " * 2000], "tokens_per_chunk": 1},
    {"name": "any", "output": ["Yes."]},
]
KEYS = ("alice", "bob")
SLOW_BODY = {"model": "scripted", "input": "SLOW", "store": False}
LONG_BODY = {**SLOW_BODY, "max_output_tokens": 150}
QUICK_BODY = {"model": "scripted", "input": "hi", "store": False}
SERVER = partial(serve, partial(scripted_registry, SCRIPT, delay=0.01, max_num_seqs=8), api_keys=KEYS, file_store=True)


@pytest.fixture
def client(server: RunningServer) -> BatchClient:
    return BatchClient(server, "alice")


ENDPOINT_BODIES: dict[str, Any] = {
    "/v1/responses": QUICK_BODY,
    "/v1/chat/completions": {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
}


@pytest.mark.parametrize("endpoint", ENDPOINT_BODIES)
def test_replies_are_those_of_single_requests(client: BatchClient, endpoint: str) -> None:
    body = ENDPOINT_BODIES[endpoint]
    batch = client.await_status(client.start(make_lines([body] * 3, endpoint), endpoint, metadata={"run": "1"}))
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert (batch["metadata"], batch["model"], batch["error_file_id"]) == ({"run": "1"}, "scripted", None)
    output, _ = client.read_results(batch)
    assert [line["custom_id"] for line in output] == ["r0", "r1", "r2"]
    single = client.post(endpoint.removeprefix("/v1"), json=body).json()
    totals = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    for line in output:
        assert line["error"] is None and line["response"]["status_code"] == 200
        assert line["response"]["request_id"].startswith("req_") and line["id"].startswith("batch_req_")
        reply = line["response"]["body"]
        assert reply.keys() == single.keys() and reply["object"] == single["object"] and reply["id"] != single["id"]
        usage = reply["usage"]
        totals["input_tokens"] += usage.get("input_tokens") or usage["prompt_tokens"]
        totals["output_tokens"] += usage.get("output_tokens") or usage["completion_tokens"]
        totals["total_tokens"] += usage["total_tokens"]
    assert {key: batch["usage"][key] for key in totals} == totals
    times = [batch[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert times == sorted(times) and batch["expires_at"] == batch["created_at"] + 86_400


def test_a_bad_body_fails_its_line_alone(client: BatchClient) -> None:
    """Each line gets the error that its request would have got."""
    bodies: list[Any] = [
        QUICK_BODY,
        {"model": "none", "input": "hi"},
        {**QUICK_BODY, "temperature": 3},
        {**QUICK_BODY, "nonsense": 1},
        [],
        {**QUICK_BODY, "previous_response_id": "resp_none"},
        QUICK_BODY,
    ]
    batch = client.await_status(client.start(make_lines(bodies)))
    assert batch["request_counts"] == {"total": 7, "completed": 2, "failed": 5} and batch["model"] is None
    output, errors = client.read_results(batch)
    assert [line["custom_id"] for line in output] == ["r0", "r6"]
    assert [line["custom_id"] for line in errors] == ["r1", "r2", "r3", "r4", "r5"]
    for line, body in zip(errors, bodies[1:6], strict=True):
        single = client.post("/responses", json=body)
        assert (line["response"]["status_code"], line["response"]["body"]) == (single.status_code, single.json())
        assert line["error"] is None


@pytest.mark.parametrize("field", ["stream", "background"])
def test_a_line_cannot_be_a_stream_or_run_in_the_background(client: BatchClient, field: str) -> None:
    batch = client.await_status(client.start(make_lines([{**QUICK_BODY, field: True}, {**QUICK_BODY, field: False}])))
    output, errors = client.read_results(batch)
    assert [line["custom_id"] for line in output] == ["r1"]
    error = errors[0]["response"]
    assert (error["status_code"], error["body"]["error"]["param"]) == (400, field)
    assert error["request_id"].startswith("req_")


def test_a_bad_file_fails_the_batch_with_its_lines(client: BatchClient) -> None:
    content = make_lines([QUICK_BODY]) + b"nope\n" + make_lines([QUICK_BODY])
    batch = client.await_status(client.start(content))
    assert batch["status"] == "failed" and batch["failed_at"] is not None and batch["in_progress_at"] is None
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [
        ("invalid_json_line", 2), ("duplicate_custom_id", 3)
    ]  # fmt: skip
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)


BAD_BATCHES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another endpoint": ({"endpoint": "/v1/messages"}, "endpoint", "invalid_value"),
    "another window": ({"completion_window": "1h"}, "completion_window", "invalid_value"),
    "no window": ({"completion_window": None}, "completion_window", "missing_required_parameter"),
    "unknown field": ({"x": 1}, "x", "unknown_parameter"),
    "short lifetime": ({"output_expires_after": {"anchor": "created_at", "seconds": 1}},
                       "output_expires_after.seconds", "integer_below_min_value"),
    "another anchor": ({"output_expires_after": {"anchor": "x", "seconds": 3600}},
                       "output_expires_after.anchor", "invalid_value"),
    "no such file": ({"input_file_id": "file-none"}, "input_file_id", "invalid_value"),
    "no id": ({"input_file_id": "x"}, "input_file_id", "invalid_value"),
    "metadata": ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batch_is_refused(client: BatchClient, name: str) -> None:
    fields, param, code = BAD_BATCHES[name]
    body = {"input_file_id": client.upload_id(b"x"), "endpoint": "/v1/responses", "completion_window": "24h", **fields}
    reply = client.post("/batches", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code), reply.text


def test_input_must_be_a_file_for_batches_of_the_same_key(server: RunningServer, client: BatchClient) -> None:
    assert client.create(client.upload_id(b"x", "user_data")).json()["error"]["param"] == "input_file_id"
    assert BatchClient(server, "bob").create(client.upload_id(b"x")).status_code == 400


def test_batches_of_other_keys_do_not_exist(server: RunningServer, client: BatchClient) -> None:
    other, batch_id = BatchClient(server, "bob"), client.start(make_lines([QUICK_BODY]))
    batch = client.await_status(batch_id)
    for reply in (other.get(f"/batches/{batch_id}"), other.post(f"/batches/{batch_id}/cancel")):
        assert (reply.status_code, reply.json()["error"]["message"]) == (404, f"No batch found with id '{batch_id}'.")
    assert batch_id not in other.get("/batches").text
    assert other.get(f"/files/{batch['output_file_id']}/content").status_code == 404
    assert other.get("/batches", params={"after": batch_id}).status_code == 400


def test_lists_are_in_pages() -> None:
    with serve(SCRIPT) as server:
        client = BatchClient(server)
        ids = [client.start(make_lines([QUICK_BODY])) for _ in range(4)]
        assert [batch["id"] for batch in client.get("/batches").json()["data"]] == ids[::-1]
        page = client.get("/batches", params={"limit": 2, "after": ids[3]}).json()
        assert [batch["id"] for batch in page["data"]] == [ids[2], ids[1]] and page["has_more"] is True
        assert client.get("/batches", params={"limit": 2, "after": ids[1]}).json()["has_more"] is False


def test_cancelled_batch_keeps_what_is_done(server: RunningServer, client: BatchClient) -> None:
    batch_id = client.start(make_lines([QUICK_BODY] * 3 + [SLOW_BODY] * 20))
    assert wait_until(HANG_TIMEOUT_S, lambda: client.find(batch_id)["request_counts"]["completed"] == 3)
    reply = client.post(f"/batches/{batch_id}/cancel").json()
    assert reply["status"] in ("cancelling", "cancelled") and reply["cancelling_at"] is not None
    batch = client.await_status(batch_id)
    assert batch["status"] == "cancelled" and batch["cancelled_at"] >= batch["cancelling_at"]
    output, errors = client.read_results(batch)
    assert [line["custom_id"] for line in output] == ["r0", "r1", "r2"]
    assert [line["custom_id"] for line in errors] == [f"r{number}" for number in range(3, 23)]
    assert all(line["response"] is None and line["error"]["code"] == "batch_cancelled" for line in errors)
    assert wait_until(HANG_TIMEOUT_S, lambda: server.engine.stats().running == 0)
    assert client.post(f"/batches/{batch_id}/cancel").json() == batch


def test_expired_batch_keeps_what_is_done(server: RunningServer, client: BatchClient) -> None:
    batch_id = client.start(make_lines([QUICK_BODY] * 2 + [SLOW_BODY] * 10))
    assert wait_until(HANG_TIMEOUT_S, lambda: client.find(batch_id)["request_counts"]["completed"] == 2)
    runner: Any = server.context.batches
    server.loop.call_soon_threadsafe(let_expire, runner._runs[batch_id])
    batch = client.await_status(batch_id)
    assert batch["status"] == "expired" and batch["expired_at"] is not None
    output, errors = client.read_results(batch)
    assert [line["custom_id"] for line in output] == ["r0", "r1"]
    assert [line["custom_id"] for line in errors] == [f"r{number}" for number in range(2, 12)]
    assert all(line["response"] is None and line["error"]["code"] == "batch_expired" for line in errors)


def let_expire(run: Any) -> None:
    """Makes now the time at which a batch expires."""
    run.batch = msgspec.structs.replace(run.batch, expires_at=int(time.time()))
    run._changed.set()


def test_input_of_a_running_batch_cannot_be_deleted(client: BatchClient) -> None:
    file_id = client.upload_id(make_lines([SLOW_BODY]))
    batch_id = client.create(file_id).json()["id"]
    reply = client.delete(f"/files/{file_id}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "file_in_use")
    assert reply.headers["x-should-retry"] == "false"
    client.post(f"/batches/{batch_id}/cancel")
    client.await_status(batch_id)
    assert client.delete(f"/files/{file_id}").status_code == 200


def test_rows_of_lines_are_deleted_after_the_end(server: RunningServer, client: BatchClient) -> None:
    batch_id = client.start(make_lines([QUICK_BODY] * 5))
    client.await_status(batch_id)
    assert wait_until(HANG_TIMEOUT_S, lambda: count_rows(server, "batch_lines", "batch", batch_id) == 0)
    assert client.find(batch_id)["request_counts"]["total"] == 5


def test_lines_leave_places_to_other_requests(server: RunningServer, client: BatchClient) -> None:
    """Six of eight slots are the batch's at most, and another request begins at once in one of the others."""
    batch_id = client.start(make_lines([SLOW_BODY] * 40))
    assert wait_until(HANG_TIMEOUT_S, lambda: server.engine.stats().running == 6)
    largest = 0
    for _ in range(20):
        assert client.post("/responses", json=QUICK_BODY).json()["status"] == "completed"
        largest = max(largest, server.engine.stats().running)
    assert 6 <= largest <= 8 and server.engine.stats().waiting == 0
    client.post(f"/batches/{batch_id}/cancel")
    client.await_status(batch_id)


def test_several_choices_of_a_line_count_as_several_places(server: RunningServer, client: BatchClient) -> None:
    """Lines with eight turns each run one after another: together they would take all slots."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "n": 5}
    batch_id = client.start(make_lines([body] * 6, "/v1/chat/completions"), "/v1/chat/completions")
    largest = 0
    while client.find(batch_id)["status"] != "completed":
        largest = max(largest, server.context.capacity.open_turns(server.engine))
    assert largest <= 6


def test_no_other_request_is_refused_because_of_a_batch() -> None:
    """All places of the engine are taken by others while six lines run: the next one gets 429, not one before."""
    with serve(lambda: scripted_registry(SCRIPT, delay=0.02, max_num_seqs=8, max_waiting=4)) as server:
        client = BatchClient(server)
        batch_id = client.start(make_lines([SLOW_BODY] * 40))
        assert wait_until(HANG_TIMEOUT_S, lambda: server.engine.stats().running == 6)
        statuses: list[int] = []

        def send() -> None:
            statuses.append(client.post("/responses", json={**SLOW_BODY, "max_output_tokens": 150}).status_code)

        threads = [threading.Thread(target=send) for _ in range(12)]
        for thread in threads:
            thread.start()
        assert wait_until(HANG_TIMEOUT_S, lambda: server.context.capacity.free_slots(server.engine) == 0)
        assert client.post("/responses", json=QUICK_BODY).status_code == 429
        client.post(f"/batches/{batch_id}/cancel")
        for thread in threads:
            thread.join()
        assert statuses == [200] * 12
        assert client.await_status(batch_id)["status"] == "cancelled"


def test_a_busy_server_runs_the_lines_later() -> None:
    """Lines that the engine has no place for are sent again, and none fails."""
    with serve(lambda: scripted_registry(SCRIPT, delay=0.01, max_num_seqs=2, max_waiting=0)) as server:
        client = BatchClient(server)
        reading = [threading.Thread(target=lambda: client.post("/responses", json=LONG_BODY)) for _ in range(2)]
        for thread in reading:
            thread.start()
        assert wait_until(HANG_TIMEOUT_S, lambda: server.engine.stats().running == 2)
        batch_id = client.start(make_lines([QUICK_BODY] * 4))
        time.sleep(1.0)
        assert client.find(batch_id)["request_counts"]["failed"] == 0
        for thread in reading:
            thread.join()
        assert client.await_status(batch_id)["request_counts"] == {"total": 4, "completed": 4, "failed": 0}


def test_owners_take_turns(server: RunningServer, client: BatchClient) -> None:
    """A batch of ten of another key ends long before the 300 lines that were there first."""
    body = {**QUICK_BODY, "input": "hi " * 20}
    first, other = client.start(make_lines([body] * 300)), BatchClient(server, "bob")
    assert wait_until(HANG_TIMEOUT_S, lambda: client.find(first)["request_counts"]["completed"] > 0)
    begun = client.find(first)["request_counts"]["completed"]
    other.await_status(other.start(make_lines([body] * 10)))
    assert client.find(first)["request_counts"]["completed"] - begun < 150
    assert client.await_status(first)["request_counts"]["completed"] == 300


def test_stored_responses_of_lines_belong_to_the_key(server: RunningServer, client: BatchClient) -> None:
    batch = client.await_status(client.start(make_lines([{**QUICK_BODY, "store": True}])))
    response = client.read_results(batch)[0][0]["response"]["body"]
    assert client.get(f"/responses/{response['id']}").json() == response
    assert BatchClient(server, "bob").get(f"/responses/{response['id']}").status_code == 404


def test_output_files_have_the_lifetime_that_was_asked_for(client: BatchClient) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    batch = client.await_status(client.start(make_lines([QUICK_BODY]), output_expires_after=expiry))
    file = client.get(f"/files/{batch['output_file_id']}").json()
    assert (file["expires_at"] - file["created_at"], file["purpose"]) == (7200, "batch_output")
    assert file["filename"] == f"{batch['id']}_output.jsonl"


def test_server_without_batches_says_so() -> None:
    with serve(SCRIPT, enable_batches=False) as server:
        client = BatchClient(server)
        reply = client.create(client.upload_id(make_lines([QUICK_BODY])))
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "batches_disabled")


def test_shutdown_leaves_lines_open_for_the_next_server(tmp_path: Any) -> None:
    store = tmp_path / "responses.db"
    registry = lambda: scripted_registry(SCRIPT, delay=0.005, max_num_seqs=8)  # noqa: E731
    with serve(registry, store_file=store) as server:
        client = BatchClient(server)
        batch_id = client.start(make_lines([QUICK_BODY] * 2 + [{**SLOW_BODY, "max_output_tokens": 60}] * 8))
        assert wait_until(HANG_TIMEOUT_S, lambda: client.find(batch_id)["request_counts"]["completed"] >= 2)
    with serve(registry, store_file=store) as server:
        client = BatchClient(server)
        batch = client.await_status(batch_id)
        assert batch["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
        output, errors = client.read_results(batch)
        assert [line["custom_id"] for line in output] == [f"r{number}" for number in range(10)] and not errors


def test_lines_are_read_from_any_place_of_the_file(client: BatchClient) -> None:
    """Lines that are longer than a piece, and that begin at the end of one."""
    sizes = [10, 1_000_000, 48_000, 10, 2_200_000, 10]
    bodies = [{**QUICK_BODY, "metadata": {"size": str(size)}, "user": "x" * size} for size in sizes]
    batch = client.await_status(client.start(make_lines(bodies)))
    output, errors = client.read_results(batch)
    assert [line["response"]["body"]["metadata"]["size"] for line in output] == ["10", "10", "10"]
    assert [line["custom_id"] for line in errors] == ["r1", "r2", "r4"]
    assert {line["response"]["body"]["error"]["param"] for line in errors} == {"user"}
