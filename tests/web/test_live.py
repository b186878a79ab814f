"""The live view: what the server does now, over the real inspection API."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, list_texts, listen, open_everything

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SCRIPT = [
    {"name": "slow", "when": ["slow"], "output": ["One. ", {"pause": HANG_TIMEOUT_S}, "Two."]},
    {"name": "hello", "output": ["Hello."]},
]
SERVER = partial(serve, SCRIPT)
TEXTS = [text for _, text in list_texts()]
Json = dict[str, Any]


@contextmanager
def run_turn(server: RunningServer, key: str = "none") -> Iterator[str]:
    """Runs a turn while a client reads its stream. Yields its id."""
    body = {"model": "scripted", "input": "slow", "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    url = f"{server.url}/responses"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=HANG_TIMEOUT_S) as reply:
        lines = reply.iter_lines()  # the connection is closed once nothing refers to it
        yield next(json.loads(line[6:])["response"]["id"] for line in lines if line.startswith("data: "))


def make_frame(number: int, **changes: Any) -> Json:
    """Returns the frame of a second, in which the engine generated as many tokens as its number says."""
    turn = {"id": "resp_1", "api": "chat", "model": "m", "stage": "decode", "seconds": 8.25, "background": False}
    turn |= {"input_tokens": 8120, "cached_tokens": 7936, "output_tokens": 100 * number}
    engine = {"model": "m", "running": 9, "waiting": 3, "max_num_seqs": 16, "generated_tokens": 812 * number}
    engine |= {"prompt_tokens": 200, "prefix_hit_tokens": 122, "running_cache_tokens": 400, "idle_cache_tokens": 12}
    processes = [{"pid": 4711, "name": "worker", "resident_bytes": 3_200_000_000}]
    frame = {"at": 1_790_000_000 + number, "turns": [turn], "turns_of_others": 2, "engines": [engine]}
    return frame | {"processes": processes} | changes


def play(frames: list[Json]) -> Any:
    """Returns a function that plays these frames in a tab. The stream ends after them, and is opened again."""
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)

    def before(page: Any) -> None:
        listen(page)
        page.route("**/v1/inspect/live", lambda route: route.fulfill(body=body, content_type="text/event-stream"))

    return before


def test_running_turn_is_shown_until_it_ends(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(f"live#key={server.context.page_key}")
    expect(page.locator("main")).to_contain_text("No turn of this key runs now.")
    with run_turn(server) as turn_id:
        row = page.get_by_role("row", name=turn_id[:20])
        expect(row).to_contain_text("responses")
        expect(row).to_contain_text("decode")
        expect(page.get_by_role("row", name="scripted").last).to_contain_text("1 of 64")
        expect(row.get_by_role("button")).to_have_count(0)
        assert server.context.page_key not in page.url
    expect(page.locator("main")).to_contain_text("No turn of this key runs now.")
    expect(page.get_by_role("table", name="Processes").locator("tbody tr").first).to_contain_text(re.compile("[MG]B"))


def test_turn_is_watched_by_keyboard_alone(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(f"#key={server.context.page_key}")
    page.get_by_role("link", name="Live").press("Enter")
    with run_turn(server) as turn_id:
        page.get_by_role("link", name=turn_id[:20]).press("Enter")
        page.wait_for_url(f"{server.root}/ui/turns/{turn_id}")
        expect(page.locator(".response")).to_contain_text("One. ")


@pytest.mark.parametrize("key", ["mouse", "Enter"])
def test_background_turn_is_cancelled(open_tab: OpenTab, server: RunningServer, key: str) -> None:
    body = {"model": "scripted", "input": "slow", "background": True}
    turn_id = httpx.post(f"{server.url}/responses", json=body).json()["id"]
    page = open_tab(f"live#key={server.context.page_key}")
    button = page.get_by_role("row", name=turn_id[:20]).get_by_role("button", name="Cancel")
    button.click() if key == "mouse" else button.press(key)
    expect(button).to_have_count(0)
    url = f"{server.url}/responses/{turn_id}"
    wait_with_progress(lambda: httpx.get(url).json()["status"] == "cancelled", "the store shows it")


def test_cancelling_that_fails_says_why(open_tab: OpenTab) -> None:
    turn = make_frame(1)["turns"][0] | {"background": True}
    page = open_tab("live", before=play([make_frame(1, turns=[turn])]))
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert").last).to_contain_text("resp_1")


def test_figures_and_rates_are_those_of_the_frames(open_tab: OpenTab) -> None:
    page = open_tab("live", before=play([make_frame(1), make_frame(2), make_frame(3)]))
    expect(page.locator(".curves")).to_contain_text("tokens a second812")
    expect(page.get_by_role("img", name="tokens a second, 3 s: now 812, at most 812")).to_be_visible()
    expect(page.get_by_role("img", name="memory, 3 s: now 3.2 GB, at most 3.2 GB")).to_be_visible()
    turn = page.get_by_role("table", name="Turns that run").locator("tbody tr")
    cells = ["resp_1", "chat", "m", "decode", "8,120 (7,936)", "300", "8.25 s", "100", "–"]
    expect(turn.locator("th, td")).to_have_text(cells)
    engine = page.get_by_role("table", name="Engines").locator("tbody tr")
    expect(engine.locator("th, td")).to_have_text(["m", "9 of 16", "3", "812", "61 %", "412", "{9}"])
    engine.locator("summary").press("Enter")
    expect(engine).to_contain_text("prefix_hit_tokens: 122")
    expect(page.get_by_role("table", name="Processes")).to_contain_text("4711worker3.2 GB")
    expect(page.locator("main")).to_contain_text("2 of other keys")


def test_curve_is_drawn(open_tab: OpenTab) -> None:
    page = open_tab("live", before=play([make_frame(1), make_frame(2), make_frame(5)]))
    expect(page.get_by_role("img", name="tokens a second, 3 s")).to_be_visible()
    drawn = """(canvas) => {
        const { data } = canvas.getContext("2d").getImageData(297, 0, 3, 32);
        return data.filter((value, i) => i % 4 === 3 && value > 0).length;
    }"""
    assert page.locator("canvas").first.evaluate(drawn) > 2


def test_stream_that_ends_is_opened_again(open_tab: OpenTab) -> None:
    page = open_tab("live", before=play([make_frame(1)]))
    expect(page.get_by_role("alert")).to_contain_text("the stream has ended")
    page.unroute("**/v1/inspect/live")
    play([make_frame(2)])(page)
    expect(page.get_by_role("img", name="running, 2 s")).to_be_visible()


def test_view_is_paused(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(f"live#key={server.context.page_key}")
    expect(page.get_by_role("table", name="Engines")).to_be_visible()
    with page.expect_event("requestfailed"):
        page.get_by_label("live").press("Space")
    expect(page.get_by_role("table", name="Engines")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    with page.expect_request("**/v1/inspect/live"):
        page.get_by_label("live").check()


def test_view_asks_for_a_key_and_counts_turns_of_others(browser: Any) -> None:
    keys = ("sk-one", "sk-two")
    with (
        serve(SCRIPT, api_keys=keys, inspect="memory") as server,
        run_turn(server, "sk-one"),
        open_page(browser, server.root) as (page, _),
    ):
        page.goto(f"{server.root}/ui/live")
        field = page.get_by_label("A key is needed")
        field.fill("sk-two")
        field.press("Enter")
        expect(page.locator("main")).to_contain_text("1 of other keys")
        expect(page.locator("main")).to_contain_text("No turn of this key runs now.")


def test_hostile_frames_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    texts: list[Any] = [*TEXTS, ODD_TEXT, {}, None, [[]]]
    names = ("id", "api", "model", "stage", "seconds", "input_tokens", "output_tokens", "pid", "name", "running")
    rows = [dict.fromkeys(names, text) | {str(text): text, "background": True} for text in texts]
    odd = {"turns": texts, "engines": texts, "processes": texts, "turns_of_others": TEXTS[0], "at": TEXTS[0]}
    frames = [odd, make_frame(1, turns=rows, engines=rows, processes=rows, turns_of_others=-1)]
    page = open_tab("live", before=play(frames))
    expect(page.get_by_role("table", name="Engines").locator("tbody tr")).to_have_count(len(texts))
    open_everything(page)
    expect(page.get_by_role("table", name="Turns")).to_contain_text("⟨U+202E⟩")
    expect(page.get_by_role("table", name="Turns").locator("a")).to_have_count(3)
    check_unharmed(page, server)


def test_live_view_is_accessible(open_tab: OpenTab) -> None:
    turns = [make_frame(1)["turns"][0] | {"id": f"resp_{n}", "background": n == 1} for n in range(2)]
    page = open_tab("live", before=play([make_frame(n, turns=turns) for n in range(3)]))
    expect(page.locator("canvas").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("live").uncheck()
    page.get_by_role("table", name="Engines").locator("summary").click()
    check_every_look(page)
