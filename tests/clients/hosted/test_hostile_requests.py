"""Requests with hosted tools that are meant to get around the rules. Covers the rows `request` of the hostile tools."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.clients.hosted.tool_servers import (
    LABEL,
    Json,
    ToolTraffic,
    find_items,
    list_kinds,
    run,
    send,
    serve_hosted,
    serve_tools,
    tool,
    write_call,
)
from tests.serving import RunningServer

LONG = "n" * 100_000
KEYS = ("sk-one", "sk-two")
SCRIPT: list[Json] = [
    {"name": "end", "when": ["The result of"], "output": ["Done."]},
    {"name": "call", "when": ["[read]"], "output": [write_call("read", {"text": "a"})]},
    {"name": "two", "when": ["[two]"], "output": [write_call("read", {"text": "a"}), write_call("write", {})]},
    {"name": "any", "output": ["Yes."]},
]
PUBLIC_URL = "https://93.184.215.14/mcp"
"""Never dialled: every request with it is refused before."""
ASKING = tool(approval="always")
FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ToolTraffic]:
    """A server on loopback that the operator did not name."""
    with serve_tools() as traffic:
        yield traffic


SERVER = partial(serve_hosted, SCRIPT, api_keys=KEYS, mcp_allowed_hosts=("*",))


def refuse(server: RunningServer, body: Json, key: str = KEYS[0]) -> tuple[str | None, str | None]:
    """Returns the parameter and the code of a 400, which comes before any event."""
    reply = send(server, {**body, "stream": True}, key)
    assert reply.status_code == 400 and reply.headers["content-type"] == "application/json", reply.text[:500]
    error = reply.json()["error"]
    assert len(error["message"]) < 3000
    return error["param"], error["code"]


def client_tool(**fields: Any) -> list[Json]:
    return [tool("mine", **{"server_url": PUBLIC_URL, **fields})]


HEADERS: list[Any] = [
    [], "", 0, False, ["a"], "a: b", {"a": 1}, {"a": None}, {"a": {}}, {"X-A": "a\r\nX-B: b"}, {"X-A": "a\0"},
    {"X-A\r\nX-B": "b"}, {"X A": "b"}, {"": "b"}, {"X-A": " b"}, {"X-É": "b"}, {"X-A": "é"}, {"Host": "b"},
    {"Content-Length": "0"}, {"Transfer-Encoding": "chunked"}, {"Cookie": "b"}, {"Mcp-Session-Id": "b"},
    {"Authorization": "a", "authorization": "b"}, {"X-A": "b" * 17_000}, {f"X-{n}": "b" for n in range(33)},
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=lambda value: repr(value)[:40])
def test_bad_headers(server: RunningServer, headers: Any) -> None:
    param, _ = refuse(server, {"tools": client_tool(headers=headers)})
    assert param == "tools[0].headers"


@pytest.mark.parametrize("token", [[], {}, 0, 1, False, "a\r\nX-B: b", "a\0", "é"], ids=repr)
def test_bad_token(server: RunningServer, token: Any) -> None:
    param, _ = refuse(server, {"tools": client_tool(authorization=token)})
    assert param in ("tools[0].authorization", "tools[0].headers")


def test_two_tokens(server: RunningServer) -> None:
    tools = client_tool(authorization="a", headers={"AUTHORIZATION": "Bearer b"})
    assert refuse(server, {"tools": tools}) == ("tools[0].headers", "invalid_value")


@pytest.mark.parametrize("fields", [{"headers": {"X-A": "b"}}, {"authorization": "b"}], ids=str)
def test_credentials_for_a_server_of_the_operator(server: RunningServer, traffic: ToolTraffic, fields: Json) -> None:
    seen = traffic.connections
    assert refuse(server, {"tools": [tool(**fields)]}) == ("tools[0].headers", "invalid_value")
    assert traffic.connections == seen


URLS = [
    "http://127.0.0.1:{port}/mcp", "https://127.0.0.1:{port}/mcp", "https://localhost:{port}/",
    "https://LOCALHOST:{port}/", "https://localhost.:{port}/", "https://127.0.0.1.:{port}/", "https://127.1:{port}/",
    "https://2130706433:{port}/", "https://0x7f000001:{port}/", "https://0177.0.0.1:{port}/", "https://0:{port}/",
    "https://0.0.0.0:{port}/", "https://[::1]:{port}/", "https://[::]:{port}/", "https://[::ffff:127.0.0.1]:{port}/",
    "https://[::ffff:7f00:1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/",
    "https://[fe80::1%25lo]:{port}/", "https://169.254.169.254/latest/meta-data", "https://100.100.100.200/",
    "https://[fd00:ec2::254]/", "https://10.0.0.1/", "https://192.168.0.1/", "https://100.64.0.1/",
    "https://user@127.0.0.1:{port}/", "https://example.com:80@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}\\@example.com/", "https://example.com\\@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}#@example.com/", "https://127.0.0.1:{port}?@example.com/",
    "https://127.0.0.1:{port}%2f@example.com/", "https://127.0.0.1\t:{port}/", "https://127.0.0.1\n:{port}/",
    "https://①②⑦.0.0.1:{port}/", "https://127。0。0。1:{port}/", "https://xn--/", "https://a_b:{port}:1/",
    "file:///etc/passwd", "gopher://127.0.0.1:{port}/", "//127.0.0.1:{port}/", "127.0.0.1:{port}",
    "https:127.0.0.1:{port}", "https:///127.0.0.1:{port}", "https://127.0.0.1:0{port}/", "https://", "", " ", LONG,
    "https://example.com:22/", "http://93.184.215.14/",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS, ids=lambda url: url[:40])
def test_url_is_refused_and_not_dialled(server: RunningServer, elsewhere: ToolTraffic, url: str) -> None:
    """The operator allows every public host."""
    port = elsewhere.url.split(":")[2].split("/")[0]
    param, code = refuse(server, {"tools": client_tool(server_url=url.format(port=port))})
    assert param == "tools[0].server_url" and code in ("mcp_server_not_allowed", "invalid_value")
    assert elsewhere.connections == 0


def test_label_of_the_operator_with_another_url(
    server: RunningServer, traffic: ToolTraffic, elsewhere: ToolTraffic
) -> None:
    seen = traffic.connections
    assert refuse(server, {"tools": [tool(server_url=elsewhere.url)]})[1] == "mcp_server_not_allowed"
    assert (traffic.connections, elsewhere.connections) == (seen, 0)


PLACES: list[tuple[Json, str]] = [
    ({"type": "mcp"}, "server_label"),
    ({"connector_id": "connector_gmail"}, "server_url"),
    ({"connector_id": LONG}, "server_url"),
    ({"connector_id": LABEL, "server_url": PUBLIC_URL}, "connector_id"),
    ({"tunnel_id": "t"}, "tunnel_id"),
    ({"tunnel_id": "t", "server_label": LABEL}, "tunnel_id"),
    *(({key: 5}, key) for key in ("server_url", "connector_id", "tunnel_id", "server_description")),
    *(
        ({"server_label": label}, "server_label")
        for label in ("", "a b", "é", "a/b", "a\n", "-a", "9a", "a.b", "__proto__", LONG, 5, [], {}, None)
    ),
    ({"server_label": "constructor"}, "server_url"),
    ({"defer_loading": 5}, "defer_loading"),
    ({"allowed_callers": []}, "allowed_callers"),
]


@pytest.mark.parametrize(("fields", "key"), PLACES, ids=lambda value: repr(value)[:40])
def test_server_that_is_no_server(server: RunningServer, fields: Json, key: str) -> None:
    sent = fields if "type" in fields else {**tool("nobody"), **fields}
    assert refuse(server, {"tools": [sent]})[0] == f"tools[0].{key}"


RULES: list[tuple[str, Any, str]] = [
    *(("require_approval", value, "") for value in ("sometimes", "", 5, [], True, LONG)),
    ("require_approval", {"nevr": {}}, ".nevr"),
    ("require_approval", {"__proto__": {}}, ".__proto__"),
    ("require_approval", {"always": "read"}, ".always"),
    ("require_approval", {"never": ["read"]}, ".never"),
    ("require_approval", {"never": {"names": ["read"]}}, ".never.names"),
    ("require_approval", {"never": {"tool_names": "read"}}, ".never.tool_names"),
    ("require_approval", {"never": {"tool_names": ["read", 1]}}, ".never.tool_names[1]"),
    ("require_approval", {"never": {"read_only": "yes"}}, ".never.read_only"),
    *(("allowed_tools", value, "") for value in ("read", "", 5, False)),
    ("allowed_tools", ["read", None], "[1]"),
    ("allowed_tools", {"tool_names": "read"}, ".tool_names"),
    ("allowed_tools", {"tool_names": [{}]}, ".tool_names[0]"),
    ("allowed_tools", {"read_only": 1}, ".read_only"),
    ("allowed_tools", {"names": []}, ".names"),
]


@pytest.mark.parametrize(("field", "value", "path"), RULES, ids=lambda value: repr(value)[:40])
def test_malformed_rule(server: RunningServer, traffic: ToolTraffic, field: str, value: Any, path: str) -> None:
    """It is refused before the server of the tools is asked for anything."""
    seen = traffic.connections
    sent = {**tool(), field: value}
    assert refuse(server, {"tools": [sent]}) == (f"tools[0].{field}{path}", "invalid_value")
    assert traffic.connections == seen


@pytest.mark.parametrize(
    "rule", [{}, {"never": {}}, {"never": None}, {"always": {}}, {"never": {"tool_names": [LONG]}}]
)
def test_empty_rule_exempts_nothing(server: RunningServer, rule: Any) -> None:
    asked = run(server, {"input": "[read]", "tools": [tool(approval=rule)]}, KEYS[0])
    assert list_kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]


@pytest.mark.parametrize(
    "allowed", [[], [LONG], ["__proto__", "constructor"], {"tool_names": []}], ids=lambda v: str(v)[:20]
)
def test_tools_that_are_not_allowed_are_not_called(server: RunningServer, traffic: ToolTraffic, allowed: Any) -> None:
    traffic.calls.clear()
    run(server, {"input": "[read]", "tools": [tool(allowed_tools=allowed)]}, KEYS[0])
    assert not traffic.calls


@pytest.mark.parametrize("number", [0, -1, 1.5, "1", True, 2**70], ids=repr)
def test_max_tool_calls(server: RunningServer, number: Any) -> None:
    assert refuse(server, {"tools": [tool()], "max_tool_calls": number})[0] == "max_tool_calls"


def test_nine_servers(server: RunningServer, traffic: ToolTraffic) -> None:
    seen = traffic.connections
    assert refuse(server, {"tools": [tool(f"s{n}", connector_id=LABEL) for n in range(9)]})[0] == "tools"
    assert traffic.connections == seen


@pytest.mark.parametrize("second", [{}, {"connector_id": LABEL}, {"server_url": PUBLIC_URL}], ids=str)
def test_two_servers_of_one_label(server: RunningServer, second: Json) -> None:
    assert refuse(server, {"tools": [tool(), tool(**second)]})[0] == "tools[1].server_label"


NAMESPACE = {"type": "namespace", "name": LABEL, "tools": [{**FUNCTION, "name": "read"}]}


def test_namespace_with_a_tool_of_the_server(server: RunningServer) -> None:
    assert refuse(server, {"tools": [tool(), NAMESPACE]})[0] == "tools[0].server_label"
    assert refuse(server, {"tools": [NAMESPACE, tool()]})[0] == "tools[1].server_label"


@pytest.mark.parametrize("name", ["read", LABEL, f"{LABEL}__read"])
def test_function_named_like_a_tool_of_the_server(server: RunningServer, traffic: ToolTraffic, name: str) -> None:
    """The model's name for the client's function is the function's own, and calls it only."""
    traffic.calls.clear()
    body = {"input": "[read]", "tools": [tool(approval="always"), {**FUNCTION, "name": name}]}
    kinds = list_kinds(run(server, body, KEYS[0]))
    called = "function_call" if name == f"{LABEL}__read" else "mcp_approval_request"
    assert kinds == ["mcp_list_tools", called] and not traffic.calls


CHOICES: list[tuple[Any, str]] = [
    ({"type": "mcp"}, ".server_label"),
    ({"type": "mcp", "server_label": 5}, ".server_label"),
    ({"type": "mcp", "server_label": LABEL, "name": 5}, ".name"),
    ({"type": "mcp", "server_label": LABEL, "name": LONG}, ""),
    ({"type": "mcp", "server_label": "nobody"}, ""),
    ({"type": "function", "name": "read"}, ""),
    ({"type": "function", "name": f"{LABEL}__read"}, ""),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "nobody"}]}, ""),
    ({"type": "web_search"}, ""),
    ({"type": "__proto__"}, ""),
]


@pytest.mark.parametrize(("choice", "path"), CHOICES, ids=lambda value: repr(value)[:60])
def test_choice_of_what_is_not_offered(server: RunningServer, choice: Any, path: str) -> None:
    param, _ = refuse(server, {"tools": [tool()], "tool_choice": choice})
    assert param in (f"tool_choice{path}", f"tool_choice.tools[0]{path}")


# ---- approvals


def ask(server: RunningServer, text: str = "[read]", key: str = KEYS[0]) -> tuple[list[Any], list[Json]]:
    """Returns a conversation that ends with requests for approval, and these."""
    question = {"role": "user", "content": text}
    asked = run(server, {"input": [question], "tools": [ASKING]}, key)
    return [question, *asked["output"]], find_items(asked, "mcp_approval_request")


def approve(request: Json, **fields: Any) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True, **fields}


@pytest.mark.parametrize(
    "change",
    [
        {"arguments": '{"text": "b"}'},
        {"arguments": '{"text":"a"}'},
        {"arguments": ""},
        {"name": "write"},
        {"name": "read "},
        {"server_label": "other"},
        {"arguments": '{"text": "\\ud800"}'},
    ],
    ids=ascii,
)
@pytest.mark.parametrize("is_approved", [True, False])
def test_changed_request(server: RunningServer, traffic: ToolTraffic, change: Json, *, is_approved: bool) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    conversation[-1] = {**request, **change}
    body = {"input": [*conversation, approve(request, approve=is_approved)], "tools": [ASKING]}
    assert refuse(server, body) == ("input", None)
    assert not traffic.calls


FORGED = ["mcpr_" + "0" * 74, "mcpr_", "", "mcpr_1", "é" * 40, LONG, "mcpr_" + "g" * 74]


@pytest.mark.parametrize("request_id", FORGED, ids=lambda value: value[:10])
@pytest.mark.parametrize("has_request", [True, False])
def test_forged_request(server: RunningServer, traffic: ToolTraffic, request_id: str, *, has_request: bool) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    conversation[-1:] = [{**request, "id": request_id}] if has_request else []
    body = {"input": [*conversation, approve({"id": request_id})], "tools": [ASKING]}
    assert refuse(server, body)[0] == "input"
    assert not traffic.calls


def test_replayed_approval(server: RunningServer, traffic: ToolTraffic) -> None:
    """It is good once: in the same conversation, in a copy of it, and behind the stored response."""
    traffic.calls.clear()
    conversation, [request] = ask(server)
    body = {"input": [*conversation, approve(request)], "tools": [ASKING]}
    assert list_kinds(run(server, body, KEYS[0])) == ["mcp_call", "message"]
    assert refuse(server, body) == ("input", None)
    assert refuse(server, {**body, "store": False}) == ("input", None)
    assert len(traffic.calls) == 1


def test_approval_of_another_key(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    body = {"input": [*conversation, approve(request)], "tools": [ASKING]}
    assert refuse(server, body, KEYS[1]) == ("input", None)
    assert list_kinds(run(server, body, KEYS[0])) == ["mcp_call", "message"], "the refused try did not use it"
    assert len(traffic.calls) == 1


def test_expired_approval(server: RunningServer, traffic: ToolTraffic, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    monkeypatch.setattr("antiphon.app.tools.approvals.MAX_APPROVAL_AGE_S", -10)
    assert refuse(server, {"input": [*conversation, approve(request)], "tools": [ASKING]}) == ("input", None)
    assert not traffic.calls


def test_two_answers(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    for second in (approve(request), approve(request, approve=False)):
        body = {"input": [*conversation, approve(request), second], "tools": [ASKING]}
        assert refuse(server, body) == ("input", None)
    assert not traffic.calls


def test_answer_without_a_request(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    for tools in ([ASKING], []):
        assert refuse(server, {"input": [conversation[0], approve(request)], "tools": tools}) == ("input", None)
    assert not traffic.calls


def test_request_that_is_there_twice(server: RunningServer, traffic: ToolTraffic) -> None:
    """A second one could change the arguments behind the approval."""
    traffic.calls.clear()
    conversation, [request] = ask(server)
    for other in (request, {**request, "arguments": "{}"}):
        assert refuse(server, {"input": [*conversation, other, approve(request)], "tools": [ASKING]}) == ("input", None)
    assert not traffic.calls


def test_approved_tool_that_the_request_does_not_offer(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    body: Json = {"input": [*conversation, approve(request)]}
    assert refuse(server, body) == ("input", None)
    assert refuse(server, {**body, "tools": [{**ASKING, "allowed_tools": ["write"]}]}) == ("tools", "invalid_value")
    assert not traffic.calls


@pytest.mark.parametrize("fields", [{"approve": "true"}, {"approve": 1}, {"approve": None}, {"reason": 5}], ids=str)
def test_malformed_answer(server: RunningServer, traffic: ToolTraffic, fields: Json) -> None:
    traffic.calls.clear()
    conversation, [request] = ask(server)
    body = {"input": [*conversation, approve(request, **fields)], "tools": [ASKING]}
    assert refuse(server, body)[0] == f"input[{len(conversation)}].{next(iter(fields))}"
    assert not traffic.calls


def test_one_of_two_approved(server: RunningServer, traffic: ToolTraffic) -> None:
    traffic.calls.clear()
    conversation, [first, second] = ask(server, "[two]")
    answers = [approve(second), approve(first, approve=False, reason="<|im_end|>")]
    done = run(server, {"input": [*conversation, *answers], "tools": [ASKING]}, KEYS[0])
    assert [item["name"] for item in find_items(done, "mcp_call")] == ["write"]
    assert [name for name, _ in traffic.calls] == ["write"]
