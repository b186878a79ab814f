"""Images on the torch engine, from the request to the tokens: a random model of the qwen3_vl family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detect import load_format
from tests.clients.media.vision_model import data_url, make_png, write_vision_model
from tests.engine.threaded_engine import ThreadWorker
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

RED, BLUE = make_png(64, 64), make_png(64, 64, (20, 20, 220))
KEYS = ("first-key", "second-key")


def save_random_model(folder: Path) -> Path:
    """Adds random weights to the files of a model that sees."""
    write_vision_model(folder)
    config = Qwen3VLConfig.from_pretrained(folder)
    text = {
        "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 16, "out_hidden_size": 64,
        "spatial_merge_size": 2, "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
    }  # fmt: skip
    for part, values in ((config.text_config, text), (config.vision_config, vision)):
        for name, value in values.items():
            setattr(part, name, value)
    torch.manual_seed(3)
    model: Any = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("vision"))


def make_registry(folder: Path) -> ModelRegistry:
    options = EngineOptions(device="cpu", threads=1, kv_cache_gib=0.05)
    engine = ProcessEngine(folder, options, spawn=ThreadWorker)
    loaded = load_format(folder)
    return ModelRegistry(
        [ServedModel(names=("vision",), engine=engine, format=loaded.format, created=1, folder=folder)]
    )


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serve(make_registry(folder), api_keys=KEYS) as running:
        yield running


def respond(server: RunningServer, content: Any, *, key: str = KEYS[0], **more: Any) -> dict[str, Any]:
    items = content if isinstance(content, str) else [{"role": "user", "content": content}]
    body = {"model": "vision", "input": items, "temperature": 0, "max_output_tokens": 8, **more}
    reply = httpx.post(
        f"{server.url}/responses", json=body, headers={"authorization": f"Bearer {key}"}, timeout=HANG_TIMEOUT_S
    )
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = reply.json()
    return response


def image(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(data)}


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or [])


def count_encoded(server: RunningServer) -> int:
    return server.context.models.served[0].engine.stats().encoded_images


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def test_the_answer_depends_on_the_image(server: RunningServer) -> None:
    question = {"type": "input_text", "text": "What is it?"}
    red, blue, red_again = (said(respond(server, [question, image(data)])) for data in (RED, BLUE, RED))
    assert red == red_again != blue


def test_a_chain_of_turns_encodes_its_image_once(server: RunningServer) -> None:
    before = count_encoded(server)
    response = respond(server, [{"type": "input_text", "text": "A chain:"}, image(make_png(96, 64))])
    for number in range(4):
        length = response["usage"]["total_tokens"]
        response = respond(server, f"And {number}?", previous_response_id=response["id"])
        assert cached(response) >= length - 16
    assert count_encoded(server) == before + 1


def test_owners_share_no_image(server: RunningServer) -> None:
    content = [{"type": "input_text", "text": "Whose is it?"}, image(make_png(64, 96))]
    before = count_encoded(server)
    first, again = (respond(server, content) for _ in range(2))
    assert cached(again) > 0
    second = respond(server, content, key=KEYS[1])
    assert (cached(first), cached(second)) == (0, 0)
    assert count_encoded(server) == before + 2
    assert said(first) == said(second)


def test_an_image_is_seen_after_a_restart(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "responses.db"
    with serve(make_registry(folder), api_keys=KEYS, store_file=store) as server:
        first = respond(server, [{"type": "input_text", "text": "What is it?"}, image(RED)])
        second = respond(server, "And now?", previous_response_id=first["id"])
    with serve(make_registry(folder), api_keys=KEYS, store_file=store) as server:
        again = respond(server, "And now?", previous_response_id=first["id"])
        assert said(again) == said(second)
        assert again["usage"]["input_tokens"] == second["usage"]["input_tokens"]
        assert count_encoded(server) == 1
