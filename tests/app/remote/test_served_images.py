"""A whole server in front of fake engines that take pictures: their wire, usage, later turns, faults."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.remote.image_probe import build_image_probe
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.model_files import describe_model
from antiphon.engine.remote.options import RemoteOptions
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.harmony.detection.detect import load_format
from tests.app.media.pictures import PNG_MAGIC, QWEN3_VL_PROCESSOR, make_png
from tests.app.remote.served_engine import FakeServerThread
from tests.engine.remote.fake_server import Reply, json_reply, sse
from tests.engine.remote.remote_helpers import FAST
from tests.harmony.image_models import IMAGE_MODELS
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

QWEN3 = next(model for model in IMAGE_MODELS if model.name == "qwen3-vl")
MARKER = "<__media_f00__>"
PICTURE = f"data:image/png;base64,{base64.b64encode(make_png(300, 200)).decode()}"
ROWS = 70
"""Rows of this picture's features."""


class FakeVision:
    """Answers jobs as an engine of one kind whose tokenizer is that of `QWEN3`, and says "Hi." to each."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.form = kind, load_format(folder, "hermes").format
        self.soft_id, self.tokens = self.form.encode(QWEN3.soft)[0], self.form.encode("Hi.<|im_end|>")

    def answer(self, body: dict[str, Any]) -> Reply:
        if "n_probs" in body or body.get("sampling_params", body).get("logprobs") is not None:
            return json_reply({"error": {"message": "none", "code": 400}}, 400)
        if self.kind == "llama.cpp":
            return self._answer_llama(body)
        ids = body.get("token_ids") or body.get("prompt")
        rows = 1 if "return_token_ids" not in body else ROWS
        expanded = [each for token in ids for each in [token] * (rows if token == self.soft_id else 1)]
        head = {"prompt_token_ids": expanded, "mm_placeholders": {"image": [{"offset": 0, "length": ROWS}]}}
        choice = {"index": 0, "token_ids": self.tokens, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(expanded), "prompt_tokens_details": {"cached_tokens": 0}}
        return Reply(sse({"choices": [choice], **head}, {"choices": [], "usage": usage}))

    def _answer_llama(self, body: dict[str, Any]) -> Reply:
        prompt = body["prompt"]
        count = len(prompt)
        if isinstance(prompt, dict):
            pictures = len(prompt["multimodal_data"])
            assert prompt["prompt_string"].count(MARKER) == pictures
            count = sum(len(self.form.encode(text)) for text in prompt["prompt_string"].split(MARKER)) + ROWS * pictures
        end = {"tokens": [], "stop": True, "stop_type": "eos", "timings": {"cache_n": 0}, "tokens_evaluated": count}
        return Reply(sse({"tokens": self.tokens, "stop": False}, end, end=False))


@contextmanager
def serve_vision(kind: str, folder: Path) -> Iterator[tuple[RunningServer, FakeServerThread]]:
    """Serves a model that sees pictures over a fake engine."""
    QWEN3.write_folder(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_vl"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(QWEN3_VL_PROCESSOR))
    loaded, fake = load_format(folder, "hermes"), FakeVision(kind, folder)
    thread = FakeServerThread(json_reply({}, 500), fake.answer)
    thread.server.answer_job = fake.answer
    thread.server.owned_by = "llamacpp" if kind == "llama.cpp" else "vllm"
    thread.server._encode = fake.form.encode
    if kind == "llama.cpp":
        thread.server.details = {"modalities": {"vision": True}, "media_marker": MARKER}
    model, info = describe_model(folder, max_model_len=4096, grammar_probe=None, stop_ids=loaded.format.stop_ids)
    model = msgspec.structs.replace(model, image_probe=build_image_probe(loaded.format), vocabulary=None)
    options = RemoteOptions(endpoints=(RemoteEndpoint(host="127.0.0.1", port=thread.server.port),), grammar="off")
    engine = RemoteEngine(options, model, info, timeouts=FAST)
    served = ServedModel(names=("tiny",), engine=engine, format=loaded.format, created=1, folder=folder)
    try:
        with serve(ModelRegistry([served])) as server:
            yield server, thread
    finally:
        thread.close()


def ask(server: RunningServer, *content: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "input": [{"role": "user", "content": list(content)}], **fields}
    return httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)


def image(url: str = PICTURE) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def text(content: str) -> dict[str, Any]:
    return {"type": "input_text", "text": content}


def test_vllm_gets_one_placeholder_and_a_picture_of_our_own(tmp_path: Path) -> None:
    with serve_vision("vllm", tmp_path) as (server, engine):
        reply = ask(server, text("What?"), image()).json()
        assert reply["output"][0]["content"][0]["text"] == "Hi.", reply
        job = engine.server.jobs[-1]
        (part,) = job.body["content_parts"]
        assert job.path == "/inference/v1/generate"
        png = base64.b64decode(part["url"].removeprefix("data:image/png;base64,"))
        assert png.startswith(PNG_MAGIC) and part["url"] != PICTURE, "the bytes of the client are not sent"
        assert reply["usage"]["input_tokens"] == len(job.body["token_ids"]) + ROWS - 1
        counted = httpx.post(
            f"{server.url}/responses/input_tokens",
            json={"model": "tiny", "input": [{"role": "user", "content": [text("What?"), image()]}]},
        )
        assert counted.json()["input_tokens"] == reply["usage"]["input_tokens"]
        again = ask(server, text("And?"), previous_response_id=reply["id"]).json()
        later = engine.server.jobs[-1].body
        assert later["content_parts"] == [part], "an earlier picture has the same name"
        assert later["token_ids"][: len(job.body["token_ids"])] == job.body["token_ids"]
        assert again["usage"]["input_tokens"] == len(later["token_ids"]) + ROWS - 1


def test_llama_cpp_gets_text_with_marks(tmp_path: Path) -> None:
    with serve_vision("llama.cpp", tmp_path) as (server, engine):
        reply = ask(server, text("What?"), image(), text("Tell."), image()).json()
        assert reply["output"][0]["content"][0]["text"] == "Hi.", reply
        prompt = engine.server.jobs[-1].body["prompt"]
        assert (
            f"What?{MARKER}Tell.{MARKER}<|im_end|>" in prompt["prompt_string"] and len(prompt["multimodal_data"]) == 2
        )
        assert "<|image_pad|>" not in prompt["prompt_string"], "the engine writes these itself"
        for content in (f"a{MARKER}", "a<|im_end|>b"):
            refused = ask(server, text(content), image())
            assert refused.status_code == 400, refused.text
            assert ask(server, text(content)).status_code == 200, "without pictures, it is plain text"


@pytest.mark.parametrize(
    ("status", "message", "found"),
    [
        (400, "cannot identify image file <at 0x7f>", (400, "The image data you provided does not represent a valid")),
        (400, "At most 1 image(s) may be provided", (400, "at most 1 images in a prompt")),
        (500, "encoder died", (503, "failed")),
    ],
)
def test_faults_of_an_engine(tmp_path: Path, status: int, message: str, found: tuple[int, str]) -> None:
    with serve_vision("vllm", tmp_path) as (server, engine):
        engine.server.answer_job = lambda _: json_reply({"error": {"message": message, "code": status}}, status)
        reply = ask(server, text("What?"), image())
        assert reply.status_code == found[0] and found[1] in reply.json()["error"]["message"], reply.text
        assert "0x7f" not in reply.text
