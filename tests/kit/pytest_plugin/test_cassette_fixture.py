"""Cassettes in projects of users: recorded by one run of pytest, replayed by the next ones without the server."""

import json
from pathlib import Path

import pytest

from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.proxy.exchange import ServerExchange
from tests.kit.proxy.wire_servers import run_handler

pytest_plugins = ["pytester"]

SECRET = "sk-test-0123456789abcdef"
TESTS = """
import httpx
import pytest

UPSTREAM = {upstream!r}

def ask(server, text):
    body = {{"model": "m", "input": text, "stream": True}}
    headers = {{"authorization": f"Bearer {{server.api_key}}"}}
    return httpx.post(f"{{server.base_url}}/responses", json=body, headers=headers, timeout=60)

def test_named(responses_cassette):
    server = responses_cassette("turns.toml", upstream=UPSTREAM)
    assert [ask(server, text).text for text in ("Hi", "Bye")] == ["data: Hi\\n\\n", "data: Bye\\n\\n"]
    assert [body["input"] for body in server.requests] == ["Hi", "Bye"] and server.streams[0] == b"data: Hi\\n\\n"
    assert server.path.name == "turns.toml" and server.is_recording is {recording}

@pytest.mark.parametrize("text", ["a/b", "c"])
def test_unnamed(responses_cassette, text):
    first, second = responses_cassette(upstream=UPSTREAM), responses_cassette(upstream=UPSTREAM)
    assert ask(first, text).text == f"data: {{text}}\\n\\n"
    assert ask(second, text * 2).text == f"data: {{text * 2}}\\n\\n"
"""
NAMES = ["test_unnamed_a_b.2.toml", "test_unnamed_a_b.toml", "test_unnamed_c.2.toml", "test_unnamed_c.toml"]
seen: list[tuple[str, str]] = []


async def echo(exchange: ServerExchange) -> None:
    """Repeats the input as an event."""
    text = json.loads(await exchange.read_body())["input"]
    headers = dict(exchange.request.headers)
    seen.append((text, headers.get(b"Authorization", b"").decode()))
    exchange.start_reply(200, [(b"content-type", b"text/event-stream")])
    exchange.write_data(b"data: " + text.encode() + b"\n\n")
    exchange.end_reply()


def run(project: pytest.Pytester, upstream: str, *args: str, recording: bool = False) -> pytest.RunResult:
    project.makepyfile(test_it=TESTS.format(upstream=upstream, recording=recording))
    return project.runpytest_inprocess(*args)


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.toml") if "__pycache__" not in str(path))


def test_cassettes_are_recorded_once_and_replayed(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.clear()
    with run_handler(echo) as upstream:
        run(project, upstream).assert_outcomes(failed=3)
        assert list_files(project.path) == [] and seen == []

        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        run(project, upstream, "--cassettes=record", recording=True).assert_outcomes(passed=3)
        assert list_files(project.path) == [*(f"__cassettes__/test_it/{name}" for name in NAMES), "turns.toml"]
        assert len(seen) == 6 and {key for _, key in seen} == {f"Bearer {SECRET}"}
        run(project, upstream, "--cassettes=record").assert_outcomes(passed=3)
        assert len(seen) == 6
    assert len(read_cassette(project.path / "turns.toml")) == 2
    assert not [path for path in project.path.rglob("*.toml") if SECRET in path.read_text()]
    assert not list(project.path.rglob(".*.toml.*"))
    run(project, "http://127.0.0.1:9").assert_outcomes(passed=3)


def test_rewriting_keeps_a_cassette_if_the_server_is_away(project: pytest.Pytester) -> None:
    seen.clear()
    with run_handler(echo) as upstream:
        run(project, upstream, "--cassettes=record", recording=True).assert_outcomes(passed=3)
        run(project, upstream, "--cassettes=rewrite", recording=True).assert_outcomes(passed=3)
        assert len(seen) == 12
    before = {path: path.read_text() for path in project.path.rglob("*.toml")}
    run(project, "http://127.0.0.1:9", "--cassettes=rewrite", recording=True).assert_outcomes(failed=3)
    assert {path: path.read_text() for path in project.path.rglob("*.toml")} == before


def test_what_is_wrong_is_told(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_it="""
        import httpx

        def test_no_cassette(responses_cassette):
            responses_cassette("absent.toml", upstream="http://127.0.0.1:9")

        def test_no_toml(responses_cassette):
            responses_cassette("broken.toml")

        def test_other_request(responses_cassette):
            server = responses_cassette("turns.toml")
            assert httpx.post(f"{server.base_url}/responses", json={"input": "other"}).status_code == 404
        """
    )
    (project.path / "broken.toml").write_text("version = ")
    request = '[exchange.request]\nmethod = "POST"\npath = "/v1/responses"\njson = \'{"input": "Hi"}\'\n'
    (project.path / "turns.toml").write_text(f"version = 1\n[[exchange]]\n{request}[exchange.response]\nstatus = 200\n")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=2, passed=1, errors=1)  # the third test passes; its cassette does not
    text = result.stdout.str()
    assert "absent.toml. To record it: pytest --cassettes=record" in text and "broken.toml: no TOML" in text
    assert 'differs at input: recorded "Hi", but got "other"' in text

    project.makepyfile(
        test_it="""
        def test_no_upstream(responses_cassette):
            responses_cassette("absent.toml")

        def test_no_url(responses_cassette):
            responses_cassette("absent.toml", upstream="localhost")
        """
    )
    result = project.runpytest_inprocess("--cassettes=record")
    result.assert_outcomes(failed=2)
    assert "pass upstream, the base URL of the server" in result.stdout.str() and "no base URL" in result.stdout.str()
    assert list_files(project.path) == ["broken.toml", "turns.toml"]
