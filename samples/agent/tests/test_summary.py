"""The summary on the openai SDK: its events, and what it does when a server fails."""

import pytest
from app.summary import MAX_ATTEMPTS, summarize
from events.progress import Failed, Finished, Started, TextReceived
from openai import OpenAI

from antiphon.kit.testing import assert_conformant

SUMMARY = {"name": "summary", "output": ["Spring ", "comes ", "late."]}


@pytest.fixture(scope="module")
def shared_server(responses_server_factory):
    """One server for the tests that change nothing in it. Its file is named from the root of the project."""
    return responses_server_factory("tests/cases.toml")


def read_summary(server, **options):
    with OpenAI(base_url=server.base_url, api_key=server.api_key, **options) as client:
        return list(summarize(client, server.model, "a poem"))


def test_summary_streams(shared_server, event_snapshot):
    shared_server.clear()
    assert read_summary(shared_server)[-1] == Finished("Spring comes late.", is_complete=True)
    (stream,) = shared_server.streams
    assert event_snapshot == stream
    assert_conformant(stream)


def test_a_stream_that_is_cut_is_asked_for_again(responses_server):
    server = responses_server([SUMMARY | {"fault": {"kind": "cut", "times": 1}}])
    progress = read_summary(server)
    kinds = [type(event) for event in progress if not isinstance(event, TextReceived)]
    assert kinds == [Started, Failed, Started, Finished]
    assert progress[-1] == Finished("Spring comes late.", is_complete=True)
    cut, whole = server.streams
    assert_conformant(whole)
    with pytest.raises(AssertionError, match="terminal-missing"):
        assert_conformant(cut)


def test_a_busy_server_is_asked_again_by_the_sdk(responses_server):
    busy = {"kind": "status", "status": 429, "retry_after": 0.01, "times": 1}
    server = responses_server([SUMMARY | {"fault": busy}])
    assert read_summary(server, max_retries=1)[-1] == Finished("Spring comes late.", is_complete=True)
    assert [exchange.status for exchange in server.exchanges] == [429, 200]


def test_a_response_that_always_fails_is_given_up(responses_server):
    server = responses_server([{"output": ["Spring ", {"fault": "out of memory"}]}])
    progress = read_summary(server)
    assert progress[-1] == Failed(MAX_ATTEMPTS, "out of memory")
    assert len(server.requests) == MAX_ATTEMPTS
