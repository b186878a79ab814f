"""Stream helpers of the openai SDK for Node, for every case. They are stricter than those for Python."""

import json
from pathlib import Path

import pytest

from tests.clients.node_install import run_node_script
from tests.clients.node_results import check_node_result, drop_helper_keys
from tests.clients.sdk_helpers import (
    CASES,
    Case,
    Json,
    chat_body,
    normalize_completion,
    post,
    responses_body,
)
from tests.serving import RunningServer

UNCANCELLED_CASES = [case for case in CASES if not case.refused and not case.cancel]
REJECTED_CASES = [case for case in CASES if case.refused]


@pytest.fixture(scope="session")
def node_results(node: Path, case_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Results of the SDK's helpers, by case name. One Node process reads all cases."""
    task = tmp_path_factory.mktemp("node") / "task.json"
    usage = {"stream_options": {"include_usage": True}}
    cases = [
        {"name": case.name, "responses": responses_body(case), "chat": chat_body(case) | usage}
        for case in [*UNCANCELLED_CASES, *REJECTED_CASES]
    ]
    task.write_text(json.dumps({"url": case_server.url, "cases": cases}), encoding="utf-8")
    return run_node_script(node, "read.mjs", task)


@pytest.mark.parametrize("case", UNCANCELLED_CASES, ids=lambda case: case.name)
def test_response_helper_reads_every_case_and_raises_only_on_errors(
    node_results: Json, case_server: RunningServer, case: Case
) -> None:
    check_node_result(node_results[case.name], case_server, fails=case.fails)


@pytest.mark.parametrize("case", UNCANCELLED_CASES, ids=lambda case: case.name)
def test_chat_helper_reads_every_case_and_raises_only_on_errors(
    node_results: Json, case_server: RunningServer, case: Case
) -> None:
    result = node_results[case.name]["chat"]
    reply = post(f"{case_server.url}/chat/completions", json=chat_body(case))
    assert reply.status_code == (500 if case.fails else 200)
    if case.fails:
        assert result["raised"]["message"].endswith(reply.json()["error"]["message"])
        assert result["events"], "the chunks before the error arrived"
        return
    completion = reply.json()
    assert result["raised"] is result["raisedAtTheEnd"] is None
    assert result["events"][-1]["usage"] == completion["usage"]
    assert drop_reasoning(drop_helper_keys(result["final"])) == drop_reasoning(completion)


def drop_reasoning(completion: Json) -> Json:
    """Returns a completion without reasoning. OpenAI's chat API has no such field, and Node's helper keeps only its
    last delta.
    """
    normalized = normalize_completion(completion)
    for choice in normalized["choices"]:
        for key in ("reasoning", "reasoning_content"):
            choice["message"].pop(key, None)
    return normalized


@pytest.mark.parametrize("case", REJECTED_CASES, ids=lambda case: case.name)
def test_rejected_job_raises_before_the_first_event(node_results: Json, case: Case) -> None:
    for endpoint in ("responses", "chat"):
        result = node_results[case.name][endpoint]
        assert result["events"] == []
        assert (result["raised"]["kind"], result["raised"]["status"]) == ("RateLimitError", 429)
