"""The embedded model on blank pictures of any shape, which show nothing that it has a word for."""

import httpx
import pytest

from tests.clients.media.vision_model import data_url, make_png
from tests.clients.sdk_helpers import Json
from tests.codex.embedded_registry import needs_weights, serve_embedded
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

pytestmark = needs_weights
NOTHING_KNOWN = "I cannot tell."
"""Answer to a picture without a known figure."""


SERVER = serve_embedded


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
