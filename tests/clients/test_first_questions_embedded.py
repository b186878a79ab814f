"""Questions to the embedded model about a picture that is not there.

What it does with a clock's tools is in `test_tool_servers_embedded.py`.
"""

import httpx
import pytest

from tests.clients.sdk_helpers import Json
from tests.codex.embedded_registry import needs_weights, serve_embedded
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer
from training.fixed_texts import NO_PICTURE

pytestmark = needs_weights
SERVER = serve_embedded


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
