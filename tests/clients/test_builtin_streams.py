"""Streams of the built-in tools `shell` and `apply_patch` through the helpers of OpenAI's SDKs, for every case."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.node_install import run_node_script
from tests.clients.node_results import check_node_result
from tests.clients.response_streams import check_response_result, read_response_stream, read_response_stream_async
from tests.clients.sdk_helpers import (
    Case,
    Json,
    dump_sdk_object,
    get,
    make_case_registry,
    open_async_sdk,
    open_sdk,
    parse_events,
    responses_body,
)
from tests.invariants import check_stream
from tests.serving import RunningServer, serve
from tests.snapshots.builtin_cases import BUILTIN_CASES

CASES = [pytest.param(case, id=case.name) for case in BUILTIN_CASES]
DIFF_EVENTS = "response.apply_patch_call_operation_diff."
NODE_ERROR = "Unhandled response stream event: unknown"
"""The helper for Node raises it at an event of no type that it knows."""


@pytest.fixture(scope="module", params=[False, True], ids=["", "diffs"])
def any_server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server with a model for each dialect, with and without the setting `apply_patch_diffs`."""
    with serve(make_case_registry(BUILTIN_CASES), apply_patch_diffs=request.param) as server:
        yield server


@pytest.mark.parametrize("case", CASES)
def test_stream_helper_reads_every_event(any_server: RunningServer, case: Case) -> None:
    with open_sdk(any_server) as (client, replies):
        check_response_result(read_response_stream(client, any_server, case), any_server, replies)


@pytest.mark.parametrize("case", CASES)
async def test_async_stream_helper_reads_every_event(any_server: RunningServer, case: Case) -> None:
    async with open_async_sdk(any_server) as (client, replies):
        check_response_result(await read_response_stream_async(client, any_server, case), any_server, replies)


@pytest.mark.parametrize("case", CASES)
def test_unstreamed_response_equals_the_stored_one(any_server: RunningServer, case: Case) -> None:
    with open_sdk(any_server) as (client, replies):
        response = client.responses.create(**responses_body(case))
        assert dump_sdk_object(response) == dump_sdk_object(client.responses.retrieve(response.id))
        assert json.loads(replies[0]) == json.loads(replies[1]) == dump_sdk_object(response)
        events = parse_events(get(f"{any_server.url}/responses/{response.id}?stream=true").content)
        assert check_stream(events) == json.loads(replies[0])


@pytest.mark.parametrize("case", CASES)
def test_stream_of_an_unstored_response_has_the_same_items(any_server: RunningServer, case: Case) -> None:
    with open_sdk(any_server) as (client, replies):
        stored = client.responses.create(**responses_body(case))
        with client.responses.create(**responses_body(case), store=False, stream=True) as stream:
            kinds = [event.type for event in stream] if not case.fails else []
        if case.fails:
            return  # iteration raises, as the helper's does
        response = check_stream(parse_events(replies.last()))
    assert kinds[-1] == f"response.{stored.status}"
    assert [drop_ids(item) for item in response["output"]] == [
        drop_ids(item) for item in dump_sdk_object(stored)["output"]
    ]
    assert get(f"{any_server.url}/responses/{response['id']}").status_code == 404


def drop_ids(item: Json) -> Json:
    """Returns an item without the ids, which are new in each response."""
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


@pytest.fixture(scope="module")
def node_results(node: Path, any_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Results of the helper for Node, by case name. One Node process reads all cases."""
    task = tmp_path_factory.mktemp("node") / "task.json"
    cases = [{"name": case.name, "responses": responses_body(case)} for case in BUILTIN_CASES]
    task.write_text(json.dumps({"url": any_server.url, "cases": cases}), encoding="utf-8")
    return run_node_script(node, "read.mjs", task)


@pytest.mark.parametrize("case", CASES)
def test_helper_for_node_reads_every_event_but_diffs(node_results: Json, any_server: RunningServer, case: Case) -> None:
    result = node_results[case.name]
    response_id = result["responses"]["events"][0]["response"]["id"]
    wire = parse_events(get(f"{any_server.url}/responses/{response_id}?stream=true").content)
    if any(event["type"].startswith(DIFF_EVENTS) for event in wire):
        raised = result["responses"]["raised"]
        assert raised and raised["message"] == NODE_ERROR, "the diffs can be read now: send them by default"
    else:
        check_node_result(result, any_server, fails=case.fails)


def test_only_the_setting_sends_diffs(any_server: RunningServer) -> None:
    case = next(case for case in BUILTIN_CASES if case.name == "patch_of_three_files")
    with open_sdk(any_server) as (client, _), client.responses.stream(**responses_body(case)) as stream:
        kinds = {event.type for event in stream}
    assert (f"{DIFF_EVENTS}delta" in kinds) == any_server.context.settings.apply_patch_diffs
