"""Views over the real inspection API: what a client did is what the page shows."""

import json
import threading
from functools import partial
from typing import Any, get_args

import httpx
import pytest

from antiphon.app.routes.inspection.query import ListedStatus
from antiphon.app.turn_types.endings import CAUSES
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.web.accessibility import list_violations
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.sources import WEB

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"'
SCRIPT = [
    {"name": "unknown", "when": ["Seek"], "output": ['<tool_call>\n{"name": "seek", "arguments": {}}\n</tool_call>']},
    {"name": "slow", "when": ["slow"], "output": ["One. ", {"pause": HANG_TIMEOUT_S}, "Two."]},
    {"name": "half", "when": ["weather"], "output": [CALL]},
    {"name": "hello", "output": ["<think>\nHm.\n</think>\n\n", "Hello, ", "you."]},
]
SERVER = partial(serve, SCRIPT)
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]


def ask(server: RunningServer, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "scripted", "input": text} | fields
    reply = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    return dict(reply.json())


def test_filters_offer_what_the_api_knows() -> None:
    text = (WEB / "lib/turns.js").read_text(encoding="utf-8")
    names = ("FAULTS", "CUTS", "CAUSES", "STATUSES")
    lists = {name: text.partition(f"{name} = ")[2].partition(";")[0] for name in names}
    lists["CAUSES"] += lists["FAULTS"] + lists["CUTS"]
    assert all(f'"{cause}"' in lists["CAUSES"] for cause in CAUSES) and lists["CAUSES"].count('"') == 2 * len(CAUSES)
    assert all(f'"{status}"' in lists["STATUSES"] for status in get_args(ListedStatus))
    assert lists["STATUSES"].count('"') == 2 * len(get_args(ListedStatus))


def test_page_key_of_the_printed_address_opens_the_list(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, "Hi")
    page = open_tab("turns")
    expect(page.get_by_role("alert")).to_contain_text("You didn't provide the page's key.")
    field = page.get_by_label("A key is needed")
    field.fill(server.context.page_key)
    field.press("Enter")
    expect(page.locator("tbody tr").first).to_contain_text(response["id"][:20])
    expect(page.locator("tbody tr").first).to_contain_text("● stop token")
    expect(page.locator("tbody tr").first).to_contain_text("Hi")
    other = open_tab(f"#key={server.context.page_key}")
    expect(other.locator(".last li").first).to_contain_text("● stop token")
    other.get_by_role("link", name="Turns").click()
    expect(other.locator("tbody tr").first).to_contain_text("● stop token")
    assert server.context.page_key not in other.url


def test_turn_shows_why_it_ended_and_what_the_machine_did(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, "weather?", tools=TOOLS)
    page = open_tab(f"turns/{response['id']}#key={server.context.page_key}")
    expect(page.locator(".ending")).to_contain_text(
        "■ stopped in call — The model ended its turn inside the call of a tool"
    )
    expect(page.locator(".figures")).to_contain_text("scripted")
    expect(page.locator(".response")).to_contain_text('status: "failed"')
    expect(page.locator(".step").last).to_contain_text("→ freeze fail → ENDED")
    expect(page.locator("td.ran").last).to_contain_text("freeze fail")
    expect(page.locator("#ledger")).to_contain_text("tokens generated")


def test_turn_says_that_a_tool_was_not_offered(browser: Any) -> None:
    with serve(SCRIPT, unknown_tools="text") as server, open_page(browser, server.root) as (page, _):
        response = ask(server, "Seek", tools=TOOLS)
        page.goto(f"{server.root}/ui/turns/{response['id']}#key={server.context.page_key}")
        sentence = "The model called seek, a tool that the request does not offer."
        expect(page.locator(".ending + p")).to_contain_text(f"! {sentence}")
        expect(page.locator(".ending + p")).to_contain_text("offered: get_weather.")
        finding = page.locator(".findings li").first
        expect(finding).to_contain_text("tool-not-offered: seek: expected a call of get_weather")
        finding.get_by_role("button").click()
        expect(page.locator("#changed")).to_contain_text("seek")
        assert list_violations(page) == []


def test_last_response_is_the_stored_one(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, "Hi")
    page = open_tab(f"turns/{response['id']}#key={server.context.page_key}")
    expect(page.locator("#changed")).to_contain_text("carries the whole response")
    stored = httpx.get(f"{server.url}/responses/{response['id']}").json()
    tree = page.locator(".response > .mono").inner_text()
    for name in ("id", "status", "model", "created_at"):
        assert f"{name}: {json.dumps(stored[name])}" in tree
    for item in stored["output"]:
        assert all(json.dumps(part["text"]) in tree for part in item["content"])


def test_prompt_is_what_the_model_read(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, "Grüße <b>\u202e", instructions="Be kind.")
    key = {"authorization": f"Bearer {server.context.page_key}"}
    lines = httpx.get(f"{server.url}/inspect/turns/{response['id']}/prompt", headers=key).text.splitlines()
    runs = [json.loads(line) for line in lines]
    page = open_tab(f"turns/{response['id']}?view=prompt#key={server.context.page_key}")
    tokens = page.locator(".token")
    expect(tokens).to_have_count(sum(len(run["ids"]) for run in runs))
    shown = "".join(tokens.all_inner_texts())
    assert "Be kind." in shown and "<b>" in shown and response["status"] == "completed"
    assert any(run["control"] for run in runs) and "⟦" in shown
    page.get_by_label("ids").check()
    expect(page.locator(".token sub").first).to_have_text(str(runs[0]["ids"][0]))
    page.get_by_label("boundaries").uncheck()
    expect(page.locator(".boundaries")).to_have_count(0)
    assert list_violations(page) == []
    page.get_by_role("link", name="Timeline").click()
    expect(page.get_by_role("listbox")).to_be_visible()


def test_prompt_of_many_tokens_is_shown_in_parts(open_tab: OpenTab, server: RunningServer) -> None:
    response = ask(server, "word " * 700)
    page = open_tab(f"turns/{response['id']}?view=prompt#key={server.context.page_key}")
    expect(page.locator("#tokens-shown")).to_have_text("2,000 tokens so far")
    expect(page.locator(".token")).to_have_count(2000)
    page.get_by_role("button", name="More tokens").click()
    expect(page.locator("#tokens-shown")).not_to_contain_text("so far")
    expect(page.get_by_role("button", name="More tokens")).to_have_count(0)


def test_prompt_that_was_not_recorded_says_why(browser: Any) -> None:
    with serve(SCRIPT, inspect="off") as server, open_page(browser, server.root) as (page, _):
        response = ask(server, "Hi")
        page.goto(f"{server.root}/ui/turns/{response['id']}?view=prompt#key={server.context.page_key}")
        expect(page.locator("main")).to_contain_text("This turn was not recorded")


def test_running_turn_is_followed_and_not_kept_alive(browser: Any, server: RunningServer) -> None:
    """The client leaves while the page follows its turn: the turn ends as without the page."""
    begun, left = threading.Event(), threading.Event()

    def read_a_part() -> None:
        body = {"model": "scripted", "input": "slow", "stream": True, "store": False}
        with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
            lines = reply.iter_lines()  # the connection is closed once nothing refers to it
            next(lines)
            begun.set()
            left.wait(HANG_TIMEOUT_S)

    client = threading.Thread(target=read_a_part)
    client.start()
    assert begun.wait(HANG_TIMEOUT_S)
    try:
        with open_page(browser, server.root) as (page, _):
            page.goto(f"{server.root}/ui/turns?status=in_progress#key={server.context.page_key}")
            page.locator("tbody tr a").first.click()
            expect(page.locator(".ending")).to_contain_text("▶ running")
            expect(page.locator(".response")).to_contain_text("One. ")
            left.set()
            expect(page.locator(".ending")).to_contain_text("◐ client left — The client closed the connection.")
            expect(page.locator("#position")).not_to_contain_text("reading …")
    finally:
        left.set()
        client.join()


def test_turn_of_another_key_does_not_exist(browser: Any) -> None:
    keys = ("sk-one", "sk-two")
    with serve(SCRIPT, api_keys=keys, inspect="memory") as server, open_page(browser, server.root) as (page, _):
        body = {"model": "scripted", "input": "Hi"}
        reply = httpx.post(f"{server.url}/responses", json=body, headers={"authorization": "Bearer sk-one"})
        page.goto(f"{server.root}/ui/turns/{reply.json()['id']}#key=sk-two")
        expect(page.get_by_role("alert").first).to_be_visible()
        expect(page.get_by_role("listbox")).to_have_count(0)
        page.goto(f"{server.root}/ui/turns#key=sk-two")
        expect(page.locator("main")).to_contain_text("No turn fits.")
        page.goto(f"{server.root}/ui/turns#key=sk-one")
        expect(page.locator("tbody tr")).to_have_count(1)
