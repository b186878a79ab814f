"""The embedded model on blank pictures of any shape, which show nothing that it has a word for."""

from collections.abc import Iterator

import httpx
import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from tests.clients.media.vision_model import data_url, make_png
from tests.clients.sdk_helpers import Json
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.engine.threaded_engine import ThreadWorker
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

pytestmark = needs_weights
NOTHING_KNOWN = "I cannot tell."
"""Answer to a picture without a known figure."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server of the embedded model."""
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    with serve(make_registry(engine, load_model_format())) as running:
        yield running


@pytest.mark.parametrize("question", ["What is in the picture?", "describe it"])
@pytest.mark.parametrize(
    ("width", "height"), [(8000, 80), (1600, 16), (15000, 80), (640, 64), (1000, 100), (80, 8000), (100, 100)]
)
def test_blank_picture_shows_nothing_known(server: RunningServer, width: int, height: int, question: str) -> None:
    picture = data_url(make_png(width, height, (255, 255, 255)))
    content = [{"type": "input_text", "text": question}, {"type": "input_image", "image_url": picture}]
    body = {"model": "antiphon", "input": [{"role": "user", "content": content}], "temperature": 0}
    response: Json = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).json()
    assert response["status"] == "completed", response
    assert response["output"][-1]["content"][0]["text"] == NOTHING_KNOWN
