"""Images and files through the openai and the anthropic SDK for Python: messages, files, uploads, streams and counts."""

import base64
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from antiphon.app.requests.media.errors import INVALID_IMAGE
from tests.app.media.documents import make_pdf
from tests.clients.media.image_requests import RED, image_block, image_part
from tests.clients.media.vision_model import SAY_IMAGES, data_url, serve_vision
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

SCRIPT: list[dict[str, Any]] = [
    {"name": "color", "when": ["What color"], "output": ['{"color": "red"}']},
    {"name": "page", "when": ['<page n="1">', "gamma delta"], "output": ["The page: ", {"media": True}]},
    {"name": "text", "when": ['<file name="a.txt">\nalpha beta\n</file>'], "output": ["The text."]},
    SAY_IMAGES,
]
PDF = make_pdf("gamma delta")
ONE_IMAGE = "1 image: 4 tokens"


class Color(pydantic.BaseModel):
    color: str


SERVER = partial(serve_vision, replies=SCRIPT)


@pytest.fixture
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.root, api_key="k", max_retries=0, timeout=HANG_TIMEOUT_S) as client:
        yield client


def ask(client: openai.OpenAI, *parts: Any, **more: Any) -> Any:
    return client.responses.create(model="vision", input=[{"role": "user", "content": list(parts)}], **more)


def test_openai_parses_and_streams_with_an_image(client: openai.OpenAI) -> None:
    content: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What color?"}, image_part(RED)]}]
    parsed = client.responses.parse(model="vision", input=content, text_format=Color)
    assert parsed.output_parsed == Color(color="red")
    with client.responses.stream(model="vision", input=content, text_format=Color) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_parsed == Color(color="red")
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    counted = client.responses.input_tokens.count(model="vision", input=content)
    assert parsed.usage is not None and counted.input_tokens == parsed.usage.input_tokens
    image: Any = {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}
    messages: Any = [{"role": "user", "content": [image]}]
    with client.chat.completions.stream(model="vision", messages=messages) as chat:
        for _ in chat:
            pass
        answer = chat.get_final_completion()
    assert str(answer.choices[0].message.content).startswith(ONE_IMAGE)


def test_openai_uploads_are_inputs(client: openai.OpenAI, tmp_path: Path) -> None:
    picture = client.files.create(file=("red.png", RED), purpose="vision")
    text = client.files.create(file=("a.txt", io.BytesIO(b"alpha beta")), purpose="user_data")
    path = tmp_path / "a.pdf"
    path.write_bytes(PDF)
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="application/pdf", purpose="user_data", part_size=200
    )
    assert upload.file is not None
    first = ask(client, {"type": "input_image", "file_id": picture.id, "detail": "auto"})
    assert first.output_text.startswith(ONE_IMAGE)
    assert ask(client, {"type": "input_file", "file_id": text.id}).output_text == "The text."
    document = ask(client, {"type": "input_file", "file_id": upload.file.id})
    assert document.output_text.startswith("The page: 1 image")
    client.files.delete(upload.file.id)
    again = client.responses.create(model="vision", input="And?", previous_response_id=document.id)
    assert again.output_text.startswith("The page: 1 image")
    items: Any = client.responses.input_items.list(first.id).data
    assert (items[0].content[0].file_id, items[0].content[0].image_url) == (picture.id, None)
    chat_file: Any = {"type": "file", "file": {"file_id": text.id}}
    reply = client.chat.completions.create(model="vision", messages=[{"role": "user", "content": [chat_file]}])
    assert reply.choices[0].message.content == "The text."


def test_openai_lists_data_urls_if_included(client: openai.OpenAI) -> None:
    response = ask(client, image_part(RED))
    shown: Any = client.responses.input_items.list(response.id, include=["message.input_image.image_url"]).data
    hidden: Any = client.responses.input_items.list(response.id).data
    assert (shown[0].content[0].image_url, hidden[0].content[0].image_url) == (data_url(RED), None)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, image_part(b"no image"))
    assert refused.value.code == "invalid_value" and INVALID_IMAGE in str(refused.value)


def test_anthropic_sends_images_and_documents(claude: anthropic.Anthropic) -> None:
    data = base64.b64encode(PDF).decode()
    document = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}
    plain = {"type": "document", "title": "a.txt",
             "source": {"type": "text", "media_type": "text/plain", "data": "alpha beta"}}  # fmt: skip
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image_block(RED)]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    cases: list[tuple[list[Any], str]] = [
        ([{"role": "user", "content": [image_block(RED)]}], ONE_IMAGE),
        ([{"role": "user", "content": [document]}], "The page: 1 image"),
        ([{"role": "user", "content": [plain]}], ""),
        ([{"role": "user", "content": "Look."}, call, {"role": "user", "content": [result]}], ONE_IMAGE),
    ]
    for messages, text in cases:
        counted = claude.messages.count_tokens(model="vision", messages=messages)
        reply: Any = claude.messages.create(model="vision", max_tokens=99, messages=messages)
        assert reply.content[0].text.startswith(text)
        assert counted.input_tokens == reply.usage.input_tokens
        with claude.messages.stream(model="vision", max_tokens=99, messages=messages) as stream:
            streamed: Any = stream.get_final_message()
        assert (streamed.content[0].text, streamed.usage.input_tokens) == (reply.content[0].text, counted.input_tokens)


def test_anthropic_files_are_sources(claude: anthropic.Anthropic, server: RunningServer) -> None:
    """The API of files that left beta, and the one that older clients call."""
    for files in (claude.files, claude.beta.files):
        picture = files.upload(file=("red.png", RED, "image/png"))
        document = files.upload(file=("a.pdf", PDF, "application/pdf"))
        for block, text in (
            ({"type": "image", "source": {"type": "file", "file_id": picture.id}}, ONE_IMAGE),
            ({"type": "document", "source": {"type": "file", "file_id": document.id}}, "The page: 1 image"),
        ):
            messages: Any = [{"role": "user", "content": [block]}]
            counted = claude.messages.count_tokens(model="vision", messages=messages)
            reply: Any = claude.messages.create(model="vision", max_tokens=99, messages=messages)
            assert reply.content[0].text.startswith(text)
            assert counted.input_tokens == reply.usage.input_tokens
        files.delete(picture.id)
        block: Any = {"type": "image", "source": {"type": "file", "file_id": picture.id}}
        with pytest.raises(anthropic.BadRequestError) as refused:
            claude.messages.create(model="vision", max_tokens=9, messages=[{"role": "user", "content": [block]}])
        assert f"File '{picture.id}' at 'messages.0.content.0.image.source.file' was not found." in str(refused.value)
