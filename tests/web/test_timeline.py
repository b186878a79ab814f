"""The timeline of a turn in a browser. The inspection API is played by the test, with events of snapshot cases."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import groupby
from typing import Any

import pytest

from antiphon.app.http.asgi import AsgiApp
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.snapshots.cases import CASES
from tests.snapshots.run_case import read_responses
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.inspection import FakeInspection, answer_with, make_rows, make_summary
from tests.web.naive_fold import snapshot_responses

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
Json = dict[str, Any]


@cache
def case_events(name: str) -> list[Json]:
    """Returns the events of a case. They are made in a thread, since Playwright's event loop runs in this one."""
    case = next(case for case in CASES if case.name == name)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, read_responses(case)).result().data


def describe_step(event: Json) -> Json:
    """The inputs that the machine had for some events, as the recorder keeps them."""
    if event["type"] == "response.reasoning_text.delta":
        return {"cells": [["REASONING", "THINK"]], "detail": {"tokens": [1, 2]}}
    if event["type"] == "response.completed":
        return {"cells": [["MESSAGE", "SAY"], ["MESSAGE", "STOP"]], "detail": {"tokens": [3], "dropped_text": "\n\n"}}
    return {"cells": [], "detail": {}}


def open_case(open_tab: OpenTab, *, fragment: str = "", findings: list[Json] | None = None, **options: Any) -> Any:
    events = case_events("reasoning_text_and_two_calls")
    fake = FakeInspection(events=make_rows(events, describe_step), **make_summary(1))
    fake.findings = findings or []
    page = open_tab(f"turns/resp_1{fragment}", before=fake.attach, **options)
    expect(page.get_by_role("listbox")).to_be_visible()
    return page


def read_position(page: Any) -> int:
    return int(page.locator("#position").inner_text().split()[1])


def test_turn_opens_at_its_last_event(open_tab: OpenTab) -> None:
    page = open_case(open_tab)
    last = len(case_events("reasoning_text_and_two_calls")) - 1
    expect(page.locator("#position")).to_contain_text(f"event {last} of {last} · step {last}")
    expect(page.locator(".ending")).to_contain_text("● stop token — The model ended its turn.")
    expect(page.locator(".response")).to_contain_text('status: "completed"')
    expect(page.locator("#changed")).to_have_text(f"Event {last} carries the whole response.")
    expect(page.locator("#ledger")).to_have_text("3 of 3 tokens generated, 2 characters of white space in no event")


def test_each_event_says_what_it_changed(open_tab: OpenTab) -> None:
    events = case_events("reasoning_text_and_two_calls")
    n = next(i for i, event in enumerate(events) if event["type"] == "response.function_call_arguments.delta")
    page = open_case(open_tab, fragment=f"#event={n}")
    index = events[n]["output_index"]
    expect(page.locator("#changed")).to_have_text(
        f"Event {n} appends to output[{index}].arguments: {events[n]['delta']}"
    )
    page.get_by_role("button", name="Event before").click()
    expect(page.locator("#changed")).to_have_text(f"Event {n - 1} sets output[{index}].")
    expect(page).to_have_url(re.compile(f"#event={n - 1}$"))
    page.reload()
    expect(page.locator("#changed")).to_have_text(f"Event {n - 1} sets output[{index}].")


def test_response_as_of_each_event_is_that_of_the_plain_fold(open_tab: OpenTab) -> None:
    events = case_events("reasoning_text_and_two_calls")
    page = open_case(open_tab, fragment="#event=0")
    slider = page.get_by_role("slider", name="Event")
    for n, response in enumerate(snapshot_responses(events)):
        expect(slider).to_have_value(str(n))
        expect(page.locator(".response > .mono")).to_contain_text(f'status: "{response["status"]}"')
        tree = page.locator(".response > .mono").inner_text()
        for item in response["output"]:
            assert f'id: "{item["id"]}"' in tree
            texts = [part["text"] for part in item.get("content", [])] + [item.get("arguments", "")]
            assert all(f'"{text}"' in tree for text in texts if text), (n, texts)
        slider.press("ArrowRight")


def test_long_drag_of_the_slider_ends_in_the_address(open_tab: OpenTab) -> None:
    """The address changes once, after the last event: browsers drop changes that come by the hundred."""
    page = open_case(open_tab)
    drag = """(slider) => {
        for (let i = 0; i < 1000; i++) {
            slider.value = i % 7;
            slider.dispatchEvent(new Event("input", { bubbles: true }));
        }
    }"""
    page.get_by_role("slider", name="Event").evaluate(drag)
    expect(page).to_have_url(re.compile(f"#event={999 % 7}$"))


def test_slider_names_the_event(open_tab: OpenTab) -> None:
    page = open_case(open_tab, fragment="#event=1")
    slider = page.get_by_role("slider", name="Event")
    expect(slider).to_have_attribute(
        "aria-valuetext", "event 1 of 24: in_progress in_progress".replace("24", slider.get_attribute("max") or "")
    )
    slider.press("End")
    assert read_position(page) == int(slider.get_attribute("max") or 0)
    slider.press("Home")
    assert read_position(page) == 0


def test_cells_that_ran_are_marked(open_tab: OpenTab) -> None:
    page = open_case(open_tab)
    expect(page.locator(".step")).to_have_count(2)
    expect(page.locator(".step").last).to_have_text("state MESSAGE, input STOP → flush close complete → ENDED")
    ran = page.locator("td.ran")
    expect(ran).to_have_count(2)
    expect(ran.first).to_contain_text("▣ = grow")
    expect(page.locator("td.illegal").first).to_contain_text("illegal")


def test_findings_stand_at_their_events(open_tab: OpenTab) -> None:
    findings = [
        {"code": "call-without-end", "event": 2, "subject": "fc_1", "expected": "<b>an end</b>", "actual": "none"}
    ]
    page = open_case(open_tab, findings=findings)
    expect(page.locator(".ending")).to_contain_text("! 1 finding")
    expect(page.locator(".findings li")).to_have_text(
        "event 2 call-without-end: fc_1: expected <b>an end</b>, found none"
    )
    page.get_by_role("button", name="event 2").click()
    assert read_position(page) == 2
    expect(page.locator('.row[aria-selected="true"]')).to_contain_text("! 2")


def test_deltas_are_merged_and_rows_are_filtered(open_tab: OpenTab) -> None:
    events = case_events("call_in_many_pieces")
    page = open_tab("turns/resp_1", before=FakeInspection(events=make_rows(events), **make_summary(1)).attach)
    rows = page.locator(".row")
    kinds = [event["type"] for event in events]
    expect(rows).to_have_count(
        sum(1 for _ in groupby(kinds, lambda kind: kind if kind.endswith("delta") else object()))
    )
    page.get_by_label("merge deltas").uncheck()
    expect(rows).to_have_count(len(events))
    page.get_by_label("items only").check()
    count = sum("output_item" in event["type"] or "output_index" not in event for event in events)
    expect(rows).to_have_count(count)
    page.get_by_label("items only").uncheck()
    page.get_by_label("search").fill("OUTPUT_ITEM.DONE")
    expect(rows).to_have_count(sum(kind.endswith("output_item.done") for kind in kinds))
    page.get_by_label("search").fill("no event has this")
    expect(rows).to_have_count(0)


def test_list_is_a_listbox_that_keys_move_in(open_tab: OpenTab) -> None:
    page = open_case(open_tab)
    box = page.get_by_role("listbox", name="Events")
    box.focus()
    page.keyboard.press("Home")
    expect(box).to_have_attribute("aria-activedescendant", "row-0")
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "row-1")
    chosen = page.locator("#row-1")
    assert (chosen.get_attribute("aria-selected"), chosen.get_attribute("aria-posinset")) == ("true", "2")
    page.keyboard.press("End")
    assert read_position(page) == int(page.get_by_role("slider", name="Event").get_attribute("max") or 0)


def test_100_000_events_need_a_few_elements(browser: Any) -> None:
    first = case_events("reasoning_text_and_two_calls")[:2]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
    added = {"type": "response.output_item.added", "sequence_number": 2, "output_index": 0, "item": item}
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "ab"}
    rows = make_rows([*first, added, *(delta | {"sequence_number": n} for n in range(3, 100_000))])
    with SERVER(wrap_app=answer_with(rows)) as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/turns/resp_1")
        expect(page.locator("#position")).to_contain_text("event 99999 of 99999 ")
        page.get_by_label("merge deltas").uncheck()
        expect(page.locator(".row").nth(20)).to_be_attached()
        page.get_by_role("listbox").focus()
        page.keyboard.press("Home")
        page.keyboard.press("PageDown")
        assert 0 < read_position(page) < 60
        page.get_by_role("slider", name="Event").fill("50002")
        expect(page.locator("#changed")).to_have_text("Event 50002 appends to output[0].content[0].text: ab")
        expect(page.locator('.row[aria-selected="true"]')).to_contain_text("50002")
        assert 20 < page.locator(".row").count() <= 48


def test_last_items_of_a_long_output_are_shown_first(open_tab: OpenTab) -> None:
    added = [
        {"type": "response.output_item.added", "sequence_number": n + 2, "output_index": n, "item": {"id": f"msg_{n}"}}
        for n in range(10)
    ]
    events = [*case_events("reasoning_text_and_two_calls")[:2], *added]
    page = open_tab("turns/resp_1", before=FakeInspection(events=make_rows(events), **make_summary(1)).attach)
    tree = page.locator(".response > .mono")
    expect(tree.get_by_text('"msg_')).to_have_text([f'"msg_{n}"' for n in range(6, 10)])
    tree.get_by_role("button", name="6 before").press("Enter")
    expect(tree.get_by_text('"msg_')).to_have_text([f'"msg_{n}"' for n in range(10)])
    page.get_by_role("button", name="Event before").click()
    expect(tree.get_by_text('"msg_')).to_have_text([f'"msg_{n}"' for n in range(9)])


def test_findings_of_a_turn_that_has_ended_are_asked_for_after_its_events(open_tab: OpenTab) -> None:
    """The checker needs the server as long as the log is: the events must not wait for it."""
    asked: list[str] = []
    fake = FakeInspection(events=make_rows(case_events("reasoning_text_and_two_calls")), **make_summary(1))
    fake.findings = [{"code": "call-without-end", "event": 2}]

    def before(page: Any) -> None:
        fake.attach(page)
        page.on("request", lambda request: asked.append(request.url.rpartition("/")[2].partition("?")[0]))

    page = open_tab("turns/resp_1", before=before)
    expect(page.locator(".findings li")).to_have_count(1)
    assert [name for name in asked if name in ("events", "findings")] == ["events", "findings"]


def test_damaged_log_is_shown_as_damaged(open_tab: OpenTab) -> None:
    events = [event for n, event in enumerate(case_events("reasoning_text_and_two_calls")) if n != 4]
    events.append({"type": "response.output_text.delta", "output_index": -1, "delta": "x"})
    fake = FakeInspection(events=make_rows(events), **make_summary(1))
    page = open_tab("turns/resp_1", before=fake.attach)
    expect(page.locator(".findings li").first).to_contain_text("damaged log: sequence_number 5 follows 3")
    expect(page.locator(".findings li").last).to_contain_text("-1 is no position in a list")


def test_turn_evicted_while_it_is_read_keeps_what_was_read(open_tab: OpenTab) -> None:
    rows = [
        *make_rows(case_events("reasoning_text_and_two_calls")[:4]),
        {"error": {"message": "The turn was evicted."}},
    ]
    page = open_tab("turns/resp_1", before=FakeInspection(events=rows, **make_summary(1)).attach)
    expect(page.get_by_role("alert")).to_contain_text("The turn was evicted.")
    expect(page.locator(".row")).to_have_count(4)


def test_unknown_turn_says_so(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("turns/resp_none", before=FakeInspection().attach)
    expect(page.get_by_role("alert").first).to_contain_text("There is no such turn.")


def test_timeline_is_accessible(open_tab: OpenTab) -> None:
    findings = [{"code": "call-without-end", "message": "late", "event": 2}]
    page = open_case(open_tab, findings=findings)
    expect(page.locator("td.ran").first).to_be_attached()
    check_every_look(page)


def test_running_turn_grows_while_it_is_watched(browser: Any) -> None:
    """A server sends lines as they come. The ending is read once they end."""
    rows = make_rows(case_events("reasoning_text_and_two_calls"))
    go_on = [threading.Event() for _ in range(2)]
    states = iter([{"ending": None, "status": "in_progress"}, {}])

    def wrap_app(app: AsgiApp) -> AsgiApp:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            path = scope.get("path", "")
            if not path.startswith("/v1/inspect/turns/resp_1"):
                await app(scope, receive, send)
                return
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
            )
            if not path.endswith("/events"):
                record = make_summary(1, **next(states)) if path.endswith("/resp_1") else {"data": []}
                await send({"type": "http.response.body", "body": json.dumps(record).encode()})
                return
            parts = [rows[:3], rows[3:9], rows[9:]] if b"follow=true" in scope["query_string"] else [rows]
            for part, before in zip(parts, (None, *go_on), strict=False):
                if before is not None:
                    await asyncio.to_thread(before.wait, HANG_TIMEOUT_S)
                body = "".join(json.dumps(row) + "\n" for row in part)
                await send({"type": "http.response.body", "body": body.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return answer

    with SERVER(wrap_app=wrap_app) as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/turns/resp_1")
        expect(page.locator(".ending")).to_contain_text("▶ running")
        for last, proceed in ((2, go_on[0]), (8, go_on[1])):
            expect(page.locator("#position")).to_contain_text(f"event {last} of {last} · step {last}")
            expect(page.locator("#position")).to_contain_text("reading …")
            proceed.set()
        expect(page.locator("#position")).to_contain_text(f"event {len(rows) - 1} of {len(rows) - 1}")
        expect(page.locator("#position")).not_to_contain_text("reading …")
        expect(page.locator(".ending")).to_contain_text("● stop token")
