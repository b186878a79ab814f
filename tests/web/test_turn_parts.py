"""The request of a turn and its files, over the real inspection API."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.projections.inspection.exports import EXPORT_FORMS, FILE_NAMES
from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, open_everything
from tests.web.turn_pages import SCRIPT, TEXTS, address, answer, ask

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, SCRIPT)
LABELS = {
    "script": "Script of the scripted engine",
    "cassette": "Cassette",
    "test": "Test for pytest",
    "curl": "Request for curl",
    "python": "Request for Python",
}


def test_request_is_the_body_as_it_came(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Grüße", metadata={"a": "b"})))
    body = page.locator(".request")
    expect(body).to_contain_text('input: "Grüße"')
    expect(body).not_to_contain_text('a: "b"')
    body.locator("summary", has_text="metadata").press("Enter")
    expect(body).to_contain_text('a: "b"')
    page.get_by_label("as text").press("Space")
    expect(body).to_contain_text('"metadata"')
    assert json.loads(body.inner_text()) == {"model": "scripted", "input": "Grüße", "metadata": {"a": "b"}}
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("listbox")).to_be_visible()


def test_what_was_not_recorded_says_why(browser: Any) -> None:
    with serve(SCRIPT, inspect="off") as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/{address(server, ask(server, 'Hi'))}")
        expect(page.locator("main")).to_contain_text("This turn was not recorded")
        page.get_by_text("Export").click()
        page.get_by_role("button", name="Cassette").click()
        expect(page.get_by_role("alert")).to_contain_text("This turn was not recorded")


def test_request_that_is_no_json_is_a_text(open_tab: OpenTab) -> None:
    for body in ("no JSON", '{"a": ', ""):
        page = open_tab("turns/resp_1?view=request", before=answer("**/resp_1/request", body))
        expect(page.locator("main")).to_contain_text("The body is not JSON.")
        expect(page.locator(".request")).to_have_text(body)


def test_field_named_missing_hides_no_request(open_tab: OpenTab) -> None:
    body = json.dumps({"missing": "x", "model": "coder"})
    page = open_tab("turns/resp_1?view=request", before=answer("**/resp_1/request", body))
    expect(page.locator(".request")).to_contain_text('missing: "x"')


@pytest.mark.parametrize("form", EXPORT_FORMS)
def test_export_is_the_file_of_the_server(open_tab: OpenTab, server: RunningServer, form: str) -> None:
    turn_id = ask(server, "Hi <b>")
    page = open_tab(address(server, turn_id, "timeline"))
    page.get_by_text("Export").press("Enter")
    with page.expect_download() as download:
        page.get_by_role("button", name=LABELS[form], exact=True).press("Enter")
    name = FILE_NAMES[form].format(id=turn_id)  # type: ignore[index]  # one of the forms
    assert download.value.suggested_filename == name
    expect(page.get_by_role("status")).to_have_text(f"Saved as {name}.")
    headers = {"authorization": f"Bearer {server.context.page_key}"}
    expected = httpx.get(f"{server.url}/inspect/turns/{turn_id}/export/{form}", headers=headers).text
    assert Path(download.value.path()).read_text(encoding="utf-8") == expected
    assert server.context.page_key not in expected + page.url


def test_page_offers_the_forms_of_the_api() -> None:
    assert set(LABELS) == set(EXPORT_FORMS)


def test_export_that_fails_says_why(open_tab: OpenTab, server: RunningServer) -> None:
    error = json.dumps({"error": {"message": TEXTS[0] + ODD_TEXT}})
    page = open_tab("turns/resp_1", before=answer("**/export/test", error, status=400, content_type="application/json"))
    page.get_by_text("Export").click()
    page.get_by_role("button", name=LABELS["test"]).click()
    expect(page.get_by_role("alert")).to_contain_text(TEXTS[0])
    expect(page.get_by_role("alert")).to_contain_text("⟨U+202E⟩")
    check_unharmed(page, server)


def test_hostile_request_is_text(open_tab: OpenTab, server: RunningServer) -> None:
    body = json.dumps({text: [text, {text: text}] for text in [*TEXTS, ODD_TEXT]})
    page = open_tab("turns/resp_1?view=request", before=answer("**/resp_1/request", body))
    open_everything(page)
    expect(page.locator(".request")).to_contain_text("⟨U+202E⟩")
    check_unharmed(page, server)
    page.get_by_label("as text").check()
    check_unharmed(page, server)


def test_request_and_export_are_accessible(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "x" * 400)))
    expect(page.locator(".request")).to_contain_text("xxx")
    page.get_by_text("Export").click()
    check_every_look(page)
