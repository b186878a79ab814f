"""Failures of the plugin quote what a server sent: they are safe for the terminal that pytest writes to."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.kit.pytest_plugin.cassette import CassettePool
from antiphon.kit.pytest_plugin.server import ServerOutput
from antiphon.kit.pytest_plugin.snapshot_files import StreamSnapshot
from antiphon.kit.testing import assert_conformant, format_stream
from tests.kit.hostile_server import ATTACKS, encode_stream, list_chat_chunks, list_responses_events, spoil
from tests.kit.hostile_texts import find_terminal_controls

ATTACK = ATTACKS["sequences"]


@pytest.mark.parametrize("list_events", [list_responses_events, list_chat_chunks])
@pytest.mark.parametrize("attack", ATTACKS)
def test_findings(list_events: Callable[[str], list[dict[str, Any]]], attack: str) -> None:
    events = spoil(list_events("m"), ATTACKS[attack])
    events.append(events[1])  # after the end, which breaks a rule in both APIs
    for stream in (events, encode_stream(events, names=list_events is list_responses_events)):
        with pytest.raises(AssertionError) as caught:
            assert_conformant(stream)
        text = str(caught.value)
        assert not find_terminal_controls(text) and len(text) < 200_000 and "the stream breaks" in text


def test_difference_from_a_snapshot() -> None:
    events = list_responses_events("m")
    shown, written = format_stream(spoil(events, ATTACK)), format_stream(events)
    assert find_terminal_controls(shown), "the file keeps what came"
    for pair in ((shown, written), (written, shown)):
        text = "\n".join(StreamSnapshot().diff_lines(*pair))
        assert not find_terminal_controls(text) and "␛[2J" in text


def test_output_of_the_server() -> None:
    reader, writer = os.pipe()
    output = ServerOutput(os.fdopen(reader, encoding="utf-8", errors="replace"))
    lines = [json.dumps({"event": ATTACK, "reason": ATTACK}), ATTACK[:-4]]
    os.write(writer, "\n".join(lines).encode())
    os.close(writer)
    text = output.read_to_end()
    assert not find_terminal_controls(text) and "reason=x␛[2J" in text


def test_unreadable_cassette_and_its_misses(tmp_path: Path) -> None:
    (tmp_path / "tape.toml").write_text('version = "\\u001b[2J"\n')
    pool = CassettePool("replay", tmp_path / "test_it.py", "test_it")
    with pytest.raises(pytest.fail.Exception, match=r"version is '(\\x1b|␛)\[2J'") as unreadable:
        pool.open_cassette("tape.toml")
    assert not find_terminal_controls(str(unreadable.value))
    (tmp_path / "tape.toml").write_text("version = 1\n")
    pool._misses.append(ATTACK)
    with pytest.raises(pytest.fail.Exception, match=r"␛\[2J") as missing, pool:
        pass
    assert not find_terminal_controls(str(missing.value))
