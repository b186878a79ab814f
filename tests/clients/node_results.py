"""Checks of what the helpers of the Node SDK read."""

from typing import Any

from tests.clients.sdk_helpers import (
    Json,
    get,
    parse_events,
)
from tests.invariants import check_stream
from tests.serving import RunningServer


def drop_helper_keys(value: Any) -> Any:
    """Returns a value without the keys that the helpers add."""
    if isinstance(value, dict):
        added = ("parsed", "parsed_arguments", "output_parsed", "output_text", "snapshot")
        return {key: drop_helper_keys(inside) for key, inside in value.items() if key not in added}
    return [drop_helper_keys(inside) for inside in value] if isinstance(value, list) else value


def check_node_result(results: Json, server: RunningServer, *, fails: bool) -> None:
    """Checks the helper's events and errors against the stored stream, and those of the resumed stream."""
    result = results["responses"]
    response_id = result["events"][0]["response"]["id"]
    wire = parse_events(get(f"{server.url}/responses/{response_id}?stream=true").content)
    response = check_stream(wire)
    assert get(f"{server.url}/responses/{response_id}").json() == response
    assert (wire[-1]["type"] == "response.failed") == fails
    if fails:
        assert result["raised"]["message"].endswith(response["error"]["message"])
        assert drop_helper_keys(result["events"]) == drop_helper_keys(wire[:-2])
        return
    assert result["raised"] is result["raisedAtTheEnd"] is None
    assert drop_helper_keys(result["events"]) == drop_helper_keys(wire)
    assert drop_helper_keys(result["final"]) == drop_helper_keys(response)
    resumed = results["again"]
    assert resumed["raised"] is resumed["raisedAtTheEnd"] is None
    assert drop_helper_keys(resumed["events"]) == drop_helper_keys(wire[2:]) and drop_helper_keys(
        resumed["final"]
    ) == drop_helper_keys(response)
