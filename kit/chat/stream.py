"""The checker of one Chat Completions stream, which also folds its chunks into one completion."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.kit.checker.formats import check_arguments, check_json_text
from antiphon.kit.checker.sse import END_MARKER, Frame, SseReader, read_json
from antiphon.kit.findings import Finding, FindingList, quote
from antiphon.kit.json_values import JsonEvent, as_list, as_objects, as_text

CONSTANT_CHUNK_KEYS = ("id", "created", "model")
WHOLE_REASONS = ("stop", "tool_calls", "function_call")
"""Reasons of choices that were not cut."""
CHAT_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


class FoldedCall(msgspec.Struct):
    """A tool call, put together from its fragments."""

    id: str | None = None
    name: str | None = None
    type: str | None = None
    arguments: str = ""


class FoldedChoice(msgspec.Struct):
    """One choice of a completion, put together from its chunks."""

    content: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[FoldedCall] = []
    finish_reason: str | None = None
    has_role: bool = False


class ChatStreamChecker:
    """Checks the chunks of one chat stream in order."""

    def __init__(self, request: Mapping[str, Any] | None = None) -> None:
        self.findings = FindingList()
        self.choices: dict[int, FoldedChoice] = {}
        self.usage: Mapping[str, Any] | None = None
        self._request = request or {}
        self._first: JsonEvent | None = None
        self._position = 0
        self._has_end_marker = False
        self._has_error = False

    def check_frame(self, frame: Frame) -> None:
        """Checks a frame and the chunk in it."""
        self.findings.set_event(self._position, None)
        self._position += 1
        if frame.name is not None:
            self.findings.add("chat-event-name", "no event field", quote(frame.name))
        if self._has_end_marker:
            self.findings.add("frame-after-done-marker", "no frame after [DONE]", quote(frame.data))
        if frame.data == END_MARKER:
            self._has_end_marker = True
            return
        chunk = read_json(frame.data, self.findings)
        if chunk is not None:
            self.check_chunk(chunk)

    def check_chunk(self, chunk: JsonEvent) -> None:
        """Checks one chunk, decoded from JSON."""
        if "error" in chunk:
            self._has_error = True
            return
        if self._has_error:
            self.findings.add("chat-chunk-after-error", "no chunk after an error", quote(chunk))
        if chunk.get("object") != "chat.completion.chunk":
            self.findings.add("chat-object", '"chat.completion.chunk"', quote(chunk.get("object")))
        first = self._first = self._first if self._first is not None else chunk
        for key in CONSTANT_CHUNK_KEYS:
            if key not in chunk:
                self.findings.add("chat-key-missing", f"the key {key}", "no such key", key)
            elif chunk[key] != first.get(key):
                self.findings.add("chat-key-changed", quote(first.get(key)), quote(chunk[key]), key)
        self._check_usage(chunk)
        for choice in as_objects(chunk.get("choices")):
            self._check_choice(choice)

    def finish(self) -> list[Finding]:
        """Checks the end of the stream. Returns all findings."""
        self.findings.set_event(None, None)
        if self._position == 0:
            self.findings.add("stream-empty", "chunks", "none")
        elif not self._has_end_marker:
            self.findings.add("chat-done-marker-missing", "[DONE] after the last chunk", "none")
        for index, choice in sorted(self.choices.items()):
            if choice.finish_reason is None and not self._has_error:
                self.findings.add("chat-finish-missing", "a finish_reason", "none", f"choice {index}")
            if choice.finish_reason in WHOLE_REASONS:
                self._check_json(choice, f"choice {index}")
        options = self._request.get("stream_options")
        wants_usage = isinstance(options, dict) and options.get("include_usage") is True
        if wants_usage and self.usage is None and not self._has_error:
            self.findings.add("chat-usage-missing", "usage in the last chunk", "none")
        return self.findings.list_findings()

    def _check_json(self, choice: FoldedChoice, label: str) -> None:
        """Checks the text and the arguments of a whole choice against the schemas of the request."""
        form = self._request.get("response_format")
        if isinstance(form, dict) and choice.content and not choice.calls:
            schema = form.get("json_schema")
            fields = schema if isinstance(schema, dict) else {}
            check_json_text(choice.content, as_text(form.get("type")), fields, label, self.findings)
        functions = [tool.get("function") for tool in as_objects(self._request.get("tools"))]
        tools = {tool.get("name"): tool for tool in as_objects(functions)}
        for index, call in enumerate(choice.calls):
            if call.type == "function" and call.name in tools:
                check_arguments(call.arguments, tools[call.name], f"{label} call {index}", self.findings)

    def _check_usage(self, chunk: JsonEvent) -> None:
        if self.usage is not None:
            self.findings.add("chat-usage-not-last", "the chunk with usage last", "a chunk after it")
        usage = chunk.get("usage")
        if not isinstance(usage, dict):
            return
        if as_list(chunk.get("choices")):
            self.findings.add("chat-usage-choices", "no choices in the chunk with usage", "some")
        self.usage = usage
        prompt, completion, total = (usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
        if not isinstance(prompt, int) or not isinstance(completion, int) or not isinstance(total, int):
            self.findings.add("usage-field", "integers", quote(usage))
        elif prompt + completion != total:
            self.findings.add("usage-total", str(prompt + completion), str(total))

    def _check_choice(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index")
        if not isinstance(index, int) or not 0 <= index < (self._request.get("n") or 1):
            self.findings.add("chat-choice-index", f"below {self._request.get('n') or 1}", quote(index))
            return
        if index not in self.choices and index != len(self.choices):
            self.findings.add("chat-choice-order", f"choice {len(self.choices)} first", f"choice {index}")
        folded = self.choices.setdefault(index, FoldedChoice())
        label, delta = f"choice {index}", choice.get("delta")
        if not isinstance(delta, dict):
            self.findings.add("chat-delta-missing", "a delta", quote(delta), label)
            return
        if folded.finish_reason is not None and any(delta.values()):
            self.findings.add("chat-delta-after-finish", "no delta after finish_reason", quote(delta), label)
        if delta.get("role") is not None:
            if folded.has_role:
                self.findings.add("chat-role-repeated", "the role once", quote(delta["role"]), label)
            folded.has_role = True
        elif not folded.has_role:
            self.findings.add("chat-role-missing", "the role in the first chunk", quote(delta), label)
            folded.has_role = True
        folded.content += as_text(delta.get("content"))
        folded.refusal += as_text(delta.get("refusal"))
        folded.reasoning += as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning"))
        for fragment in as_objects(delta.get("tool_calls")):
            self._check_fragment(folded, fragment, label)
        self._check_finish(folded, choice, label)

    def _check_fragment(self, folded: FoldedChoice, fragment: Mapping[str, Any], label: str) -> None:
        index = fragment.get("index")
        if not isinstance(index, int) or not 0 <= index <= len(folded.calls):
            self.findings.add("chat-call-index", f"at most {len(folded.calls)}", quote(index), label)
            return
        is_new = index == len(folded.calls)
        if is_new:
            folded.calls.append(FoldedCall())
        call, label = folded.calls[index], f"{label} call {index}"
        body = fragment.get("function") or fragment.get("custom")
        body = body if isinstance(body, dict) else {}
        for key, value in (("id", fragment.get("id")), ("name", body.get("name"))):
            if value is None:
                continue
            if getattr(call, key) is not None:
                self.findings.add("chat-call-key-repeated", f"the {key} once", quote(value), f"{label} {key}")
            setattr(call, key, value)
        call.type = as_text(fragment.get("type")) or call.type
        if is_new and not (call.id and call.name and call.type):
            self.findings.add(
                "chat-call-start", "id, type and name in the first fragment", quote(dict(fragment)), label
            )
        call.arguments += as_text(body.get("arguments")) or as_text(body.get("input"))

    def _check_finish(self, folded: FoldedChoice, choice: Mapping[str, Any], label: str) -> None:
        reason = choice.get("finish_reason")
        if reason is None:
            return
        if folded.finish_reason is not None:
            self.findings.add("chat-finish-repeated", "one finish_reason", quote(reason), label)
        if reason not in CHAT_FINISH_REASONS:
            self.findings.add("chat-finish-reason", " or ".join(CHAT_FINISH_REASONS), quote(reason), label)
        if bool(folded.calls) != (reason in ("tool_calls", "function_call")) and reason in ("stop", "tool_calls"):
            expected = "tool_calls" if folded.calls else "stop"
            self.findings.add("chat-finish-reason", expected, quote(reason), label)
        folded.finish_reason = as_text(reason)


def check_chat_sse(data: bytes, request: Mapping[str, Any] | None = None) -> list[Finding]:
    """Returns the findings about a whole chat stream, as recorded."""
    return read_chat_sse(data, request).finish()


def read_chat_sse(data: bytes, request: Mapping[str, Any] | None = None) -> ChatStreamChecker:
    """Returns a checker that has read a whole chat stream."""
    checker = ChatStreamChecker(request)
    reader = SseReader(checker.findings)
    for frame in reader.feed(data):
        checker.check_frame(frame)
    reader.finish()
    return checker
