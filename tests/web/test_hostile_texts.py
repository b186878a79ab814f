"""Texts of models, tools and clients that are programs elsewhere: every view shows them as text and nothing more."""

import json
import re
import time
from functools import partial
from typing import Any

import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.web.browser import Faults, open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, TEXTS, check_unharmed, hostile_events, list_texts, listen, open_everything
from tests.web.inspection import FakeInspection, make_rows, make_summary

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
ALL_TEXTS = "\n".join(TEXTS)
CONTROL_PAGE = """<!doctype html><title>without defences</title><body><script>
window.fired = [];
window.fire = (number) => { fired.push(number); };
function apply(way, text, number) {
  if (way === "markup") {
    const frame = document.createElement("iframe");
    document.body.append(frame);
    frame.contentDocument.write(text);
    frame.contentDocument.close();
  } else if (way === "link") {
    const link = document.createElement("a");
    link.href = text;
    link.click();
  } else if (way === "template") {
    new Function("return `" + text + "`")();
  } else if (way === "style") {
    document.body.insertAdjacentHTML("beforeend", `<p style="${text}">x</p>`);
  } else if (way === "field") {
    let target = {};
    for (const name of text.split(".")) target = target[name];
    target.polluted = number;
    if ({}.polluted === number) fire(number);
    delete target.polluted;
  } else {
    document.body.insertAdjacentHTML("beforeend", `<i id="${text}"></i>`);
    if (window[text] instanceof HTMLElement) fire(number);
  }
}
</script></body>"""


def test_every_text_does_its_harm_on_a_page_without_defences(browser: Any) -> None:
    assert len(TEXTS) >= 60
    with open_page(browser, "http://control.example") as (page, faults):
        page.route(
            "**/*",
            lambda route: (
                route.fulfill(body=CONTROL_PAGE, content_type="text/html")
                if route.request.url == "http://control.example/"
                else route.abort()
            ),
        )
        page.goto("http://control.example/")
        for number, (way, text) in enumerate(list_texts()):
            page.evaluate("([way, text, number]) => apply(way, text, number)", [way, text, number])
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while (harmed := find_harm(page, faults)) != set(range(len(TEXTS))) and time.monotonic() < deadline:
            page.wait_for_timeout(50)
        assert harmed == set(range(len(TEXTS)))
        faults.console.clear()
        faults.requests.clear()


def find_harm(page: Any, faults: Faults) -> set[int]:
    """Returns the numbers of the texts that ran, and of those that asked another server for a file."""
    loaded = {int(number) for url in faults.requests for number in re.findall(r"evil\.example/(\d+)$", url)}
    return {*page.evaluate("fired"), *loaded}


def test_start_shows_them_as_text(open_tab: OpenTab, server: RunningServer) -> None:
    models = {"data": [{"id": text, "status": {"value": text}, "max_model_len": text} for text in TEXTS]}
    body = "".join(
        f"event: {event['type'].split()[0]}\ndata: {json.dumps(event)}\n\n"
        for event in hostile_events(ALL_TEXTS)
        if "\n" not in event["type"]
    )

    def before(page: Any) -> None:
        listen(page)
        FakeInspection([make_summary(1, id=text, status=text, ending={"cause": text}) for text in TEXTS]).attach(page)
        page.route(
            "**/v1/models", lambda route: route.fulfill(body=json.dumps(models), content_type="application/json")
        )
        page.route("**/v1/responses", lambda route: route.fulfill(body=body, content_type="text/event-stream"))

    page = open_tab(before=before)
    expect(page.locator("tbody tr")).to_have_count(len(TEXTS))
    open_everything(page)
    for number in (0, 40, len(TEXTS) - 1):
        page.get_by_role("combobox", name="Model").select_option(index=number)
        page.get_by_label("Prompt").fill(TEXTS[number])
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".output")).to_contain_text(TEXTS[0])
    check_unharmed(page, server)


def test_errors_of_the_server_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    def before(page: Any) -> None:
        listen(page)
        error = json.dumps({"error": {"message": ALL_TEXTS[:400]}})
        page.route("**/v1/**", lambda route: route.fulfill(status=500, body=error, content_type="application/json"))

    for path in ("", "turns", "turns/resp_1"):
        page = open_tab(path, before=before)
        expect(page.get_by_role("alert").first).to_contain_text(TEXTS[0])
        check_unharmed(page, server)


def test_list_of_turns_shows_them_as_text(open_tab: OpenTab, server: RunningServer) -> None:
    fields = ("id", "api", "model", "status", "created_at", "seconds", "input_tokens", "excerpt")
    turns = [
        make_summary(1, **dict.fromkeys(fields, text), ending={"cause": text, "detail": text}, tools=[text, text])
        for text in TEXTS
    ]

    def before(page: Any) -> None:
        listen(page)
        FakeInspection(turns).attach(page)

    page = open_tab("turns", before=before)
    for count in (50, len(TEXTS)):
        expect(page.locator("tbody tr")).to_have_count(count)
        if count == 50:
            page.get_by_role("button", name="More").click()
    page.get_by_role("textbox", name="model").fill(ALL_TEXTS[:2000])
    page.get_by_role("textbox", name="model").press("Tab")
    check_unharmed(page, server)


def test_address_of_the_list_is_no_program(open_tab: OpenTab, server: RunningServer) -> None:
    from urllib.parse import quote

    fake = FakeInspection([make_summary(1, model=TEXTS[0])])
    for text in TEXTS[::16]:
        page = open_tab(
            f"turns?model={quote(text)}&status={quote(text)}&__proto__={quote(text)}#{quote(text)}",
            before=lambda page: (listen(page), fake.attach(page)),
        )
        expect(page.locator("tbody tr")).to_have_count(1)
        check_unharmed(page, server)


def test_timeline_shows_them_as_text(open_tab: OpenTab, server: RunningServer) -> None:
    events = [event | {"sequence_number": None} for text in TEXTS for event in hostile_events(text)]
    rows = [
        row | {"state": text, "cells": [[text, text], text], "step": text, "at_us": text, "detail": {"tokens": text}}
        for row, text in zip(make_rows(events), (text for text in TEXTS for _ in hostile_events(text)), strict=True)
    ]
    texts = dict.fromkeys(("model", "status", "times_ms", "description"), ALL_TEXTS)
    ending = dict.fromkeys(("cause", "detail"), ALL_TEXTS)
    unoffered = [{"description": ALL_TEXTS}, None, ALL_TEXTS]
    fake = FakeInspection(events=rows, **make_summary(1, ending=ending, unoffered_calls=unoffered, **texts))
    fake.findings = [
        {"code": text, "subject": text, "expected": text, "actual": text, "event": n} for n, text in enumerate(TEXTS)
    ]
    cells = [{"state": text, "input": text, "next": text, "verbs": [text], "guard": text} for text in TEXTS]
    fake.table = {"states": TEXTS[:5], "inputs": TEXTS, "cells": cells}
    page = open_tab("turns/resp_1#event=0", before=lambda page: (listen(page), fake.attach(page)))
    page.get_by_label("merge deltas").uncheck()
    slider = page.get_by_role("slider", name="Event")
    expect(slider).to_have_attribute("max", str(len(events) - 1))
    for _ in range(len(hostile_events(""))):
        slider.press("ArrowRight")
    num_each = len(hostile_events(""))
    for number in range(len(TEXTS)):
        slider.fill(str(number * num_each + num_each - 1))
        if number % 4 == 0:
            open_everything(page)
    page.get_by_label("search").fill(TEXTS[0])
    check_unharmed(page, server)


def test_prompt_shows_them_as_text(open_tab: OpenTab, server: RunningServer) -> None:
    runs = [{"round": text, "ids": [text], "texts": [text], "control": True, "cached": text} for text in TEXTS]
    runs += [{"round": 0, "ids": [1], "texts": text} for text in TEXTS] + [{"ids": 1}, {"ids": [{}], "texts": [{}]}]
    body = "".join(json.dumps(run) + "\n" for run in runs)

    def before(page: Any) -> None:
        listen(page)
        FakeInspection(**make_summary(1)).attach(page)
        page.route("**/prompt?**", lambda route: route.fulfill(body=body, content_type="application/x-ndjson"))

    page = open_tab("turns/resp_1?view=prompt", before=before)
    expect(page.locator(".token")).to_have_count(2 * len(TEXTS) + 1)
    page.get_by_label("ids").check()
    check_unharmed(page, server)


def test_hidden_characters_are_seen_in_every_view(open_tab: OpenTab) -> None:
    expected = "a⟨U+D800⟩b␀c⟨U+202E⟩d⟨U+2066⟩e⟨U+200B⟩f␛[2Jg⟨U+009B⟩h⟨U+2028⟩i"
    events = hostile_events(ODD_TEXT)
    fake = FakeInspection(
        [make_summary(1, model=ODD_TEXT)], events=make_rows(events), **make_summary(1, model=ODD_TEXT)
    )
    page = open_tab("turns", before=fake.attach)
    expect(page.locator("tbody")).to_contain_text(expected)
    page.get_by_role("link", name="resp_1").click()
    expect(page.locator(".figures")).to_contain_text(expected)
    expect(page.locator(".response")).to_contain_text(expected)
    assert page.get_by_role("img", name="right-to-left override U+202E").count() > 3


def test_huge_texts_leave_the_page_alive(open_tab: OpenTab) -> None:
    """A line of 10 MB without a space, values nested 10 000 deep, an object of 100 000 fields, a number of 400 digits."""
    item = '{"id": "fc_1", "type": "function_call", "arguments": ""}'
    place = '"output_index": 0, "sequence_number"'
    fields = ", ".join(f'"{n}": {n}' for n in range(100_000))
    lines = [
        '{"type": "response.created", "sequence_number": 0, "response": {"output": []}}',
        f'{{"type": "response.output_item.added", {place}: 1, "item": {item}}}',
        f'{{"type": "response.function_call_arguments.delta", {place}: 2, "delta": "{"x" * 10_000_000}"}}',
        f'{{"type": "other", {place}: 3, "deep": {"[" * 10_000}{"]" * 10_000}}}',
        f'{{"type": "other", {place}: 4, "wide": {{{fields}}}, "long": {"9" * 400}}}',
    ]
    body = "".join(f'{{"n": {n}, "event": {line}}}\n' for n, line in enumerate(lines))
    fake = FakeInspection(**make_summary(1))

    def before(page: Any) -> None:
        fake.attach(page)
        page.route("**/events?**", lambda route: route.fulfill(body=body, content_type="application/x-ndjson"))

    page = open_tab("turns/resp_1", before=before)
    expect(page.locator("#position")).to_contain_text("event 4 of 4")
    page.get_by_text("Event 4 as it was sent").click()
    page.locator("summary", has_text="wide").click()
    expect(page.get_by_role("button", name="99,900 more")).to_be_visible()
    page.get_by_label("search").fill("deep")
    expect(page.locator(".row")).to_have_count(1)
    page.get_by_label("search").fill("")
    page.get_by_role("slider", name="Event").press("ArrowLeft")
    page.get_by_role("slider", name="Event").press("ArrowLeft")
    expect(page.locator("#changed")).to_contain_text("Event 2 appends to output[0].arguments")
    page.get_by_role("button", name="more characters").first.click()
    expect(page.locator("#position")).to_contain_text("event 2 of 4")
