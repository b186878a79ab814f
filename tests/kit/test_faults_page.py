"""The page about faults: its tables have every kind and key, and its examples do what they say."""

import re
import tomllib
from functools import partial
from typing import Any, get_args

import httpx
import msgspec
import pytest

from antiphon.engine.scripted.script import Recording, parse_script
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.faults.fault import FaultKind, WireFault, parse_fault
from antiphon.kit.snapshot.sources import parse_sse
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve
from tests.snapshots.cases import RUN
from tests.syntax import ROOT

PAGE = (ROOT / "docs/reference/faults.md").read_text(encoding="utf-8")
SCRIPTS = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
REPLIES: list[dict[str, Any]] = [reply for script in SCRIPTS for reply in script["reply"] if "fault" in reply]
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", PAGE, re.MULTILINE)
BRIEF = {"slow": 0.1}
"""Seconds of pauses that would make the test slow."""


def make_registry() -> Any:
    replies = [
        {**reply, "fault": reply["fault"] | ({"seconds": BRIEF[reply["name"]]} if reply["name"] in BRIEF else {})}
        for reply in REPLIES
    ]
    return scripted_registry(replies)


SERVER = partial(serve, make_registry)


def test_page_has_a_row_and_an_example_for_every_kind() -> None:
    rows = [name for name, _ in ROWS]
    assert set(get_args(FaultKind)) <= set(rows)
    assert {reply["fault"]["kind"] for reply in REPLIES} == set(get_args(FaultKind))


def test_page_describes_every_key() -> None:
    fields = set(WireFault.__struct_fields__) - {"kind"}
    keys = PAGE.split("| key |")[1].split("\n\n")[0]
    assert fields == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", keys, re.MULTILINE))))


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: str(reply["name"]))
def test_example_is_a_fault(reply: dict[str, Any]) -> None:
    assert parse_fault(reply["fault"])


@pytest.mark.parametrize(
    "reply",
    [r for r in REPLIES if r["fault"]["kind"] not in ("reset", "status") and r["name"] != "silent"],
    ids=lambda reply: str(reply["name"]),
)
def test_checker_finds_what_the_page_says(server: RunningServer, reply: dict[str, Any]) -> None:
    body = {"model": "scripted", "input": reply["name"], "tools": [RUN], "stream": True}
    stream = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).content
    found = {finding.code for finding in check_sse(stream) if finding.level == "error"}
    promised = dict(ROWS)[reply["fault"]["kind"]].strip("`")
    assert promised in found if not promised.startswith("nothing") else not found


@pytest.mark.parametrize(("tokens_per_chunk", "text"), [(1, "He"), (0, "Hello,")])
def test_number_counts_what_the_page_says(start_server: Any, tokens_per_chunk: int, text: str) -> None:
    [cut] = [reply for reply in SCRIPTS[0]["reply"] if reply["name"] == "cut"]
    server = start_server([cut | {"tokens_per_chunk": tokens_per_chunk}])
    body = {"model": "scripted", "input": "cut", "stream": True}
    events = parse_sse(httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).content)
    assert "".join(event.get("delta", "") for event in events) == text
    assert f"after `{text}`" in PAGE


def test_recording_example_is_a_script() -> None:
    [script] = [script for script in SCRIPTS if "recording" in script]
    assert msgspec.convert(script["recording"], Recording).model == "antiphon"
    assert parse_script(script)[0].prompt
