"""Requests with images in all three APIs, and what the engine was given for them."""

import base64
import re
from collections.abc import Mapping
from typing import Any

import httpx

from antiphon.engine.protocol import Job
from tests.clients.media.vision_model import data_url, make_png
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

MODEL = "vision"
RED, BLUE, GREEN = make_png(64, 64), make_png(96, 64, (20, 20, 220)), make_png(128, 64, (20, 220, 20))
RED_TOKENS, BLUE_TOKENS, GREEN_TOKENS = 4, 6, 8
"""Tokens of the pictures: each has another number, which tells them apart."""
VISION_MARKS = re.compile(r"<\|vision_start\|>((?:<\|image_pad\|>)+)<\|vision_end\|>")


class Caller:
    """A client with a key of its own."""

    def __init__(self, server: RunningServer, key: str = "") -> None:
        self.server = server
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None, **request: Any) -> httpx.Response:
        """Posts a JSON body; `files` and `data` in place of it, for a form."""
        sent = {"json": body} if body is not None else {}
        return httpx.post(
            self.server.url + path,
            headers=self._headers | dict(headers or {}),
            timeout=HANG_TIMEOUT_S,
            **sent,
            **request,
        )

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> httpx.Response:
        return httpx.get(
            self.server.url + path, headers=self._headers | dict(headers or {}), params=query, timeout=HANG_TIMEOUT_S
        )

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.server.url + path, headers=self._headers, timeout=HANG_TIMEOUT_S)

    def respond(self, items: Any, **more: Any) -> httpx.Response:
        """Posts a request to `/v1/responses`."""
        return self.post("/responses", {"model": MODEL, "input": items, **more})

    def chat(self, *messages: Any, **more: Any) -> httpx.Response:
        """Posts a request to `/v1/chat/completions`."""
        return self.post("/chat/completions", {"model": MODEL, "messages": list(messages), **more})

    def message(self, *messages: Any, **more: Any) -> httpx.Response:
        """Posts a request to `/v1/messages`."""
        return self.post("/messages", {"model": MODEL, "max_tokens": 99, "messages": list(messages), **more})

    def upload(self, data: bytes, filename: str = "red.png", **fields: str) -> str:
        """Uploads a file through OpenAI's API. Returns its id."""
        form = {"purpose": "user_data", **fields}
        reply = self.post("/files", None, files={"file": (filename, data)}, data=form)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])


def image_part(data: bytes, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    """Returns an image of `/v1/responses`."""
    return {"type": "input_image", "image_url": data_url(data, media_type), **more}


def chat_image(data: bytes) -> dict[str, Any]:
    """Returns an image of `/v1/chat/completions`."""
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def image_block(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """Returns an image of `/v1/messages`."""
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def user(*parts: Any) -> dict[str, Any]:
    """Returns a message of a user. Texts become parts."""
    return {"role": "user", "content": [_text(part) if isinstance(part, str) else part for part in parts]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def call_items(*call_ids: str) -> list[dict[str, Any]]:
    """Returns calls of a function."""
    return [{"type": "function_call", "call_id": each, "name": "look", "arguments": "{}"} for each in call_ids]


def output_item(call_id: str, *parts: Any) -> dict[str, Any]:
    """Returns the output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": user(*parts)["content"]}


def read_text(reply: httpx.Response) -> str:
    """Returns the text of a reply of any of the three APIs."""
    assert reply.status_code == 200, reply.text
    fields = reply.json()
    if "choices" in fields:
        return str(fields["choices"][0]["message"]["content"])
    if "output" in fields:
        messages = [item for item in fields["output"] if item["type"] == "message"]
        return str(messages[0]["content"][0]["text"])
    return str(fields["content"][0]["text"])


def read_error(reply: httpx.Response) -> dict[str, Any]:
    """Returns the error of a refused request."""
    assert reply.status_code >= 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


class RecordedJobs(list[Job]):
    """The jobs that a scripted engine was given."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__()
        self._server = server
        server.engine.on_reply = lambda job, _reply: self.append(job)

    def images(self, index: int = -1) -> list[int]:
        """Returns the number of tokens of each image of a job, in order."""
        return [span.rows for span in self[index].media]

    def prompt(self, index: int = -1) -> str:
        """Returns the prompt of a job, with `<N>` for an image of N tokens."""
        text = self._server.context.models.served[0].format.decode(self[index].tokens)
        return VISION_MARKS.sub(lambda match: f"<{match[1].count('<|image_pad|>')}>", text)
