"""A server with one MCP server, as small as it can be. It shares no code with Antiphon's, and can have one fault."""

import json
from typing import Any

import httpx2

from tests.kit.checker.hosted_streams import APPROVAL, add_list, add_mcp_call
from tests.kit.checker.stream_writer import TEXT, Event, StreamText, encode_sse

Json = dict[str, Any]
LABEL = "s"
ECHOED = ("model", "tools", "tool_choice", "max_tool_calls", "max_output_tokens", "parallel_tool_calls", "previous_response_id", "store")  # fmt: skip


class RefusedError(Exception):
    """Raised for a request that gets 400. `param` is the field at fault."""

    def __init__(self, param: str) -> None:
        super().__init__(param)
        self.param = param


class HostedServer(httpx2.BaseTransport):
    """Answers each request by its fields alone: a call where there may be one, then a message."""

    def __init__(self, fault: str = "") -> None:
        self._fault = fault
        self._streams: dict[str, list[Event]] = {}
        self._waiting: set[str] = set()
        """Ids of the requests for approval without an answer."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return self._read_stored(request)
        body = json.loads(request.read())
        try:
            self._check(body)
            events = self._answer(body)
        except RefusedError as error:
            fields = {"message": "An MCP tool.", "type": "invalid_request_error", "param": error.param, "code": None}
            return _send_json({"error": fields}, 400)
        response = events[-1]["response"]
        self._streams[response["id"]] = events
        if body["stream"]:
            return _send(events)
        if self._fault == "whole_response_lacks_a_key":
            del response["metadata"]
        return _send_json(response)

    def _read_stored(self, request: httpx2.Request) -> httpx2.Response:
        events = self._streams[request.url.path.rpartition("/")[2]]
        if request.url.params.get("stream") != "true":
            changes = {"output": []} if self._fault == "stores_no_output" else {}
            return _send_json(events[-1]["response"] | changes)
        return _send(events[int(request.url.params.get("starting_after", -1)) + 1 :])

    def _check(self, body: Json) -> None:
        labels = [tool.get("server_label") for tool in body["tools"] if tool["type"] == "mcp"]
        choice = body.get("tool_choice")
        faults = {
            "tools[0].type": self._fault == "has_no_mcp" and bool(labels),
            "tools": len(labels) > len(set(labels)) and self._fault != "takes_a_label_twice",
            "tools[0].server_url" if self._fault != "names_no_url" else "tools": set(labels) - {LABEL} != set(),
            "tool_choice": isinstance(choice, dict) and choice["server_label"] not in labels,
            "max_tool_calls": body.get("max_tool_calls") == 0 and self._fault != "takes_a_limit_of_0",
        }
        for param, is_wrong in faults.items():
            if is_wrong:
                raise RefusedError(param)

    def _answer(self, body: Json) -> list[Event]:
        settings = {key: body[key] for key in ECHOED if key in body} | {"id": f"resp_{len(self._streams)}"}
        stream = StreamText(**settings).begin()
        items = body["input"] if isinstance(body["input"], list) else []
        answers = [item for item in items if item.get("type") == "mcp_approval_response"]
        if answers:
            return self._answer_approval(stream, answers)
        if body.get("tool_choice") == "none" and self._fault != "calls_in_spite_of_none":
            return stream.message(TEXT).end()
        add_list(stream)
        if body["tools"][0]["require_approval"] == "always" and self._fault != "asks_nobody":
            identifier = f"mcpr_{len(self._streams)}"
            self._waiting.add(identifier)
            return stream.hosted({"id": identifier} | APPROVAL).end()
        for _ in range(2 if self._fault == "calls_above_the_limit" else 1):
            add_mcp_call(stream)
        return stream.message(TEXT).end()

    def _answer_approval(self, stream: StreamText, answers: list[Json]) -> list[Event]:
        for answer in answers:
            identifier = answer["approval_request_id"]
            if identifier not in self._waiting:
                raise RefusedError("input[0].approval_request_id")
            if self._fault != "approves_twice":
                self._waiting.remove(identifier)
            if answer["approve"] or self._fault == "runs_what_was_denied":
                add_mcp_call(stream, approval_request_id=None if self._fault == "forgets_the_approval" else identifier)
        return stream.message(TEXT).end()


def _send(events: list[Event]) -> httpx2.Response:
    return _reply(200, encode_sse(events), "text/event-stream")


def _send_json(value: Json, status: int = 200) -> httpx2.Response:
    return _reply(status, json.dumps(value).encode(), "application/json")


def _reply(status: int, body: bytes, content_type: str) -> httpx2.Response:
    """Returns a reply whose body the client has yet to read, as one of the network."""
    return httpx2.Response(status, headers={"content-type": content_type}, stream=httpx2.ByteStream(body))
