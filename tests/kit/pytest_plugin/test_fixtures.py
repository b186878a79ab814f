"""The plugin in projects of its users: pytest runs of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

import antiphon.kit

pytest_plugins = ["pytester"]

HEAD = """
import httpx

def ask(server, text="Hi", **fields):
    body = {"model": "scripted", "input": text, "stream": True} | fields
    return httpx.post(f"{server.base_url}/responses", json=body)
"""


def run(project: pytest.Pytester, *tests: str, args: tuple[str, ...] = ()) -> pytest.RunResult:
    project.makepyfile(test_it="\n".join([HEAD, *tests]))
    return project.runpytest_inprocess(*args)


def test_loading_the_plugin_imports_nothing_but_pytest() -> None:
    code = "import pytest, sys; before = set(sys.modules); import antiphon.kit.pytest_plugin; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    plugin = "antiphon.kit.pytest_plugin"
    assert loaded == ["antiphon", "antiphon.kit", plugin, f"{plugin}.install_hint"]


def test_the_kit_has_its_names() -> None:
    assert all(callable(getattr(antiphon.kit, name)) for name in antiphon.kit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        _ = antiphon.kit.check_nothing


SNAPSHOT_TEST = """
def test_reply(responses_server, event_snapshot, assert_conformant):
    server = responses_server(["Hello there.", {"output": ["<think>Hm.</think>", "Bye", "."]}])
    first, second = ask(server), ask(server, store=False)
    assert [body["input"] for body in server.requests] == ["Hi", "Hi"]
    assert server.streams == [first.content, second.content]
    assert_conformant(server.streams[0])
    assert event_snapshot == first
    assert event_snapshot == server.streams[1]
"""


def test_snapshots_are_written_compared_and_updated(project: pytest.Pytester) -> None:
    missing = run(project, SNAPSHOT_TEST)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        ["E *the stream has no snapshot yet: test_reply", "E *To accept it: pytest --snapshot-update"]
    )
    run(project, SNAPSHOT_TEST, args=("--snapshot-update",)).assert_outcomes(passed=1)
    folder = project.path / "__snapshots__" / "test_it"
    assert sorted(path.name for path in folder.iterdir()) == ["test_reply.1.txt", "test_reply.txt"]
    text = (folder / "test_reply.1.txt").read_text()
    assert text.splitlines()[:5] == [
        "created                         in_progress",
        "in_progress                     in_progress",
        "output_item.added               [0] reasoning rs_1 in_progress",
        'content_part.added              [0.0] rs_1 reasoning_text ""',
        'reasoning_text.delta            [0.0] rs_1 "Hm."',
    ]
    run(project, SNAPSHOT_TEST).assert_outcomes(passed=1)

    (folder / "test_reply.1.txt").write_text(
        text.replace(
            'reasoning_text.delta            [0.0] rs_1 "Hm."', 'reasoning_text.delta            [0.0] rs_1 "Mh."'
        )
    )
    changed = run(project, SNAPSHOT_TEST)
    changed.assert_outcomes(failed=1)
    failure = [line.removeprefix("E").strip() for line in changed.stdout.lines if line.startswith("E  ")]
    assert failure == [
        "AssertionError: the stream differs from its snapshot: test_reply.1",
        "line 3:",
        "output_item.added               [0] reasoning rs_1 in_progress",
        'content_part.added              [0.0] rs_1 reasoning_text ""',
        '- reasoning_text.delta            [0.0] rs_1 "Mh."',
        '+ reasoning_text.delta            [0.0] rs_1 "Hm."',
        'reasoning_text.done             [0.0] rs_1 "Hm."',
        'content_part.done               [0.0] rs_1 reasoning_text "Hm."',
        "- is the snapshot, + is the stream. To accept the stream: pytest --snapshot-update",
    ], "only the lines that differ, with two lines around them"


def test_servers_and_their_options(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "cases.toml").write_text('[[reply]]\nname = "a"\noutput = ["From the file."]\n')
    monkeypatch.setenv("ANTIPHON_API_KEY", "a key of another server")
    tests = """
import pytest

@pytest.fixture(scope="module")
def shared(responses_server_factory):
    return responses_server_factory("cases.toml")

@pytest.mark.parametrize("number", [1, 2])
def test_shared(shared, number):
    shared.clear()
    assert "From the file." in ask(shared, str(number)).text
    assert [body["input"] for body in shared.requests] == [str(number)]

def test_file_beside_the_test(responses_server):
    assert "From the file." in ask(responses_server("cases.toml")).text

def test_two_servers(responses_server):
    one, two = responses_server(["One."]), responses_server({"reply": [{"name": "b", "output": ["<think>Why?</think>Two."]}]}, reasoning_output="summary", websocket=False)
    assert "One." in ask(one).text and "reasoning_summary_text" in ask(two).text
    assert len(one.requests) == len(two.requests) == 1
"""
    run(project, tests).assert_outcomes(passed=4)


def test_a_server_that_does_not_start_fails_the_test_with_its_output(project: pytest.Pytester) -> None:
    tests = """
def test_unknown_step(responses_server):
    responses_server([{"output": [{"explode": True}]}])

def test_unknown_file(responses_server):
    responses_server("missing.toml")

def test_value_without_toml(responses_server):
    responses_server([{"output": [object]}])
"""
    result = run(project, tests)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "the scripted server ended with exit status *",
            "*unknown field `explode`*",
            "responses_server: there is no file *missing.toml",
            "responses_server: a script cannot hold <class 'object'>",
        ]
    )


def test_a_missing_command_says_what_to_install(project: pytest.Pytester) -> None:
    test = "def test_it(responses_server): responses_server(['Hello.'])"
    result = run(project, test, args=("-o", "antiphon_command=/nowhere/antiphon"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["responses_server needs the command `antiphon`: *Install it: pip install 'antiphon[[]pytest]'"]
    )


def test_a_server_that_dies_fails_the_test_with_its_output(project: pytest.Pytester) -> None:
    test = """
import os, pytest

def test_it(responses_server):
    server = responses_server(["Hello."])
    server._process.kill()
    server._process.wait()
    with pytest.raises(httpx.TransportError):
        ask(server)
"""
    result = run(project, test)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["the scripted server died with exit status -9:", "ready *"])


def test_a_missing_syrupy_says_what_to_install(project: pytest.Pytester) -> None:
    project.makeconftest("import sys; sys.modules['syrupy'] = None")
    test = """
def test_snapshot(event_snapshot): pass

def test_server(responses_server, assert_conformant): assert_conformant(ask(responses_server(["Hello."])))
"""
    project.makepyfile(test_it=f"{HEAD}\n{test}")
    result = project.runpytest_subprocess("-p", "no:syrupy")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["event_snapshot needs syrupy, which is not installed: pip install 'antiphon[[]pytest]'"]
    )


def test_a_stream_that_cannot_be_read_fails_with_the_reason(project: pytest.Pytester) -> None:
    result = run(project, "def test_it(event_snapshot): assert event_snapshot == 3")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *TypeError: cannot read events from int: pass events, server-sent events or a Path"]
    )


def test_sdk_streams_and_their_wire(project: pytest.Pytester) -> None:
    test = """
from openai import OpenAI

def test_it(responses_server, event_snapshot, assert_conformant):
    server = responses_server(["Hello there."])
    with OpenAI(base_url=server.base_url, api_key=server.api_key) as client:
        with client.responses.stream(model=server.model, input="Hi") as stream:
            events = list(stream)
        assert event_snapshot == events
        assert event_snapshot(name="wire") == server.streams[0]
        assert_conformant(events)
        assert_conformant(server.streams[0])
"""
    run(project, test, args=("--snapshot-update",)).assert_outcomes(passed=1)
    texts = {path.read_text() for path in Path(project.path, "__snapshots__/test_it").iterdir()}
    assert len(texts) == 1, "what the SDK passes on is what came on the wire"


def test_faults_reach_the_client(project: pytest.Pytester) -> None:
    test = """
import pytest
from antiphon.kit.testing import find_faults

REPLY = {"output": ["Hello", " there."]}

def test_cut(responses_server):
    server = responses_server([REPLY | {"fault": {"kind": "cut"}}])
    ask(server)
    assert "terminal-missing" in {finding.code for finding in find_faults(server.streams[0])}

def test_reset(responses_server):
    server = responses_server([REPLY | {"fault": {"kind": "reset"}}])
    with pytest.raises(httpx.TransportError):
        ask(server)
    assert server.streams[0].startswith(b"event: response.created") and not server.exchanges[0].is_complete

def test_status(responses_server):
    server = responses_server([REPLY | {"fault": {"kind": "status", "status": 503, "retry_after": 7, "times": 1}}])
    assert [ask(server).status_code for _ in range(2)] == [503, 200]
    assert server.exchanges[0].reply_headers["retry-after"] == "7"

def test_id_changed(responses_server, event_snapshot):
    server = responses_server([REPLY | {"fault": {"kind": "id_changed"}}])
    assert event_snapshot == ask(server)

def test_broken_json(responses_server):
    call = '<tool_call>{"name": "run", "arguments": {"city": "Oslo"}}</tool_call>'
    server = responses_server([{"output": [call], "fault": {"kind": "broken_arguments"}}])
    tools = [{"type": "function", "name": "run", "parameters": {"type": "object"}}]
    assert "arguments" in ask(server, tools=tools).text
    assert find_faults(server.streams[0])
"""
    run(project, test, args=("--snapshot-update",)).assert_outcomes(passed=5)
    (snapshot,) = (project.path / "__snapshots__" / "test_it").iterdir()
    assert "msg_2" in snapshot.read_text(), "a changed id is another number"
