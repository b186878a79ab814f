"""Errors that the SDK raises for invalid requests, before any stream has begun."""

from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import open_sdk, post
from tests.conftest import StartServer
from tests.serving import RunningServer

HELLO_SCRIPT = [{"name": "hello", "output": ["Hello."]}]
RESPONSES_BODY: dict[str, Any] = {"model": "hermes", "input": "hi"}
CHAT_BODY: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "hi"}]}

INVALID_REQUESTS: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None, str | None]] = [
    ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
    ({"temperature": 3}, openai.BadRequestError, "decimal_above_max_value", "temperature"),
    ({"max_output_tokens": 0}, openai.BadRequestError, "integer_below_min_value", "max_output_tokens"),
    ({"input": 5}, openai.BadRequestError, "invalid_type", "input"),
    ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, openai.BadRequestError, "invalid_value", "input[0].content[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, openai.BadRequestError, None, "input"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, openai.BadRequestError, "missing_required_parameter", "input[0].call_id"),
    ({"input": [{"type": "item_reference", "id": "msg_nobody"}]}, openai.NotFoundError, None, "input"),
    ({"previous_response_id": "resp_nobody"}, openai.BadRequestError, "previous_response_not_found", "previous_response_id"),
    ({"background": True, "store": False}, openai.BadRequestError, "invalid_value", "background"),
    ({"truncation": "some"}, openai.BadRequestError, "invalid_value", "truncation"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#/nowhere"}}}}, openai.BadRequestError, "invalid_json_schema", "text.format.schema"),
    ({"tools": [{"type": "function", "name": "f", "parameters": None}], "tool_choice": {"type": "function", "name": "g"}}, openai.BadRequestError, "invalid_value", "tool_choice"),
    ({"extra_body": {"wisdom": 1}}, openai.BadRequestError, "unknown_parameter", "wisdom"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "error_type", "code", "param"), INVALID_REQUESTS, ids=[str(sorted(row[0])) for row in INVALID_REQUESTS]
)
def test_invalid_request_raises_code_and_param_before_any_event(
    case_server: RunningServer,
    fields: Any,
    error_type: type[openai.APIStatusError],
    code: str | None,
    param: str | None,
    stream: bool,
) -> None:
    with open_sdk(case_server) as (client, replies), pytest.raises(error_type) as caught:
        client.responses.create(**RESPONSES_BODY | fields, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"
    assert set(caught.value.body) == {"message", "type", "param", "code"}  # type: ignore[call-overload]
    assert replies.last().startswith(b'{"error":')


@pytest.mark.parametrize(
    ("fields", "error_type", "code", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": -1}, openai.BadRequestError, "decimal_below_min_value", "temperature"),
        ({"messages": []}, openai.BadRequestError, "empty_array", "messages"),
        ({"n": 0}, openai.BadRequestError, "integer_below_min_value", "n"),
        ({"response_format": {"type": "json_schema"}}, openai.BadRequestError, "missing_required_parameter", "response_format.json_schema"),
    ],
)  # fmt: skip
def test_invalid_chat_request_raises_code_and_param(
    case_server: RunningServer, fields: Any, error_type: type[openai.APIStatusError], code: str, param: str
) -> None:
    for stream in (False, True):
        with open_sdk(case_server) as (client, _), pytest.raises(error_type) as caught:
            client.chat.completions.create(**CHAT_BODY | fields, stream=stream)
        assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}]
)
def test_required_call_for_which_no_tool_is_offered_is_told(case_server: RunningServer, choice: Any) -> None:
    with open_sdk(case_server) as (client, _), pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**RESPONSES_BODY, tools=[{"type": "web_search"}], tool_choice=choice)
    assert caught.value.param == "tool_choice"
    assert "No tool that 'tool_choice' allows is offered" in caught.value.message


def test_api_key_is_required_if_one_is_set(start_server: StartServer) -> None:
    server = start_server(HELLO_SCRIPT, api_keys=("secret",))
    with open_sdk(server, "wrong") as (client, _):
        for call in (
            lambda: client.responses.create(model="scripted", input="hi"),
            lambda: client.chat.completions.create(**CHAT_BODY | {"model": "scripted"}),
            client.models.list,
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
    with open_sdk(server, "secret") as (client, _):
        assert client.responses.create(model="scripted", input="hi").output_text == "Hello."


def test_body_above_the_size_limit_is_413(start_server: StartServer) -> None:
    server = start_server(HELLO_SCRIPT, max_body_bytes=2_000)
    with open_sdk(server) as (client, _):
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(model="scripted", input="x" * 3_000)
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        assert client.responses.create(model="scripted", input="hi").status == "completed"


def test_prompt_above_the_context_length_is_400_streamed_or_not(start_server: StartServer) -> None:
    from antiphon.engine.protocol import EngineInfo
    from tests.serving import scripted_registry

    server = start_server(scripted_registry(HELLO_SCRIPT, info=EngineInfo(max_model_len=50, vocab_size=262_144)))
    for stream in (False, True):
        with open_sdk(server) as (client, replies), pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="scripted", input="x" * 100, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert replies.last().startswith(b'{"error":')


def test_unknown_response_is_404(case_server: RunningServer) -> None:
    with open_sdk(case_server) as (client, _):
        for name in ("resp_nobody", "nonsense", "resp_" + "0" * 48):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name, stream=True)


def test_unstored_response_is_404(case_server: RunningServer) -> None:
    with open_sdk(case_server) as (client, _):
        response = client.responses.create(**RESPONSES_BODY | {"input": "Play [text]."}, store=False)
        assert response.status == "completed"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)


def test_every_stored_stream_can_be_replayed_not_only_background_ones(case_server: RunningServer) -> None:
    with open_sdk(case_server) as (client, replies):
        response = client.responses.create(**RESPONSES_BODY | {"input": "Play [text]."})
        assert [event.type for event in client.responses.retrieve(response.id, stream=True)][-1] == "response.completed"
        assert replies.last().endswith(b"data: [DONE]\n\n")


def test_models_are_listed_and_retrieved_by_every_name(case_server: RunningServer) -> None:
    with open_sdk(case_server) as (client, _):
        names = [model.id for model in client.models.list()]
        assert names == ["hermes", "qwen3-coder", "gpt-oss"]
        for name in names:
            model = client.models.retrieve(name)
            assert (model.id, model.object, type(model.created)) == (name, "model", int)
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-9")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_unserved_endpoint_returns_an_openai_error(case_server: RunningServer) -> None:
    reply = post(f"{case_server.url}/images/generations", json={"model": "hermes", "prompt": "x"})
    assert reply.status_code in (404, 405)
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_errors_never_echo_images_or_files(case_server: RunningServer) -> None:
    data_url = "data:image/png;base64," + "QUJD" * 2_000
    for content in (
        [{"type": "input_image", "image_url": data_url}, {"type": "smell"}],
        [{"type": "input_image", "image_url": [data_url]}],
        [{"type": "input_image", "image_url": data_url, "detail": [data_url]}],
        [{"type": data_url}],
        [{"type": "input_file", "file_data": {"x": data_url}}],
    ):
        reply = post(
            f"{case_server.url}/responses", json=RESPONSES_BODY | {"input": [{"role": "user", "content": content}]}
        )
        assert reply.status_code == 400
        assert len(reply.content) < 1_000 and "QUJD" * 40 not in reply.text


def test_error_message_is_one_short_line(case_server: RunningServer) -> None:
    reply = post(
        f"{case_server.url}/responses", json=RESPONSES_BODY | {"input": [{"role": "user", "content": {"a": 1}}]}
    )
    message = reply.json()["error"]["message"]
    assert "\n" not in message and len(message) < 300
