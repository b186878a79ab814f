"""`input_tokens` and `count_tokens` of requests with images equal the usage: all processors, values of `detail`, APIs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.checkpoint.vision_families import VERIFIED_TYPES
from tests.app.media.pictures import make_png, write_model
from tests.app.media.processor_families import FAMILIES
from tests.clients.media.image_requests import Caller, chat_image, image_block, image_part, user
from tests.clients.media.vision_model import TEMPLATE, vision_registry, write_vision_model
from tests.counts import FULL_COUNTS
from tests.serving import RunningServer, serve

FAMILIES_SERVED = {**FAMILIES, "qwen3_5_moe": FAMILIES["qwen3_5"]}
QUICK = ("qwen3_vl", "gemma3", "llava_onevision")
"""One number for each size, one for all, and tiles that depend on the number of images."""
SERVED = tuple(FAMILIES_SERVED) if FULL_COUNTS else QUICK
DETAILS = (None, "low", "auto", "high", "original") if FULL_COUNTS else (None, "low", "original")
SMALL, LARGE = make_png(90, 64), make_png(1600, 1200) if FULL_COUNTS else make_png(640, 480)


def write_family(folder: Path, name: str) -> Path:
    """Writes a model with the processor of a family. Its template writes one soft token for an image."""
    family = FAMILIES_SERVED[name]
    write_vision_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(family.soft_token, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {"eos_token": "<|im_end|>", **(family.tokens or {})}
    write_model(folder, name, family.image_processor, family.processor, tokens)
    config = {"model_type": name, "image_token_id": tokenizer.token_to_id(family.soft_token)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    template = TEMPLATE.read_text(encoding="utf-8").replace("<|image_pad|>", family.soft_token)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server with a model of each family."""
    root = tmp_path_factory.mktemp("families")
    served = [vision_registry(write_family(root / name, name), name=name).served[0] for name in SERVED]
    with serve(ModelRegistry(served)) as running:
        yield running


def test_every_family_with_pictures_is_counted() -> None:
    assert set(FAMILIES_SERVED) >= VERIFIED_TYPES


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize("name", SERVED)
def test_counts_equal_the_usage(server: RunningServer, name: str, detail: str | None) -> None:
    caller = Caller(server)

    def post(path: str, **body: Any) -> dict[str, Any]:
        reply = caller.post(path, {"model": name, **body})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    more = {} if detail is None else {"detail": detail}
    items = [user("What is this?", image_part(SMALL, **more)), user(image_part(LARGE, **more), "And this?")]
    counted = post("/responses/input_tokens", input=items)["input_tokens"]
    assert post("/responses", input=items)["usage"]["input_tokens"] == counted
    text_only = [user("What is this?"), user("And this?")]
    assert counted > post("/responses/input_tokens", input=text_only)["input_tokens"] + 2

    small, large = (
        {"type": "image_url", "image_url": {**chat_image(data)["image_url"], **more}} for data in (SMALL, LARGE)
    )
    first, second = ({"type": "text", "text": text} for text in ("What is this?", "And this?"))
    messages = [{"role": "user", "content": [first, small]}, {"role": "user", "content": [large, second]}]
    assert post("/chat/completions", messages=messages)["usage"]["prompt_tokens"] == counted

    if detail is None:
        messages = [{"role": "user", "content": [first, image_block(SMALL), image_block(LARGE), second]}]
        counted = post("/messages/count_tokens", messages=messages)["input_tokens"]
        assert post("/messages", messages=messages, max_tokens=50)["usage"]["input_tokens"] == counted
