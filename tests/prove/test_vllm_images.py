"""Pictures on a real vLLM: a random model of the qwen3_vl family generates there what it generates on the torch engine."""

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
from antiphon.engine.remote.transport.endpoint import parse_endpoint
from antiphon.harmony.detection.detect import load_format
from tests.clients.media.image_engine import KEYS, cached, image, make_registry, respond, save_random_model
from tests.clients.media.vision_model import make_png
from tests.progress import HANG_TIMEOUT_S
from tests.prove.live_engines import run_vllm_vision_server
from tests.serving import RunningServer, serve

CACHE_BLOCK_TOKENS = 128
"""vLLM's block of the KV cache on CPUs: the cache finds whole blocks."""
PIXEL_NORM = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""transformers' defaults. Without them in the file, vLLM computes with pixels from 0 to 255."""
QUESTION = {"type": "input_text", "text": "What is it?"}
LONG_TEXT = {"type": "input_text", "text": "Look closely. " * 20}
PICTURES = [make_png(64, 64), make_png(64, 64, (20, 20, 220)), make_png(320, 128, (0, 160, 0)), make_png(50, 333)]
MESSAGES = [
    *([QUESTION, image(png)] for png in PICTURES),
    [image(PICTURES[0]), QUESTION, image(PICTURES[1])],
    [image(PICTURES[1]), image(PICTURES[1]), image(PICTURES[2])],
    [QUESTION],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model whose files have what published ones have, and vLLM, unlike transformers, has no default for."""
    folder = save_random_model(tmp_path_factory.mktemp("vision"))
    update_json(folder / "preprocessor_config.json", PIXEL_NORM)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["rope_parameters"]["mrope_interleaved"] = True
    update_json(folder / "config.json", config)
    return folder


def update_json(file: Path, fields: dict[str, Any]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | fields), encoding="utf-8")


@contextmanager
def serve_over_vllm(folder: Path, url: str, **settings: Any) -> Iterator[RunningServer]:
    """Serves the model in the folder over the vLLM at this address."""
    loaded = load_format(folder)
    model, info = describe_model(folder, max_model_len=None, grammar_probe=None, stop_ids=loaded.format.stop_ids)
    model = msgspec.structs.replace(model, image_probe=build_image_probe(loaded.format))
    options = RemoteOptions(endpoints=(parse_endpoint(url),), grammar="off", separate_owners=True)
    engine = RemoteEngine(options, model, info)
    served = ServedModel(names=("vision",), engine=engine, format=loaded.format, created=1, folder=folder)
    with serve(ModelRegistry([served]), api_keys=KEYS, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def vllm(folder: Path) -> Iterator[RunningServer]:
    with run_vllm_vision_server(folder) as url, serve_over_vllm(folder, url) as server:
        yield server


def generate(server: RunningServer, content: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """Returns the tokens of a greedy answer, as bytes, and the length of its prompt."""
    more = {"max_output_tokens": 24, "include": ["message.output_text.logprobs"]}
    response = respond(server, content, **more)
    parts = [part for item in response["output"] for part in item.get("content") or []]
    tokens = [entry["bytes"] for part in parts for entry in part["logprobs"]]
    assert tokens, response
    return tokens, response["usage"]["input_tokens"]


def test_tokens_are_those_of_the_torch_engine(folder: Path, vllm: RunningServer) -> None:
    with serve(make_registry(folder), api_keys=KEYS) as torch:
        expected = [generate(torch, content) for content in MESSAGES]
    assert [generate(vllm, content) for content in MESSAGES] == expected
    assert len({str(tokens) for tokens, _ in expected}) == len(MESSAGES), "each prompt has an answer of its own"


def test_next_turn_finds_the_picture_in_the_cache(vllm: RunningServer) -> None:
    response = respond(vllm, [LONG_TEXT, image(PICTURES[2])])
    for number in range(3):
        length = response["usage"]["total_tokens"]
        response = respond(vllm, f"And {number}?", previous_response_id=response["id"])
        assert cached(response) > length - 2 * CACHE_BLOCK_TOKENS
    assert cached(response) > 2 * CACHE_BLOCK_TOKENS


def test_owners_share_no_picture(vllm: RunningServer) -> None:
    content = [image(PICTURES[3]), LONG_TEXT]
    first, again = (respond(vllm, content) for _ in range(2))
    other = respond(vllm, content, key=KEYS[1])
    assert (cached(first), cached(other)) == (0, 0)
    assert cached(again) > 0


def test_server_without_pictures_is_told_at_the_handshake(folder: Path) -> None:
    with (
        run_vllm_vision_server(folder, "--limit-mm-per-prompt", '{"image": 0, "video": 0}') as url,
        serve_over_vllm(folder, url, unsupported_media="refuse") as server,
    ):
        info = server.engine.info
        assert info.image_form == "none" and "--limit-mm-per-prompt" in info.image_refusal, info
        body = {"model": "vision", "input": [{"role": "user", "content": [image(PICTURES[0])]}]}
        headers = {"authorization": f"Bearer {KEYS[0]}"}
        (entry,) = httpx.get(f"{server.url}/models", headers=headers, timeout=HANG_TIMEOUT_S).json()["data"]
        assert entry["input_modalities"] == ["text"]
        reply = httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 400 and "Image" in reply.json()["error"]["message"], reply.text
        assert generate(server, [QUESTION])[0]
