"""Images on the torch engine, from the request to the tokens: a random model of the qwen3_vl family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.media.image_engine import KEYS, cached, image, make_registry, respond, save_random_model
from tests.clients.media.vision_model import make_png
from tests.serving import RunningServer, serve

RED, BLUE = make_png(64, 64), make_png(64, 64, (20, 20, 220))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serve(make_registry(folder), api_keys=KEYS) as running:
        yield running


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or [])


def count_encoded(server: RunningServer) -> int:
    return server.context.models.served[0].engine.stats().encoded_images


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
