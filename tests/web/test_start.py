"""The first view in a browser, against a scripted server."""

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.conftest import StartServer
from tests.serving import RunningServer, scripted_registry, serve
from tests.web.accessibility import check_every_look
from tests.web.conftest import OpenTab
from tests.web.inspection import FakeInspection, make_summary

if TYPE_CHECKING:
    from playwright.sync_api import Page

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

MODEL = "it's <b>a</b> $(model)\u202e"
SCRIPT = [
    {"name": "slow", "when": ["slow"], "output": ["One. ", {"pause": 30.0}, "Never."]},
    {"name": "fault", "when": ["break"], "output": ["Half.", {"fault": "worker lost"}]},
    {"name": "hello", "output": ["<think>\nHm.\n</think>\n\n", "Hello, ", "I am <i>here</i>."]},
]
SERVER = partial(serve, partial(scripted_registry, SCRIPT, names=("scripted", MODEL)), allowed_origins=("*",))


def test_page_shows_the_address_the_models_and_the_state(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab()
    expect(page.locator("#base-url")).to_have_text(server.url)
    expect(page.get_by_text("● ready")).to_be_visible()
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("scripted")
    expect(rows.first).to_contain_text("131,072")
    expect(rows.last.locator("th")).to_have_text("it's <b>a</b> $(model)⟨U+202E⟩")
    expect(page.get_by_label("Model").locator("option").last).to_have_text("it's <b>a</b> $(model)⟨U+202E⟩")
    expect(page).to_have_title("antiphon")


def test_prompt_is_answered_as_a_stream(open_tab: OpenTab) -> None:
    page = open_tab()
    page.get_by_label("Prompt").fill("Hi")
    page.get_by_label("Prompt").press("Enter")
    output = page.locator(".output")
    expect(output.get_by_text("completed")).to_be_visible()
    expect(output.locator(".item")).to_have_count(2)
    expect(output.locator(".item").last).to_contain_text("Hello, I am <i>here</i>.")
    expect(output.locator("i")).to_have_count(0)
    expect(output.get_by_role("status")).to_contain_text("Hello, I am")


def test_running_reply_can_be_stopped(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab()
    page.get_by_label("Prompt").fill("slow")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".item")).to_contain_text("One.")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_have_text("■ Stopped.")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def test_failed_reply_shows_what_was_generated_and_why(open_tab: OpenTab) -> None:
    page = open_tab()
    page.get_by_label("Prompt").fill("break")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".item")).to_contain_text("Half.")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator(".output h2")).to_contain_text("failed")


def test_client_lines_hold_the_address_of_the_server(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab()
    names = ("curl", "Python", "Node", "Codex", "Claude Code")
    for index, name in enumerate(names):
        page.locator("summary", has_text=re.compile(f"^{name}$")).click()
        expected = server.root if name == "Claude Code" else server.url
        expect(page.locator(f"#client-{index}")).to_contain_text(expected)


def test_last_turns_are_linked_if_the_server_tells_them(open_tab: OpenTab) -> None:
    turns = [make_summary(2, ending={"cause": "client_left", "detail": ""}), make_summary(1, id="a b", ending=None)]
    page = open_tab(before=FakeInspection(turns).attach)
    rows = page.locator(".last li")
    expect(rows).to_have_text(["resp_2◐ client left", "a b○ completed"])
    expect(rows.locator("a")).to_have_count(1)


def test_last_turns_that_need_a_key_do_not_ask_for_one(open_tab: OpenTab) -> None:
    def refuse(page: "Page") -> None:
        page.route("**/v1/inspect/**", lambda route: route.fulfill(status=401, json={"error": {"message": "No."}}))

    page = open_tab(before=refuse)
    expect(page.locator("table tbody tr")).to_have_count(2)
    expect(page.get_by_label("A key is needed")).to_have_count(0)
    page.get_by_role("link", name="Turns").click()
    expect(page.get_by_label("A key is needed")).to_be_visible()


def test_lines_are_copied(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the base URL").click()
    expect(page.get_by_role("button", name="Copy the base URL")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == server.url


def test_without_the_clipboard_the_text_is_selected(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab()
    page.get_by_role("button", name="Copy the base URL").click()
    expect(page.get_by_role("button", name="Copy the base URL")).to_have_text("selected")
    assert page.evaluate("getSelection().toString()") == server.url


def test_page_is_accessible(open_tab: OpenTab) -> None:
    page = open_tab()
    page.get_by_label("Prompt").fill("Hi")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".output").get_by_text("completed")).to_be_visible()
    for summary in page.locator("summary").all():
        summary.click()
    check_every_look(page)


def test_keyboard_alone_sends_a_prompt(open_tab: OpenTab) -> None:
    page = open_tab()
    expect(page.get_by_label("Prompt")).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "prompt":
            break
    page.keyboard.type("Hi")
    page.keyboard.press("Enter")
    expect(page.locator(".output").get_by_text("completed")).to_be_visible()


def test_key_is_asked_for_and_kept_for_the_tab(open_tab: OpenTab, start_server: StartServer) -> None:
    keyed = start_server(SCRIPT, api_keys=("sk-right",))
    page = open_tab()
    with_key = page.context.browser.new_context().new_page()
    with_key.goto(f"{keyed.root}/ui/")
    field = with_key.get_by_label("A key is needed")
    expect(field).to_be_visible()
    field.fill("sk-wrong")
    field.press("Enter")
    expect(with_key.get_by_role("alert")).to_contain_text("Incorrect API key")
    field.fill("sk-right")
    field.press("Enter")
    expect(with_key.locator("table tbody tr")).to_have_count(1)
    expect(field).to_have_count(0)
    with_key.reload()
    expect(with_key.locator("table tbody tr")).to_have_count(1)
    other = with_key.context.new_page()
    other.goto(f"{keyed.root}/ui/")
    expect(other.get_by_label("A key is needed")).to_be_visible()
    assert with_key.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_key_in_the_fragment_leaves_the_address(
    open_tab: OpenTab, start_server: StartServer, server: RunningServer
) -> None:
    keyed = start_server(SCRIPT, api_keys=("sk-right",))
    page = open_tab().context.browser.new_context().new_page()
    page.goto(f"{keyed.root}/ui/#key=sk-right")
    expect(page.locator("table tbody tr")).to_have_count(1)
    assert page.url == f"{keyed.root}/ui/"
    page.go_back()
    assert "sk-right" not in page.url
    assert not [record for record in keyed.access_records if "sk-right" in record.path]
