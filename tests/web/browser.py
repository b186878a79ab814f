"""The system's Chromium, driven by Playwright, and a page that records what must not happen in it.

Playwright's own browsers are not used: a download from elsewhere is no part of a test run.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from msgspec import Struct, field

pytest.importorskip("playwright", reason="playwright is not installed")

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

TIMEOUT_MS = 60_000
"""Guards against hanging only: a busy machine is many times slower than a quiet one."""
expect.set_options(timeout=TIMEOUT_MS)

PROGRAMS = ("chromium", "chromium-headless-shell", "google-chrome")
LAUNCH_OPTIONS = ("--disable-gpu", "--disable-dev-shm-usage", "--no-sandbox")
"""Without its sandbox, since containers and root have none. It only shows what the tests serve."""
LEFT_OUT_MESSAGES = ("Failed to load resource",)
"""Messages of the browser about replies with an error status, which tests ask for."""


def find_chromium() -> str | None:
    """Returns the path of the program, that of the variable CHROMIUM first."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Runs a browser. Skips the test if there is none.

    It ends with the module that uses it, because Playwright's event loop runs in the thread of the tests until then.
    """
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell, or set CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=LAUNCH_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


class Faults(Struct):
    """What happened in a page that must not happen."""

    origin: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Requests to other places than the server."""
    dialogs: list[str] = field(default_factory=list)

    def check_none(self) -> None:
        found = {"console": self.console, "requests": self.requests, "dialogs": self.dialogs}
        assert not any(found.values()), f"what must not happen in a page: {found}"


@contextmanager
def open_page(browser: Browser, origin: str, **options: object) -> Iterator[tuple[Page, Faults]]:
    """Opens a tab of its own. Yields it with its faults, and checks at the end that there were none."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    context.set_default_timeout(TIMEOUT_MS)
    faults = Faults(origin)
    _watch(context, faults)
    try:
        yield context.new_page(), faults
        faults.check_none()
    finally:
        context.close()


def _watch(context: BrowserContext, faults: Faults) -> None:
    def on_request(request: Request) -> None:
        parts = urlsplit(request.url)
        if f"{parts.scheme}://{parts.netloc}" != faults.origin and parts.scheme != "blob":
            faults.requests.append(request.url)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(LEFT_OUT_MESSAGES):
            faults.console.append(message.text)

    def on_page(page: Page) -> None:
        page.on("pageerror", lambda error: faults.console.append(str(error)))
        page.on("dialog", lambda dialog: (faults.dialogs.append(dialog.message), dialog.dismiss()))

    context.on("request", on_request)
    context.on("console", on_console)
    context.on("page", on_page)
