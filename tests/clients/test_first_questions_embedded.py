"""Questions to the embedded model about a picture that is not there.

What it does with a clock's tools is in `test_tool_servers_embedded.py`.
"""

from collections.abc import Iterator

import httpx
import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from tests.clients.sdk_helpers import Json
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.engine.threaded_engine import ThreadWorker
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from training.fixed_texts import NO_PICTURE

pytestmark = needs_weights


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server of the embedded model."""
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    with serve(make_registry(engine, load_model_format())) as running:
        yield running


def ask(server: RunningServer, question: str) -> str:
    """Returns the text of the completed answer to a question."""
    body = {"model": "antiphon", "input": question, "temperature": 0}
    response: Json = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).json()
    assert response["status"] == "completed", response
    return str(response["output"][-1]["content"][0]["text"])


@pytest.mark.parametrize(
    "question", ["What is in the picture?", "What is in this image?", "Describe the image.", "what's in the image?"]
)
def test_question_about_a_missing_picture_is_told_so(server: RunningServer, question: str) -> None:
    assert ask(server, question) == NO_PICTURE
