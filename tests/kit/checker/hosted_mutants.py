"""Ways to break each kind of item of a tool that the server runs, each with the code that must find it."""

import copy
from collections.abc import Callable
from typing import Any

from tests.kit.checker.hosted_streams import EXECUTION_ERROR, FOUND, QUERY
from tests.kit.checker.stream_changes import (
    Change,
    StreamMutant,
    both,
    cut,
    drop,
    everywhere,
    find,
    move,
    put,
    rename_item,
    repeat,
    replace_strings,
)
from tests.kit.checker.stream_writer import Event

M = StreamMutant
END, ADDED, DONE = "completed", "output_item.added", "output_item.done"
KINDS = {
    "mcp_call": 1,
    "mcp_list_tools": 0,
    "mcp_approval_request": 2,
    "web_search_call": 0,
    "code_interpreter_call": 0,
    "file_search_call": 0,
}
"""Kinds of items with their output index in the stream of that name."""


def insert_after_added(kind: str, number: int, **fields: Any) -> Change:
    """Puts an event between the added event of an item and what follows."""

    def change(events: list[Event]) -> None:
        added = find(events, ADDED, number)
        place = {"item_id": added["item"]["id"], "output_index": added["output_index"]}
        events.insert(events.index(added) + 1, {"type": f"response.{kind}", **(fields or place)})

    return change


def keep_alive_inside(number: int) -> Change:
    """Puts `response.in_progress` into an item."""
    return lambda events: insert_after_added("in_progress", number, response=events[1]["response"])(events)


def end_with(kind: str, name: str) -> Change:
    """Gives the last event of an item another name."""

    def change(events: list[Event]) -> None:
        find(events, f"{kind}.completed")["type"] = f"response.{kind}.{name}"

    return change


def rename(old: str, new: str) -> Change:
    return lambda events: [replace_strings(event, {old: new}) for event in events]


def in_all(path: str, value: Any, number: int) -> Change:
    """Sets a key of an item in its done event and in the final output."""
    return both(put(DONE, f"item.{path}", value, number), put(END, f"response.output.{number}.{path}", value))


def without(path: str, number: int) -> Change:
    return both(cut(DONE, f"item.{path}", number), cut(END, f"response.output.{number}.{path}"))


def fail_silently(number: int) -> Change:
    """Gives an item the status failed, though its last event says that it is completed."""
    return in_all("status", "failed", number)


def keep_alive_after(number: int, count: int = 1) -> Change:
    """Puts `response.in_progress` after an item."""

    def change(events: list[Event]) -> None:
        position = events.index(find(events, DONE, number)) + 1
        events[position:position] = [copy.deepcopy(events[1]) for _ in range(count)]

    return change


EACH_KIND: dict[str, tuple[Callable[[str, int], Change], str]] = {
    "id_changes": (lambda kind, number: put(DONE, "item.id", "other", number), "item-id-changed"),
    "type_changes": (lambda kind, number: put(DONE, "item.type", "compaction", number), "item-type-changed"),
    "never_added": (lambda kind, number: drop(ADDED, number), "item-never-added"),
    "added_twice": (lambda kind, number: repeat(ADDED, number), "item-id-repeated"),
    "never_done": (lambda kind, number: drop(DONE, number), "item-never-done"),
    "done_twice": (lambda kind, number: repeat(DONE, number), "item-done-repeated"),
    "missing_at_the_end": (lambda kind, number: lambda events: events[-1]["response"]["output"].pop(number), "output-item-missing"),
    "differs_at_the_end": (lambda kind, number: put(END, f"response.output.{number}.extra", 1), "output-item-changed"),
    "index_changes": (lambda kind, number: put(DONE, "output_index", number + 7, number), "output-index-changed"),
    "index_skipped": (lambda kind, number: put(ADDED, "output_index", number + 7, number), "output-index"),
    "event_of_another_kind": (lambda kind, number: insert_after_added("image_generation_call.generating", number), "event-kind"),
    "keep_alive_inside": (lambda kind, number: keep_alive_inside(number), "in-progress-late"),
    "id_empty": (lambda kind, number: put(ADDED, "item.id", "", number), "item-id-empty"),
    "tool_unknown": (lambda kind, number: everywhere("tools", [{"type": "function", "name": kind}]), "tool-unknown"),
    "half_said": (lambda kind, number: put(DONE, "item.status", "in_progress", number), "item-status"),
}  # fmt: skip
"""Changes that are made to each kind."""

MCP_CALLS = [
    M("mcp_never_in_progress", "mcp_call", drop("mcp_call.in_progress"), "delta-after-done"),
    M("mcp_arguments_never_done", "mcp_call", drop("mcp_call_arguments.done"), "body-order"),
    M("mcp_arguments_done_twice", "mcp_call", repeat("mcp_call_arguments.done"), "done-repeated"),
    M("mcp_delta_after_the_arguments", "mcp_call", move("mcp_call_arguments.done", -1), "delta-after-done"),
    M("mcp_delta_differs", "mcp_call", put("mcp_call_arguments.delta", "delta", "{}"), "done-differs-from-deltas"),
    M("mcp_item_arguments_differ", "mcp_call", put(DONE, "item.arguments", "{}", 1), "item-differs-from-deltas"),
    M("mcp_never_completed", "mcp_call", drop("mcp_call.completed"), "body-unfinished"),
    M("mcp_never_failed", "failed_mcp_call", drop("mcp_call.failed"), "body-unfinished"),
    M("mcp_completed_twice", "mcp_call", repeat("mcp_call.completed"), "body-order"),
    M("mcp_completed_and_failed", "mcp_call", lambda events: events.insert(-9, find(events, "mcp_call.completed") | {"type": "response.mcp_call.failed"}), "body-order"),
    M("mcp_keep_alive_after_the_end", "mcp_call", lambda events: events.insert(events.index(find(events, DONE, 1)), find(events, "mcp_call.in_progress")), "body-order"),
    M("mcp_failed_as_completed", "mcp_call", end_with("mcp_call", "failed"), "hosted-status"),
    M("mcp_completed_as_failed", "mcp_call", both(fail_silently(1), in_all("error", "No.", 1)), "hosted-status"),
    M("mcp_failed_without_error", "failed_mcp_call", in_all("error", None, 0), "hosted-error"),
    M("mcp_completed_with_error", "mcp_call", in_all("error", EXECUTION_ERROR, 1), "hosted-error"),
    M("mcp_error_without_type", "failed_mcp_call", in_all("error", {"message": "No."}, 0), "hosted-error"),
    M("mcp_name_changes", "mcp_call", in_all("name", "find", 1), "item-key-changed"),
    M("mcp_label_changes", "mcp_call", in_all("server_label", "t", 1), "item-key-changed"),
    M("mcp_approval_lost", "approved_mcp_call", in_all("approval_request_id", None, 1), "item-key-changed"),
    M("mcp_approval_changes", "approved_mcp_call", in_all("approval_request_id", "mcpr_2", 1), "item-key-changed"),
    M("mcp_status_missing", "mcp_call", without("status", 1), "field-missing"),
    M("mcp_label_missing", "mcp_call", cut(ADDED, "item.server_label", 1), "field-missing"),
    M("mcp_added_as_completed", "mcp_call", put(ADDED, "item.status", "completed", 1), "item-status"),
    M("mcp_added_with_output", "mcp_call", put(ADDED, "item.output", "found", 1), "item-not-empty"),
    M("mcp_added_with_arguments", "mcp_call", put(ADDED, "item.arguments", QUERY, 1), "item-not-empty"),
    M("mcp_arguments_are_cut", "mcp_call", rename(QUERY, '{"q'), "arguments-not-json"),
    M("mcp_arguments_are_a_list", "mcp_call", rename(QUERY, "[1]"), "arguments-not-object"),
    M("mcp_call_of_a_tool_that_is_not_allowed", "mcp_call", everywhere("tools", [{"type": "mcp", "server_label": "s", "allowed_tools": ["find"]}]), "tool-not-allowed"),
    M("mcp_call_outside_the_names", "mcp_call", everywhere("tools", [{"type": "mcp", "server_label": "s", "allowed_tools": {"tool_names": []}}]), "tool-not-allowed"),
    M("mcp_call_of_another_server", "mcp_tool_named", everywhere("tool_choice", {"type": "mcp", "server_label": "t"}), "tool-not-allowed"),
    M("mcp_call_in_spite_of_none", "mcp_call", everywhere("tool_choice", "none"), "tool-choice-none"),
    M("mcp_named_and_not_called", "text", everywhere("tool_choice", {"type": "mcp", "server_label": "s"}), "tool-choice-required"),
    M("mcp_calls_above_the_limit", "mcp_loop", everywhere("max_tool_calls", 1), "too-many-calls"),
    M("mcp_headers_echoed", "mcp_call", everywhere("tools", [{"type": "mcp", "server_label": "s", "headers": {"x-key": "k"}}]), "echo-secret"),
    M("mcp_authorization_echoed", "mcp_call", everywhere("tools", [{"type": "mcp", "server_label": "s", "authorization": "k"}]), "echo-secret"),
    M("mcp_cut_arguments_differ", "mcp_arguments_cut", put("incomplete", "response.output.1.arguments", '{"q"'), "open-item-differs"),
    M("mcp_cut_call_is_missing", "mcp_call_cut", lambda events: events[-1]["response"]["output"].pop(), "open-item-missing"),
    M("mcp_cut_call_in_progress", "mcp_call_cut", put("failed", "response.output.1.status", "in_progress"), "open-item-status"),
    M("mcp_cut_call_is_first", "mcp_call_cut", lambda events: events[-1]["response"]["output"].reverse(), "incomplete-item-not-last"),
    M("mcp_cut_call_has_another_name", "mcp_call_cut", put("failed", "response.output.1.name", "find"), "open-item-changed"),
    M("mcp_cut_call_of_a_completed_turn", "mcp_arguments_cut", both(put("incomplete", "response.status", "completed"), put("incomplete", "type", "response.completed")), "incomplete-item-in-completed"),
    M("mcp_ended_and_never_done", "mcp_call_cut", lambda events: events.insert(-2, find(events, "mcp_call.in_progress") | {"type": "response.mcp_call.completed"}), "item-never-done"),
    M("mcp_cut_call_is_done", "mcp_call", both(drop("mcp_call.completed"), put(DONE, "item.status", "incomplete", 1)), "incomplete-call-done"),
    M("mcp_keep_alive_of_another_item", "mcp_call_kept_alive", rename_item(("mcp_call.in_progress",), "x_7"), "item-id-changed"),
]  # fmt: skip

LISTS_AND_APPROVALS = [
    M("lists_begin_together", "two_mcp_list_tools", move(ADDED, -1, 1), "items-together"),
    M("list_beside_another_is_never_done", "two_mcp_list_tools", both(move(ADDED, -1, 1), drop(DONE, 0)), "together-never-done"),
    M("list_beside_another_is_never_whole", "two_mcp_list_tools", both(move(ADDED, -1, 1), drop(DONE, 0), put(END, "response.output.0.tools", [])), "item-never-done"),
    M("list_after_another_is_never_done", "two_mcp_list_tools", drop(DONE, 1), "item-never-done"),
    M("message_beside_a_list", "two_mcp_list_tools", move(ADDED, -1, 2), "item-interleaved"),
    M("list_never_in_progress", "mcp_list_tools", drop("mcp_list_tools.in_progress"), "body-order"),
    M("list_in_progress_twice", "mcp_list_tools", repeat("mcp_list_tools.in_progress"), "body-order"),
    M("list_completed_first", "mcp_list_tools", move("mcp_list_tools.completed", -1), "body-order"),
    M("list_never_completed", "mcp_list_tools", drop("mcp_list_tools.completed"), "body-unfinished"),
    M("list_never_failed", "failed_mcp_list_tools", drop("mcp_list_tools.failed"), "body-unfinished"),
    M("list_failed_without_error", "failed_mcp_list_tools", cut(DONE, "item.error"), "hosted-error"),
    M("list_completed_with_error", "mcp_list_tools", in_all("error", "No.", 0), "hosted-error"),
    M("list_failed_and_the_turn_goes_on", "mcp_list_tools", both(end_with("mcp_list_tools", "failed"), in_all("error", "No.", 0)), "failed-list"),
    M("list_label_changes", "mcp_list_tools", in_all("server_label", "t", 0), "item-key-changed"),
    M("list_of_nameless_tools", "mcp_list_tools", in_all("tools", [{"input_schema": {}}], 0), "field-missing"),
    M("list_without_schemas", "mcp_list_tools", in_all("tools", [{"name": "search"}], 0), "field-missing"),
    M("list_is_an_object", "mcp_list_tools", in_all("tools", {}, 0), "field-type"),
    M("list_without_tools", "mcp_list_tools", without("tools", 0), "field-missing"),
    M("approval_arguments_change", "mcp_approval_request", in_all("arguments", "{}", 2), "item-key-changed"),
    M("approval_name_changes", "mcp_approval_request", in_all("name", "find", 2), "item-key-changed"),
    M("approval_label_changes", "mcp_approval_request", in_all("server_label", "t", 2), "item-key-changed"),
    M("approval_without_arguments", "mcp_approval_request", both(cut(ADDED, "item.arguments", 2), without("arguments", 2)), "field-missing"),
    M("approval_of_cut_arguments", "mcp_approval_request", rename(QUERY, '{"q'), "arguments-not-json"),
    M("approval_has_deltas", "mcp_approval_request", insert_after_added("mcp_call_arguments.delta", 2), "event-kind"),
    M("approval_in_spite_of_none", "mcp_approval_request", everywhere("tool_choice", "none"), "tool-choice-none"),
    M("approval_of_a_tool_that_is_not_allowed", "mcp_approval_request", everywhere("tools", [{"type": "mcp", "server_label": "s", "allowed_tools": []}]), "tool-not-allowed"),
    M("two_approvals_in_spite_of_one", "two_approval_requests", everywhere("parallel_tool_calls", False), "parallel-calls"),
]  # fmt: skip

SEARCHES_AND_CODE = [
    M("search_never_in_progress", "web_search_call", drop("web_search_call.in_progress"), "body-order"),
    M("search_in_progress_twice", "web_search_call", repeat("web_search_call.in_progress"), "body-order"),
    M("search_completed_early", "web_search_call", move("web_search_call.completed", -1), "body-order"),
    M("search_never_completed", "web_search_call", drop("web_search_call.completed"), "body-unfinished"),
    M("search_completed_as_failed", "web_search_call", fail_silently(0), "hosted-status"),
    M("search_without_action", "web_search_call", without("action", 0), "field-missing"),
    M("search_action_without_type", "web_search_call", in_all("action", {"query": "q"}, 0), "field-missing"),
    M("search_of_no_page", "web_search_of_pages", in_all("action", {"type": "find_in_page", "url": "u"}, 1), "field-missing"),
    M("search_added_as_completed", "web_search_call", put(ADDED, "item.status", "completed"), "item-status"),
    M("search_cut_without_action", "web_search_call_cut", cut("incomplete", "response.output.1.action"), "field-missing"),
    M("search_citation_without_title", "web_search_call", cut("content_part.done", "part.annotations.0.title"), "field-missing"),
    M("search_citation_outside_the_text", "web_search_call", lambda events: [_replace_ends(event) for event in events], "annotation-place"),
    M("search_citation_is_lost", "web_search_call", drop("output_text.annotation.added"), "annotations-differ"),
    M("search_named_and_code_called", "web_search_named", everywhere("tool_choice", {"type": "code_interpreter"}), "tool-not-allowed"),
    M("search_outside_the_allowed", "hosted_tools_allowed", everywhere("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}), "tool-not-allowed"),
    M("search_after_a_call_of_the_client", "two_calls", both(everywhere("parallel_tool_calls", False), rename("custom_tool_call", "web_search_call")), "parallel-calls"),
    M("file_search_never_searching", "file_search_call", both(drop("file_search_call.searching"), drop("file_search_call.searching")), "body-order"),
    M("file_search_completed_twice", "file_search_call", repeat("file_search_call.completed"), "body-order"),
    M("file_search_completed_as_failed", "file_search_call", fail_silently(0), "hosted-status"),
    M("file_search_without_results", "file_search_call", without("results", 0), "field-missing"),
    M("file_search_without_queries", "file_search_call", without("queries", 0), "field-missing"),
    M("file_search_result_without_file", "file_search_call", in_all("results", [{"text": "A."}], 0), "field-missing"),
    M("file_search_score_is_text", "file_search_call", in_all("results", [FOUND | {"score": "1"}], 0), "field-type"),
    M("file_search_added_with_results", "file_search_call", put(ADDED, "item.results", [FOUND]), "item-not-empty"),
    M("file_search_cut_in_progress", "file_search_call_cut", put("incomplete", "response.output.1.status", "in_progress"), "open-item-status"),
    M("code_done_twice", "code_interpreter_call", repeat("code_interpreter_call_code.done"), "done-repeated"),
    M("code_after_its_end", "code_interpreter_call", move("code_interpreter_call_code.delta", 2), "delta-after-done"),
    M("code_differs_in_the_item", "code_interpreter_call", put(DONE, "item.code", "1"), "item-differs-from-deltas"),
    M("code_interpreted_early", "code_interpreter_call", move("code_interpreter_call.interpreting", -1), "body-order"),
    M("code_never_interpreted", "code_interpreter_call", both(drop("code_interpreter_call.interpreting"), drop("code_interpreter_call.interpreting")), "body-order"),
    M("code_never_completed", "code_interpreter_call", drop("code_interpreter_call.completed"), "body-unfinished"),
    M("code_completed_as_failed", "code_interpreter_call", fail_silently(0), "hosted-status"),
    M("code_missing", "code_interpreter_call", without("code", 0), "field-missing"),
    M("code_outputs_missing", "code_interpreter_call", without("outputs", 0), "field-missing"),
    M("code_logs_missing", "code_interpreter_call", in_all("outputs", [{"type": "logs"}], 0), "field-missing"),
    M("code_output_without_type", "code_interpreter_call", in_all("outputs", [{"logs": "2"}], 0), "field-missing"),
    M("code_container_changes", "code_interpreter_call", in_all("container_id", "cntr_2", 0), "item-key-changed"),
    M("code_added_with_outputs", "code_interpreter_call", put(ADDED, "item.outputs", [{"type": "logs", "logs": ""}]), "item-not-empty"),
    M("code_cut_has_more", "code_interpreter_call_cut", put("incomplete", "response.output.1.code", "1 + 1"), "open-item-differs"),
]  # fmt: skip

ROUNDS = [
    M("keep_alive_after_a_message", "two_messages", keep_alive_after(0), "in-progress-late"),
    M("keep_alive_after_a_call_of_the_client", "two_calls", keep_alive_after(0), "in-progress-late"),
    M("keep_alive_after_reasoning", "mcp_loop", keep_alive_after(1), "in-progress-late"),
    M("keep_alive_with_output", "web_search_call", both(keep_alive_after(0), lambda events: find(events, "in_progress", -1)["response"].update(output=[FOUND])), "snapshot-output-early"),
    M("calls_above_the_limit", "hosted_calls_up_to_the_limit", everywhere("max_tool_calls", 1), "too-many-calls"),
    M("search_changes_who_runs_it", "tool_search", in_all("execution", "client", 0), "item-key-changed"),
]  # fmt: skip


def _replace_ends(value: Any) -> Any:
    """Returns a JSON value whose citations end behind the text."""
    if isinstance(value, list):
        return [_replace_ends(each) for each in value]
    if isinstance(value, dict):
        return {key: 99 if key == "end_index" else _replace_ends(each) for key, each in value.items()}
    return value


HOSTED_MUTANTS = [
    *(
        M(f"{kind}_{name}", kind, make(kind, number), code)
        for kind, number in KINDS.items()
        for name, (make, code) in EACH_KIND.items()
    ),
    *MCP_CALLS,
    *LISTS_AND_APPROVALS,
    *SEARCHES_AND_CODE,
    *ROUNDS,
]
