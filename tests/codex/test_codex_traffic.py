"""The real Codex through the checking proxy, the recorder and the player: nothing changes, and nothing is found."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.kit.cassette.exchanges import RecordedExchange
from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.checker.stream import check_sse
from tests.codex.codex_process import API_KEY, CodexCli, CodexRun
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.codex.replies import COMMAND, LAST_REPLY, make_command_call, make_reply
from tests.engine.threaded_engine import ThreadWorker
from tests.kit.cassette.cassette_files import run_player, run_recorder
from tests.kit.proxy.wire_servers import run_checked_proxy
from tests.serving import RunningServer, serve

PROMPT = "run `echo antiphon-7391`"
SCRIPT = [
    make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
    make_reply("run", "<think>\nI run it.\n</think>\n\n", make_command_call(COMMAND)),
    LAST_REPLY,
]


@pytest.fixture(scope="module")
def embedded_server() -> Iterator[RunningServer]:
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    with serve(make_registry(engine, load_model_format()), api_keys=(API_KEY,)) as server:
        yield server


def describe_run(run: CodexRun) -> list[object]:
    """Returns what a user of Codex sees, without ids and times."""
    items = [event["item"] for event in run.events_of_type("item.completed")]
    shown = [
        {key: item.get(key) for key in ("type", "text", "command", "aggregated_output", "exit_code")} for item in items
    ]
    return [run.exit_code, shown, [event["usage"] for event in run.events_of_type("turn.completed")]]


def run_codex(codex: CodexCli, server: RunningServer, url: str, *options: str, prompt: str = PROMPT) -> CodexRun:
    return codex.exec(msgspec.structs.replace(server, url=url), prompt, *options)


@pytest.mark.parametrize(
    "options", [(), ("model_providers.antiphon.supports_websockets=true",)], ids=["POST", "WebSocket"]
)
def test_proxy_finds_nothing_and_changes_nothing(codex: CodexCli, options: tuple[str, ...]) -> None:
    with serve(SCRIPT, api_keys=(API_KEY,)) as server:
        direct = describe_run(run_codex(codex, server, server.url, *options, prompt="Run it."))
    with serve(SCRIPT, api_keys=(API_KEY,)) as server, run_checked_proxy(server.url) as proxy:
        through = describe_run(run_codex(codex, server, proxy.url, *options, prompt="Run it."))
        kind = "websocket turn" if options else "stream"
        reports = [report for report in proxy.wait_reports(2) if report.kind == kind]
    assert direct == through and direct[0] == 0
    assert len(reports) >= 2
    assert [str(finding) for report in reports for finding in report.findings if finding.level != "note"] == []


@needs_weights
def test_turn_of_the_embedded_model_is_checked_without_a_finding(
    codex: CodexCli, embedded_server: RunningServer
) -> None:
    with run_checked_proxy(embedded_server.url) as proxy:
        run = run_codex(codex, embedded_server, proxy.url)
        reports = proxy.wait_reports(2)
    assert "antiphon-7391" in run.final_message
    assert [
        (report.kind, [str(finding) for finding in report.findings if finding.level != "note"]) for report in reports
    ] == [
        ("stream", []),
        ("stream", []),
    ]


@needs_weights
def test_recorded_turn_is_replayed_with_the_same_bytes(
    codex: CodexCli, embedded_server: RunningServer, tmp_path: Path
) -> None:
    """The player is recorded in its turn, so that the bytes which Codex got can be compared."""
    recorded, replayed = tmp_path / "recorded.toml", tmp_path / "replayed.toml"
    with run_recorder(embedded_server.url, recorded) as url:
        first = run_codex(codex, embedded_server, url)
    with run_player(recorded) as player_url, run_recorder(player_url, replayed) as url:
        second = run_codex(codex, embedded_server, url)
    assert describe_run(first) == describe_run(second) and first.exit_code == 0
    streams = [read_streams(path) for path in (recorded, replayed)]
    assert streams[0] == streams[1] and len(streams[0]) == 2
    assert not [finding for stream in streams[0] for finding in check_sse(stream) if finding.level == "error"]
    assert API_KEY not in recorded.read_text(encoding="utf-8")


def read_streams(path: Path) -> list[bytes]:
    """Returns the events of each exchange up to the one at which Codex closes the connection."""
    return [join_frames(exchange) for exchange in read_cassette(path)]


def join_frames(exchange: RecordedExchange) -> bytes:
    frames = [frame.data for frame in exchange.response.frames or ()]
    last = next(index for index, frame in enumerate(frames) if frame.startswith(b"event: response.completed"))
    return b"".join(frames[: last + 1])
