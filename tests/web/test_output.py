"""The generated tokens of a turn, over the real inspection API."""

import json
import re
from functools import partial
from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve
from tests.web.accessibility import check_every_look, list_violations
from tests.web.browser import open_page
from tests.web.conftest import OpenTab
from tests.web.hostile_texts import ODD_TEXT, check_unharmed, listen
from tests.web.inspection import FakeInspection, make_rows, make_summary
from tests.web.turn_pages import SCRIPT, TEXTS, address, ask

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect

SERVER = partial(serve, SCRIPT)
SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
Json = dict[str, Any]


def complete(server: RunningServer) -> tuple[str, list[Json]]:
    """Makes a text completion with log-probabilities. Returns its id, and its tokens as the API has them."""
    headers = {"authorization": f"Bearer {server.context.page_key}"}
    body = {"model": "scripted", "prompt": "Hi", "logprobs": 3}
    httpx.post(f"{server.url}/completions", json=body, timeout=HANG_TIMEOUT_S).raise_for_status()
    turns = httpx.get(f"{server.url}/inspect/turns?api=completions", headers=headers).json()["data"]
    text = httpx.get(f"{server.url}/inspect/turns/{turns[0]['id']}/events", headers=headers).text
    lines = [json.loads(line) for line in text.splitlines()]
    return turns[0]["id"], [token for line in lines for token in line.get("detail", {}).get("logprobs", [])]


def make_log(tokens: list[Json]) -> FakeInspection:
    """Returns the API with a turn of these tokens, one an event."""
    events = [{"type": "other", "sequence_number": n, "delta": str(n)} for n in range(len(tokens))]
    rows = [row | {"detail": {"logprobs": [token]}} for row, token in zip(make_rows(events), tokens, strict=True)]
    return FakeInspection(events=rows, **make_summary(1))


def test_tokens_are_those_of_the_log_with_their_alternatives(open_tab: OpenTab, server: RunningServer) -> None:
    turn_id, details = complete(server)
    assert len(details) > 10 and all(len(token["top"]) == 3 for token in details)
    page = open_tab(address(server, turn_id, "output"))
    expect(page.get_by_role("option")).to_have_count(len(details))
    chosen = page.get_by_role("region", name="Chosen token")
    page.get_by_role("listbox", name="Tokens").focus()
    page.keyboard.press("Home")
    for number, token in enumerate(details, 1):
        expect(chosen.get_by_role("heading").first).to_contain_text(f"Token {number}: ")
        expect(chosen).to_contain_text(f"−log p{-token['logprob']:.3f}")
        expect(chosen.get_by_role("listitem")).to_have_count(3)
        expect(chosen.get_by_role("listitem").first).to_contain_text(f"id {token['id']}")
        expect(chosen.get_by_role("listitem").first).to_contain_text("● generated")
        expect(chosen.get_by_role("listitem").last).to_contain_text(f"id {token['top'][2][0]}")
        page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("#event="))
    page.reload()
    expect(chosen.get_by_role("heading").first).to_contain_text("Token ")


def test_tokens_of_a_message_stand_among_its_other_texts(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi", **SCORED), "output"))
    unscored, scored = [f"{text} no probability" for text in "Hm."], "Hello, you."
    options = page.get_by_role("option")
    expect(options).to_have_count(len(unscored) + len(scored))
    for number, text in enumerate(unscored):
        expect(options.nth(number)).to_have_text(text)
    page.locator("#token-3").click()
    chosen = page.get_by_role("region", name="Chosen token")
    expect(chosen).to_contain_text("Token 4: “H”")
    expect(chosen.get_by_role("listitem")).to_have_count(3)
    expect(chosen.get_by_role("listitem").first).to_contain_text("● generated")
    expect(chosen.get_by_role("listitem").last).not_to_contain_text("generated")


def test_token_is_chosen_with_the_mouse_and_the_ends_with_keys(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi", **SCORED), "output"))
    box = page.get_by_role("listbox", name="Tokens")
    page.locator("#token-3").click()
    expect(box).to_have_attribute("aria-activedescendant", "token-3")
    last = page.get_by_role("option").count() - 1
    box.focus()
    for key, index in (("End", last), ("ArrowRight", last), ("Home", 0), ("ArrowLeft", 0), ("PageDown", last)):
        page.keyboard.press(key)
        expect(page.locator('[aria-selected="true"]')).to_have_attribute("id", f"token-{index}")


def test_shades_have_words_and_a_pattern(open_tab: OpenTab) -> None:
    logprobs = [-0.01, -0.5, -2, -4, -9, None]
    tokens = [{"id": n, "text": "x\n", "logprob": logprob, "top": []} for n, logprob in enumerate(logprobs)]
    page = open_tab("turns/resp_1?view=output", before=make_log(tokens).attach)
    words = ["90 % or more", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %", "no probability"]
    options = page.get_by_role("option")
    expect(options).to_have_text([f"x⏎ {each}" for each in words])
    looks = [
        each.evaluate("(e) => { const s = getComputedStyle(e); return s.borderBottomStyle + s.backgroundColor; }")
        for each in options.all()
    ]
    assert len(set(looks[:5])) == 5, looks
    expect(page.locator("main")).to_contain_text("The request asked for none.")


def test_output_without_log_probabilities_shows_texts(open_tab: OpenTab, server: RunningServer) -> None:
    page = open_tab(address(server, ask(server, "Hi"), "output"))
    expect(page.locator("main")).to_contain_text("This turn has no log-probabilities")
    box = page.get_by_role("listbox", name="Texts by events")
    expect(box.get_by_role("option").first).to_contain_text("ids ")
    box.focus()
    page.keyboard.press("End")
    expect(box.locator('[aria-selected="true"]')).to_contain_text("ids ")
    expect(page).to_have_url(re.compile("#event="))


def test_output_of_a_turn_that_was_not_recorded(browser: Any) -> None:
    with serve(SCRIPT, inspect="off") as server, open_page(browser, server.root) as (page, _):
        page.goto(f"{server.root}/ui/{address(server, ask(server, 'Hi'), 'output')}")
        expect(page.locator("main")).to_contain_text("This turn has no log-probabilities")
        expect(page.get_by_role("listbox").get_by_text("y", exact=True)).to_be_visible()


def test_many_tokens_are_shown_in_parts(open_tab: OpenTab) -> None:
    tokens = [{"id": n, "text": "x", "logprob": -1.0, "top": []} for n in range(2500)]
    page = open_tab("turns/resp_1?view=output#event=1500", before=make_log(tokens).attach)
    expect(page.locator("#tokens-shown")).to_have_text("tokens 1,001 to 2,000 of 2,500")
    expect(page.locator("#token-1500")).to_be_visible()
    page.get_by_role("button", name="Next tokens").press("Enter")
    expect(page.get_by_role("option")).to_have_count(500)
    page.get_by_role("button", name="Tokens before").click()
    page.get_by_role("button", name="Tokens before").click()
    expect(page.locator("#tokens-shown")).to_have_text("tokens 1 to 1,000 of 2,500")
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    expect(page.locator("#token-2499")).to_be_visible()


def test_hostile_tokens_are_text(open_tab: OpenTab, server: RunningServer) -> None:
    texts: list[Any] = [*TEXTS, ODD_TEXT, "x" * 100_000, {}, None]
    tokens = [{"id": text, "text": text, "logprob": text, "top": [[text, text, text], text]} for text in texts]
    fake = make_log(tokens)

    def before(page: Any) -> None:
        listen(page)
        fake.attach(page)

    page = open_tab("turns/resp_1?view=output", before=before)
    expect(page.get_by_role("option")).to_have_count(len(texts))
    page.get_by_role("listbox").focus()
    page.keyboard.press("Home")
    for _ in texts:
        page.keyboard.press("ArrowRight")
    expect(page.locator(f"#token-{len(TEXTS)}")).to_contain_text("⟨U+202E⟩")
    check_unharmed(page, server)


@pytest.mark.parametrize("fields", [SCORED, {}], ids=["tokens", "texts"])
def test_output_is_accessible(open_tab: OpenTab, server: RunningServer, fields: Json) -> None:
    page = open_tab(address(server, ask(server, "Hi", **fields), "output"))
    expect(page.get_by_role("option").first).to_be_visible()
    check_every_look(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_shade_can_be_read(open_tab: OpenTab, scheme: str) -> None:
    tokens = [{"id": n, "text": "text", "logprob": -float(n * n) / 2 - 0.01, "top": []} for n in range(5)]
    page = open_tab("turns/resp_1?view=output", before=make_log(tokens).attach, color_scheme=scheme)
    expect(page.get_by_role("option")).to_have_count(5)
    assert list_violations(page) == []
