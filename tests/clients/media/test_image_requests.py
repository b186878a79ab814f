"""Images in requests of all three APIs, from the bytes on the socket to the engine's job, and the errors about them."""

import base64
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from antiphon.app.requests.media.errors import INVALID_IMAGE, UNSUPPORTED_IMAGE
from tests.clients.media.vision_model import data_url, make_png, serve_vision, vision_registry, write_vision_model
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

RED, BLUE = make_png(64, 64), make_png(96, 64, (20, 20, 220))
RED_TOKENS, BLUE_TOKENS = 4, 6


SERVER = serve_vision


def post(url: str, json: Any) -> httpx.Response:
    return httpx.post(url, json=json, timeout=HANG_TIMEOUT_S)


def image_part(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(data), **more}


def user(*parts: Any) -> dict[str, Any]:
    texts = [{"type": "input_text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": texts}


def respond(server: RunningServer, items: Any, **more: Any) -> Any:
    return post(f"{server.url}/responses", json={"model": "vision", "input": items, **more})


def said(reply: Any) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["output"][0]["content"][0]["text"])


def test_images_of_messages_and_outputs_reach_the_engine(server: RunningServer) -> None:
    items = [
        user("What is this?", image_part(RED), "And this?", image_part(BLUE)),
        {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image_part(RED, detail="original")]},
    ]
    text = said(respond(server, items))
    assert text.startswith("3 images: ")
    tokens = [part.split()[0] for part in text.removeprefix("3 images: ").split(", ")]
    assert tokens == [str(RED_TOKENS), str(BLUE_TOKENS), str(RED_TOKENS)]


def test_counts_are_those_of_the_usage(server: RunningServer) -> None:
    items = [user("What is this?", image_part(RED), image_part(BLUE, detail="low"))]
    reply = respond(server, items)
    counted = post(f"{server.url}/responses/input_tokens", json={"model": "vision", "input": items})
    assert counted.json()["input_tokens"] == reply.json()["usage"]["input_tokens"]
    without = post(f"{server.url}/responses/input_tokens", json={"model": "vision", "input": [user("What is this?")]})
    assert counted.json()["input_tokens"] > without.json()["input_tokens"] + RED_TOKENS + BLUE_TOKENS
    content = [
        {"type": "text", "text": "What is this?"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()},
        },
    ]
    body = {"model": "vision", "max_tokens": 50, "messages": [{"role": "user", "content": content}]}
    message = post(f"{server.url}/messages", json=body)
    assert message.status_code == 200, message.text
    counted = post(f"{server.url}/messages/count_tokens", json={key: body[key] for key in ("model", "messages")})
    assert counted.json()["input_tokens"] == message.json()["usage"]["input_tokens"]
    assert message.json()["content"][0]["text"].startswith(f"1 image: {RED_TOKENS} tokens")


def test_chat_takes_images_of_users_and_tools(server: RunningServer) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": data_url(BLUE)}]},
    ]
    reply = post(f"{server.url}/chat/completions", json={"model": "vision", "messages": messages})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"].startswith("2 images: ")


def test_an_image_of_an_earlier_turn_is_seen_again(server: RunningServer) -> None:
    first = respond(server, [user("What is this?", image_part(BLUE))]).json()
    second = respond(server, "And now?", previous_response_id=first["id"])
    assert said(second).startswith(f"1 image: {BLUE_TOKENS} tokens")


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
def test_bytes_that_are_no_image_are_told_in_the_words_of_the_api(server: RunningServer, api: str) -> None:
    cut = RED[:60]
    if api == "responses":
        error = respond(server, [user("x", image_part(cut))]).json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "input[0].content[1].image_url")
        assert error["message"] == INVALID_IMAGE
    elif api == "chat":
        content = [{"type": "image_url", "image_url": {"url": data_url(b"BM" + bytes(60))}}]
        body = {"model": "vision", "messages": [{"role": "user", "content": content}]}
        error = post(f"{server.url}/chat/completions", json=body).json()["error"]
        assert (error["code"], error["message"]) == ("invalid_image_format", UNSUPPORTED_IMAGE)
        assert error["param"] == "messages[0].content[0].image_url.url"
    else:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(cut).decode()}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]},
            {"role": "user", "content": [result]},
        ]
        error = post(f"{server.url}/messages", json={"model": "vision", "max_tokens": 9, "messages": messages}).json()
        path = "messages.2.content.0.tool_result.content.0.image.source.base64.data"
        assert error["error"] == {"type": "invalid_request_error", "message": f"{path}: Could not process image"}


def test_messages_compare_the_declared_type(server: RunningServer) -> None:
    source = {"type": "base64", "media_type": "image/jpeg", "data": base64.b64encode(RED).decode()}
    messages = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    error = post(f"{server.url}/messages", json={"model": "vision", "max_tokens": 9, "messages": messages}).json()
    path = "messages.0.content.0.image.source.base64.data"
    assert error["error"]["message"] == f"{path}: Image does not match the provided media type image/jpeg"
    assert said(respond(server, [user({**image_part(RED), "image_url": data_url(RED, "image/jpeg")})]))


def test_a_size_beyond_the_limits_is_told_with_both_numbers(server: RunningServer) -> None:
    error = respond(server, [user(image_part(make_png(16_001, 1)))]).json()["error"]
    assert error["code"] == "image_too_large"
    assert error["message"].startswith(INVALID_IMAGE)
    assert "16001x1 pixels" in error["message"]
    assert "16000" in error["message"]


def test_urls_are_not_fetched_unless_the_operator_allows_their_host(server: RunningServer) -> None:
    part = {"type": "input_image", "image_url": "https://pictures.example/a.png"}
    error = respond(server, [user(part)]).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_image_url", "input[0].content[0].image_url")
    assert "'pictures.example'" in error["message"]
    assert "--allow-image-host" in error["message"]


def test_an_unknown_file_is_not_found(server: RunningServer) -> None:
    for file_id in ("file-0123456789abcdef0123456789abcdef0123456789abcdef", "no id"):
        error = respond(server, [user({"type": "input_image", "file_id": file_id})]).json()["error"]
        assert (error["code"], error["param"]) == ("image_file_not_found", "input[0].content[0].file_id")


def test_an_uploaded_image_is_seen_after_its_file_is_gone(server: RunningServer) -> None:
    with openai.OpenAI(base_url=server.url, api_key="k") as client:
        file = client.files.create(file=("red.png", RED), purpose="batch")
        content: Any = [{"type": "input_image", "file_id": file.id, "detail": "auto"}]
        first = client.responses.create(model="vision", input=[{"role": "user", "content": content}])
        assert first.output_text.startswith(f"1 image: {RED_TOKENS}")
        client.files.delete(file.id)
        second = client.responses.create(model="vision", input="And?", previous_response_id=first.id)
        assert second.output_text.startswith(f"1 image: {RED_TOKENS}")


def test_images_can_be_switched_off(folder: Path) -> None:
    with serve(vision_registry(folder), images="off") as server:
        assert said(respond(server, [user("x", image_part(b"no image"))])) == "0 images"
    with serve(vision_registry(folder), images="off", unsupported_media="refuse") as server:
        assert respond(server, [user(image_part(RED))]).json()["error"]["code"] == "unsupported_parameter"


def test_model_whose_processor_cannot_be_used_sees_no_images(tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Llama4ImageProcessorFast"}')
    with serve(vision_registry(folder)) as server:
        assert said(respond(server, [user("x", image_part(RED))])) == "0 images"
    with serve(vision_registry(folder), unsupported_media="refuse") as server:
        error = respond(server, [user(image_part(RED))]).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "input[0].content[0].image_url")


def test_too_many_images_of_a_conversation(folder: Path) -> None:
    with serve(vision_registry(folder), max_images=2) as server:
        first = respond(server, [user(image_part(RED), image_part(RED))]).json()
        error = respond(server, [user(image_part(RED))], previous_response_id=first["id"]).json()["error"]
        assert error["message"] == "Invalid 'input': 3 images, at most 2 are allowed."


def test_an_image_whose_bytes_are_gone_is_a_placeholder(server: RunningServer) -> None:
    """A compaction keeps the image of a turn that is not stored, but nothing keeps its bytes."""
    items = [user("Look: ", image_part(make_png(128, 32))), {"type": "compaction_trigger"}]
    compacted = respond(server, items, store=False).json()
    text = said(respond(server, [*compacted["output"], user("And now?")], store=False))
    assert text == "0 images"


def test_picture_above_the_share_of_an_owner_is_refused(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says that a retry helps, and it does."""
    pictures = [make_png(32, 32, (number, 1, 2)) for number in range(8)]
    items = [user("What is this?", *map(image_part, pictures))]
    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.media.media_queue.MAX_WAITING_OF_OWNER", 1)
        refused = respond(server, items)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
    assert int(refused.headers["retry-after"]) > 0
    assert said(respond(server, items)).startswith("8 images: ")
