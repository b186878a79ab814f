"""Limits and sums of usage over real sockets: every API, WebSocket, gRPC, batches, two servers and a kill."""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
from websockets.sync.client import connect

from antiphon.app.keys.key_file import parse_key_file
from antiphon.app.options.api_keys import ApiKey
from antiphon.engine.process.resident_memory import read_resident_bytes
from tests.app.grpc.grpc_helpers import SERVICE
from tests.app.grpc.grpc_helpers import connect as connect_grpc
from tests.conftest import StartServer
from tests.counts import FULL_COUNTS
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "slow", "when": ["slow"], "output": ["word "] * 2000},
    {"name": "any", "output": ["<think>\nThink.\n</think>\n\nHello."]},
]
NUM_WRONG_KEYS = 100_000 if FULL_COUNTS else 2_000
MAX_GROWN_BYTES = 4 << 20
"""Resident memory that may come and go beside requests: 40 bytes a key, where a digest alone has 65 in Python."""
KEY, OTHER, OPERATOR = "sk-limited", "sk-other", "sk-operator"


def parse(fields: str, owner_fields: str = "") -> tuple[ApiKey, ...]:
    return parse_key_file(
        f'[[key]]\nowner = "a"\nkey = "{KEY}"\n{fields}\n'
        f'[[key]]\nowner = "b"\nkey = "{OTHER}"\n[[key]]\nowner = "ops"\nkey = "{OPERATOR}"\nrole = "operator"\n{owner_fields}',
        Path("keys.toml"),
    )


def client(server: RunningServer, key: str = KEY) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=60)


MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/responses": {"input": "Hi"},
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "Hi"},
    "/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/responses/compact": {"input": "Hi"},
}


def send(caller: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    return caller.post(path, json={"model": "scripted", **BODIES[path], **fields})


def send_over_websocket(server: RunningServer, key: str) -> dict[str, Any]:
    """Sends one request. Returns its last event."""
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    with connect(url, additional_headers={"authorization": f"Bearer {key}"}) as websocket:
        websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi", "store": False}))
        while True:
            event: dict[str, Any] = json.loads(websocket.recv(60))
            if event["type"] in ("response.completed", "error"):
                return event


STREAMED = [(path, stream) for path in BODIES for stream in (False, True) if path != "/responses/compact" or not stream]


@pytest.mark.parametrize(("path", "stream"), STREAMED)
def test_request_after_the_last_allowed_one(start_server: StartServer, path: str, stream: bool) -> None:
    server = start_server(SCRIPT, api_keys=parse("requests_per_minute = 2"))
    fields = {"stream": True} if stream else {}
    prefix = "anthropic-ratelimit-requests-" if path == "/messages" else "x-ratelimit-"
    suffix = "" if path == "/messages" else "-requests"
    with client(server) as limited, client(server, OTHER) as other:
        for remaining in ("1", "0"):
            reply = send(limited, path, **fields)
            assert (reply.status_code, reply.headers[f"{prefix}remaining{suffix}"]) == (200, remaining)
        reply = send(limited, path, **fields)
        assert reply.status_code == 429 and reply.headers[f"{prefix}remaining{suffix}"] == "0"
        assert 25 <= int(reply.headers["retry-after"]) <= 30
        error = reply.json()["error"]
        assert "Please try again in " in error["message"]
        assert error["type"] == "rate_limit_error"
        if path != "/messages":
            assert error["code"] == "rate_limit_exceeded"
        reply = send(other, path, **fields)
        assert reply.status_code == 200 and not [name for name in reply.headers if "ratelimit" in name]


def test_requests_over_a_websocket_count(start_server: StartServer) -> None:
    server = start_server(SCRIPT, api_keys=parse("requests_per_minute = 2"))
    assert [send_over_websocket(server, KEY)["type"] for _ in range(2)] == ["response.completed"] * 2
    event = send_over_websocket(server, KEY)
    assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "Please try again in " in event["error"]["message"]
    with client(server) as limited:
        assert send(limited, "/responses").status_code == 429, "all ways of a key count together"


def test_place_of_a_client_that_leaves_is_free_again(start_server: StartServer) -> None:
    server = start_server(scripted_registry(SCRIPT, delay=0.02), api_keys=parse("max_concurrent = 1"))
    with client(server) as limited:
        body = {"model": "scripted", "input": "slow", "stream": True, "store": False}
        with limited.stream("POST", "/responses", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            refused = send(limited, "/responses")
            assert refused.status_code == 429 and "and 1 run" in refused.json()["error"]["message"]
            assert "x-ratelimit-limit-requests" not in refused.headers
        wait_with_progress(lambda: send(limited, "/responses").status_code == 200, "the place stays taken")


def test_choices_beyond_the_limit_are_a_fault_of_the_request(start_server: StartServer) -> None:
    server = start_server(SCRIPT, api_keys=parse("max_concurrent = 2"))
    with client(server) as limited:
        reply = send(limited, "/chat/completions", n=3)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
        assert send(limited, "/chat/completions", n=2).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_used_budget_stops_the_next_request(start_server: StartServer, path: str) -> None:
    server = start_server(SCRIPT, api_keys=parse("", "[owners.a]\ntokens_per_day = 5"))
    with client(server) as limited:
        assert send(limited, path).status_code == 200
        reply = send(limited, path)
        assert reply.status_code == 429 and reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
        assert "exceeded your current quota: 5 tokens a day" in error["message"]
        assert path == "/messages" or (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")


def test_budget_counts_over_a_restart(start_server: StartServer, tmp_path: Path) -> None:
    settings = {"store_file": tmp_path / "store.db", "api_keys": parse("tokens_per_month = 5")}
    server = start_server(SCRIPT, **settings)
    with client(server) as limited:
        assert send(limited, "/responses").status_code == 200
    server.stop()
    server = start_server(SCRIPT, **settings)
    with client(server) as limited:
        wait_with_progress(lambda: send(limited, "/responses").status_code == 429, "the budget is full again")


def read_usage(caller: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    reply = caller.get("/organization/usage/completions", params={"start_time": 0, "limit": 31, **query})
    assert reply.status_code == 200, reply.text
    return [result for bucket in reply.json()["data"] for result in bucket["results"]]


def test_sums_are_those_of_the_replies(start_server: StartServer) -> None:
    """Over every API, streamed and not, with several choices and prompts; `store` makes no difference."""

    server = start_server(SCRIPT, api_keys=parse(""), file_store=True)
    start = int(time.time()) - 60
    usages: list[dict[str, Any]] = []
    with client(server) as caller, client(server, OPERATOR) as operator:
        for store in (False, True):
            usages.append(send(caller, "/responses", store=store).json()["usage"])
            usages.append(send(caller, "/chat/completions", store=store, n=3).json()["usage"])
        usages.append(send(caller, "/completions", prompt=["Hi", "Hello there"], n=2).json()["usage"])
        usages.append(send(caller, "/messages").json()["usage"])
        usages.append(send_over_websocket(server, KEY)["response"]["usage"])
        assert send(caller, "/responses", model="none").status_code == 404
        expected_input = sum(usage.get("input_tokens", usage.get("prompt_tokens")) for usage in usages)
        expected_output = sum(usage.get("output_tokens", usage.get("completion_tokens")) for usage in usages)
        for reader in (caller, operator):
            for width in ("1m", "1h", "1d"):
                [result] = read_usage(reader, start_time=start, bucket_width=width, **{"user_ids[]": "a"})
                found = (result["input_tokens"], result["output_tokens"], result["num_model_requests"])
                assert found == (expected_input, expected_output, len(usages)), width
        assert result["output_reasoning_tokens"] > 0


def test_groups_filters_and_owners(start_server: StartServer) -> None:

    start = int(time.time()) - 60
    server = start_server(SCRIPT, api_keys=parse(""))
    with client(server) as first, client(server, OTHER) as second, client(server, OPERATOR) as operator:
        for caller, count in ((first, 2), (second, 1)):
            for _ in range(count):
                send(caller, "/responses")
        by_owner = read_usage(operator, start_time=start, **{"group_by[]": ["user_id", "model"]})
        assert [(each["user_id"], each["model"], each["num_model_requests"]) for each in by_owner] == [
            ("a", "scripted", 2),
            ("b", "scripted", 1),
        ]
        by_key = read_usage(operator, start_time=start, group_by="api_key_id")
        ids = {key.name: key.id for key in server.context.keys}
        assert {each["api_key_id"] for each in by_key} == {ids["a"], ids["b"]}
        [own] = read_usage(second, start_time=start, group_by="user_id")
        assert (own["user_id"], own["num_model_requests"]) == ("b", 1)
        assert read_usage(second, start_time=start, api_key_ids=ids["a"]) == []
        assert read_usage(operator, start_time=start, models="none") == []
        refused = second.get("/organization/usage/completions", params={"start_time": 0, "user_ids": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")


def test_openai_sdk_reads_the_sums(start_server: StartServer) -> None:

    server = start_server(SCRIPT, api_keys=parse(""))
    with client(server) as caller:
        send(caller, "/responses")
    admin = openai.OpenAI(base_url=server.url, api_key=OPERATOR, admin_api_key=OPERATOR).admin
    page = admin.organization.usage.completions(
        start_time=int(time.time()) - 3600, bucket_width="1h", group_by=["model", "user_id"], limit=3
    )
    results: list[Any] = [result for bucket in page.data for result in bucket.results]
    assert [(result.model, result.user_id, result.num_model_requests) for result in results] == [("scripted", "a", 1)]
    assert page.has_more is False and page.next_page is None


@pytest.mark.parametrize(
    ("query", "param", "status"),
    [
        ({}, "start_time", 400),
        ({"start_time": "x"}, "start_time", 400),
        ({"start_time": "-1"}, "start_time", 400),
        ({"start_time": 10**17}, "start_time", 400),
        ({"start_time": 5, "end_time": 5}, "end_time", 400),
        ({"start_time": 0, "bucket_width": "2h"}, "bucket_width", 400),
        ({"start_time": 0, "bucket_width": "1m"}, "start_time", 400),
        ({"start_time": 0, "limit": 0}, "limit", 400),
        ({"start_time": 0, "limit": 32}, "limit", 400),
        ({"start_time": 0, "bucket_width": "1h", "limit": 169}, "limit", 400),
        ({"start_time": 0, "page": "x"}, "page", 400),
        ({"start_time": 0, "page": "page_5"}, "page", 400),
        ({"start_time": 0, "group_by": "color"}, "group_by", 400),
        ({"start_time": 0, "batch": "true"}, "batch", 400),
        ({"start_time": 0, "project_ids[]": "p"}, "project_ids", 400),
        ({"start_time": 0, "color": "red"}, "color", 400),
    ],
)
def test_faults_of_a_query(usage_server: RunningServer, query: dict[str, Any], param: str, status: int) -> None:
    with client(usage_server, OPERATOR) as operator:
        reply = operator.get("/organization/usage/completions", params=query)
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


@pytest.fixture(scope="module")
def usage_server() -> Any:
    from tests.serving import serve

    with serve(SCRIPT, api_keys=parse("")) as server:
        yield server


def test_pages_follow_each_other(usage_server: RunningServer) -> None:
    query: dict[str, Any] = {"start_time": 0, "end_time": 86_400 * 40, "limit": 31}
    starts: list[int] = []
    with client(usage_server, OPERATOR) as operator:
        while True:
            page = operator.get("/organization/usage/completions", params=query).json()
            starts += [bucket["start_time"] for bucket in page["data"]]
            if not page["has_more"]:
                break
            query["page"] = page["next_page"]
    assert starts == [86_400 * day for day in range(40)]


async def send_wrong_keys(server: RunningServer, first: int, count: int) -> None:
    """Sends requests with keys that all differ, over several connections that stay open. Each must get a 401."""
    numbers = iter(range(first, first + count))

    async def send_some() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number in numbers:
            head = f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-wrong-{number}\r\n"
            writer.write(f"{head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}".encode())
            reply = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert reply.startswith(b"http/1.1 401 "), reply
            length = re.search(rb"content-length: (\d+)", reply)
            assert length is not None and b"invalid_api_key" in await reader.readexactly(int(length[1]))
            server.access_records.clear()  # the test server keeps them
        writer.close()

    await asyncio.gather(*(send_some() for _ in range(8)))


def count_rows(file: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0] for name in tables}


def read_series(server: RunningServer) -> set[str]:
    """Returns the names and labels of all metrics."""
    text = httpx.get(f"{server.root}/metrics", headers={"authorization": f"Bearer {OPERATOR}"}).text
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def test_wrong_keys_write_nothing(start_server: StartServer, tmp_path: Path) -> None:
    """No row, no label and no memory: a scan must not fill the server."""
    file = tmp_path / "responses.db"
    server = start_server(SCRIPT, api_keys=parse("requests_per_minute = 2"), store_file=file)
    read_series(server)  # which counts, too
    asyncio.run(send_wrong_keys(server, 0, NUM_WRONG_KEYS // 10))
    rows, series, resident_bytes = count_rows(file), read_series(server), read_resident_bytes(os.getpid()) or 0
    asyncio.run(send_wrong_keys(server, NUM_WRONG_KEYS // 10, NUM_WRONG_KEYS - NUM_WRONG_KEYS // 10))
    assert server.context.usage.num_kept_rows == 0
    assert not server.context.meter._limits._scopes
    assert read_series(server) == series and not [each for each in series if "sk-" in each]
    grown_bytes = (read_resident_bytes(os.getpid()) or 0) - resident_bytes
    print(f"resident memory: {resident_bytes >> 10} KiB, then {grown_bytes >> 10} KiB more after {NUM_WRONG_KEYS} keys")
    assert grown_bytes < MAX_GROWN_BYTES, f"{grown_bytes / NUM_WRONG_KEYS:.0f} bytes a key"
    server.stop()
    assert count_rows(file) == rows and not rows["usage_hours"]


@pytest.mark.parametrize("stops", [True, False])
def test_rejections_and_failures_are_summed(start_server: StartServer, stops: bool) -> None:

    start = int(time.time()) - 60
    server = start_server(SCRIPT, api_keys=parse("requests_per_minute = 1"))
    with client(server) as caller, client(server, OPERATOR) as operator:
        for _ in range(3 if stops else 1):
            send(caller, "/responses")
        [result] = read_usage(operator, start_time=start)
    assert (result["num_model_requests"], result["num_rejected_requests"]) == (1, 2 if stops else 0)


def test_calls_over_grpc_count_and_need_an_allowed_model() -> None:
    keys = parse("requests_per_minute = 2") + parse_key_file('[[key]]\nkey = "sk-m"\nmodels = ["none"]', Path("k"))
    with serve(SCRIPT, api_keys=keys, grpc_port=0) as server, connect_grpc(server) as caller:
        request = {"text": "hi", "stream": True}
        for _ in range(2):
            assert list(caller.call(f"{SERVICE}/Generate", request, key=KEY))
        status, error = caller.read_error(f"{SERVICE}/Generate", request, key=KEY)
        assert (status, error["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded")
        for method, body in (("Generate", request), ("GetModelInfo", {})):
            status, error = caller.read_error(f"{SERVICE}/{method}", body, key="sk-m")
            assert (status, error["code"]) == (grpc.StatusCode.NOT_FOUND, "model_not_found")
