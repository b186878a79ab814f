"""What hostile servers, files and clients can send to the terminal of the kit's commands: text, and nothing else."""

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.kit.hostile_server import ATTACKS, ENDPOINTS, run_hostile_server
from tests.kit.hostile_texts import HOSTILE_TEXTS, find_foreign_controls, find_terminal_controls
from tests.kit.proxy.wire_servers import make_request, read_all, send_raw
from tests.kit.pseudo_terminal import CTRL_C, PseudoTerminal, run_in_terminal

BAR_CONTROLS = re.compile(rb"\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|\r(?!OVER)")
"""What the progress bar of `antiphon check` writes to draw itself anew."""
MAX_OUTPUT_BYTES = 200_000
"""More than any report here has, and less than one attack of a megabyte."""


def check_output(terminal: PseudoTerminal) -> None:
    """Asserts that only text, line feeds, tabs and colours have reached the terminal."""
    assert not find_foreign_controls(terminal.output), find_foreign_controls(terminal.output)
    assert len(terminal.output) < MAX_OUTPUT_BYTES


@pytest.mark.parametrize("attack", ATTACKS)
def test_check_of_a_hostile_server(attack: str, tmp_path: Path) -> None:
    junit = tmp_path / "report.xml"
    cases = ("basics.text", "tools.call", "errors.unknown-model")
    options = [word for name in cases for word in ("--case", name)]
    with (
        run_hostile_server(ATTACKS[attack]) as url,
        run_in_terminal("check", url, *options, "--junit", str(junit)) as terminal,
    ):
        assert terminal.wait_end() == 1
    terminal.output = BAR_CONTROLS.sub(b"", terminal.output.replace(b"\r\n", b"\n"))
    check_output(terminal)
    assert "basics.text" in terminal.text and not find_terminal_controls(junit.read_text())


@pytest.mark.parametrize("attack", ATTACKS)
def test_json_report_has_escapes(attack: str) -> None:
    with (
        run_hostile_server(ATTACKS[attack]) as url,
        run_in_terminal("check", url, "--case", "basics.text", "--json") as terminal,
    ):
        assert terminal.wait_end() == 1
    output = BAR_CONTROLS.sub(b"", terminal.output.replace(b"\r\n", b"\n"))
    assert not find_foreign_controls(output)
    start = output.index(b"\n{") if not output.startswith(b"{") else 0
    report, _ = json.JSONDecoder().raw_decode(output[start:].decode().lstrip())
    assert report["model"] == json.loads(json.dumps(f"m{ATTACKS[attack]}"))


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_check_of_a_hostile_file(path: str, attack: str, tmp_path: Path) -> None:
    file = tmp_path / "stream.sse"
    broken = f"data: {{{HOSTILE_TEXTS['clear']}\n\n{HOSTILE_TEXTS['c1'].replace(chr(0x85), '')}\n".encode()
    file.write_bytes(ENDPOINTS[path](ATTACKS[attack]) + broken + b"event: \x9b\xff\ndata: \xed\xa0\x80\n\n")
    with run_in_terminal("check", str(file)) as terminal:
        terminal.wait_end()
    check_output(terminal)
    assert "findings" in terminal.text


@pytest.mark.parametrize("command", ["record", "proxy", "replay"])
def test_hostile_traffic(command: str, tmp_path: Path) -> None:
    """Hostile servers, hostile clients (in the path), and a cassette that does not have the request."""
    cassette = tmp_path / "tape.toml"
    cassette.write_text("version = 1\n")
    with run_hostile_server(ATTACKS["sequences"]) as url:
        arguments = {
            "record": ("record", url, "--out", str(cassette), "--append", "--port", "0"),
            "proxy": ("check", "--proxy", url, "--port", "0"),
            "replay": ("replay", str(cassette), "--port", "0"),
        }[command]
        with run_in_terminal(*arguments) as terminal:
            terminal.wait_for("Ctrl-C ends")
            found = re.search(r"base URL (http://\S+)/v1;", terminal.text)
            assert found
            for path in ENDPOINTS:
                httpx.post(found[1] + path, json={"model": ATTACKS["sequences"][:40], "input": "x"})
            with send_raw(
                found[1], make_request("POST", "/v1/responses?\x9b2J\x85", b"{}", "Connection: close")
            ) as raw:
                read_all(raw)
            terminal.wait_for("/v1/messages")
            terminal.type(CTRL_C)
            terminal.wait_end()
    check_output(terminal)


def test_hostile_cassette_is_refused_in_safe_lines(tmp_path: Path) -> None:
    cassette = tmp_path / "tape.toml"
    cassette.write_text('version = "\\u009b2J\\u202e\\u001b[2J"\n')
    with run_in_terminal("replay", str(cassette)) as terminal:
        assert terminal.wait_end() == 1
    check_output(terminal)
    assert "version is" in terminal.text


def test_hostile_configuration_is_refused_in_safe_lines(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('"\\u009b2J\\u202e\\u001b[2J\\r" = 1\n')
    with run_in_terminal("serve", "--config", str(config)) as terminal:
        assert terminal.wait_end() == 2
    check_output(terminal)
    assert "␛[2J␍: unknown key" in terminal.text
