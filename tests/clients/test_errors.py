"""What the SDK raises, with what in it, when a request is wrong, and that no stream has begun by then."""

from typing import Any

import openai
import pytest

from tests.clients.sdk_helpers import post, sdk
from tests.conftest import Serve
from tests.serving import RunningServer

HELLO = [{"name": "hello", "output": ["Hello."]}]
ASK: dict[str, Any] = {"model": "hermes", "input": "hi"}
CHAT: dict[str, Any] = {"model": "hermes", "messages": [{"role": "user", "content": "hi"}]}

WRONG: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None, str | None]] = [
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
@pytest.mark.parametrize(("wrong", "kind", "code", "param"), WRONG, ids=[str(sorted(row[0])) for row in WRONG])
def test_a_wrong_request_raises_with_code_and_param_before_any_event(
    house: RunningServer,
    wrong: Any,
    kind: type[openai.APIStatusError],
    code: str | None,
    param: str | None,
    stream: bool,
) -> None:
    with sdk(house) as (client, tape), pytest.raises(kind) as caught:
        client.responses.create(**ASK | wrong, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"
    assert set(caught.value.body) == {"message", "type", "param", "code"}  # type: ignore[call-overload]
    assert tape.answer().startswith(b'{"error":')


@pytest.mark.parametrize(
    ("wrong", "kind", "code", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": -1}, openai.BadRequestError, "decimal_below_min_value", "temperature"),
        ({"messages": []}, openai.BadRequestError, "empty_array", "messages"),
        ({"n": 0}, openai.BadRequestError, "integer_below_min_value", "n"),
        ({"response_format": {"type": "json_schema"}}, openai.BadRequestError, "missing_required_parameter", "response_format.json_schema"),
    ],
)  # fmt: skip
def test_a_wrong_chat_request_raises_alike(
    house: RunningServer, wrong: Any, kind: type[openai.APIStatusError], code: str, param: str
) -> None:
    for stream in (False, True):
        with sdk(house) as (client, _), pytest.raises(kind) as caught:
            client.chat.completions.create(**CHAT | wrong, stream=stream)
        assert (caught.value.code, caught.value.param) == (code, param)


def test_a_key_is_asked_for_where_one_is_set(server: Serve) -> None:
    served = server(HELLO, api_keys=("secret",))
    with sdk(served, "wrong") as (client, _):
        for call in (
            lambda: client.responses.create(model="scripted", input="hi"),
            lambda: client.chat.completions.create(**CHAT | {"model": "scripted"}),
            client.models.list,
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
    with sdk(served, "secret") as (client, _):
        assert client.responses.create(model="scripted", input="hi").output_text == "Hello."


def test_a_body_over_the_cap_is_413(server: Serve) -> None:
    served = server(HELLO, max_body_bytes=2_000)
    with sdk(served) as (client, _):
        with pytest.raises(openai.APIStatusError) as caught:
            client.responses.create(model="scripted", input="x" * 3_000)
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")
        assert client.responses.create(model="scripted", input="hi").status == "completed"


def test_a_prompt_over_the_context_is_400_whether_streamed_or_not(server: Serve) -> None:
    from antiphon.engine.protocol import EngineInfo
    from tests.serving import scripted_registry

    served = server(scripted_registry(HELLO, info=EngineInfo(max_model_len=50, vocab_size=262_144)))
    for stream in (False, True):
        with sdk(served) as (client, tape), pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="scripted", input="x" * 100, stream=stream)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert tape.answer().startswith(b'{"error":')


def test_a_response_that_nobody_made_is_404(house: RunningServer) -> None:
    with sdk(house) as (client, _):
        for name in ("resp_nobody", "nonsense", "resp_" + "0" * 48):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(name, stream=True)


def test_a_response_that_was_not_to_be_stored_is_404(house: RunningServer) -> None:
    with sdk(house) as (client, _):
        made = client.responses.create(**ASK | {"input": "Play [text]."}, store=False)
        assert made.status == "completed"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)


def test_any_stored_stream_can_be_read_again_not_only_background_ones(house: RunningServer) -> None:
    with sdk(house) as (client, tape):
        made = client.responses.create(**ASK | {"input": "Play [text]."})
        assert [event.type for event in client.responses.retrieve(made.id, stream=True)][-1] == "response.completed"
        assert tape.answer().endswith(b"data: [DONE]\n\n")


def test_models_are_listed_and_found_by_every_name(house: RunningServer) -> None:
    with sdk(house) as (client, _):
        names = [model.id for model in client.models.list()]
        assert names == ["hermes", "qwen3-coder", "gpt-oss"]
        for name in names:
            model = client.models.retrieve(name)
            assert (model.id, model.object, type(model.created)) == (name, "model", int)
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-9")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("path", ["/embeddings", "/messages", "/completions"])
def test_what_is_not_served_yet_is_an_error_in_the_usual_shape(house: RunningServer, path: str) -> None:
    reply = post(house.url + path, json={"model": "hermes", "input": "x"})
    assert reply.status_code in (404, 405)
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


def test_images_and_files_are_never_echoed_in_an_error(house: RunningServer) -> None:
    picture = "data:image/png;base64," + "QUJD" * 2_000
    for content in (
        [{"type": "input_image", "image_url": picture}, {"type": "smell"}],
        [{"type": "input_image", "image_url": [picture]}],
        [{"type": "input_image", "image_url": picture, "detail": [picture]}],
        [{"type": picture}],
        [{"type": "input_file", "file_data": {"x": picture}}],
    ):
        reply = post(f"{house.url}/responses", json=ASK | {"input": [{"role": "user", "content": content}]})
        assert reply.status_code == 400
        assert len(reply.content) < 1_000 and "QUJD" * 40 not in reply.text


def test_one_fault_is_told_in_one_line(house: RunningServer) -> None:
    reply = post(f"{house.url}/responses", json=ASK | {"input": [{"role": "user", "content": {"a": 1}}]})
    message = reply.json()["error"]["message"]
    assert "\n" not in message and len(message) < 300
