"""The programs and outputs of docs/testing-agents.md."""

import json
import re
from pathlib import Path

import pytest

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedFrame, RecordedReply, RecordedRequest
from antiphon.kit.cassette.toml_text import CASSETTE_HEADER, format_exchange
from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_writer import encode_sse
from tests.syntax import ROOT

pytest_plugins = ["pytester"]

PAGE = (ROOT / "docs" / "testing-agents.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^`(test_\w+)\.py`:\n\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
OUTPUTS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(project: pytest.Pytester) -> pytest.Pytester:
    """A project with the page's programs."""
    project.makepyfile(**PROGRAMS)
    write_cassette(project.path / "greeting.toml")
    return project


def write_cassette(path: Path) -> None:
    """Writes the cassette that the page's program replays: in its request, each key is that of the program."""
    body = {"model": "gpt-5", "input": "Hi", "stream": True}
    request = RecordedRequest(method="POST", path="/v1/responses", body=json.dumps(body).encode())
    frames = [frame + b"\n\n" for frame in encode_sse(LEGAL["text"]()).split(b"\n\n")[:-1]]
    headers = (("content-type", "text/event-stream"),)
    reply = RecordedReply(status=200, headers=headers, frames=tuple(RecordedFrame(0, frame) for frame in frames))
    path.write_text(CASSETTE_HEADER + format_exchange(RecordedExchange(request=request, response=reply)))


def list_failure_lines(result: pytest.RunResult) -> list[str]:
    """Returns the message of the failed assertion, without pytest's mark and indentation."""
    lines = [line[1:] for line in result.stdout.lines if line.startswith("E  ")]
    indentation = len(lines[0]) - len(lines[0].lstrip())
    return [line[indentation:] for line in lines]


def test_programs_run(project: pytest.Pytester) -> None:
    assert len(PROGRAMS) == PAGE.count("```python") == 6
    tests = sum(len(re.findall(r"^def test_", program, re.MULTILINE)) for program in PROGRAMS.values())
    written = project.runpytest_inprocess("--snapshot-update")
    written.assert_outcomes(passed=tests + 1)  # one has two parameters
    assert (project.path / "__snapshots__/test_first/test_greeting.txt").read_text() == OUTPUTS[0]


def test_failures_look_as_shown(project: pytest.Pytester) -> None:
    snapshot = project.path / "__snapshots__/test_first/test_greeting.txt"
    snapshot.parent.mkdir(parents=True)
    done = 'output_text.done                [0.0] msg_1 "Hello'
    snapshot.write_text(OUTPUTS[0].replace(done, f"{done},"))
    changed = project.runpytest_inprocess("test_first.py")
    assert list_failure_lines(changed) == OUTPUTS[1].splitlines()

    project.makepyfile(
        test_gateway=PROGRAMS["test_gateway"].replace("with pytest.raises(AssertionError, match=", "if (")
    )
    broken = "\n".join(list_failure_lines(project.runpytest_inprocess("test_gateway.py")))
    assert re.sub(r"\bmsg_[0-9a-f]{9,}", "msg_1", broken.rpartition("why: ")[0]) == OUTPUTS[2].rpartition("why: ")[0]
