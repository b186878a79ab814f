"""A random vision model, and its server's replies."""

from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import AutoModelForImageTextToText, Qwen3VLConfig

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detection.detect import load_format
from tests.clients.media.vision_model import data_url, write_vision_model
from tests.engine.threaded_engine import ThreadWorker
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

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


def make_registry(folder: Path) -> ModelRegistry:
    options = EngineOptions(device="cpu", threads=1, kv_cache_gib=0.05)
    engine = ProcessEngine(folder, options, spawn=ThreadWorker)
    loaded = load_format(folder)
    return ModelRegistry(
        [ServedModel(names=("vision",), engine=engine, format=loaded.format, created=1, folder=folder)]
    )


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


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])
