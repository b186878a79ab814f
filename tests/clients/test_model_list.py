"""What is served, as OpenAI's clients, Codex and Ollama's clients ask for it."""

from collections.abc import Iterator

import pytest

from tests.clients.sdk_helpers import get, post
from tests.serving import RunningServer, scripted_registry, serve


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}], names=("org/model", "alias"))) as running:
        yield running


def test_every_list_has_every_name(served: RunningServer) -> None:
    found = get(f"{served.url}/models", params={"client_version": "0.169.0"}).json()
    names = ["org/model", "alias"]
    assert [one["id"] for one in found["data"]] == names and found["object"] == "list"
    assert [one["slug"] for one in found["models"]] == names
    tags = get(f"{served.root}/api/tags").json()["models"]
    assert [one["name"] for one in tags] == [one["model"] for one in tags] == names
    assert int(get(f"{served.root}/api/version").json()["version"].split(".")[1]) >= 13


def test_codex_hears_of_the_window_that_there_is(served: RunningServer) -> None:
    for known in get(f"{served.url}/models").json()["models"]:
        assert known["context_window"] == served.engine.info.max_model_len
        assert known["truncation_policy"]["limit"] <= known["context_window"]
        assert known["apply_patch_tool_type"] == "freeform" and known["supports_reasoning_summaries"] is False
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}]), reasoning_output="summary") as telling:
        assert get(f"{telling.url}/models").json()["models"][0]["supports_reasoning_summaries"] is True


def test_lists_are_for_those_with_a_key() -> None:
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}]), api_keys=("sk-one",)) as locked:
        for path in ("/v1/models", "/api/tags", "/api/version"):
            assert get(locked.root + path).status_code == 401
            assert get(locked.root + path, headers={"authorization": "Bearer sk-one"}).status_code == 200


def test_the_probe_of_a_local_provider_is_answered(served: RunningServer) -> None:
    """It sends no input at all, wants one token, and leaves."""
    reply = post(f"{served.url}/responses", json={"model": "alias", "input": "", "max_output_tokens": 1})
    assert reply.status_code == 200 and reply.json()["status"] in ("completed", "incomplete")
