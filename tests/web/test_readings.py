"""The readings of a turn by each API, over the real inspection API."""

import json
import re
from functools import partial
from typing import Any

import httpx
import pytest

from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, listen, open_everything
from tests.web.inspection import FakeInspection, make_summary
from tests.web.turn_pages import SCRIPT, TEXTS, address, answer, ask

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, SCRIPT)
APIS = ("responses", "chat", "messages", "completions")


def read_lines(server: RunningServer, turn_id: str, api: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {server.context.page_key}"}
    text = httpx.get(f"{server.url}/inspect/turns/{turn_id}/readings/{api}", headers=headers).text
    return [json.loads(line) for line in text.splitlines()]


def test_each_event_shows_what_each_api_sends(open_tab: OpenTab, server: RunningServer) -> None:
    turn_id = ask(server, "Hi")
    lines = {api: read_lines(server, turn_id, api) for api in APIS}
    numbers = sorted({line["n"] for each in lines.values() for line in each})
    page = open_tab(address(server, turn_id, "readings"))
    rows = page.locator(".row")
    expect(rows.first).to_have_attribute("aria-setsize", str(len(numbers)))
    expect(page.locator("#chosen-frames")).to_have_text(f"After event {numbers[-1]}")
    page.get_by_role("listbox").focus()
    page.keyboard.press("Home")
    for n in numbers:
        expect(page.locator("#chosen-frames")).to_have_text(f"After event {n}" if n >= 0 else "Before the first event")
        for api in APIS:
            count = sum(line["n"] == n for line in lines[api])
            column = page.locator(".frames").get_by_role("region", name=api, exact=True)
            expect(column.locator(".mono > *")).to_have_count(count)
        page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile(f"#event={numbers[-1]}$"))
    page.reload()
    expect(page.locator("#chosen-frames")).to_have_text(f"After event {numbers[-1]}")


def test_columns_say_the_same_in_the_words_of_each_api(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "readings"))
    row = page.locator(".row", has_text="output_text.delta").first
    expect(row).to_contain_text("output_text.delta [1.0] H")
    expect(row).to_contain_text('{"content":"H')
    expect(row).to_contain_text('content_block_delta {"text":"H')
    row.click()
    expect(page.locator(".frames").get_by_role("region", name="chat", exact=True)).to_contain_text("chatcmpl")


def test_event_of_the_timeline_is_the_event_of_the_readings(open_tab: OpenTab, server: RunningServer) -> None:
    turn_id = ask(server, "Hi")
    page = open_tab(address(server, turn_id, "readings").replace("#", "#event=3&"))
    expect(page.locator("#chosen-frames")).to_have_text("After event 3")
    page.goto(page.url.replace("event=3", "event=4"))
    expect(page.locator("#chosen-frames")).to_have_text("After event 4")


def test_columns_are_chosen(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "readings"))
    sections = page.locator(".frames > section")
    expect(sections).to_have_count(4)
    page.get_by_role("checkbox", name="messages").uncheck()
    page.get_by_role("checkbox", name="responses").press("Space")
    expect(sections).to_have_count(2)
    expect(page.locator(".reading-names")).to_have_text("eventchatcompletions")
    page.get_by_role("checkbox", name="chat").uncheck()
    page.get_by_role("checkbox", name="completions").uncheck()
    expect(page.locator("main")).to_contain_text("Nothing is sent in these readings.")
    page.get_by_role("checkbox", name="messages").check()
    expect(page.locator(".row").last).to_contain_text("message_stop")


def test_narrow_page_has_one_column_and_a_selector(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "readings"), viewport={"width": 320, "height": 640})
    expect(page.locator(".frames > section")).to_have_count(1)
    expect(page.locator(".reading-names")).to_have_text("eventresponses")
    page.get_by_role("combobox", name="API").select_option("messages")
    expect(page.locator(".reading-names")).to_have_text("eventmessages")
    page.set_viewport_size({"width": 1280, "height": 640})
    expect(page.locator(".frames > section")).to_have_count(4)


def test_reading_that_fails_leaves_the_others(open_tab: OpenTab, server: RunningServer) -> None:
    def before(page: Any) -> None:
        error = json.dumps({"error": {"message": "It is gone."}})
        page.route("**/readings/chat", lambda route: route.fulfill(status=404, body=error))
        lines = '{"n": 0, "data": {"type": "ping"}}\n{"error": {"message": "It was evicted."}}\n'
        page.route("**/readings/messages", lambda route: route.fulfill(body=lines))

    page = open_tab(address(server, ask(server, "Hi"), "readings"), before=before)
    expect(page.get_by_role("alert").first).to_contain_text("chat: It is gone.")
    expect(page.get_by_role("alert").last).to_contain_text("It was evicted.")
    expect(page.locator(".row").last).to_contain_text("completed")


def test_hostile_readings_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    data: list[Any] = [*TEXTS, ODD_TEXT]
    data += [{"type": text, text: text, "delta": {text: text}} for text in data]
    data += [{"choices": [{"delta": {text: text}, "finish_reason": text}], "usage": {text: 1}} for text in TEXTS]
    data += [{"type": f"response.{text}", "delta": text, "output_index": text, "__proto__": text} for text in TEXTS]
    lines = [{"n": n, "name": TEXTS[n % len(TEXTS)], "data": each} for n, each in enumerate(data)]
    lines += [{"n": len(data), "data": each} for each in data]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page = open_tab("turns/resp_1?view=readings", before=answer("**/readings/*", body))
    expect(page.locator(".frames > section")).to_have_count(4)
    box = page.get_by_role("listbox")
    box.focus()
    for _ in range(len(lines) // 20):
        page.keyboard.press("PageUp")
    open_everything(page)
    check_unharmed(page, server)
    page.keyboard.press("End")
    open_everything(page)
    check_unharmed(page, server)


def test_reading_of_50_000_events_needs_a_few_elements(open_tab: OpenTab) -> None:
    body = "".join(f'{{"n": {n}, "data": {{"type": "ping"}}}}\n' for n in range(50_000))
    page = open_tab("turns/resp_1?view=readings#event=25000", before=answer("**/readings/*", body))
    expect(page.locator("#chosen-frames")).to_have_text("After event 25000")
    expect(page.locator('.row[aria-selected="true"]')).to_contain_text("25000")
    assert page.locator(".row").count() <= 48


def test_turn_without_frames_says_so(open_tab: OpenTab) -> None:
    def before(page: Any) -> None:
        listen(page)
        FakeInspection(**make_summary(1)).attach(page)
        page.route("**/readings/*", lambda route: route.fulfill(body=""))

    page = open_tab("turns/resp_1?view=readings", before=before)
    expect(page.locator("main")).to_contain_text("Nothing is sent in these readings.")


def test_readings_are_accessible(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "readings"))
    expect(page.locator(".row").last).to_be_visible()
    check_every_look(page)
