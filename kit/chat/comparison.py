"""One turn through Chat Completions and through Responses, compared."""

from collections.abc import Mapping
from typing import Any

from antiphon.kit.chat.stream import ChatStreamChecker, FoldedCall, FoldedChoice
from antiphon.kit.checker.items import CALL_TYPES
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import as_list, as_objects, as_text

FINISH_OF_REASON = {"max_output_tokens": "length", "content_filter": "content_filter"}


def compare_chat(response: Mapping[str, Any], chat: ChatStreamChecker, findings: FindingList) -> None:
    """Reports differences between a terminal response and the first choice of a chat stream of the same turn."""
    choice = chat.choices.get(0)
    if choice is None:
        findings.add("chat-differs", "a choice", "none", "choices")
        return
    expected = fold_response(response)
    for name in ("content", "refusal", "finish_reason"):
        if getattr(choice, name) != getattr(expected, name):
            findings.add("chat-differs", quote(getattr(expected, name)), quote(getattr(choice, name)), name)
    if choice.reasoning and choice.reasoning != expected.reasoning and not _shows_summary_only(response):
        findings.add("chat-differs", quote(expected.reasoning), quote(choice.reasoning), "reasoning")
    calls = [[(call.name, call.arguments) for call in each.calls] for each in (expected, choice)]
    if calls[0] != calls[1]:
        findings.add("chat-differs", quote(calls[0]), quote(calls[1]), "tool_calls")
    usage = response.get("usage")
    if chat.usage is not None and isinstance(usage, dict):
        for ours, theirs in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            if usage.get(ours) != chat.usage.get(theirs):
                findings.add("chat-usage-differs", quote(usage.get(ours)), quote(chat.usage.get(theirs)), theirs)


def _shows_summary_only(response: Mapping[str, Any]) -> bool:
    """Returns whether reasoning is shown as a summary alone, which need not have the words of the reasoning."""
    reasoning = [item for item in as_objects(response.get("output")) if item.get("type") == "reasoning"]
    return any(as_list(item.get("summary")) for item in reasoning) and not any(
        as_list(item.get("content")) for item in reasoning
    )


def fold_response(response: Mapping[str, Any]) -> FoldedChoice:
    """Returns the choice that a chat client must see of a response."""
    folded = FoldedChoice()
    for item in as_objects(response.get("output")):
        parts = as_objects(item.get("content"))
        if item.get("type") == "message":
            folded.content += "".join(as_text(part.get("text")) for part in parts)
            folded.refusal += "".join(as_text(part.get("refusal")) for part in parts)
        elif item.get("type") == "reasoning":
            folded.reasoning += "".join(as_text(part.get("text")) for part in parts)
        elif item.get("type") in CALL_TYPES:
            namespace = item.get("namespace")
            name = f"{namespace}__{item.get('name')}" if namespace else item.get("name")
            arguments = as_text(item.get("arguments")) or as_text(item.get("input"))
            folded.calls.append(FoldedCall(name=name, arguments=arguments))
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    folded.finish_reason = FINISH_OF_REASON.get(as_text(reason)) or ("tool_calls" if folded.calls else "stop")
    return folded
