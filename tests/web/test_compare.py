"""Two turns side by side, over the real inspection API."""

import json
from functools import partial
from typing import Any

import pytest

from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, hostile_events, list_texts, listen
from tests.web.inspection import FakeInspection, make_rows, make_summary
from tests.web.turn_pages import ask

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SCRIPT = [
    {"name": "night", "when": ["night"], "output": ["Good ", "night, you."]},
    {"name": "hello", "output": ["Good day, ", "you."]},
]
SERVER = partial(serve, SCRIPT)
TEXTS = [text for _, text in list_texts()]


def address(server: RunningServer, first: str, second: str) -> str:
    return f"compare?a={first}&b={second}#key={server.context.page_key}"


def test_differences_of_two_turns_are_marked(open_tab: OpenTab, server: RunningServer) -> None:
    first = ask(server, "Say hello.", temperature=0.5)
    second = ask(server, "Say good night.", temperature=0.5, max_output_tokens=50)
    page = open_tab(address(server, first, second))
    output = page.get_by_role("region", name="Output", exact=True)
    expect(output.locator("del")).to_have_text([" removed: day"])
    expect(output.locator("ins")).to_have_text([" added: night"])
    request = page.get_by_role("region", name="Request", exact=True)
    expect(request.locator("del")).to_contain_text('"input": "Say hello."')
    expect(request.locator("ins")).to_contain_text(['"input": "Say good night.",\n  "max_output_tokens": 50'])
    expect(request).to_contain_text('"temperature": 0.5')
    prompt = page.get_by_role("region", name="Prompt", exact=True)
    expect(prompt).to_contain_text("tokens, of which the first")
    assert "hello" in "".join(prompt.locator("del").all_inner_texts()) or prompt.locator("ins").count() > 0
    figures = page.get_by_role("table", name="Figures")
    expect(figures.get_by_role("row", name="tokens out")).to_contain_text("≠ yes")
    expect(figures.get_by_role("row", name="model")).not_to_contain_text("≠")


def test_first_event_that_differs_opens_in_its_timeline(open_tab: OpenTab, server: RunningServer) -> None:
    first, second = ask(server, "hello"), ask(server, "night")
    page = open_tab(address(server, first, second))
    events = page.get_by_role("region", name="First event that differs")
    expect(events.get_by_role("link")).to_have_count(2)
    expect(events).to_contain_text("output_text.delta [0.0] d")
    expect(events).to_contain_text("output_text.delta [0.0] n")
    link = events.get_by_role("link").last
    number = link.inner_text().split()[1]
    link.press("Enter")
    page.wait_for_url(f"{server.root}/ui/turns/{second}#event={number}")
    expect(page.locator("#changed")).to_contain_text(f"Event {number} appends to output[0].content[0].text: n")


def test_turns_that_did_the_same_have_no_difference(open_tab: OpenTab, server: RunningServer) -> None:
    first, second = ask(server, "Hi"), ask(server, "Hi")
    page = open_tab(address(server, first, second))
    for name in ("Output", "Request", "Prompt"):
        expect(page.get_by_role("region", name=name, exact=True)).to_contain_text("There is no difference.")
    expect(page.get_by_role("region", name="First event that differs")).to_contain_text("Their events are the same")


@pytest.mark.parametrize("way", ["mouse", "keyboard"])
def test_turns_are_marked_in_the_list(open_tab: OpenTab, server: RunningServer, way: str) -> None:
    ids = [ask(server, text) for text in ("a", "b", "c")]
    page = open_tab(f"turns#key={server.context.page_key}")
    rows = [page.get_by_role("row", name=turn_id[:20]) for turn_id in ids]
    for row in rows:
        if way == "mouse":
            row.get_by_role("checkbox").check()
        else:
            row.get_by_role("link").first.focus()
            page.keyboard.press("c")
        expect(row.get_by_role("checkbox")).to_be_checked()
    expect(rows[0].get_by_role("checkbox")).not_to_be_checked()
    link = page.get_by_role("link", name="Compare the two marked turns")
    link.click() if way == "mouse" else link.press("Enter")
    page.wait_for_url(f"{server.root}/ui/compare?a={ids[1]}&b={ids[2]}")
    expect(page.get_by_role("region", name="Output", exact=True)).to_be_visible()


def test_other_turn_is_chosen_by_its_id(open_tab: OpenTab, server: RunningServer) -> None:
    first, second = ask(server, "Hi"), ask(server, "night")
    page = open_tab(f"turns/{first}#key={server.context.page_key}")
    page.get_by_role("link", name="Compare").press("Enter")
    expect(page.get_by_label("first turn")).to_have_value(first)
    expect(page.locator("main")).to_contain_text("Choose two turns by their ids.")
    expect(page.locator("datalist option").first).to_have_attribute("value", second)
    page.get_by_label("second turn").fill(second)
    page.get_by_label("second turn").press("Enter")
    expect(page.get_by_role("region", name="Output", exact=True).locator("ins")).to_contain_text("night")
    assert page.url == f"{server.root}/ui/compare?a={first}&b={second}"
    page.get_by_label("second turn").fill(f" {first} ")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Output", exact=True)).to_contain_text("There is no difference.")


def test_turn_that_does_not_exist_says_so(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "resp_none"))
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("table", name="Figures")).to_have_count(0)


def test_what_was_not_recorded_says_why(browser: Any) -> None:
    with serve(SCRIPT, inspect="off") as server, open_page(browser, server.root) as (page, _):
        first, second = ask(server, "Hi"), ask(server, "night")
        page.goto(f"{server.root}/ui/{address(server, first, second)}")
        for name in ("Request", "Prompt"):
            part = page.get_by_role("region", name=name, exact=True)
            expect(part).to_contain_text("This turn was not recorded")
        expect(page.get_by_role("region", name="Output", exact=True).locator("ins")).to_contain_text("night")


def fulfill(body: str, route: Any) -> None:
    route.fulfill(body=body)


def play(requests: list[str], runs: list[str], **record: Any) -> Any:
    """Returns a function that plays two turns in a tab: their requests, and the lines of their prompts."""
    events = [[event for text in TEXTS[n::2] for event in hostile_events(text)] for n in range(2)]

    def before(page: Any) -> None:
        listen(page)
        for number in (0, 1):
            fake = FakeInspection([make_summary(1)], events=make_rows(events[number]), **make_summary(number, **record))
            page.route(f"**/turns/resp_{number}**", fake.answer)
            page.route(f"**/turns/resp_{number}/events?**", fake.answer)
            for path, bodies in (("request", requests), ("prompt?**", runs)):
                page.route(f"**/resp_{number}/{path}", partial(fulfill, bodies[number]))
        page.route("**/v1/inspect/turns?**", fake.answer)

    return before


def test_hostile_turns_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    requests = [json.dumps({text: [text, {text: text}] for text in [*TEXTS[n::2], ODD_TEXT]}) for n in range(2)]
    runs = [json.dumps({"ids": [*TEXTS[n::2], ODD_TEXT], "texts": [*TEXTS[n::2], ODD_TEXT]}) for n in range(2)]
    record = {"model": ODD_TEXT, "api": TEXTS[0], "ending": {"cause": TEXTS[1], "detail": TEXTS[2]}, "tools": TEXTS}
    page = open_tab("compare?a=resp_0&b=resp_1", before=play(requests, runs, **record))
    for name in ("Output", "Request", "Prompt"):
        expect(page.get_by_role("region", name=name, exact=True).locator("ins").first).to_be_attached()
    for button in page.get_by_role("button", name="equal characters").all():
        button.click()
    expect(page.get_by_role("region", name="First event that differs").locator(".mono")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("⟨U+202E⟩")
    check_unharmed(page, server)


def test_address_is_no_program(open_tab: OpenTab, server: RunningServer) -> None:
    from urllib.parse import quote

    for text in ("javascript:fire(1)", "../../v1", TEXTS[0], ODD_TEXT.replace("\ud800", "")):
        before = FakeInspection([make_summary(1, id=text)]).attach
        page = open_tab(
            f"compare?a={quote(text)}&b=x&__proto__=1", before=lambda page, do=before: (listen(page), do(page))
        )
        expect(page.locator("main")).to_contain_text("Choose two turns by their ids.")
        check_unharmed(page, server, shown="Choose two turns")


def test_huge_turns_leave_the_page_alive(open_tab: OpenTab) -> None:
    """Requests of 1 MB in one line and nested 10 000 deep, and 50 000 tokens that have nothing in common."""
    requests = [json.dumps({"input": "x" * 1_000_000}), f'{{"deep": {"[" * 10_000}{"]" * 10_000}}}']
    ids = [[(n * seed) % 65_537 for n in range(50_000)] for seed in (40_503, 30_011)]
    runs = [json.dumps({"ids": each, "texts": ["x"] * len(each)}) for each in ids]
    page = open_tab("compare?a=resp_0&b=resp_1", before=play(requests, runs))
    expect(page.get_by_role("region", name="Request", exact=True)).to_contain_text("more than can be compared")
    expect(page.get_by_role("region", name="Prompt", exact=True)).to_contain_text("50,000 and 50,000 tokens")
    expect(page.get_by_role("region", name="Prompt", exact=True).locator("del")).to_contain_text("x" * 200)


def test_comparison_is_accessible(open_tab: OpenTab, server: RunningServer) -> None:
    same = {f"key {number}": "A long line of words that stays the same." for number in range(12)}
    first, second = (ask(server, text, metadata=same) for text in ("Hi", "night"))
    page = open_tab(address(server, first, second))
    expect(page.get_by_role("button", name="equal characters").first).to_be_visible()
    check_every_look(page)
