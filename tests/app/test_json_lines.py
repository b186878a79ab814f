"""Every JSON line that the server and its commands write is one line, also for readers that split as Python does."""

import ast
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from antiphon.app.observability.access_log import json_format
from antiphon.app.observability.audit_log import AuditLog
from antiphon.app.scripted.recording_file import format_toml
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.kit.cassette.toml_text import format_string
from antiphon.kit.pytest_plugin.script_file import dump_value
from antiphon.kit.snapshot.event_lines import format_item
from tests.app.batches.batch_client import BatchClient, make_lines
from tests.app.inspection.inspector import Inspector
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

TEXT = "one\u2028two\u2029three\x85four"
SERVER = partial(
    serve,
    [{"name": "separators", "when": [TEXT], "output": [TEXT]}, {"name": "any", "output": ["Hi."]}],
    file_store=True,
)
OWN_LINES = {
    "app/store/maintenance/backup.py": "a file of one indented object",
    "app/tools/mcp/stdio_transport.py": "JSON that MCP's SDK has encoded, with the separators escaped",
    "console/runtime_file.py": "a file of one object, with a port and paths of this machine",
}
"""Modules that join JSON and a line feed by themselves, and why."""


def read_json_lines(text: str) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/chat/completions"])
def test_output_file_of_a_batch(server: RunningServer, endpoint: str) -> None:
    client = BatchClient(server)
    message = {"input": TEXT} if endpoint == "/v1/responses" else {"messages": [{"role": "user", "content": TEXT}]}
    bodies = [{"model": "scripted", **message}, {"model": f"none{TEXT}", **message}]
    batch = client.await_status(client.start(make_lines(bodies, endpoint), endpoint))
    for file, key in (("output_file_id", "body"), ("error_file_id", "body")):
        content = client.get(f"/files/{batch[file]}/content").content
        [line] = read_json_lines(content.decode())
        assert TEXT in json.dumps(line["response"][key], ensure_ascii=False)  # type: ignore[index]


def test_pages_of_an_inspected_turn(server: RunningServer) -> None:
    with Inspector(server) as inspector:
        turn_id = inspector.ask(TEXT)
        for page in ("events", "prompt", "readings/chat", "readings/responses"):
            response = inspector.get(f"/turns/{turn_id}/{page}")
            rows = read_json_lines(response.text)
            assert rows and len(rows) == response.text.count("\n")


def test_logs(tmp_path: Path) -> None:
    line = json_format(AccessRecord("GET", f"/{TEXT}", 404, 0.1, "req_1"), datetime.now(UTC).timestamp())
    assert [row["path"] for row in read_json_lines(line)] == [f"/{TEXT}"]  # type: ignore[index]
    file = tmp_path / "audit.jsonl"
    AuditLog(file).record("reload", TEXT, "ok")
    assert [row["who"] for row in read_json_lines(file.read_text())] == [TEXT]  # type: ignore[index]


def test_strings_of_scripts_and_cassettes() -> None:
    for text in (TEXT, f"'{TEXT}'", f"'''{TEXT}\""):
        for written in (format_toml(text), dump_value(text), format_string(text), format_toml({text: [text]})):
            assert len(written.splitlines()) == 1
        assert len(format_string(text, is_block=True).splitlines()) == 2, "the quotes stand on a line of their own"


def test_line_of_a_snapshot() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXT}]}
    assert len(format_item(item).splitlines()) == 1


def test_json_is_not_made_a_line_by_hand() -> None:
    """No module joins JSON and a line feed itself: only the shared writer knows which characters end lines."""
    found = set()
    for path in sorted(path for name in ("app", "console", "kit") for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
            if (
                is_joined
                and isinstance(node.right, ast.Constant)
                and node.right.value == b"\n"
                and "encode" in ast.unparse(node.left)
            ):
                found.add(str(path.relative_to(ROOT)))
    assert found == OWN_LINES.keys()
