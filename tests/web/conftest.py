"""A browser for the tests of a module, and tabs in it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenTab = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from tests.web.browser import open_browser

    with open_browser() as running:
        yield running


@pytest.fixture
def open_tab(browser: "Browser", server: RunningServer) -> Iterator[OpenTab]:
    """Opens a tab: `open_tab("turns", viewport=…)`. At the end, none may have had an error or asked another server."""
    from tests.web.browser import open_page

    with ExitStack() as stack:

        def open_at(path: str = "", *, before: Callable[["Page"], None] = lambda _: None, **options: Any) -> "Page":
            page, _ = stack.enter_context(open_page(browser, server.root, **options))
            before(page)
            page.goto(f"{server.root}/ui/{path}")
            return page

        yield open_at
