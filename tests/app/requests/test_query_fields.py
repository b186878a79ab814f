"""Fields of the queries of all routes: what they take, and 400 with the name of the field for everything else."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.http.endpoints.endpoint import Form, Key
from antiphon.app.main.table import ENDPOINTS
from antiphon.app.requests.query_fields import AnyQuery
from tests.serving import RunningServer, serve

SERVER = partial(serve, [{"name": "any", "output": ["Hello."]}], inspect="memory")
FLAG_FAULTS = ("maybe", "yes", "on", "2", "", "tru", "true ", "01", "null")
INTEGER_FAULTS = ("", "x", "1.0", "1e1", "+1", " 1", "1_0", "0x1", "١", "1" * 19, "null", "true")
TIME_FAULTS = ("x", "1e5", "nan", "inf", "1_0", " 1", "+1", "١", "1.", ".5", "now")


@pytest.fixture(scope="module")
def paths(server: RunningServer) -> dict[str, str]:
    """The paths of lists and of streams, of a response, a conversation and a chat completion that exist."""
    with httpx.Client(base_url=server.url, headers={"x-api-key": server.context.keys.page_key}) as client:

        def create(path: str, **body: Any) -> str:
            created: str = client.post(path, json=body).raise_for_status().json()["id"]
            return created

        chat = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "store": True}
        response = create("/responses", model="scripted", input="x")
        conversation, completion = create("/conversations"), create("/chat/completions", **chat)
    return {
        "response": f"/responses/{response}",
        "input_items": f"/responses/{response}/input_items",
        "items": f"/conversations/{conversation}/items",
        "completions": "/chat/completions",
        "messages": f"/chat/completions/{completion}/messages",
        "files": "/files",
        "anthropic files": "/files",
        "batches": "/batches",
        "usage": "/organization/usage/completions?start_time=0",
        "turns": "/inspect/turns",
        "events": f"/inspect/turns/{response}/events",
        "prompt": f"/inspect/turns/{response}/prompt",
    }


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"x-api-key": server.context.keys.page_key}) as client:
        yield client


FIELDS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("response", "stream", ("true", "True", "TRUE", "1", "false", "False", "0"), FLAG_FAULTS),
    ("response", "include_obfuscation", ("true", "True", "0"), FLAG_FAULTS),
    ("response", "starting_after", ("-1", "0", "7"), (*INTEGER_FAULTS, "-2")),
    *(
        (name, "limit", ("1", "100", "007"), (*INTEGER_FAULTS, "0", "-1", "101"))
        for name in ("input_items", "items", "completions", "messages", "batches")
    ),
    ("files", "limit", ("1", "10000"), (*INTEGER_FAULTS, "0", "10001")),
    ("anthropic files", "limit", ("1", "1000"), (*INTEGER_FAULTS, "0", "1001")),
    ("usage", "limit", ("1", "31"), (*INTEGER_FAULTS, "0", "32")),
    ("turns", "limit", ("1", "200"), (*INTEGER_FAULTS, "0", "201")),
    ("events", "limit", ("1", "100000"), (*INTEGER_FAULTS, "0", "100001")),
    ("prompt", "limit", ("1", "200000"), (*INTEGER_FAULTS, "0", "200001")),
    *((name, "after", ("-1", "3"), (*INTEGER_FAULTS, "-2")) for name in ("events", "prompt")),
    *(
        (name, "after", (), ("", "no", "x" * 200, "\0"))
        for name in ("input_items", "items", "completions", "messages", "files", "batches")
    ),
    ("turns", "after", ("",), ("no", "\0")),
    ("anthropic files", "page", (), ("", "no", "page_", "page_no")),
    *(
        (name, "order", ("asc", "desc"), ("", "ASC", "up", "descending"))
        for name in ("input_items", "items", "completions", "messages", "files")
    ),
    *((name, "include", ("reasoning.encrypted_content",), ("", "no")) for name in ("input_items", "items")),
    ("files", "purpose", ("batch",), ("", "no", "Batch")),
    ("events", "follow", ("true", "True", "0"), FLAG_FAULTS),
    ("turns", "status", ("", "completed"), ("no", "Completed")),
    ("turns", "api", ("", "chat"), ("no", "CHAT")),
    ("turns", "ending", ("",), ("no",)),
    *(("turns", name, ("", "x"), ("x" * 257,)) for name in ("model", "tool", "previous", "text")),
    *(("turns", name, ("", "-1", "1700000000", "1700000000.125"), TIME_FAULTS) for name in ("since", "until")),
    *(("usage", name, ("1", "99"), (*INTEGER_FAULTS, "-1")) for name in ("end_time",)),
    ("usage", "bucket_width", ("1d", "1h"), ("", "1w", "1D")),
    ("usage", "group_by", ("model",), ("", "no")),
    ("usage", "page", (), ("", "no", "page_x")),
)
"""Path, field, values that it takes, and texts that it does not take."""


def ask(client: httpx.Client, name: str, path: str, pairs: list[tuple[str, str]]) -> tuple[int, str, str]:
    """Returns the status, the field that an error names, and the media type of the reply."""
    headers = {"anthropic-version": "2023-06-01"} if name.startswith("anthropic") else {}
    url, _, given = path.partition("?")
    pairs = [*([tuple(given.split("="))] if given else []), *pairs]  # type: ignore[list-item]
    with client.stream("GET", url, params=pairs, headers=headers) as reply:
        kind = reply.headers.get("content-type", "").partition(";")[0]
        if reply.status_code < 400:
            return reply.status_code, "", kind
        error = httpx.Response(400, content=reply.read()).json()["error"]
    field = error.get("param") or (pairs[-1][0] if f"'{pairs[-1][0]}'" in error["message"] else "")
    return reply.status_code, field, kind


@pytest.mark.parametrize(("name", "field", "values", "faults"), FIELDS)
def test_field_takes_its_values_and_refuses_all_others(
    client: httpx.Client,
    paths: dict[str, str],
    name: str,
    field: str,
    values: tuple[str, ...],
    faults: tuple[str, ...],
) -> None:
    for value in values:
        assert ask(client, name, paths[name], [(field, value)])[0] == 200, value
    for fault in faults:
        assert ask(client, name, paths[name], [(field, fault)])[:2] == (400, field), fault


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [(name, field, values[0]) for name, field, values, _ in FIELDS if values and field not in ("include", "group_by")],
)
def test_field_with_one_value_is_sent_once(
    client: httpx.Client, paths: dict[str, str], name: str, field: str, value: str
) -> None:
    pairs = [(field, value), (field, value)]
    assert ask(client, name, paths[name], pairs)[:2] == (400, field)


def test_no_endpoint_takes_a_field_that_it_does_not_declare(server: RunningServer, client: httpx.Client) -> None:
    """The query is read before the body and before the handler, so nothing is done."""
    for each in (each for each in ENDPOINTS if each.query is not AnyQuery):
        key = server.context.keys.control_key if each.key is Key.OPERATOR else server.context.keys.page_key
        sent: dict[str, Any] = {"files": {"file": b""}} if isinstance(each.body, Form) else {"json": {}}
        for path in each.paths:
            url = server.root + re.sub(r"{\w+(:path)?}", "none", path)
            more = sent if each.method == "POST" else {}
            for name in ("nope", "limit[0]", "after[x]", "stream[]", "\0"):
                reply = client.request(each.method, url, params={name: "1"}, headers={"x-api-key": key}, **more)
                assert reply.status_code == 400, (each.method, url, reply.text)
                error = reply.json()["error"]
                assert f"Unknown parameter: '{name}'" in (error if each.shape == "ollama" else error["message"])


def test_fields_that_clients_are_known_to_send_are_taken(client: httpx.Client) -> None:
    assert client.get("/models", params={"client_version": "0.99.0"}).status_code == 200
    for path in ("/models", "/models/scripted"):
        assert client.get(path, params={"beta": "true"}).status_code == 200
    body = {"model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    assert client.post("/messages", params={"beta": "true"}, json=body).status_code == 200
    assert client.post("/responses", params={"beta": "true"}, json={}).status_code == 400
    for path in ("/health", "/ready", "/metrics", "/ui/", "/"):
        assert client.get(str(client.base_url.copy_with(path=path)), params={"now": "1"}).status_code == 200


@pytest.mark.parametrize("written", ["include", "include[]", "include[0]"])
def test_list_is_written_as_libraries_do(client: httpx.Client, paths: dict[str, str], written: str) -> None:
    pairs = [(written, "reasoning.encrypted_content"), (written, "file_search_call.results")]
    assert ask(client, "input_items", paths["input_items"], pairs)[0] == 200
    assert ask(client, "input_items", paths["input_items"], [(written, "no")])[:2] == (400, "include")


@pytest.mark.parametrize("value", ["true", "True", "TRUE", "1"])
def test_stream_is_a_stream_however_a_library_writes_true(
    client: httpx.Client, paths: dict[str, str], value: str
) -> None:
    assert ask(client, "response", paths["response"], [("stream", value)]) == (200, "", "text/event-stream")


@pytest.mark.parametrize("pairs", [[("stream", "False")], [("stream", "0")], []])
def test_response_is_json_without_stream(
    client: httpx.Client, paths: dict[str, str], pairs: list[tuple[str, str]]
) -> None:
    assert ask(client, "response", paths["response"], pairs) == (200, "", "application/json")
