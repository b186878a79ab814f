"""`antiphon batch`: the replies of a file in its order, exit statuses, and faults told before anything is written."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.app.batches.batch_client import make_lines
from tests.app.server_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

SCRIPT = """
[[reply]]
name = "slow"
when = ["SLOW"]
output = [{pause = 600}, "Yes."]
[[reply]]
name = "any"
output = ["Yes."]
"""
BODY = {"model": "scripted", "input": "hi"}
CHAT_BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


def list_command(folder: Path, content: bytes | None, *options: str) -> list[str]:
    """Returns a command over `in.jsonl` of the folder, which gets this content."""
    (folder / "script.toml").write_text(SCRIPT, encoding="utf-8")
    if content is not None:
        (folder / "in.jsonl").write_bytes(content)
    program = [sys.executable, "-m", "antiphon", "batch", "in.jsonl", "out.jsonl"]
    return [*program, "--engine", "scripted", "--script", "script.toml", *options]


def run_command(folder: Path, content: bytes | None, *options: str) -> "subprocess.CompletedProcess[str]":
    command = list_command(folder, content, *options)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)


def read_output(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]


def test_replies_have_the_order_of_the_input(tmp_path: Path) -> None:
    bodies: list[Any] = [BODY, {"model": "none", "input": "hi"}, BODY, {**BODY, "stream": True}, *[BODY] * 300]
    done = run_command(tmp_path, make_lines(bodies))
    assert done.returncode == 1, done.stderr
    assert re.search(r"^302 of 304 requests completed, 2 failed; \d+ input tokens \(0 cached\), \d+ output tokens$",
                     done.stderr, re.MULTILINE), done.stderr  # fmt: skip
    output = read_output(tmp_path)
    assert [line["custom_id"] for line in output] == [f"r{number}" for number in range(304)]
    assert [line["response"]["status_code"] for line in output[:5]] == [200, 404, 200, 400, 200]
    assert output[0]["response"]["body"]["output"][0]["content"][0]["text"] == "Yes."
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "script.toml"]


def test_other_endpoints_and_no_failure(tmp_path: Path) -> None:
    done = run_command(tmp_path, make_lines([CHAT_BODY] * 3, "/v1/chat/completions"))
    assert done.returncode == 0, done.stderr
    assert [line["response"]["body"]["object"] for line in read_output(tmp_path)] == ["chat.completion"] * 3


FAULTS: dict[str, tuple[bytes | None, str]] = {
    "no file": (None, "'in.jsonl' does not exist"),
    "empty": (b"", "in.jsonl: line 1 is not a request"),
    "no JSON": (b"nope\n", "in.jsonl: line 1 is not a request"),
    "another URL": (make_lines([BODY], "/v1/messages"), "in.jsonl: line 1: the url must be one of /v1/responses"),
    "faulty line": (make_lines([BODY]) + b"nope\n", "line 2: This line is not a valid request"),
    "missing field": (make_lines([BODY]) + b'{"custom_id": "x"}\n', "line 2: Missing required parameter: 'method'"),
    "same id": (make_lines([BODY]) * 2, "line 2: The 'custom_id' 'r0' occurs more than once"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_the_input_is_told_before_the_model_is_loaded(name: str, tmp_path: Path) -> None:
    content, message = FAULTS[name]
    command = list_command(tmp_path, content)
    (tmp_path / "script.toml").write_text("[[reply", encoding="utf-8")  # the model cannot be loaded
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "script.toml" not in done.stderr
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("existing", [b"replies of an earlier run\n" * 100, None], ids=["existing", "new"])
@pytest.mark.parametrize("fault", ["script", "faulty line"])
def test_run_that_fails_leaves_the_output_as_it_was(fault: str, existing: bytes | None, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    if existing is not None:
        output.write_bytes(existing)
    command = list_command(tmp_path, make_lines([BODY]) + (b"nope\n" if fault == "faulty line" else b""))
    if fault == "script":
        (tmp_path / "script.toml").write_text("[[reply", encoding="utf-8")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)
    assert done.returncode == 2, done.stderr
    assert (output.read_bytes() if output.exists() else None) == existing


def test_output_replaces_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_bytes(b"replies of an earlier run\n" * 1000)
    assert run_command(tmp_path, make_lines([BODY])).returncode == 0
    assert [line["custom_id"] for line in read_output(tmp_path)] == ["r0"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no /dev/stdout")
def test_output_may_be_a_pipe(tmp_path: Path) -> None:
    command = [part.replace("out.jsonl", "/dev/stdout") for part in list_command(tmp_path, make_lines([BODY]))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["custom_id"] == "r0", done.stderr


def test_output_must_not_be_the_input(tmp_path: Path) -> None:
    content = make_lines([BODY])
    command = [part.replace("out.jsonl", "./in.jsonl") for part in list_command(tmp_path, content)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False)
    assert done.returncode == 2 and "is the input, too" in done.stderr
    assert (tmp_path / "in.jsonl").read_bytes() == content


def count_results(folder: Path) -> int:
    """Returns the number of lines that have a reply, in the store of a command that runs."""
    for path in folder.glob("antiphon-batch-*/batch.db"):
        with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.OperationalError):
            found: int = connection.execute("SELECT count(*) FROM batch_lines WHERE status = 200").fetchone()[0]
            return found
    return 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for one process")
def test_interrupt_writes_what_is_done(tmp_path: Path) -> None:
    command = list_command(tmp_path, make_lines([BODY] * 5 + [{**BODY, "input": "SLOW"}] * 400))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert wait_until(HANG_TIMEOUT_S, lambda: count_results(tmp_path) == 5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANG_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    output = read_output(tmp_path)
    assert [line["custom_id"] for line in output] == [f"r{number}" for number in range(405)]
    assert [line["response"] is not None for line in output[:5]] == [True] * 5
    assert output[-1]["error"]["code"] == "batch_cancelled"
