"""Play: a request is typed and sent, and its calls are answered."""

import json
from functools import partial
from typing import Any, get_args

import pytest

from antiphon.app.requests.fields.common import Effort
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, hostile_events, list_texts, listen
from tests.web.inspection import FakeInspection, make_rows, make_summary
from tests.web.played_requests import MODELS, SCRIPT, expect, find_item, last_request, last_turn, send
from tests.web.sources import WEB

SERVER = partial(serve, partial(scripted_registry, SCRIPT, names=MODELS), inspect="memory")
TEXTS = [text for _, text in list_texts()]


def test_new_request_is_sent_with_what_was_typed(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab()
    page.get_by_role("link", name="Play").click()
    find_item(page, "0: user").fill("Say it in JSON.")
    page.get_by_label("Instructions").fill("Be brief.")
    page.get_by_label("Reasoning effort").select_option("low")
    page.get_by_role("button", name="JSON schema").click()
    page.get_by_role("button", name="example").click()
    page.get_by_label("Other fields").fill('{"max_output_tokens": 99, "tool_choice": "none"}')
    replies = send(page)
    expect(replies).to_contain_text('{"answer": "yes"}')
    request = last_request(server)
    assert [tool["name"] for tool in request.pop("tools")] == ["get_weather"]
    assert request.pop("text")["format"]["type"] == "json_schema"
    assert request == {
        "model": "scripted",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Say it in JSON."}],
        "reasoning": {"effort": "low"},
        "max_output_tokens": 99,
        "tool_choice": "none",
        "stream": True,
    }
    expect(page.locator(".column")).to_contain_text("tokens a second")
    page.get_by_role("link", name="Open this turn").click()
    page.wait_for_url(f"{server.root}/ui/turns/resp_*")


def test_keyboard_alone_sends_a_request(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("play")
    expect(page.get_by_role("checkbox", name="scripted")).to_be_checked()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "TEXTAREA":
            break
    page.keyboard.type("Be kind.")
    page.keyboard.press("Tab")
    page.keyboard.type("Hi")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".column .output")).to_contain_text("completed")
    request = last_request(server)
    assert (request["instructions"], request["input"]) == ("Be kind.", [{"role": "user", "content": "Hi"}])


def test_up_to_three_models_answer_side_by_side(open_tab: OpenTab) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("Hi")
    for name in ("other", "third", "fourth"):
        page.get_by_role("checkbox", name=name).check()
    expect(page.get_by_role("checkbox", name="scripted")).not_to_be_checked()
    page.get_by_role("button", name="Send", exact=True).click()
    for name in ("other", "third", "fourth"):
        column = page.get_by_role("region", name=name, exact=True)
        expect(column).to_contain_text("completed")
        expect(column).to_contain_text("Hello, you.")
    expect(page.locator(".column")).to_have_count(3)


@pytest.mark.parametrize("background", [False, True])
def test_stop_ends_the_turn(open_tab: OpenTab, server: RunningServer, background: bool) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("slow")
    page.get_by_label("Other fields").fill(json.dumps({"background": background}))
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".column .item")).to_contain_text("One.")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.get_by_role("alert")).to_have_text("■ Stopped.")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    wait_with_progress(lambda: last_turn(server)["ending"] is not None, "the turn ends")
    assert last_turn(server)["ending"]["cause"] == ("cancelled" if background else "client_left")


def test_calls_are_answered_by_typing(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("How is the weather?")
    page.get_by_role("button", name="example").click()
    send(page)
    answer = page.get_by_label('Answer to get_weather {"city": "Oslo"}')
    answer.fill("12 degrees")
    page.get_by_role("button", name="Send the answers").press("Enter")
    expect(page.locator(".column .output").last).to_contain_text("It is 12 degrees in Oslo.")
    expect(answer).to_have_count(0)
    types = [item.get("type", item.get("role")) for item in last_request(server)["input"]]
    assert types == ["user", "function_call", "function_call_output"]
    page.get_by_role("button", name="Use as input").last.click()
    expect(find_item(page, "3: assistant")).to_have_value("It is 12 degrees in Oslo.")
    expect(find_item(page, "2: function_call_output")).to_have_value("12 degrees")


def test_items_are_added_and_removed(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("Hi")
    page.get_by_role("button", name="assistant").click()
    find_item(page, "1: assistant").fill("Yes?")
    page.get_by_role("button", name="item as JSON").click()
    find_item(page, "2: item").fill('{"role": "user", "content": "Go on."}')
    page.get_by_role("button", name="developer").click()
    page.get_by_role("button", name="Remove item 3").click()
    send(page)
    assert last_request(server)["input"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Go on."},
    ]


def test_fault_of_the_form_or_the_request_is_named(open_tab: OpenTab) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("Hi")
    page.get_by_label("Tools").fill("[{")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("■ Tools: this is no JSON.")
    page.get_by_label("Tools").fill("")
    page.get_by_label("Other fields").fill('{"temperature": 99}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("temperature")


def test_server_with_keys_needs_one(browser: Any) -> None:
    with serve(SCRIPT, api_keys=("sk-one",)) as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/play")
        field = page.get_by_label("A key is needed")
        field.fill("sk-one")
        field.press("Enter")
        find_item(page, "0: user").fill("Hi")
        expect(send(page)).to_contain_text("Hello, you.")


def test_hostile_texts_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    models = {"data": [{"id": text} for text in TEXTS]}
    events = [event for text in [*TEXTS, ODD_TEXT] for event in hostile_events(text)[1:2]]
    items: list[Any] = [
        {"type": "function_call", "call_id": text, "name": text, "arguments": text, text: text} for text in TEXTS
    ]
    items += [*TEXTS, ODD_TEXT, {text: text for text in TEXTS}, None]
    done = {"type": "response.completed", "response": {"id": TEXTS[0], "status": TEXTS[1], "output": items}}
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in [*events, done])
    request = {"model": TEXTS[0], "input": items, "instructions": ODD_TEXT, "tools": TEXTS, TEXTS[0]: TEXTS[1]}
    fake = FakeInspection(events=make_rows([*events, done]), **make_summary(1))

    def before(page: Any) -> None:
        listen(page)
        fake.attach(page)
        page.route("**/v1/models", lambda route: route.fulfill(body=json.dumps(models)))
        page.route("**/v1/responses", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
        page.route("**/resp_1/request", lambda route: route.fulfill(body=json.dumps(request)))

    page = open_tab("play?fork=resp_1", before=before)
    expect(page.get_by_role("button", name="Remove item").last).to_be_visible()
    page.get_by_label("up to item").select_option(str(len(items) - 1))
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("button", name="Send the answers")).to_be_visible()
    expect(page.locator(".column")).to_contain_text("⟨U+202E⟩")
    check_unharmed(page, server)
    page.get_by_role("button", name="Use as input").click()
    expect(page.get_by_role("button", name=f"Remove item {len(items)}")).to_be_visible()
    check_unharmed(page, server)


def test_page_offers_the_efforts_of_the_api() -> None:
    text = (WEB / "lib/play.js").read_text(encoding="utf-8")
    offered = text.partition("EFFORTS = Object.freeze(")[2].partition(")")[0]
    assert json.loads(offered) == list(get_args(Effort))


def test_play_is_accessible(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("play")
    find_item(page, "0: user").fill("How is the weather?")
    page.get_by_role("button", name="example").click()
    page.get_by_role("checkbox", name="other").check()
    send(page)
    expect(page.get_by_role("button", name="Send the answers")).to_have_count(2)
    page.get_by_role("button", name="Use as input").first.click()
    check_every_look(page)
