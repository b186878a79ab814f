"""What the tests of views do on a machine without a browser, and that they notice what happens in one."""

from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import find_chromium, open_browser, open_page


def test_machine_without_a_browser_skips_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() is None
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium-headless-shell"), open_browser():
        pass
    monkeypatch.setenv("CHROMIUM", "/opt/chrome")
    assert find_chromium() == "/opt/chrome"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("console.error('bad')", "console"),
        ("setTimeout(() => { throw new Error('bad'); })", "console"),
        ("fetch('http://127.0.0.1:9/').catch(() => {})", "requests"),
        ("setTimeout(() => alert('bad'))", "dialogs"),
    ],
)
def test_faults_of_a_page_fail_its_test(browser: Any, code: str, found: str) -> None:
    with pytest.raises(AssertionError, match=r"bad|127\.0\.0\.1:9"):
        visit_faulty_page(browser, code, found)


def visit_faulty_page(browser: Any, code: str, found: str) -> None:
    with open_page(browser, "null") as (page, faults):
        page.goto("about:blank")
        page.evaluate(f"() => {{ {code}; }}")
        for _ in range(200):
            if getattr(faults, found):
                return
            page.wait_for_timeout(50)
