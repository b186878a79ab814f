"""The program and the lines of docs/batches.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.app.batches.batch_client import BatchClient
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry, serve
from tests.syntax import ROOT

PAGE = (ROOT / "docs" / "batches.md").read_text(encoding="utf-8")
SCRIPT = [
    {"name": "two", "when": ["What is 1 + 1?"], "output": ["2"]},
    {"name": "any", "output": ["I do not know."]},
]


def find_blocks(language: str) -> list[str]:
    """Returns the blocks of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_program_evaluates_a_model(tmp_path: Path) -> None:
    (program,) = find_blocks("python")
    with serve(scripted_registry(SCRIPT, names=("antiphon",))) as server:
        program = program.replace("http://127.0.0.1:8000/v1", server.url)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    status, score = done.stdout.splitlines()
    assert status == "completed BatchRequestCounts(completed=50, failed=0, total=50)"
    assert score == "1 of 50 answers are right"


def test_lines_of_the_page_have_the_fields_of_the_server() -> None:
    sent, shown = (json.loads(block) for block in find_blocks("json"))
    with serve(scripted_registry(SCRIPT, names=("antiphon",))) as server:
        client = BatchClient(server)
        batch = client.await_status(client.start(json.dumps(sent).encode()))
        ((line,), errors) = client.read_results(batch)
    assert not errors and line.keys() == shown.keys() and line["custom_id"] == shown["custom_id"]
    assert line["response"].keys() == shown["response"].keys()
    assert shown["response"]["body"].keys() <= line["response"]["body"].keys()


def test_page_names_the_command() -> None:
    assert "$ antiphon batch questions.jsonl answers.jsonl --model ./my-model" in PAGE
