"""The OpenAPI document against its standard, the routes, the tables of fields, and what the server really replies."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.main.table import ROUTE_HANDLERS
from antiphon.app.openapi.schemas import body_schema, describe_fields, is_required
from antiphon.app.requests.fields import RequestBody, RequestField, list_fields
from antiphon.app.requests.fields.checks import build_check
from tests.clients.sdk_helpers import get, post
from tests.conftest import StartServer
from tests.endpoint_bodies import BODIES
from tests.serving import RunningServer, serve
from tests.snapshots.cases import CASES, Case
from tests.snapshots.run_case import CaseResult, read_chat, read_completion, read_message, read_responses

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
STANDARD = json.loads((Path(__file__).parent / "openapi_3.1_schema.json").read_text(encoding="utf-8"))
"""The standard's own schema, https://spec.openapis.org/oas/3.1/schema/2022-10-07."""
WITHOUT_BODY = {
    ("post", "/v1/responses/{response_id}/cancel"),
    ("post", "/v1/admin/drain"),
    ("post", "/v1/admin/reload"),
    ("post", "/v1/batches/{batch_id}/cancel"),
    ("post", "/v1/uploads/{upload_id}/cancel"),
}
WITHOUT_TABLE = {("post", "/api/show"), ("post", "/v1/files"), ("post", "/v1/uploads/{upload_id}/parts")}
ODD_VALUES: list[Any] = [
    True, 1, 1.5, "x", [], {}, False, 0, -1, 2**31, 2**70, 0.0, -0.5, 1e300, "", "auto", "none", "low", "default", "text", "a" * 65,
    [[]], [{}], ["x"], [""], [1], [[1]], ["x"] * 130, {"type": "text"}, {"type": "json_object"}, {"type": "enabled", "budget_tokens": 2000},
    {"type": "auto"}, {"name": "x"}, {"a": "b"}, {"a": 1}, {"5": 1}, {"effort": "low"}, {"include_usage": True}, {"x": None}, {"mode": None},
]  # fmt: skip
Operation = dict[str, Any]


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    reply = get(f"{server.root}/openapi.json")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    parsed: dict[str, Any] = reply.json()
    return parsed


def list_operations(document: dict[str, Any]) -> Iterator[tuple[str, str, Operation]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def list_schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the schemas of a document: all that a key `schema` or `components` holds."""
    if isinstance(value, list):
        for entry in value:
            yield from list_schemas(entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            if key == "schema":
                yield entry
            elif key == "schemas":
                yield from entry.values()
            else:
                yield from list_schemas(entry)


def test_document_follows_the_standard(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(STANDARD).validate(document)
    for schema in list_schemas(document):
        jsonschema.Draft202012Validator.check_schema(schema)
    names = re.findall(r'"\$ref": "#/components/schemas/([^"]*)"', json.dumps(document))
    assert set(names) <= document["components"]["schemas"].keys(), "every reference has its schema"
    ids = [operation["operationId"] for _, _, operation in list_operations(document)]
    assert len(ids) == len(set(ids))
    for _, path, operation in list_operations(document):
        declared = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert sorted(declared) == sorted(re.findall(r"{(\w+)}", path))


def test_document_has_every_route_and_no_other(document: dict[str, Any]) -> None:
    registered = {
        (method.lower(), re.sub(r":\w+}", "}", path))
        for handler in ROUTE_HANDLERS
        for path in handler.paths
        for method in handler.http_methods
    }
    assert {(method, path) for method, path, _ in list_operations(document)} == registered


def test_bodies_have_the_fields_of_the_decoder(document: dict[str, Any]) -> None:
    """Each table is shown, and each operation with a body shows a table."""
    shown = set()
    for method, path, operation in list_operations(document):
        if "requestBody" not in operation:
            assert method != "post" or (method, path) in WITHOUT_BODY
            continue
        if (method, path) in WITHOUT_TABLE:
            continue
        main_path = {"/rerank": "/v1/rerank", "/v2/rerank": "/v1/rerank", "/score": "/v1/score"}.get(path, path)
        endpoint = f"{method.upper()} {main_path}"
        descriptions = describe_fields(BODIES[endpoint])
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        shown_texts = {name: field["description"] for name, field in schema["properties"].items()}
        assert shown_texts == descriptions
        shown.add(endpoint)
    assert shown == BODIES.keys()


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        pytest.param(kind, field, id=f"{endpoint}-{field.name}")
        for endpoint, kind in BODIES.items()
        for field in list_fields(kind)
    ],
)
def test_schema_of_a_field_agrees_with_its_check(kind: type[RequestBody], field: RequestField) -> None:
    """Each value that is accepted matches the schema, and no value of a type that is rejected does."""
    schema = jsonschema.Draft202012Validator(body_schema(kind)["properties"][field.name])
    for value in ODD_VALUES:
        error = check(field, value)
        if error is None:
            assert field.rule.handling == "refused" or schema.is_valid(value), value
        elif error.code == "invalid_type" and error.param == field.name and not is_whole(value):
            assert not schema.is_valid(value), value


def test_schema_of_a_field_accepts_null_unless_it_is_required() -> None:
    for kind in BODIES.values():
        descriptions = describe_fields(kind)
        for name, field_schema in body_schema(kind)["properties"].items():
            schema = jsonschema.Draft202012Validator(field_schema)
            assert schema.is_valid(None) != is_required(descriptions[name]), name


def is_whole(value: Any) -> bool:
    """Tells whether JSON Schema takes a decimal as an integer."""
    return isinstance(value, float) and value.is_integer()


def check(field: RequestField, value: Any) -> ApiError | None:
    try:
        build_check(field.annotation)(value, field.name)
    except ApiError as error:
        return error
    return None


READ_CASES = [case for case in CASES if not case.refused and not case.fails]


@pytest.mark.parametrize("case", READ_CASES, ids=lambda case: case.name)
async def test_replies_match_their_schemas(document: dict[str, Any], case: Case) -> None:
    result = await read_responses(case)
    replies: dict[str, Any] = {
        "Response": read_reply(result),
        "ChatCompletion": read_reply(await read_chat(case)),
        "TextCompletion": read_reply(await read_completion(case, logprobs=1)),
        "AnthropicMessage": (await read_message(result)).reply,
    }
    for name, reply in replies.items():
        check_schema(document, name, reply)


def read_reply(result: CaseResult) -> Any:
    assert not isinstance(result.reply, ApiError)
    return json.loads(result.reply)


def check_schema(document: dict[str, Any], name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def test_errors_match_their_schemas(document: dict[str, Any], server: RunningServer) -> None:
    """Each error that a request without a valid body gets is listed, with its shape."""
    for method, path, operation in list_operations(document):
        url = server.root + re.sub(r"{\w+}", "none", path)
        reply = httpx.request(method, url, json={"model": "none", "x": 1} if method == "post" else None)
        assert str(reply.status_code) in operation["responses"], (method, path, reply.text)
        content = operation["responses"][str(reply.status_code)]["content"]
        if reply.status_code >= 400:
            name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            check_schema(document, name, reply.json())
        else:
            assert reply.headers["content-type"].partition(";")[0] in content


INSPECTED = (
    "",
    "events",
    "events?follow=true",
    "prompt",
    "grammar",
    "request",
    "findings",
    "readings/chat",
    "export/curl",
)


def test_replies_of_inspection_have_the_listed_media_types(document: dict[str, Any], server: RunningServer) -> None:
    key = {"x-api-key": server.context.keys.page_key}
    created = post(f"{server.root}/v1/responses", json={"model": "scripted", "input": "hi"}).json()["id"]
    for part in INSPECTED:
        reply = httpx.get(f"{server.root}/v1/inspect/turns/{created}/{part}".rstrip("/"), headers=key)
        template = "/v1/inspect/turns/{turn_id}/" + re.sub("(readings|export)/.*", r"\1/{form}", part.partition("?")[0])
        template = template.rstrip("/").replace("readings/{form}", "readings/{api}")
        found = document["paths"][template]["get"]
        assert reply.headers["content-type"].partition(";")[0] in found["responses"]["200"]["content"], part
        assert found["security"] == [{"bearer": []}, {"x-api-key": []}] and "403" in found["responses"]
    with httpx.stream("GET", f"{server.root}/v1/inspect/live", headers=key) as live:
        kind = live.headers["content-type"].partition(";")[0]
    assert [*document["paths"]["/v1/inspect/live"]["get"]["responses"]["200"]["content"]] == [kind]


def test_streams_are_listed_where_a_request_may_ask_for_one(document: dict[str, Any]) -> None:
    streams = {
        f"{method} {path}"
        for method, path, operation in list_operations(document)
        if "text/event-stream" in operation["responses"]["200"]["content"] and path != "/v1/inspect/live"
    }
    assert streams == {
        *(f"post /v1/{name}" for name in ("responses", "chat/completions", "completions", "messages")),
        "get /v1/responses/{response_id}",
    }


INVALID_QUERIES = {
    "start_time": ["x", "-1"],
    "end_time": ["x"],
    "bucket_width": ["2h"],
    "group_by": ["color"],
    "limit": ("0", "200001", "x"),
    "purpose": ("up",),
    "order": ("up",),
    "after": ("none",),
    "starting_after": ("x", "-2"),
    "metadata": ("x",),
    "include": ("up",),
    "status": ("up",),
    "api": ("up",),
    "ending": ("up",),
    "tool": ("x" * 257,),
    "previous": ("x" * 257,),
    "text": ("x" * 257,),
    "since": ("x",),
    "until": ("x",),
    "follow": ("up",),
    "stream": ("up",),
    "include_obfuscation": ("up",),
}
"""Values that the endpoints reject, by the parameter. The others take any value."""
FREE_PARAMETERS = {"beta", "client_version", "model", "page", "ids", "models", "api_key_ids", "user_ids"}


def test_parameters_of_queries_are_those_that_are_read(document: dict[str, Any], server: RunningServer) -> None:
    def create(path: str, **body: Any) -> str:
        reply = post(server.root + path, json=body)
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    message, key = {"role": "user", "content": "hi"}, {"x-api-key": server.context.keys.page_key}
    ids = {
        "response_id": create("/v1/responses", model="scripted", input="hi"),
        "conversation_id": create("/v1/conversations"),
        "item_id": "none",
        "turn_id": create("/v1/responses", model="scripted", input="hi"),
        "completion_id": create("/v1/chat/completions", model="scripted", messages=[message], store=True),
    }
    for method, path, operation in list_operations(document):
        queries = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"]
        assert set(queries) <= INVALID_QUERIES.keys() | FREE_PARAMETERS and (
            method == "get" or queries in ([], ["include"], ["beta"])
        )
        for name in INVALID_QUERIES.keys() & set(queries):
            for value in INVALID_QUERIES[name]:
                others = {"start_time": "0"} if "start_time" in queries and name != "start_time" else {}
                reply = httpx.get(server.root + path.format_map(ids), params={**others, name: value}, headers=key)
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, name), (path, reply.text)


def test_document_needs_no_key_and_says_which_operations_do(start_server: StartServer) -> None:
    server = start_server([{"name": "hello", "output": ["Hello."]}], api_keys=("sk-secret",))
    reply = get(f"{server.root}/openapi.json")
    document = reply.json()
    assert document["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "sk-secret" not in reply.text
    for method, path, operation in list_operations(document):
        url = server.root + re.sub(r"{\w+}", "none", path)
        answer = httpx.request(method, url, json={} if method == "post" else None)
        is_open = operation.get("security") == []
        assert (answer.status_code == 401) == (not is_open) == ("401" in operation["responses"]), (method, path)


def test_document_is_built_once(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(f"{server.root}/openapi.json").content
    monkeypatch.setattr("antiphon.app.routes.openapi.build_document", None)
    assert get(f"{server.root}/openapi.json").content == first
