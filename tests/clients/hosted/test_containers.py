"""Containers that requests name: only the owner's own, and no answer tells that another owner has one."""

from functools import partial

from tests.clients.hosted.tool_servers import Json, find_items, run, send, serve_hosted
from tests.serving import RunningServer

KEYS = ("sk-one", "sk-two")


def write_code(code: str) -> str:
    return f'<tool_call>\n{{"name": "code_interpreter", "arguments": {{"code": "{code}"}}}}\n</tool_call>'


SCRIPT: list[Json] = [
    {"name": "end", "when": ["<tool_response>"], "output": ["Done."]},
    {"name": "set", "when": ["[set]"], "output": [write_code("x = 41")]},
    {"name": "get", "when": ["[get]"], "output": [write_code("x + 1")]},
]
SERVER = partial(serve_hosted, SCRIPT, api_keys=KEYS, hosted_tools=("code_interpreter=monty",))


def name_container(container: object) -> list[Json]:
    return [{"type": "code_interpreter", "container": container}]


def refuse(server: RunningServer, container: str, key: str) -> str:
    reply = send(server, {"input": "[get]", "tools": name_container(container), "stream": True}, key)
    assert reply.status_code == 400, reply.text[:300]
    error = reply.json()["error"]
    assert error["param"] == "tools[0].container"
    return str(error["message"]).replace(container, "ID")


def test_container_is_known_to_its_owner_only(server: RunningServer) -> None:
    response = run(server, {"input": "[set]", "tools": name_container({"type": "auto"})}, KEYS[0])
    [call] = find_items(response, "code_interpreter_call")
    mine = call["container_id"]
    again = run(server, {"input": "[get]", "tools": name_container(mine)}, KEYS[0])
    [call] = find_items(again, "code_interpreter_call")
    assert (call["container_id"], call["status"]) == (mine, "completed")
    assert refuse(server, mine, KEYS[1]) == refuse(server, "cntr_unknown", KEYS[1])
    forged = run(server, {"input": [*response["output"], {"role": "user", "content": "[get]"}],
                          "tools": name_container({"type": "auto"})}, KEYS[1])  # fmt: skip
    calls = find_items(forged, "code_interpreter_call")
    assert all(call["container_id"] != mine for call in calls), "a conversation that names it gets a new one"
