"""The list of turns in a browser. The inspection API is played by the test."""

from functools import partial

import pytest

from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look
from tests.web.conftest import OpenTab
from tests.web.inspection import FakeInspection, make_summary

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, [{"name": "hello", "output": ["Hello."]}])
TURNS = [
    make_summary(3, ending={"cause": "stopped_in_call", "detail": "apply_patch"}, status="failed"),
    make_summary(2, ending=None, status="in_progress", output_tokens=None, seconds=None, tools=[]),
    make_summary(1, api="messages", model="a\u202eb", ending={"cause": "max_output_tokens", "detail": "64"}),
]


def test_list_shows_how_each_turn_ended(open_tab: OpenTab) -> None:
    page = open_tab("turns", before=FakeInspection(TURNS).attach)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("■ stopped in call")
    expect(rows.nth(0)).to_contain_text("8,120 (7,936)")
    expect(rows.nth(0)).to_contain_text("3.13 s")
    expect(rows.nth(1)).to_contain_text("▶ running")
    expect(rows.nth(1)).to_contain_text("–")
    expect(rows.nth(2)).to_contain_text("◐ max output tokens")
    expect(rows.nth(2)).to_contain_text("a⟨U+202E⟩b")
    expect(page.locator("nav [aria-current]")).to_have_text("Turns")


def test_filters_go_into_the_query_and_the_address(open_tab: OpenTab, server: RunningServer) -> None:
    fake = FakeInspection(TURNS)
    page = open_tab("turns?status=failed", before=fake.attach)
    expect(page.locator("tbody tr")).to_have_count(3)
    assert fake.queries[-1] == {"limit": ["50"], "status": ["failed"]}
    with page.expect_request("**/v1/inspect/turns?*ending=engine_fault*"):
        page.get_by_label("ending").select_option("engine fault")
    page.get_by_role("textbox", name="tool").fill("<b>&x")
    with page.expect_request("**/v1/inspect/turns?*tool=*"):
        page.get_by_role("textbox", name="tool").press("Tab")
    assert page.url == f"{server.root}/ui/turns?status=failed&ending=engine_fault&tool=%3Cb%3E%26x"
    page.reload()
    expect(page.get_by_role("textbox", name="tool")).to_have_value("<b>&x")
    assert fake.queries[-1]["tool"] == ["<b>&x"]


def test_more_turns_follow_the_last_one(open_tab: OpenTab) -> None:
    fake = FakeInspection([make_summary(number) for number in range(120, 0, -1)])
    page = open_tab("turns", before=fake.attach)
    for count in (50, 100, 120):
        expect(page.locator("tbody tr")).to_have_count(count)
        if count < 120:
            page.get_by_role("button", name="More").click()
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    assert [query.get("after") for query in fake.queries] == [None, ["resp_71"], ["resp_21"]]


def test_live_list_shows_new_turns(open_tab: OpenTab) -> None:
    fake = FakeInspection(TURNS[1:])
    page = open_tab("turns", before=fake.attach)
    expect(page.locator("tbody tr")).to_have_count(2)
    fake.turns = TURNS
    page.get_by_label("live").check()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_keyboard_alone_opens_a_turn(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab("turns", before=FakeInspection(TURNS).attach)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("tbody tr").nth(1).locator("a")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.root}/ui/turns/resp_2")


def test_single_key_shortcuts_can_be_switched_off(open_tab: OpenTab) -> None:
    page = open_tab("turns", before=FakeInspection(TURNS).attach)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.keyboard.press("/")
    expect(page.get_by_label("status")).to_be_focused()
    page.get_by_label("single-key shortcuts").uncheck()
    page.locator("h1").click()
    page.keyboard.press("/")
    expect(page.get_by_label("status")).not_to_be_focused()


def test_id_that_is_none_is_no_link(open_tab: OpenTab) -> None:
    turns = [make_summary(1, id=text) for text in ("../../v1", "javascript:alert(1)", "a b", "", "//evil.example/x")]
    page = open_tab("turns", before=FakeInspection(turns).attach)
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.locator("tbody a")).to_have_count(0)


@pytest.mark.parametrize(
    "turns", [[], [{}], [{"ending": 3, "tools": "x", "input_tokens": "many", "created_at": "never"}]]
)
def test_summaries_without_the_usual_fields_are_shown(open_tab: OpenTab, turns: list[dict[str, object]]) -> None:
    page = open_tab("turns", before=FakeInspection(turns).attach)
    expect(page.locator("tbody tr" if turns else "main p").last).to_be_visible()


def test_server_without_inspection_says_why(open_tab: OpenTab) -> None:
    def refuse(page: object) -> None:
        page.route("**/v1/inspect/**", lambda route: route.fulfill(status=403, json={"error": {"message": "Off."}}))  # type: ignore[attr-defined]

    page = open_tab("turns", before=refuse)
    expect(page.get_by_role("alert")).to_have_text("■ Off.")


def test_list_is_accessible(open_tab: OpenTab) -> None:
    page = open_tab("turns", before=FakeInspection(TURNS).attach)
    expect(page.locator("tbody tr")).to_have_count(3)
    check_every_look(page)
