"""Batches through the openai SDK for Python; `test_batch_clients.py` has other clients, `test_files.py` has files."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from openai.resources import Batches
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from antiphon.app.assembly.encoders import create_encoder
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.embeddings.worker import build_embedding_core
from antiphon.engine.options import EngineOptions
from tests.clients.batch_files import (
    DAY_S,
    HELLO,
    MODEL,
    SCRIPT,
    UNKNOWN_BATCH,
    UNKNOWN_FILE,
    list_methods,
    open_client,
    read_file,
    start_batch,
    upload,
    wait_batch,
    write_lines,
)
from tests.clients.sdk_helpers import Json, record_prompts
from tests.engine.embeddings import tiny_repositories as tiny
from tests.engine.threaded_engine import build_threaded_engine
from tests.serving import RunningServer, scripted_registry, serve

KEYS = ("sk-one", "sk-two")
SERVER = partial(serve, SCRIPT, api_keys=KEYS, file_store=True)


def test_sdk_has_no_untested_method_of_batches() -> None:
    assert list_methods(Batches) == {"create", "retrieve", "list", "cancel"}


ENDPOINTS: dict[str, tuple[Any, str]] = {
    "/v1/responses": (Response, "input"),
    "/v1/chat/completions": (ChatCompletion, "messages"),
    "/v1/completions": (Completion, "prompt"),
}


def make_body(endpoint: str, text: str) -> Json:
    field = ENDPOINTS[endpoint][1]
    fields: Json = {"max_tokens": 99} if field == "prompt" else {}  # by default 16
    return {"model": MODEL, field: [{"role": "user", "content": text}] if field == "messages" else text, **fields}


def read_text(reply: Any) -> str | None:
    if isinstance(reply, Response):
        return reply.output_text
    choice = reply.choices[0]
    text: str | None = choice.text if isinstance(reply, Completion) else choice.message.content
    return text


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_lines_get_the_replies_of_their_endpoint(client: openai.OpenAI, endpoint: str) -> None:
    texts = {"slow": "Slowly", "b": "Hi", "thought": "What is six times seven?", "a": "Hello"}
    bodies = {custom_id: make_body(endpoint, text) for custom_id, text in texts.items()}
    started = start_batch(client, write_lines(endpoint, bodies), endpoint, metadata={"run": "7"})
    assert (started.object, started.status, started.endpoint) == ("batch", "validating", endpoint)
    assert (started.completion_window, started.metadata) == ("24h", {"run": "7"})
    assert started.expires_at == started.created_at + DAY_S
    batch = wait_batch(client, started)
    assert (batch.status, batch.model, batch.errors, batch.error_file_id) == ("completed", MODEL, None, None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 4, "completed": 4, "failed": 0}
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert all(times) and sorted(times, key=lambda each: each or 0) == list(times)
    lines = read_file(client, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == list(texts), "in the order of the input, not of their ends"
    assert len({line["id"] for line in lines}) == len({line["response"]["request_id"] for line in lines}) == 4
    assert {(line["response"]["status_code"], line["error"]) for line in lines} == {(200, None)}
    replies = [ENDPOINTS[endpoint][0].model_validate(line["response"]["body"], strict=True) for line in lines]
    thought = "<think>\nSix sevens.\n</think>\n\n42." if endpoint == "/v1/completions" else "42."
    assert [read_text(reply) for reply in replies] == ["At last.", "Hello there.", thought, "Hello there."]
    check_usage(batch, [line["response"]["body"]["usage"] for line in lines])
    check_output_file(client, batch)


def check_usage(batch: Any, usages: list[Json]) -> None:
    """Checks that the usage of a batch is the sum of those of its replies."""
    read = sum(usage.get("input_tokens", usage.get("prompt_tokens")) for usage in usages)
    written = sum(usage.get("output_tokens", usage.get("completion_tokens", 0)) for usage in usages)
    details = [usage.get("output_tokens_details", usage.get("completion_tokens_details")) or {} for usage in usages]
    reasoning = sum(each.get("reasoning_tokens", 0) for each in details)
    assert read > len(usages)
    assert batch.usage.to_dict() == {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": read + written,
    }


def check_output_file(client: openai.OpenAI, batch: Any, seconds: int = 30 * DAY_S) -> None:
    """Checks the file that a batch has written."""
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == len(client.files.content(file.id).content)
    assert file.expires_at == file.created_at + seconds
    assert batch.finalizing_at <= file.created_at <= batch.completed_at
    assert file.id in [each.id for each in client.files.list(purpose="batch_output")]


def test_reply_of_a_line_is_that_of_its_own_request(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "input": "What is six times seven?", "metadata": {"a": "b"}, "temperature": 0.5}
    batch = wait_batch(
        client, start_batch(client, write_lines("/v1/responses", {"a": body, "b": {**body, "store": False}}))
    )
    stored, unstored = (
        Response.model_validate(each["response"]["body"]) for each in read_file(client, batch.output_file_id)
    )
    assert client.responses.retrieve(stored.id) == stored, "it is stored, as by a request"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)
    direct = client.responses.create(**body)  # type: ignore[call-overload]
    new: dict[str, Any] = {"id": "", "created_at": 0, "completed_at": 0, "output": []}
    assert stored.model_copy(update=new) == direct.model_copy(update=new)
    without_ids = [[item.model_copy(update={"id": ""}) for item in reply.output] for reply in (stored, direct)]
    assert without_ids[0] == without_ids[1] and [item.type for item in direct.output] == ["reasoning", "message"]


@pytest.fixture(scope="module")
def encoder_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with an encoder beside its model."""
    options, folder = EngineOptions(threads=1, device="cpu"), tmp_path_factory.mktemp("models") / "bert"
    tiny.write_modules(tiny.save_bert(folder), ("mean",), "Normalize", max_seq_length=40)
    encoder = create_encoder(folder, "embedding", "bert", options)
    encoder = replace(encoder, engine=build_threaded_engine(partial(build_embedding_core, folder, options)))
    with serve(ModelRegistry(scripted_registry(SCRIPT).served, [encoder])) as running:
        yield running


def test_lines_of_embeddings_get_their_vectors(encoder_server: RunningServer) -> None:
    inputs = {"one": "a cat", "none": "", "all": tiny.TEXTS}
    bodies = {custom_id: {"model": "bert", "input": each} for custom_id, each in inputs.items()}
    bodies["text"] = {"model": MODEL, "input": "a cat"}
    with open_client(encoder_server) as client:
        batch = wait_batch(client, start_batch(client, write_lines("/v1/embeddings", bodies), "/v1/embeddings"))
        lines, errors = read_file(client, batch.output_file_id), read_file(client, batch.error_file_id)
        assert [line["custom_id"] for line in lines] == ["one", "all"]
        replies = [CreateEmbeddingResponse.model_validate(line["response"]["body"], strict=True) for line in lines]
        direct = [
            client.embeddings.create(model="bert", input=inputs[name], encoding_format="float")
            for name in ("one", "all")
        ]
    assert [[each.embedding for each in reply.data] for reply in replies] == [
        [pytest.approx(each.embedding, abs=1e-6) for each in reply.data] for reply in direct
    ]
    check_usage(batch, [line["response"]["body"]["usage"] for line in lines])
    assert [(line["custom_id"], line["response"]["body"]["error"]["param"]) for line in errors] == [
        ("none", "input"),
        ("text", "model"),
    ]
    assert batch.model is None, "the lines name two"


def test_bad_body_fails_only_its_line(client: openai.OpenAI) -> None:
    bodies = {"hot": {**HELLO, "temperature": 9}, "good": HELLO, "unknown": {**HELLO, "model": "nobody"}}
    refused: Json = {"stream": {**HELLO, "stream": True}, "background": {**HELLO, "background": True}, "list": [1]}
    lines = write_lines("/v1/responses", bodies | refused)
    fields: Any = {"output_expires_after": {"anchor": "created_at", "seconds": 7200}}
    batch = wait_batch(client, start_batch(client, lines, **fields))
    assert batch.status == "completed" and batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 6, "completed": 1, "failed": 5}
    (good,) = read_file(client, batch.output_file_id)
    assert (good["custom_id"], good["response"]["body"]["output"][0]["content"][0]["text"]) == ("good", "Hello there.")
    check_usage(batch, [good["response"]["body"]["usage"]])
    check_output_file(client, batch, 7200)
    errors = read_file(client, batch.error_file_id)
    codes = [
        (each["custom_id"], each["response"]["status_code"], each["response"]["body"]["error"]["code"])
        for each in errors
    ]
    assert codes == [
        ("hot", 400, "decimal_above_max_value"),
        ("unknown", 404, "model_not_found"),
        ("stream", 400, "invalid_value"),
        ("background", 400, "invalid_value"),
        ("list", 400, "invalid_json"),
    ]
    assert {each["error"] for each in errors} == {None}
    assert all(each["response"]["request_id"].startswith("req_") for each in errors[:2])
    for name, each in zip(("hot", "unknown"), errors, strict=False):
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(**bodies[name])
        assert each["response"]["body"]["error"] == caught.value.body, "the error that its own request gets"


def test_faulty_file_fails_the_batch(server: RunningServer, client: openai.OpenAI) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": HELLO}
    lines = [
        line,
        None,
        "{",
        {**line, "custom_id": None},
        {"custom_id": "b", "method": "POST", "url": "/v1/responses"},
        line,
        {**line, "custom_id": "c", "method": "GET"},
        {**line, "custom_id": "d", "url": "/v1/chat/completions"},
        {**line, "custom_id": "e", "body": {"input": "x" * (4 << 20)}},
        {**line, "custom_id": "f"},
    ]  # fmt: skip
    texts = ["" if each is None else each if isinstance(each, str) else json.dumps(each) for each in lines]
    prompts = record_prompts(server)
    batch = wait_batch(client, start_batch(client, "\n".join(texts).encode()))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None and batch.in_progress_at is None
    assert batch.errors is not None and batch.errors.object == "list"
    assert [(each.line, each.code, each.param) for each in batch.errors.data or ()] == [
        (3, "invalid_json_line", None),
        (4, "missing_required_parameter", "custom_id"),
        (5, "missing_required_parameter", "body"),
        (6, "duplicate_custom_id", "custom_id"),
        (7, "invalid_method", "method"),
        (8, "invalid_url", "url"),
        (9, "line_too_long", None),
    ]
    assert all(each.message for each in batch.errors.data or ())
    assert batch.request_counts is not None and batch.request_counts.completed == batch.request_counts.failed == 0
    assert prompts == [], "no line was run"


@pytest.mark.parametrize("content", [b"", b"\n \r\n"], ids=["empty", "blank"])
def test_file_without_lines_fails_the_batch(client: openai.OpenAI, content: bytes) -> None:
    batch = wait_batch(client, start_batch(client, content))
    assert batch.status == "failed" and batch.errors is not None
    assert [(each.line, each.code) for each in batch.errors.data or ()] == [(None, "empty_file")]


def test_file_of_another_system_is_read(client: openai.OpenAI) -> None:
    content = (
        b"\xef\xbb\xbf" + write_lines("/v1/responses", {"a": HELLO, "ü": HELLO}).replace(b"\n", b"\r\n\r\n") + b"\r\n"
    )
    batch = wait_batch(client, start_batch(client, content))
    assert batch.status == "completed"
    assert [line["custom_id"] for line in read_file(client, batch.output_file_id)] == ["a", "ü"]


def test_lines_of_a_long_file_are_found(client: openai.OpenAI) -> None:
    texts = {"a": "Hi", "b": "Slowly", "c": "What is six times seven?", "d": "Slowly"}
    lines = write_lines(
        "/v1/responses", {custom_id: {"model": MODEL, "input": text} for custom_id, text in texts.items()}
    )
    content = b"\n".join(line.replace(b"{", b"{" + b" " * 700_000, 1) for line in lines.splitlines())
    batch = wait_batch(client, start_batch(client, content))
    found = {line["custom_id"]: line["response"]["body"] for line in read_file(client, batch.output_file_id)}
    outputs = [Response.model_validate(body).output_text for body in found.values()]
    assert list(found) == list(texts) and outputs == ["Hello there.", "At last.", "42.", "At last."]


def test_cancelled_batch_keeps_what_is_done(client: openai.OpenAI) -> None:
    bodies = {"endless": {"model": MODEL, "input": "Forever"}, "good": HELLO, "bad": {**HELLO, "top_p": 9}}
    batch = wait_batch(client, start_batch(client, write_lines("/v1/responses", bodies)), ended_lines=2)
    assert batch.status == "in_progress" and batch.output_file_id is None
    with pytest.raises(openai.ConflictError) as caught:
        client.files.delete(batch.input_file_id)
    assert caught.value.code == "file_in_use"
    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling" and cancelling.cancelling_at is not None
    batch = wait_batch(client, batch)
    assert batch.status == "cancelled" and batch.request_counts is not None
    assert batch.cancelled_at is not None and batch.cancelled_at >= cancelling.cancelling_at
    assert (batch.completed_at, batch.request_counts.total) == (None, 3)
    assert [line["custom_id"] for line in read_file(client, batch.output_file_id)] == ["good"]
    endless, bad = read_file(client, batch.error_file_id)
    assert (endless["custom_id"], endless["response"], endless["error"]["code"]) == ("endless", None, "batch_cancelled")
    assert (bad["custom_id"], bad["response"]["status_code"], bad["error"]) == ("bad", 400, None)
    assert client.batches.cancel(batch.id) == batch, "a batch that has ended stays as it is"
    assert client.files.delete(batch.input_file_id).deleted


def test_batches_are_listed_in_pages(client: openai.OpenAI) -> None:
    latest = [wait_batch(client, start_batch(client, write_lines("/v1/responses", {"a": HELLO}))) for _ in range(3)][
        ::-1
    ]
    page = client.batches.list(limit=2)
    assert (page.data, page.has_more) == (latest[:2], True)
    assert client.batches.list(limit=1, after=latest[1].id).data == latest[2:]
    ids = [batch.id for batch in client.batches.list(limit=2)]
    assert ids[:3] == [batch.id for batch in latest] and len(ids) == len(set(ids))
    assert client.batches.list(after=ids[-1]).data == []


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input_file_id": UNKNOWN_FILE}, "invalid_value", "input_file_id"),
        ({"input_file_id": openai.omit}, "missing_required_parameter", "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "invalid_value", "endpoint"),
        ({"endpoint": openai.omit}, "missing_required_parameter", "endpoint"),
        ({"completion_window": "1h"}, "invalid_value", "completion_window"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "object_above_max_properties", "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "integer_below_min_value", "output_expires_after.seconds"),
        ({"extra_body": {"wisdom": 1}}, "unknown_parameter", "wisdom"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)  # fmt: skip
def test_refused_batch_names_its_field(client: openai.OpenAI, fields: Any, code: str, param: str) -> None:
    file_id = upload(client, write_lines("/v1/responses", {"a": HELLO}))
    newest = client.batches.list(limit=1).data
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(
            **{"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h", **fields}
        )
    assert (caught.value.code, caught.value.param) == (code, param)
    assert client.batches.list(limit=1).data == newest


def test_file_of_another_purpose_is_no_input(client: openai.OpenAI) -> None:
    file = client.files.create(file=write_lines("/v1/responses", {"a": HELLO}), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="its purpose is 'user_data'"):
        client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")


@pytest.mark.parametrize(
    ("query", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": UNKNOWN_BATCH}, "after")],
    ids=str,
)
def test_invalid_query_of_batches_is_refused(client: openai.OpenAI, query: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.list(**query)
    assert caught.value.param == param


def test_files_and_batches_of_another_key_do_not_exist(server: RunningServer, client: openai.OpenAI) -> None:
    batch = wait_batch(client, start_batch(client, write_lines("/v1/responses", {"a": HELLO})))
    with open_client(server, KEYS[1]) as other:
        for file_id in (batch.input_file_id, batch.output_file_id, UNKNOWN_FILE, "x"):
            for attempt in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError, match=f"No such File object: {file_id}"):
                    attempt(str(file_id))
        for batch_id in (batch.id, UNKNOWN_BATCH, "x"):
            for read in (other.batches.retrieve, other.batches.cancel):
                with pytest.raises(openai.NotFoundError, match=f"No batch found with id '{batch_id}'"):
                    read(batch_id)
        with pytest.raises(openai.BadRequestError, match="No such File object"):
            other.batches.create(input_file_id=batch.input_file_id, endpoint="/v1/responses", completion_window="24h")
        assert other.files.list().data == other.batches.list().data == []
    assert client.batches.retrieve(batch.id) == batch
    assert len(read_file(client, batch.output_file_id)) == 1
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").files.list()
