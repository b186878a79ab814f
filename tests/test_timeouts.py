"""The page of timeouts names every one with the value that the code has, and says what it is for."""

from antiphon.app.http.stream_writer import PING_INTERVAL_S
from antiphon.app.options.settings import Settings
from antiphon.app.turns.timeouts import TurnTimeouts
from tests.syntax import ROOT
from tests.timeouts_page import find_times, render_page

PAGE = (ROOT / "docs/reference/timeouts.md").read_text(encoding="utf-8")


def test_page_of_timeouts_is_that_of_the_code() -> None:
    assert render_page() == PAGE, "run: python -m tests.timeouts_page > docs/reference/timeouts.md"


def test_page_has_the_values_of_the_program() -> None:
    for name, value in {
        "Settings.header_timeout": Settings().header_timeout,
        "PING_INTERVAL_S": PING_INTERVAL_S,
        "TurnTimeouts.keepalive_after_s": TurnTimeouts().keepalive_after_s,
    }.items():
        assert f"| `{name}` | {value:g} |" in PAGE


def test_every_timeout_has_a_meaning() -> None:
    empty = [line for line in PAGE.splitlines() if line.startswith("| `") and line.split(" | ")[3].strip() == ""]
    assert not empty and len(list(find_times())) > 60
