"""Results that are larger than the room in the context: cut to a quarter of what is left, with a note."""

from functools import partial
from typing import Any

import pytest

from tests.clients.hosted.tool_servers import (
    Json,
    ToolTraffic,
    find_items,
    list_kinds,
    run,
    serve_hosted,
    text_result,
    tool,
    write_call,
)
from tests.serving import RunningServer

CONTEXT = 8000
"""Tokens, which are bytes."""
CALL = write_call("read", {})
SCRIPT: list[Json] = [
    {"name": "later", "when": ["[later]"], "output": ["Later."]},
    {"name": "end", "when": ["The result"], "output": ["Done."]},
    *({"name": f"{n}", "when": [f"[{n} calls]"], "output": [CALL] * n, "tokens_per_chunk": 100} for n in (1, 6)),
    {"name": "any", "output": ["Yes."]},
]
TEXTS = {"short characters": "x" * 100_000, "long characters": "\U0001f600" * 16_000, "lines": "a\n" * 50_000}


SERVER = partial(serve_hosted, SCRIPT, registry={"max_model_len": CONTEXT})


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_result_is_cut_to_a_quarter(server: RunningServer, traffic: ToolTraffic, text: str, *, is_error: bool) -> None:
    traffic.answer = lambda *_: text_result(f"The result {text}", isError=is_error)
    response = run(server, {"input": "[1 calls]", "tools": [tool()]})
    [call] = find_items(response, "mcp_call")
    output = call["error"]["content"][0]["text"] if is_error else call["output"]
    assert list_kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert (
        "The result" in output
        and "characters were left out" in output
        and CONTEXT / 8 < len(output.encode()) < CONTEXT / 3
    )
    later = run(server, {"previous_response_id": response["id"], "input": "[later]", "tools": [tool()]})
    assert later["status"] == "completed"


def test_results_of_one_round_share_the_room(server: RunningServer, traffic: ToolTraffic) -> None:
    """Each gets a quarter of what the others have left, so the model reads all of them."""
    traffic.answer = lambda *_: text_result("The result " + "x" * 50_000)
    response = run(server, {"input": "[6 calls]", "tools": [tool()]})
    assert list_kinds(response) == ["mcp_list_tools", *["mcp_call"] * 6, "message"]
    sizes: list[Any] = [len(call["output"]) for call in find_items(response, "mcp_call")]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 3 * sizes[-1]
