"""Legal streams by name. `hosted_streams.py` has those with tools that the server runs."""

from collections.abc import Callable
from typing import Any

from tests.kit.checker.hosted_streams import HOSTED
from tests.kit.checker.stream_writer import ARGUMENTS, CITATION, LOGPROBS, TEXT, Event, StreamText, begin_stream


def _call_cut_open() -> list[Event]:
    stream = begin_stream()
    head = {"type": "function_call", "id": "fc_0", "call_id": "call_0", "name": "get_weather"}
    place = stream.add(head | {"arguments": "", "status": "in_progress"})
    stream.emit("function_call_arguments.delta", **place, delta='{"ci')
    return stream.end("incomplete", open_item=head | {"arguments": '{"ci', "status": "incomplete"})


def _shell_call_cut_open() -> list[Event]:
    stream = begin_stream()
    head = {"type": "shell_call", "id": "sh_0", "call_id": "call_s"}
    place = {"output_index": stream.add(head | {"action": {"commands": []}, "status": "in_progress"})["output_index"]}
    for number, command in enumerate(("ls", "pw")):
        spot = place | {"command_index": number}
        stream.emit("shell_call_command.added", **spot, command="")
        stream.emit("shell_call_command.delta", **spot, delta=command)
        if number == 0:
            stream.emit("shell_call_command.done", **spot, command=command)
    return stream.end("incomplete", open_item=head | {"action": {"commands": ["ls", "pw"]}, "status": "incomplete"})


def _patch_cut_open() -> list[Event]:
    stream = begin_stream()
    item = {"type": "apply_patch_call", "id": "apc_0", "call_id": "call_0", "status": "in_progress"}
    operation = {"type": "update_file", "path": "a.md", "diff": ""}
    place = stream.add(item | {"operation": operation})
    stream.emit("apply_patch_call_operation_diff.delta", **place, delta="@@\n")
    return stream.end("incomplete", open_item=item | {"operation": operation | {"diff": "@@\n"}})


def _message_open_at_failure(status: str = "failed") -> list[Event]:
    stream = begin_stream()
    head = {"type": "message", "id": "msg_0", "role": "assistant"}
    place = stream.add(head | {"status": "in_progress", "content": []}) | {"content_index": 0}
    part: Event = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    stream.emit("content_part.added", **place, part=part)
    stream.emit("output_text.delta", **place, delta="Hel", logprobs=[])
    return stream.end(status, open_item=head | {"status": "incomplete", "content": [part | {"text": "Hel"}]})


def _shell_output() -> list[Event]:
    content = {"command_index": 0}
    return (
        begin_stream()
        .hosted(
            {"type": "shell_call_output", "call_id": "call_s", "output": [], "status": "completed"},
            ("shell_call_output_content.delta", {**content, "delta": {"stdout": "a"}}),
            ("shell_call_output_content.done", {**content, "output": [{"stdout": "a"}]}),
        )
        .end()
    )


def _bare(kind: str, **keys: Any) -> list[Event]:
    return begin_stream().hosted({"type": kind, **keys}).end()


LEGAL: dict[str, Callable[[], list[Event]]] = {
    "nothing": lambda: begin_stream().end(),
    "queued": lambda: StreamText(background=True).begin(queued=True, keepalives=2).message(TEXT).end(),
    "text": lambda: begin_stream().message(TEXT).end(),
    "text_and_refusal": lambda: begin_stream().message(TEXT, ("refusal", ["I ", "cannot."])).end(),
    "refusal": lambda: begin_stream().message(("refusal", ["No."])).end(),
    "text_with_phase": lambda: begin_stream().message(TEXT, phase="final_answer").end(),
    "text_with_logprobs": lambda: (
        begin_stream(top_logprobs=2).message(("output_text", ["He", "llo"]), logprobs=LOGPROBS).end()
    ),
    "text_with_annotations": lambda: begin_stream().message(TEXT, annotations=(CITATION, CITATION)).end(),
    "text_without_deltas": lambda: begin_stream().message(("output_text", []), ("output_text", ["a"])).end(),
    "two_messages": lambda: begin_stream().message(TEXT, phase="commentary").message(TEXT, phase="final_answer").end(),
    "raw_reasoning": lambda: begin_stream().reasoning((["Hm", "."], ["So."])).message(TEXT).end(),
    "summarised_reasoning": lambda: begin_stream().reasoning((), (["A."], ["B", "."])).message(TEXT).end(),
    "both_kinds_of_reasoning": lambda: begin_stream().reasoning((["Hm."],), (["A."],)).message(TEXT).end(),
    "sealed_reasoning": lambda: begin_stream().reasoning((["Hm."],), encrypted_content="blob").message(TEXT).end(),
    "function_call": lambda: begin_stream().call(*ARGUMENTS).end(),
    "function_call_without_deltas": lambda: begin_stream().call("{}").end(),
    "function_call_in_namespace": lambda: begin_stream().call(*ARGUMENTS, name="spawn", namespace="agents").end(),
    "custom_tool_call": lambda: begin_stream().custom_call("*** Begin", " Patch").end(),
    "two_calls": lambda: begin_stream().call(*ARGUMENTS).custom_call("x").end(),
    "reasoning_text_and_calls": lambda: begin_stream().reasoning((["Hm."],)).message(TEXT).call(*ARGUMENTS).end(),
    "json_text": lambda: (
        begin_stream(text={"format": {"type": "json_object"}}).message(("output_text", ["{", "}"])).end()
    ),
    "required_call": lambda: begin_stream(tool_choice="required").call(*ARGUMENTS).end(),
    "named_call": lambda: begin_stream(tool_choice={"type": "function", "name": "get_weather"}).call(*ARGUMENTS).end(),
    "allowed_tools": lambda: (
        begin_stream(
            tool_choice={
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            }
        )
        .call(*ARGUMENTS)
        .end()
    ),
    "one_call_at_most": lambda: begin_stream(parallel_tool_calls=False).call(*ARGUMENTS).end(),
    "token_limit": lambda: begin_stream(max_output_tokens=8).message(TEXT, status="incomplete").end("incomplete"),
    "content_filter": lambda: (
        begin_stream()
        .message(TEXT, status="incomplete")
        .end("incomplete", incomplete_details={"reason": "content_filter"})
    ),
    "call_cut_open": _call_cut_open,
    "cancelled": lambda: _message_open_at_failure("cancelled"),
    "failed": lambda: begin_stream().message(TEXT).end("failed"),
    "failed_inside_a_message": _message_open_at_failure,
    "compaction": lambda: (
        begin_stream()
        .hosted({"type": "compaction", "encrypted_content": "blob"}, "compaction.compacting", "compaction.compacting")
        .end()
    ),
    "shell_call": lambda: begin_stream().shell_call().end(),
    "shell_call_output": _shell_output,
    "function_call_output": lambda: _bare("function_call_output", call_id="call_1", output="ok"),
    "custom_tool_call_output": lambda: _bare("custom_tool_call_output", call_id="call_1", output="ok"),
    "computer_call": lambda: _bare("computer_call", call_id="call_1", action={}, status="completed"),
    "local_shell_call": lambda: _bare("local_shell_call", call_id="call_1", action={}, status="completed"),
    "apply_patch_call": lambda: begin_stream().patch("+a", "\n+b\n").end(),
    "apply_patch_calls_without_events": lambda: begin_stream().patch().patch(path="b.md").end(),
    "patch_cut_open": _patch_cut_open,
    "shell_call_cut_open": _shell_call_cut_open,
    "tool_search_call": lambda: _bare("tool_search_call", status="completed", execution="client", arguments={}),
    "tool_search_output": lambda: _bare("tool_search_output", status="completed", tools=[]),
    "additional_tools": lambda: _bare("additional_tools", role="developer", tools=[]),
    "extension_item": lambda: _bare("acme:thought", text="x"),
    **HOSTED,
}
"""Streams by name: one for each kind of item, and the combinations and endings that the grammar has."""
