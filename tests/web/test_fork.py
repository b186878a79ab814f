"""Play with the request of a recorded turn, up to any of its items."""

from functools import partial
from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.played_requests import MODELS, SCRIPT, TOOLS, Json, ask, find_item, last_request, last_turn, send

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

MAX_FIELDS = 60
"""Fields that Tab reaches on a page, at most."""
SERVER = partial(serve, partial(scripted_registry, SCRIPT, names=MODELS), inspect="memory")


def test_fork_sends_what_the_request_was_but_for_the_change(open_tab: OpenTab, server: RunningServer) -> None:
    fields: Json = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]}],
        "instructions": "Be brief.",
        "tools": TOOLS,
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "low"},
        "metadata": {"a": "b"},
        "store": False,
    }
    response = ask(server, **fields)
    page = open_tab(f"turns/{response['id']}#key={server.context.page_key}")
    page.get_by_role("link", name="Fork").press("Enter")
    page.wait_for_url(f"{server.root}/ui/play?fork={response['id']}")
    send(page)
    assert last_request(server) == fields | {"model": "scripted", "stream": True}
    find_item(page, "0: user").fill("12 degrees?")
    expect(send(page)).to_contain_text("It is 12 degrees in Oslo.")
    changed = [{"role": "user", "content": [{"type": "input_text", "text": "12 degrees?"}]}]
    assert last_request(server) == fields | {"model": "scripted", "stream": True, "input": changed}


def press_tab_until(page: Any, field: Any) -> None:
    """Goes from field to field by Tab, to this one."""
    for _ in range(MAX_FIELDS):
        page.keyboard.press("Tab")
        if field.evaluate("field => field === document.activeElement"):
            return
    pytest.fail("Tab does not reach the field")


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_fork_is_accessible(open_tab: OpenTab, server: RunningServer, by: str) -> None:
    """From the turn to the reply of the fork: axe in every look, with an item chosen and with an answer."""
    response = ask(server, input=[{"role": "user", "content": text} for text in ("Hi", "Hi again")], tools=TOOLS)
    page = open_tab(f"turns/{response['id']}#key={server.context.page_key}")
    link = page.get_by_role("link", name="Fork", exact=True)
    expect(link).to_be_visible()
    choice, button = page.get_by_label("up to item"), page.get_by_role("button", name="Send", exact=True)
    if by == "mouse":
        link.click()
        choice.select_option("0")
    else:
        press_tab_until(page, link)
        page.keyboard.press("Enter")
        expect(choice).to_be_visible()
        press_tab_until(page, choice)
        page.keyboard.press("ArrowDown")
    expect(choice).to_have_value("0")
    expect(find_item(page, "0: user")).to_have_value("Hi")
    check_every_look(page)
    if by == "mouse":
        button.click()
    else:
        press_tab_until(page, find_item(page, "0: user"))
        page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator(".column .output").filter(has_text="completed").first).to_be_visible()
    assert len(last_request(server)["input"]) == 1
    check_every_look(page)


def test_fork_at_any_item_continues_from_there(open_tab: OpenTab, server: RunningServer) -> None:
    call = ask(server, input="How is the weather?", tools=TOOLS)["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12 degrees"}
    items = [{"role": "user", "content": "How is the weather?"}, call, output]
    response = ask(server, input=items, tools=TOOLS)
    page = open_tab(f"play?fork={response['id']}#key={server.context.page_key}")
    choice = page.get_by_label("up to item")
    expect(choice.locator("option")).to_have_count(1 + len(items) + len(response["output"]))
    choice.select_option("3")
    expect(find_item(page, "3: assistant")).to_have_value("It is 12 degrees in Oslo.")
    choice.select_option("2")
    assert page.url == f"{server.root}/ui/play?fork={response['id']}&item=2"
    find_item(page, "2: function_call_output").fill("It says slow.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".column .item")).to_contain_text("One.")
    assert last_request(server)["input"] == [*items[:2], output | {"output": "It says slow."}]
    page.get_by_role("button", name="Stop").click()
    page.reload()
    expect(find_item(page, "2: function_call_output")).to_have_value("12 degrees")
    choice.select_option("0")
    send(page)
    assert last_request(server)["input"] == items[:1]


def test_event_of_the_timeline_forks_after_its_item(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, input=[{"role": "user", "content": text} for text in ("Hi", "Hi again")])
    page = open_tab(f"turns/{response['id']}#event=3&key={server.context.page_key}")
    page.get_by_role("link", name="Fork after this item").press("Enter")
    page.wait_for_url(f"{server.root}/ui/play?fork={response['id']}&output=0")
    expect(find_item(page, "2: reasoning")).to_have_value("Hm.")
    expect(page.get_by_label("up to item")).to_have_value("2")
    page.get_by_label("up to item").select_option("")
    expect(find_item(page, "2: reasoning")).to_have_count(0)
    expect(find_item(page, "1: user")).to_have_value("Hi again")


def test_fork_after_the_last_item_continues_the_conversation(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, input="Hi", store=False)
    page = open_tab(f"play?fork={response['id']}&item=2#key={server.context.page_key}")
    page.get_by_role("button", name="user", exact=True).click()
    find_item(page, "3: user").fill("How is the weather?")
    page.get_by_role("button", name="example").click()
    send(page)
    sent = last_request(server)["input"]
    assert [item.get("type", item.get("role")) for item in sent] == ["user", "reasoning", "message", "user"]


def test_secrets_that_were_removed_are_mentioned(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, metadata={"api_key": "sk-0123456789abcdef"})
    page = open_tab(f"play?fork={response['id']}#key={server.context.page_key}")
    expect(page.locator("main")).to_contain_text("REDACTED")


def test_turn_of_another_api_or_without_record_cannot_be_forked(browser: Any) -> None:
    with serve(SCRIPT, inspect="memory") as server, open_page(browser, server.root) as (page, _):
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
        httpx.post(f"{server.url}/chat/completions", json=body, timeout=HANG_TIMEOUT_S)
        page.goto(f"{server.root}/ui/play?fork={last_turn(server)['id']}#key={server.context.page_key}")
        expect(page.locator("main")).to_contain_text("Only turns of the Responses API can be forked.")
    with serve(SCRIPT, inspect="off") as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/play?fork={ask(server)['id']}#key={server.context.page_key}")
        expect(page.locator("main")).to_contain_text("This turn was not recorded")
        page.goto(f"{server.root}/ui/play?fork=resp_none#key={server.context.page_key}")
        expect(page.get_by_role("alert").first).to_be_visible()
