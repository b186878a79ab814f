"""Every code about servers is found: each broken server differs from a right one in one thing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2
import pytest
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from antiphon.kit.conformance.client import LiveClient
from antiphon.kit.conformance.runner import CaseReport, CaseRunner
from antiphon.kit.conformance.suites import select_cases
from antiphon.kit.findings import load_codes
from tests.kit.conformance.breaking_transport import Breakage, BreakingTransport, Received
from tests.kit.conformance.suite_scripts import write_script
from tests.serving import RunningServer, scripted_registry, serve

GROUPS = ("http", "live")
SEEN_IN_TRAFFIC = {"websocket-lane"}
"""Codes of servers that no suite provokes: `tests/kit/proxy/test_check_proxy.py` has their broken servers."""
SERVER = partial(serve, lambda: scripted_registry(write_script()))
CREATE = "/responses$"
ONE = r"/responses/resp_\w+$"
Change = Callable[[Received], Received]


def as_status(status: int) -> Change:
    """Makes the reply an error in the right form."""
    error = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}
    return lambda reply: reply.with_json({"error": error}, status)


def set_field(**fields: Any) -> Change:
    return lambda reply: reply.edit(lambda value: value.update(fields))


def edit(change: Callable[[Any], Any]) -> Change:
    return lambda reply: reply.edit(change)


def substitute(pattern: str, text: str) -> Change:
    return lambda reply: reply.substitute(pattern, text)


def edit_object(change: Callable[[Any], Any]) -> Change:
    """Changes replies in one piece, not streams."""
    return lambda reply: reply.edit(change) if reply.body.startswith(b"{") else reply


def raise_error(reply: Received) -> Received:
    raise httpx2.RemoteProtocolError("gone")


@dataclass(frozen=True)
class Broken:
    """A broken server, the case that notices, and the code of the finding."""

    code: str
    case: str
    path: str
    change: Change
    method: str = "POST"
    skip: int = 0

    @property
    def timeout(self) -> float:
        """Seconds that the client waits: a few where waiting is what is tested."""
        return 2 if self.code == "live-background-stuck" else 20


BROKEN = [
    Broken("http-status", "basics.text", CREATE, as_status(403)),
    Broken("http-status", "basics.text", CREATE, as_status(403), skip=1),
    Broken("http-status", "resume.get", ONE, as_status(403), "GET"),
    Broken("http-validation-status", "errors.wrong-type", CREATE, lambda reply: replace(reply, status=422)),
    Broken("http-server-error", "errors.wrong-type", CREATE, as_status(500)),
    Broken("http-content-type", "basics.text", CREATE, lambda reply: replace(reply, content_type="text/plain")),
    Broken("http-content-type", "basics.one-piece", CREATE, lambda reply: replace(reply, content_type="text/html")),
    Broken("http-content-type", "errors.wrong-type", CREATE, lambda reply: replace(reply, content_type="text/html")),
    Broken("http-not-json", "basics.one-piece", CREATE, lambda reply: replace(reply, body=b"ok")),
    Broken("http-error-form", "errors.wrong-type", CREATE, lambda reply: reply.with_json({"detail": "no"})),
    Broken("http-error-form", "errors.wrong-type", CREATE, edit(lambda value: value["error"].pop("param"))),
    Broken("http-error-code", "errors.unknown-model", CREATE, edit(lambda value: value["error"].update(code="not_found"))),
    Broken("http-error-param", "errors.wrong-type", CREATE, edit(lambda value: value["error"].update(param=None))),
    Broken("http-disconnect", "basics.text", CREATE, lambda reply: replace(reply, error=httpx2.RemoteProtocolError("cut"))),
    Broken("http-timeout", "basics.text", CREATE, lambda reply: replace(reply, error=httpx2.ReadTimeout("late"))),
    Broken("get-differs", "resume.get", ONE, set_field(created_at=1), "GET"),
    Broken("replay-differs", "resume.replay", "starting_after=0", substitute(r'"delta":"\w', '"delta":"?'), "GET"),
    Broken("replay-differs", "resume.replay", "stream=true$", substitute(r"event: response.in_progress\ndata: .*\n\n", ""), "GET"),
    Broken("replay-differs", "resume.replay", "stream=true", as_status(200), "GET"),
    Broken("body-keys-differ", "basics.text", CREATE, edit_object(lambda value: value.pop("metadata"))),
    Broken("live-failed", "basics.one-piece", CREATE, set_field(status="failed", error={"code": "server_error", "message": "No."})),
    Broken("live-ending", "basics.one-piece", CREATE, set_field(status="cancelled")),
    Broken("live-ending", "basics.token-limit", CREATE, substitute("incomplete", "completed")),
    Broken("http-disconnect", "resume.get", ONE, raise_error, "GET"),
    Broken("http-disconnect", "basics.text", "/chat/completions$", raise_error),
    Broken("live-kind-missing", "basics.one-piece", CREATE, set_field(output=[])),
    Broken("live-kind-unexpected", "tools.none", CREATE, substitute('"type":"message"', '"type":"web_search_call"')),
    Broken("live-calls", "tools.named", CREATE, substitute("get_time", "get_weather")),
    Broken("live-schema", "structured.schema", CREATE, substitute(r'\\"name\\"', r'\\"nome\\"')),
    Broken("live-schema", "structured.strict-tool", CREATE, substitute(r'\\"name\\"', r'\\"nome\\"')),
    Broken("live-grammar", "tools.custom-grammar", CREATE, substitute("2026-11-23", "tomorrow")),
    Broken("live-text-missing", "basics.one-piece", CREATE, substitute('"text":"[^"]+"', '"text":" "')),
    Broken("live-text-differs", "structured.enum", CREATE, substitute("yes", "perhaps")),
    Broken("live-field", "basics.models", "/models$", set_field(object="models"), "GET"),
    Broken("live-field", "basics.models", "/models$", set_field(data=[]), "GET"),
    Broken("live-history-lost", "resume.history", CREATE, substitute(r'"input_tokens":\d+', '"input_tokens":1'), skip=1),
    Broken("live-list", "basics.models", "/models$", edit(lambda value: value["data"][0].pop("object")), "GET"),
    Broken("live-list", "resume.get", "/input_items", edit(lambda value: value.pop("has_more")), "GET"),
    Broken("live-list", "resume.get", "/input_items", set_field(object="items"), "GET"),
    Broken("live-input-items", "resume.get", "/input_items", edit(lambda value: value.update(data=value["data"] * 2)), "GET"),
    Broken("live-conversation-items", "conversations.turn", "/items", edit(lambda value: value["data"].pop()), "GET"),
    Broken("live-delete", "resume.delete", ONE, set_field(deleted=False), "DELETE"),
    Broken("live-delete", "resume.delete", ONE, as_status(410), "GET"),
    Broken("live-store-false", "resume.not-stored", ONE, lambda reply: replace(reply, status=200), "GET"),
    Broken("live-cancel", "resume.cancel", "/cancel$", as_status(409)),
    Broken("live-background-stuck", "resume.background", ONE, set_field(status="in_progress", completed_at=None, usage=None), "GET"),
    Broken("live-encrypted-missing", "codex.encrypted-reasoning", CREATE, substitute('"encrypted_content":"[^"]+"', '"encrypted_content":""')),
    Broken("live-catalog", "codex.models", "/models", edit(lambda value: value["models"][0].pop("context_window")), "GET"),
    Broken("live-compaction", "codex.compaction-trigger", CREATE, substitute('"encrypted_content":"[^"]+"', '"encrypted_content":""')),
    Broken("capability-missing", "resume.get", ONE, as_status(404), "GET"),
]  # fmt: skip


def run_case(client: LiveClient, name: str, **options: Any) -> CaseReport:
    [(suite, case)] = select_cases((), (name,))
    return CaseRunner(client, "scripted", context_length=131_072, **options).run_case(suite, case)


def run_broken(
    server: RunningServer, name: str, *breakages: Breakage, timeout: float = 20, **options: Any
) -> CaseReport:
    with LiveClient(server.url, timeout=timeout, transport=BreakingTransport(server.url, *breakages)) as client:
        return run_case(client, name, **options)


def list_codes(report: CaseReport) -> list[str]:
    return [entry.finding.code for entry in report.findings]


@pytest.mark.parametrize("broken", BROKEN, ids=[f"{broken.code}-{broken.case}" for broken in BROKEN])
def test_broken_server_is_found(server: RunningServer, broken: Broken) -> None:
    breakage = Breakage(broken.method, broken.path, broken.change, broken.skip)
    suites = (broken.case.partition(".")[0],)
    report = run_broken(server, broken.case, breakage, timeout=broken.timeout, required_suites=suites)
    assert breakage.seen > broken.skip, "the case sends no such request"
    assert broken.code in list_codes(report)
    assert report.outcome == "failed" or load_codes()[broken.code].level != "error"


def test_right_server_has_no_finding_through_the_same_transport(server: RunningServer) -> None:
    for name in sorted({broken.case for broken in BROKEN}):
        assert run_broken(server, name).outcome == "passed", name


def test_every_code_about_servers_has_a_broken_server() -> None:
    tested = {broken.code for broken in BROKEN} | {broken.code for broken in BROKEN_SOCKETS} | SEEN_IN_TRAFFIC
    assert tested == {code.name for code in load_codes().values() if code.group in GROUPS}


@pytest.mark.parametrize("status", [404, 405, 501])
def test_missing_endpoint_is_unsupported_and_no_finding(server: RunningServer, status: int) -> None:
    report = run_broken(server, "resume.get", Breakage("GET", ONE, as_status(status)))
    assert (report.outcome, report.findings) == ("unsupported", ()) and str(status) in report.reason


def test_refused_field_of_a_capability_is_unsupported(server: RunningServer) -> None:
    error = {"message": "previous_response_id is not supported", "type": "x", "param": None, "code": None}
    breakage = Breakage("POST", CREATE, lambda reply: reply.with_json({"error": error}, 400), skip=1)
    assert run_broken(server, "resume.history", breakage).outcome == "unsupported"


def test_miss_of_the_model_is_skipped_and_no_finding(start_server: Any) -> None:
    running = start_server([{"name": "any", "output": ["I do not know."]}])
    with LiveClient(running.url) as client:
        report = run_case(client, "tools.round-trip")
    assert (report.outcome, report.findings) == ("skipped", ())
    assert 'the model did not give calls ["get_weather"], but []' in report.reason


def test_model_that_does_not_stop_is_skipped_and_no_finding(start_server: Any) -> None:
    running = start_server([{"name": "any", "output": ["word " * 2000]}])
    with LiveClient(running.url) as client:
        report = run_case(client, "basics.text")
    assert (report.outcome, report.findings) == ("skipped", ())
    assert "did not stop before max_output_tokens" in report.reason


def test_server_that_is_gone_fails_the_case(start_server: Any) -> None:
    running = start_server([{"name": "any", "output": ["Hello."]}])

    def stop(reply: Received) -> Received:
        raise httpx2.ConnectError("refused")

    breakage = Breakage("POST", CREATE, stop, skip=1)
    report = run_broken(running, "basics.text", breakage)
    assert report.outcome == "failed" and list_codes(report) == ["http-disconnect"]


def test_chat_that_differs_is_found(server: RunningServer) -> None:
    breakage = Breakage("POST", "/chat/completions", substitute("Hel", "Hal"))
    assert "chat-differs" in list_codes(run_broken(server, "basics.text", breakage))


def test_server_with_two_answers_to_one_request_is_not_compared_with_chat(start_server: Any) -> None:
    running = start_server([{"name": str(number), "output": [f"Answer {number}."]} for number in range(9)])
    with LiveClient(running.url) as client:
        report = run_case(client, "basics.text")
    assert report.outcome == "passed" and not report.findings
    assert report.remarks == ("not compared with chat: two equal requests at temperature 0 got different answers",)


# Over a WebSocket


@dataclass(frozen=True)
class BrokenSocket:
    """A broken WebSocket server: its messages in answer to the first message, None closes the connection."""

    code: str
    case: str
    messages: tuple[str | bytes | None, ...]


ERROR = '{"type": "error", "status": 404, "error": {"message": "No.", "code": "model_not_found", "param": "model"}}'
BROKEN_SOCKETS = [
    BrokenSocket("websocket-frame", "websocket.error", (ERROR.encode(),)),
    BrokenSocket("websocket-frame", "websocket.error", ("[DONE]", ERROR)),
    BrokenSocket("websocket-closed", "websocket.error", (None,)),
    BrokenSocket("websocket-closed", "websocket.error", (ERROR, None)),
    BrokenSocket("websocket-error", "websocket.error", ('{"type": "error", "message": "No."}',)),
    BrokenSocket("websocket-error", "websocket.error", (ERROR.replace("404", "500"),)),
    BrokenSocket("websocket-error", "websocket.text", (ERROR.replace("404", "403"),)),
    BrokenSocket("websocket-differs", "websocket.text", ('{"type": "response.created"}', '{"type": "response.completed", "response": {"id": "resp_1"}}')),
    BrokenSocket("http-timeout", "websocket.text", ('{"type": "response.created"}',)),
]  # fmt: skip


@contextmanager
def serve_messages(messages: tuple[str | bytes | None, ...]) -> Iterator[str]:
    """A WebSocket server that answers the first message with these."""
    import threading

    def answer(websocket: ServerConnection) -> None:
        websocket.recv()
        for message in messages:
            if message is None:
                return
            websocket.send(message)
        websocket.recv(timeout=5)

    with serve_websocket(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("broken", BROKEN_SOCKETS, ids=[f"{each.code}-{each.case}" for each in BROKEN_SOCKETS])
def test_broken_websocket_is_found(server: RunningServer, broken: BrokenSocket) -> None:
    with (
        serve_messages(broken.messages) as url,
        LiveClient(
            url, timeout=2 if broken.code == "http-timeout" else 20, transport=BreakingTransport(server.url)
        ) as client,
    ):
        report = run_case(client, broken.case)
    assert broken.code in list_codes(report) and report.outcome == "failed"


def test_refused_upgrade_is_unsupported_where_a_websocket_is_needed(start_server: Any) -> None:
    running = start_server(
        lambda: scripted_registry(write_script(suites=("codex", "websocket"))), enable_websocket=False
    )
    with LiveClient(running.url) as client:
        assert run_case(client, "websocket.text").outcome == "unsupported"
        assert run_case(client, "codex.websocket-or-426").outcome == "passed", "426 is what Codex needs"
