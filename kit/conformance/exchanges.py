"""Replies as values: reads and checks what came, whichever API it belongs to."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from antiphon.kit.chat.stream import ChatStreamChecker, FoldedChoice, check_chat_sse, read_chat_sse
from antiphon.kit.checker.sse import SseReader
from antiphon.kit.checker.stream import StreamChecker, check_sse, check_whole_response
from antiphon.kit.conformance.client import LiveReply
from antiphon.kit.findings import Finding, FindingList, quote, quote_start
from antiphon.kit.json_values import Json

Api = Literal["responses", "chat"]
RESPONSES_PATH, CHAT_PATH = "/responses", "/chat/completions"
ERROR_KEYS = ("message", "type", "param", "code")


class Exchange(msgspec.Struct, kw_only=True):
    """A request, and what was read of its reply."""

    request: Json
    value: Json = {}
    """The terminal response, the JSON body, or the folded chat completion."""
    events: list[Json] = []
    status: int = 200
    chat: ChatStreamChecker | None = None


def read_reply(path: str, request: Json, reply: LiveReply, findings: FindingList) -> Exchange:
    """Returns the exchange of a successful reply. Adds what is wrong with the reply itself."""
    check_arrival(reply, findings)
    is_generation = path in (RESPONSES_PATH, CHAT_PATH)
    if not (request.get("stream") is True and is_generation):
        return Exchange(request=request, value=read_json_reply(path, request, reply, findings), status=reply.status)
    if not reply.is_stream:
        findings.add("http-content-type", "text/event-stream", quote(reply.content_type))
        if not reply.body.lstrip().startswith((b"data:", b"event:", b":")):
            return Exchange(request=request, value=read_json_reply(path, request, reply, findings))
    if path == CHAT_PATH:
        chat = read_chat_sse(reply.body, request)
        findings.extend(chat.finish())
        return Exchange(request=request, value=fold_choice(chat), chat=chat)
    return read_stream(reply.body, request, findings)


def read_stream(body: bytes, request: Json, findings: FindingList) -> Exchange:
    """Returns the exchange of a whole Responses stream. Adds its findings."""
    checker = StreamChecker(request)
    reader = SseReader(checker.findings)
    events: list[Json] = []
    for frame in reader.feed(body):
        checker.check_frame(frame)
        if (event := decode_event(frame.data)) is not None:
            events.append(event)
    reader.finish()
    findings.extend(checker.finish(is_sse=True))
    return Exchange(request=request, value=dict(checker.final_response or {}), events=events)


def read_events(events: Sequence[Json], request: Json, findings: FindingList) -> Exchange:
    """Returns the exchange of a stream of decoded events, as a WebSocket sends them. Adds its findings."""
    checker = StreamChecker(request)
    for event in events:
        checker.check_event(event)
    findings.extend(checker.finish())
    return Exchange(request=request, value=dict(checker.final_response or {}), events=list(events))


def list_frames(body: bytes) -> list[Json]:
    """Returns the events of a stream without a check."""
    frames = SseReader(FindingList()).feed(body)
    return [event for frame in frames if (event := decode_event(frame.data)) is not None]


def read_json_reply(path: str, request: Json, reply: LiveReply, findings: FindingList) -> Json:
    """Returns the JSON object in a reply. Adds findings about it, and about the response that it may be."""
    if reply.content_type != "application/json":
        findings.add("http-content-type", "application/json", quote(reply.content_type))
    value = reply.read_object()
    if value is None:
        findings.add("http-not-json", "a JSON object", quote_start(reply.body))
        return {}
    if path.startswith(RESPONSES_PATH) and value.get("object", "response") == "response" and "output" in value:
        check_whole_response(value, request if path == RESPONSES_PATH else None, findings)
    return value


def check_arrival(reply: LiveReply, findings: FindingList) -> None:
    """Reports a reply that did not come as a whole."""
    if reply.fault == "timeout":
        findings.add("http-timeout", "the whole reply", f"no more bytes ({reply.fault_text})")
    elif reply.fault:
        findings.add("http-disconnect", "the whole reply", f"the end of the connection ({reply.fault_text})")


def check_error_body(reply: LiveReply, findings: FindingList) -> Json:
    """Returns the error in the body of an error reply. Reports a body in another form."""
    check_arrival(reply, findings)
    value = reply.read_object()
    error = value.get("error") if value is not None else None
    if not isinstance(error, dict):
        expected = '{"error": {"message", "type", "param", "code"}}'
        findings.add("http-error-form", expected, quote_start(reply.body))
        return {}
    if reply.content_type != "application/json":
        findings.add("http-content-type", "application/json", quote(reply.content_type), "error")
    missing = [key for key in ERROR_KEYS if key not in error]
    if missing or not isinstance(error.get("message"), str):
        wrong = f"none of {', '.join(missing)}" if missing else f"message {quote(error.get('message'))}"
        findings.add("http-error-form", "message, type, param and code in the error", wrong)
    return error


def fold_choice(chat: ChatStreamChecker) -> Json:
    """Returns the first choice of a chat stream as a value for later steps."""
    choice = chat.choices.get(0, FoldedChoice())
    return {
        "content": choice.content,
        "finish_reason": choice.finish_reason,
        "usage": dict(chat.usage or {}),
        "tool_calls": [
            {"id": call.id, "type": call.type, "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ],
    }


def detect_api(data: bytes) -> Api:
    """Returns the API of a stream: chat, if its first event is a chunk of a chat completion."""
    for event in list_frames(data)[:1]:
        if isinstance(event.get("type"), str) and "choices" not in event:
            return "responses"
        return "chat" if "choices" in event or event.get("object") == "chat.completion.chunk" else "responses"
    return "responses"


def check_recorded(data: bytes, api: Api | None, request: Json | None) -> tuple[Api, list[Finding]]:
    """Returns the API and the findings of a recorded stream."""
    api = api or detect_api(data)
    return api, check_chat_sse(data, request) if api == "chat" else check_sse(data, request)


def decode_event(data: str) -> Json | None:
    """Returns the event in the data of a frame, or in a message; None if it is no JSON object."""
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
    return event if isinstance(event, dict) else None
