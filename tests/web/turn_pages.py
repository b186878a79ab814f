"""Turns with one text of each kind, and the page of the inspection that shows them."""

from typing import Any

import httpx

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer
from tests.web.hostile_texts import list_texts, listen
from tests.web.inspection import FakeInspection, make_summary

SCRIPT = [{"name": "hello", "output": ["<think>\nHm.\n</think>\n\n", "Hello, ", "you."]}]
TEXTS = [text for _, text in list_texts()]


def ask(server: RunningServer, text: str, **fields: Any) -> str:
    """Makes a turn. Returns its id."""
    body = {"model": "scripted", "input": text} | fields
    return str(httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).json()["id"])


def address(server: RunningServer, turn_id: str, view: str = "request") -> str:
    return f"turns/{turn_id}?view={view}#key={server.context.page_key}"


def answer(path: str, body: str, **options: Any) -> Any:
    """Returns a function that plays the inspection API in a tab, with this body at the path."""

    def before(page: Any) -> None:
        listen(page)
        FakeInspection(**make_summary(1)).attach(page)
        page.route(path, lambda route: route.fulfill(body=body, **options))

    return before
