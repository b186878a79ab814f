"""Ways to break a legal stream, each with the code that must find it."""

import copy
from collections.abc import Callable
from typing import Any

from tests.kit.checker.hosted_mutants import HOSTED_MUTANTS
from tests.kit.checker.stream_changes import (
    Change,
    StreamMutant,
    both,
    cut,
    drop,
    everywhere,
    find,
    insert,
    move,
    put,
    repeat,
    replace_strings,
)
from tests.kit.checker.stream_writer import WEATHER, Event


def interleave(events: list[Event]) -> list[Event]:
    """Moves the done event of the first item behind the added event of the second."""
    first_done, second_added = find(events, "output_item.done"), find(events, "output_item.added", 1)
    events.remove(first_done)
    events.insert(events.index(second_added) + 1, first_done)
    return events


LATER_KEYS = ("background", "service_tier", "completed_at", "max_tool_calls")


def _without(value: Any, *keys: str) -> Any:
    """Returns a JSON value without these keys, at any depth."""
    if isinstance(value, list):
        return [_without(each, *keys) for each in value]
    if isinstance(value, dict):
        return {key: _without(each, *keys) for key, each in value.items() if key not in keys}
    return value


def _count(**fields: Any) -> Change:
    """Changes the usage at the end."""
    return lambda events: events[-1]["response"]["usage"].update(fields)


def _each_annotation(events: list[Event], **fields: Any) -> None:
    """Changes every annotation, wherever it stands."""

    def visit(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                visit(each)
        elif isinstance(value, dict):
            if value.get("type") == "url_citation":
                value.update(fields)
            for each in value.values():
                visit(each)

    visit(events)


def _each_list(events: list[Event], name: str, change: Callable[[list[Any]], list[Any]]) -> list[Event]:
    """Changes every list of this name but those of the deltas, of which the last is emptied."""

    def visit(value: Any) -> Any:
        if isinstance(value, list):
            return [visit(each) for each in value]
        if isinstance(value, dict):
            return {key: change(each) if key == name else visit(each) for key, each in value.items()}
        return value

    last = find(events, "output_text.delta", -1)
    return [event | {name: []} if event is last else visit(event) for event in events]


M = StreamMutant
END = "completed"

SEQUENCE = [
    M("number_skipped", "text", put("output_text.delta", "sequence_number", 99), "sequence-gap", renumber=False),
    M("number_repeated", "text", put("output_text.delta", "sequence_number", 2), "sequence-repeated", renumber=False),
    M("number_missing", "text", cut("output_text.delta", "sequence_number"), "sequence-missing", renumber=False),
    M("number_is_text", "text", put("output_text.delta", "sequence_number", "5"), "sequence-missing", renumber=False),
    M("number_is_true", "text", put("created", "sequence_number", True), "sequence-missing", renumber=False),
    M("no_number_in_any_event", "text", lambda events: [_without(event, "sequence_number") for event in events], "sequence-missing", renumber=False),
    M("no_number_in_the_first_event", "text", cut("created", "sequence_number"), "sequence-missing", renumber=False),
    M("early_stream_without_numbers", "text", lambda events: [_without(event, "sequence_number", *LATER_KEYS) for event in events], "sequence-absent", renumber=False),
    M("early_stream_without_logprobs", "text", lambda events: [_without(event, "logprobs", *LATER_KEYS) for event in events], "field-missing-early"),
    M("keepalive_takes_a_wrong_number", "text", insert(2, {"type": "keepalive", "sequence_number": 9}), "keepalive-event", renumber=False),
    M("numbers_from_one", "text", lambda events: [event | {"sequence_number": event["sequence_number"] + 1} for event in events], "sequence-start", renumber=False),
    M("events_swapped_with_their_numbers", "text", move("output_text.delta", 1), "sequence-gap", renumber=False),
    M("event_lost", "text", drop("output_text.delta"), "sequence-gap", renumber=False),
    M("event_sent_twice", "text", repeat("output_text.delta"), "sequence-repeated", renumber=False),
    M("no_events", "text", lambda events: events.clear() or events, "stream-empty"),
    M("type_missing", "text", cut("output_text.delta", "type"), "event-type-missing"),
    M("type_is_number", "text", put("output_text.delta", "type", 7), "event-type-missing"),
    M("type_renamed", "text", put("output_text.done", "type", "response.output_text.finished"), "event-type-unknown"),
    M("extension_event", "text", insert(2, {"type": "acme:note"}), "event-extension"),
    M("keepalive_event", "text", insert(2, {"type": "keepalive"}), "keepalive-event", renumber=False),
    M("open_responses_delta", "raw_reasoning", put("reasoning_text.delta", "type", "response.reasoning.delta"), "open-responses-name"),
    M("open_responses_done", "raw_reasoning", put("reasoning_text.done", "type", "response.reasoning.done"), "open-responses-name"),
    M("delta_missing", "text", cut("output_text.delta", "delta"), "field-missing"),
    M("delta_is_number", "text", put("output_text.delta", "delta", 5), "field-type"),
    M("delta_is_null", "text", put("output_text.delta", "delta", None), "field-type"),
    M("logprobs_missing", "text", cut("output_text.delta", "logprobs"), "field-missing"),
    M("item_id_missing", "text", cut("output_text.delta", "item_id"), "field-missing"),
    M("index_missing", "text", cut("output_text.delta", "output_index"), "field-missing"),
    M("index_is_text", "text", put("output_text.delta", "output_index", "0"), "field-type"),
    M("content_index_missing", "text", cut("output_text.done", "content_index"), "field-missing"),
    M("arguments_are_an_object", "function_call", put("function_call_arguments.done", "arguments", {}), "field-type"),
    M("item_arguments_are_an_object", "function_call", put("output_item.done", "item.arguments", {}), "field-type"),
    M("item_missing", "text", cut("output_item.done", "item"), "field-missing"),
    M("role_missing", "text", cut("output_item.added", "item.role"), "field-missing"),
    M("summary_missing", "raw_reasoning", cut("output_item.done", "item.summary"), "field-missing"),
    M("annotations_missing", "text", cut("content_part.done", "part.annotations"), "field-missing"),
    M("container_missing", "code_interpreter_call", cut("output_item.added", "item.container_id"), "field-missing"),
    M("surrogate_in_a_delta", "text", put("output_text.delta", "delta", "\ud83d"), "text-surrogate"),
]  # fmt: skip

LIFECYCLE = [
    M("created_missing", "text", drop("created"), "first-event"),
    M("created_late", "text", move("created", 1), "first-event"),
    M("created_twice", "text", repeat("created"), "created-repeated"),
    M("queued_late", "queued", move("queued", 2), "queued-late"),
    M("progress_after_an_item", "text", lambda events: events.insert(3, copy.deepcopy(events[1])), "in-progress-late"),
    M("end_missing", "text", drop(END), "terminal-missing"),
    M("end_twice", "text", repeat(END), "terminal-repeated"),
    M("delta_after_the_end", "text", lambda events: events.append(find(events, "output_text.delta")), "event-after-terminal"),
    M("item_after_the_end", "two_messages", lambda events: events.append(events.pop(-2)), "event-after-terminal"),
    M("error_alone", "failed", drop("failed"), "error-without-failed"),
    M("error_then_completed", "failed", put("failed", "type", "response.completed"), "error-without-failed"),
    M("error_then_a_delta", "failed", lambda events: events.insert(-1, find(events, "output_text.delta")), "error-without-failed"),
    M("failed_alone", "failed", drop("error"), "failed-without-error"),
    M("error_is_flat_only", "failed", cut("error", "error"), "error-form"),
    M("error_is_nested_only", "failed", cut("error", "code"), "error-form"),
    M("errors_differ", "failed", put("error", "error.code", "invalid_prompt"), "error-forms-differ"),
    M("key_missing", "text", cut("created", "response.tools"), "response-key-missing"),
    M("key_missing_at_the_end", "text", cut(END, "response.parallel_tool_calls"), "response-key-missing"),
    M("nullable_key_missing", "text", cut("created", "response.instructions"), "response-key-absent"),
    M("usage_key_missing_at_the_end", "text", cut(END, "response.usage"), "usage-missing"),
    M("details_key_missing", "token_limit", cut("incomplete", "response.incomplete_details"), "response-ending"),
    M("error_key_missing", "failed", cut("failed", "response.error"), "response-ending"),
    M("output_text_on_the_wire", "text", put(END, "response.output_text", ""), "output-text-on-wire"),
    M("created_at_in_milliseconds", "text", everywhere("created_at", 1_700_000_000_000), "time-unit"),
    M("completed_at_in_milliseconds", "text", put(END, "response.completed_at", 1_700_000_000_000), "time-unit"),
    M("created_at_is_negative", "text", everywhere("created_at", -1), "time-unit"),
    M("completed_before_it_was_created", "text", put(END, "response.completed_at", 1_699_999_999), "time-order"),
    M("in_progress_missing", "text", drop("in_progress"), "in-progress-missing"),
    M("error_messages_differ", "failed", put("failed", "response.error.message", "It is broken."), "error-differs"),
    M("error_codes_differ", "failed", put("failed", "response.error.code", "invalid_prompt"), "error-differs"),
    M("conversation_invented_at_the_end", "text", put(END, "response.conversation", {"id": "conv_1"}), "response-setting-changed"),
    M("store_flipped_at_the_end", "text", put(END, "response.store", False), "response-setting-changed"),
    M("service_tier_raised", "text", put(END, "response.service_tier", "priority"), "response-setting-changed"),
    M("service_tier_lost", "text", put(END, "response.service_tier", None), "response-setting-changed"),
    M("created_at_is_text", "text", everywhere("created_at", "now"), "response-key-type"),
    M("output_is_null", "nothing", put(END, "response.output", None), "response-key-type"),
    M("object_is_another", "text", everywhere("object", "chat.completion"), "response-key-type"),
    M("response_id_changed", "text", put(END, "response.id", "resp_2"), "response-id-changed"),
    M("response_id_changed_early", "text", put("in_progress", "response.id", "resp_2"), "response-id-changed"),
    M("model_changed", "text", put(END, "response.model", "other"), "response-setting-changed"),
    M("created_at_changed", "text", put(END, "response.created_at", 5), "response-setting-changed"),
    M("tools_changed", "text", put(END, "response.tools", []), "response-setting-changed"),
    M("temperature_changed", "text", put("in_progress", "response.temperature", 0.5), "response-setting-changed"),
    M("created_is_completed", "text", put("created", "response.status", "completed"), "response-status"),
    M("completed_is_incomplete", "text", put(END, "response.status", "incomplete"), "response-status"),
    M("completed_is_in_progress", "text", put(END, "response.status", "in_progress"), "response-status"),
    M("failed_is_completed", "failed", put("failed", "response.status", "completed"), "response-status"),
    M("cut_turn_ends_as_completed", "token_limit", put("incomplete", "type", "response.completed"), "response-status"),
    M("completed_at_missing", "text", put(END, "response.completed_at", None), "response-ending"),
    M("completed_at_of_a_cut_turn", "token_limit", put("incomplete", "response.completed_at", 5), "response-ending"),
    M("error_of_a_completed_turn", "text", put(END, "response.error", {"code": "a", "message": "b"}), "response-ending"),
    M("details_missing", "token_limit", put("incomplete", "response.incomplete_details", None), "response-ending"),
    M("details_of_a_completed_turn", "text", put(END, "response.incomplete_details", {"reason": "max_output_tokens"}), "response-ending"),
    M("reason_is_another", "token_limit", put("incomplete", "response.incomplete_details", {"reason": "length"}), "incomplete-reason"),
    M("error_without_code", "failed", put("failed", "response.error", {"message": "b"}), "response-error"),
    M("output_in_progress", "text", lambda events: events[1]["response"].update(output=events[-1]["response"]["output"]), "snapshot-output-early"),
    M("usage_in_created", "text", lambda events: events[0]["response"].update(usage=events[-1]["response"]["usage"]), "snapshot-ending-early"),
    M("completed_at_in_created", "text", put("created", "response.completed_at", 5), "snapshot-ending-early"),
]  # fmt: skip

ITEMS = [
    M("kind_is_unknown", "function_call", both(put("output_item.added", "item.type", "tool_use"), put("output_item.done", "item.type", "tool_use")), "item-type-unknown"),
    M("items_interleave", "two_messages", interleave, "item-interleaved"),
    M("item_after_a_cut_one", "two_messages", put("output_item.done", "item.status", "incomplete"), "item-after-incomplete"),
    M("added_with_text", "text", lambda events: find(events, "output_item.added")["item"].update(content=find(events, "output_item.done")["item"]["content"]), "item-not-empty"),
    M("added_with_arguments", "function_call", put("output_item.added", "item.arguments", "{}"), "item-not-empty"),
    M("added_with_summary", "summarised_reasoning", put("output_item.added", "item.summary", [{"type": "summary_text", "text": "A"}]), "item-not-empty"),
    M("added_as_completed", "text", put("output_item.added", "item.status", "completed"), "item-status"),
    M("added_with_an_unknown_status", "web_search_call", put("output_item.added", "item.status", "begun"), "item-status"),
    M("image_done_in_progress", "image_generation_call", put("output_item.done", "item.status", "in_progress"), "item-status"),
    M("message_done_as_generating", "text", put("output_item.done", "item.status", "generating"), "item-status"),
    M("done_in_progress", "text", put("output_item.done", "item.status", "in_progress"), "item-status"),
    M("id_empty", "text", put("output_item.added", "item.id", ""), "item-id-empty"),
    M("id_missing", "text", cut("output_item.added", "item.id"), "item-id-empty"),
    M("id_of_the_item_before", "two_messages", put("output_item.added", "item.id", "msg_0", 1), "item-id-repeated"),
    M("id_of_a_delta_changed", "text", put("output_text.delta", "item_id", "msg_x"), "item-id-changed"),
    M("id_of_a_part_changed", "text", put("content_part.added", "item_id", "msg_x"), "item-id-changed"),
    M("id_of_the_arguments_changed", "function_call", put("function_call_arguments.done", "item_id", "fc_x"), "item-id-changed"),
    M("id_at_the_end_changed", "text", put("output_item.done", "item.id", "msg_x"), "item-id-changed"),
    M("type_changed", "text", put("output_item.done", "item.type", "reasoning"), "item-type-changed"),
    M("role_changed", "text", put("output_item.done", "item.role", "user"), "item-key-changed"),
    M("role_is_user", "text", lambda events: [replace_strings(event, {"assistant": "user"}) for event in events], "item-role"),
    M("id_has_the_prefix_of_reasoning", "text", lambda events: [replace_strings(event, {"msg_0": "rs_0"}) for event in events], "item-id-prefix"),
    M("id_has_the_prefix_of_a_message", "function_call", lambda events: [replace_strings(event, {"fc_0": "msg_0"}) for event in events], "item-id-prefix"),
    M("name_in_the_done_event_differs", "function_call", put("function_call_arguments.done", "name", "apply_patch"), "item-key-changed"),
    M("name_changed", "function_call", put("output_item.done", "item.name", "apply_patch"), "item-key-changed"),
    M("namespace_lost", "function_call_in_namespace", cut("output_item.done", "item.namespace"), "item-key-changed"),
    M("phase_changed", "text_with_phase", put("output_item.done", "item.phase", "commentary"), "item-key-changed"),
    M("call_id_empty", "function_call", put("output_item.added", "item.call_id", ""), "call-id-empty"),
    M("call_id_repeated", "two_calls", put("output_item.added", "item.call_id", "call_0", 1), "call-id-repeated"),
    M("call_id_is_the_id", "function_call", put("output_item.added", "item.call_id", "fc_0"), "call-id-is-item-id"),
    M("call_id_changed", "function_call", put("output_item.done", "item.call_id", "call_x"), "call-id-changed"),
    M("name_empty", "function_call", put("output_item.added", "item.name", ""), "call-name-empty"),
    M("index_from_one", "text", lambda events: [event | ({"output_index": 1} if "output_index" in event else {}) for event in events], "output-index"),
    M("index_gap", "two_messages", lambda events: [event | ({"output_index": 2} if event.get("output_index") == 1 else {}) for event in events], "output-index"),
    M("index_is_minus_one", "text", put("output_item.added", "output_index", -1), "output-index"),
    M("index_reused", "two_messages", put("output_item.added", "output_index", 0, 1), "output-index-reused"),
    M("index_of_a_delta_changed", "text", put("output_text.delta", "output_index", 1), "output-index-changed"),
    M("index_of_done_changed", "text", put("output_item.done", "output_index", 1), "output-index-changed"),
    M("added_missing", "text", drop("output_item.added"), "event-outside-item"),
    M("added_missing_of_a_bare_item", "function_call_output", drop("output_item.added"), "item-never-added"),
    M("call_has_done_only", "function_call", both(drop("output_item.added"), drop("function_call_arguments.delta"), drop("function_call_arguments.delta"), drop("function_call_arguments.done")), "item-never-added"),
    M("done_missing", "text", drop("output_item.done"), "item-never-done"),
    M("done_missing_of_a_cut_message", "token_limit", drop("output_item.done"), "item-never-done"),
    M("done_twice", "text", repeat("output_item.done"), "item-done-repeated"),
    M("cut_call_is_done", "function_call", put("output_item.done", "item.status", "incomplete"), "incomplete-call-done"),
    M("message_without_parts", "text", put("output_item.done", "item.content", []), "message-without-parts"),
    M("delta_before_its_item", "text", move("output_item.added", 2), "event-outside-item"),
    M("delta_of_an_unknown_item", "function_call", both(put("function_call_arguments.delta", "item_id", "fc_x"), put("function_call_arguments.delta", "output_index", 7)), "event-outside-item"),
    M("delta_after_its_item", "two_messages", lambda events: events.insert(9, find(events, "output_text.delta")), "event-of-closed-item"),
    M("arguments_in_a_message", "text", lambda events: events.insert(5, {"type": "response.function_call_arguments.delta", "item_id": "msg_0", "output_index": 0, "delta": "x"}), "event-kind"),
    M("text_in_a_call", "function_call", lambda events: events.insert(3, {"type": "response.output_text.delta", "item_id": "fc_0", "output_index": 0, "content_index": 0, "delta": "x", "logprobs": []}), "event-kind"),
    M("text_in_reasoning", "raw_reasoning", put("reasoning_text.delta", "type", "response.output_text.delta"), "event-kind"),
    M("input_in_a_function_call", "function_call", put("function_call_arguments.delta", "type", "response.custom_tool_call_input.delta"), "event-kind"),
    M("search_before_its_start", "web_search_call", move("web_search_call.in_progress", 1), "body-order"),
    M("mcp_ends_before_its_arguments", "mcp_call", move("mcp_call.completed", -1), "body-order"),
    M("search_without_an_end", "file_search_call", drop("file_search_call.completed"), "body-unfinished"),
    M("arguments_never_done", "function_call", drop("function_call_arguments.done"), "body-unfinished"),
    M("input_never_done", "custom_tool_call", drop("custom_tool_call_input.done"), "body-unfinished"),
    M("code_never_done", "code_interpreter_call", drop("code_interpreter_call_code.done"), "body-order"),
    M("command_index_skipped", "shell_call", put("shell_call_command.added", "command_index", 2, 1), "command-index"),
    M("command_index_of_a_delta", "shell_call", put("shell_call_command.delta", "command_index", 0, 1), "command-index"),
    M("picture_index_from_one", "image_generation_call", put("image_generation_call.partial_image", "partial_image_index", 1), "command-index"),
    M("null_phase", "text", both(put("output_item.added", "item.phase", None), put("output_item.done", "item.phase", None)), "optional-null"),
    M("null_encrypted_content", "raw_reasoning", put("output_item.done", "item.encrypted_content", None), "optional-null"),
]  # fmt: skip

CONTENT = [
    M("parts_interleave", "text_and_refusal", move("content_part.done", 1), "part-interleaved"),
    M("part_never_added", "text_without_deltas", both(drop("content_part.added"), drop("output_text.done")), "part-never-added"),
    M("part_never_done", "text", drop("content_part.done"), "part-never-done"),
    M("part_added_with_text", "text", put("content_part.added", "part.text", "Hel"), "part-not-empty"),
    M("summary_added_with_text", "summarised_reasoning", put("reasoning_summary_part.added", "part.text", "A."), "part-not-empty"),
    M("part_kind_unknown", "text", put("content_part.added", "part.type", "text"), "part-type"),
    M("reasoning_part_in_a_message", "text", put("content_part.added", "part", {"type": "reasoning_text", "text": ""}), "part-type"),
    M("refusal_in_a_text_part", "text_and_refusal", lambda events: events.insert(4, find(events, "refusal.delta") | {"content_index": 0}), "part-type"),
    M("part_kind_changed", "text", put("content_part.done", "part", {"type": "refusal", "refusal": "Hello"}), "part-type"),
    M("content_index_from_one", "text", put("content_part.added", "content_index", 1), "part-index"),
    M("content_index_of_a_delta", "text_and_refusal", put("refusal.delta", "content_index", 0), "part-index"),
    M("summary_index_repeated", "summarised_reasoning", put("reasoning_summary_part.added", "summary_index", 0, 1), "part-index"),
    M("text_never_done", "text", drop("output_text.done"), "part-text-never-done"),
    M("summary_never_done", "summarised_reasoning", drop("reasoning_summary_text.done"), "part-text-never-done"),
    M("part_text_differs", "text", put("content_part.done", "part.text", "Hullo"), "part-differs-from-deltas"),
    M("refusal_differs", "refusal", put("content_part.done", "part.refusal", "Yes."), "part-differs-from-deltas"),
    M("part_added_missing", "text", drop("content_part.added"), "content-outside-part"),
    M("summary_part_added_missing", "summarised_reasoning", drop("reasoning_summary_part.added"), "content-outside-part"),
    M("delta_is_empty", "text", put("output_text.delta", "delta", ""), "delta-empty"),
    M("argument_delta_is_empty", "function_call", put("function_call_arguments.delta", "delta", ""), "delta-empty"),
    M("delta_after_text_done", "text", move("output_text.done", -1), "delta-after-done"),
    M("delta_after_arguments_done", "function_call", move("function_call_arguments.done", -1), "delta-after-done"),
    M("text_done_twice", "text", repeat("output_text.done"), "done-repeated"),
    M("arguments_done_twice", "function_call", repeat("function_call_arguments.done"), "done-repeated"),
    M("delta_lost", "text", drop("output_text.delta"), "done-differs-from-deltas"),
    M("delta_twice", "text", repeat("output_text.delta"), "done-differs-from-deltas"),
    M("deltas_swapped", "text", move("output_text.delta", 1), "done-differs-from-deltas"),
    M("byte_of_a_delta_changed", "text", put("output_text.delta", "delta", "hel"), "done-differs-from-deltas"),
    M("byte_of_reasoning_changed", "raw_reasoning", put("reasoning_text.delta", "delta", "hm"), "done-differs-from-deltas"),
    M("byte_of_a_summary_changed", "summarised_reasoning", put("reasoning_summary_text.delta", "delta", "B."), "done-differs-from-deltas"),
    M("byte_of_arguments_changed", "function_call", put("function_call_arguments.delta", "delta", '{"city" : '), "done-differs-from-deltas"),
    M("byte_of_input_changed", "custom_tool_call", put("custom_tool_call_input.delta", "delta", "***  Begin"), "done-differs-from-deltas"),
    M("byte_of_code_changed", "code_interpreter_call", put("code_interpreter_call_code.delta", "delta", "2 + "), "done-differs-from-deltas"),
    M("byte_of_a_command_changed", "shell_call", put("shell_call_command.delta", "delta", "rm"), "done-differs-from-deltas"),
    M("arguments_spaced_otherwise", "function_call", put("function_call_arguments.done", "arguments", '{"city":"Oslo"}'), "done-differs-from-deltas"),
    M("item_text_differs", "text", put("output_item.done", "item.content.0.text", "Hullo"), "item-differs-from-parts"),
    M("item_part_lost", "text_and_refusal", lambda events: find(events, "output_item.done")["item"]["content"].pop(), "item-differs-from-parts"),
    M("item_summary_differs", "summarised_reasoning", put("output_item.done", "item.summary.0.text", "Z."), "item-differs-from-parts"),
    M("reasoning_content_lost", "raw_reasoning", cut("output_item.done", "item.content"), "item-differs-from-parts"),
    M("item_arguments_differ", "function_call", put("output_item.done", "item.arguments", "{}"), "item-differs-from-deltas"),
    M("item_input_differs", "custom_tool_call", put("output_item.done", "item.input", "x"), "item-differs-from-deltas"),
    M("annotation_index_repeated", "text_with_annotations", put("output_text.annotation.added", "annotation_index", 0, 1), "annotation-index"),
    M("annotation_past_the_end", "text_with_annotations", lambda events: _each_annotation(events, end_index=6), "annotation-place"),
    M("annotation_before_the_text", "text_with_annotations", lambda events: _each_annotation(events, start_index=-1), "annotation-place"),
    M("annotation_ends_before_it_begins", "text_with_annotations", lambda events: _each_annotation(events, start_index=3), "annotation-place"),
    M("file_citation_past_the_end", "text_with_annotations", lambda events: _each_annotation(events, type="file_citation", index=6), "annotation-place"),
    M("annotation_lost", "text_with_annotations", lambda events: find(events, "content_part.done")["part"]["annotations"].pop(), "annotations-differ"),
    M("annotation_never_streamed", "text_with_annotations", drop("output_text.annotation.added", 1), "annotations-differ"),
    M("logprobs_of_done_differ", "text_with_logprobs", put("output_text.done", "logprobs", []), "logprobs-differ"),
    M("logprobs_of_the_part_differ", "text_with_logprobs", put("content_part.done", "part.logprobs", []), "part-logprobs-empty"),
]  # fmt: skip

TERMINAL = [
    M("output_empty", "text", put(END, "response.output", []), "output-item-missing"),
    M("output_lacks_the_call", "reasoning_text_and_calls", lambda events: events[-1]["response"]["output"].pop(), "output-item-missing"),
    M("output_text_differs", "text", put(END, "response.output.0.content.0.text", "Hullo"), "output-item-changed"),
    M("output_arguments_differ", "function_call", put(END, "response.output.0.arguments", '{"city":"Oslo"}'), "output-item-changed"),
    M("output_call_id_differs", "function_call", put(END, "response.output.0.call_id", "call_x"), "output-item-changed"),
    M("output_status_differs", "text", put(END, "response.output.0.status", "incomplete"), "output-item-changed"),
    M("output_phase_lost", "text_with_phase", cut(END, "response.output.0.phase"), "output-item-changed"),
    M("output_reasoning_sealed_otherwise", "sealed_reasoning", put(END, "response.output.0.encrypted_content", "x"), "output-reencrypted"),
    M("output_id_differs", "text", put(END, "response.output.0.id", "msg_x"), "output-id-changed"),
    M("output_call_has_another_id", "function_call", put(END, "response.output.0.id", "fc_x"), "output-id-changed"),
    M("output_reordered", "reasoning_text_and_calls", lambda events: events[-1]["response"]["output"].reverse(), "output-order"),
    M("output_has_a_stranger", "text", lambda events: events[-1]["response"]["output"].append({"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}), "output-item-never-streamed"),
    M("output_in_progress_at_the_end", "text", put(END, "response.output.0.status", "in_progress"), "output-item-in-progress"),
    M("cut_call_missing", "call_cut_open", put("incomplete", "response.output", []), "open-item-missing"),
    M("cut_call_is_completed", "call_cut_open", put("incomplete", "response.output.0.status", "completed"), "open-item-status"),
    M("cut_call_has_more", "call_cut_open", put("incomplete", "response.output.0.arguments", '{"city"'), "open-item-differs"),
    M("cut_message_has_less", "failed_inside_a_message", put("failed", "response.output.0.content.0.text", "He"), "open-item-differs"),
    M("incomplete_item_of_a_completed_turn", "text", both(put("output_item.done", "item.status", "incomplete"), put(END, "response.output.0.status", "incomplete")), "incomplete-item-in-completed"),
    M("incomplete_item_first", "two_messages", both(put("output_item.done", "item.status", "incomplete"), put(END, "response.output.0.status", "incomplete")), "incomplete-item-not-last"),
    M("blank_message", "reasoning_text_and_calls", lambda events: [replace_strings(event, {"Hel": "\n", "lo": "\n", "Hello": "\n\n"}) for event in events], "message-blank"),
]  # fmt: skip

USAGE = [
    M("usage_null", "text", put(END, "response.usage", None), "usage-missing"),
    M("total_missing", "text", cut(END, "response.usage.total_tokens"), "usage-field"),
    M("input_is_text", "text", put(END, "response.usage.input_tokens", "10"), "usage-field"),
    M("details_missing_in_usage", "text", cut(END, "response.usage.input_tokens_details"), "usage-field"),
    M("reasoning_tokens_missing", "text", put(END, "response.usage.output_tokens_details", {}), "usage-field"),
    M("counts_negative", "text", put(END, "response.usage", {"input_tokens": -1, "input_tokens_details": {"cached_tokens": -1}, "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0}), "usage-field"),
    M("total_wrong", "text", put(END, "response.usage.total_tokens", 19), "usage-total"),
    M("cached_above_input", "text", put(END, "response.usage.input_tokens_details.cached_tokens", 11), "usage-part"),
    M("reasoning_above_output", "text", put(END, "response.usage.output_tokens_details.reasoning_tokens", 9), "usage-part"),
    M("output_above_the_limit", "token_limit", everywhere("max_output_tokens", 7), "usage-limit"),
]  # fmt: skip

POLICY = [
    M("temperature_not_echoed", "text", lambda events: None, "echo-differs", request={"temperature": 0.5}),
    M("metadata_not_echoed", "text", lambda events: None, "echo-differs", request={"metadata": {"a": "b"}}),
    M("tools_not_echoed", "text", lambda events: None, "echo-differs", request={"tools": [WEATHER]}),
    M("call_in_spite_of_none", "function_call", everywhere("tool_choice", "none"), "tool-choice-none"),
    M("no_call_in_spite_of_required", "text", everywhere("tool_choice", "required"), "tool-choice-required"),
    M("no_call_of_the_named_tool", "text", everywhere("tool_choice", {"type": "function", "name": "get_weather"}), "tool-choice-required"),
    M("call_of_another_tool", "function_call", everywhere("tool_choice", {"type": "custom", "name": "apply_patch"}), "tool-not-allowed"),
    M("call_outside_the_allowed", "function_call", everywhere("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}), "tool-not-allowed"),
    M("no_call_of_the_allowed", "text", everywhere("tool_choice", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]}), "tool-choice-required"),
    M("call_of_an_unknown_tool", "function_call", everywhere("tools", []), "tool-unknown"),
    M("function_call_of_a_custom_tool", "custom_tool_call", everywhere("tools", [{**WEATHER, "name": "apply_patch"}]), "tool-form"),
    M("call_without_its_namespace", "function_call_in_namespace", lambda events: [_without(event, "namespace") for event in events], "tool-form"),
    M("two_calls_in_spite_of_one", "two_calls", everywhere("parallel_tool_calls", False), "parallel-calls"),
    M("more_calls_than_allowed", "hosted_calls_up_to_the_limit", everywhere("max_tool_calls", 0), "too-many-calls"),
    M("arguments_are_cut", "function_call", lambda events: [replace_strings(event, {'"Oslo"}': '"Os', '{"city": "Oslo"}': '{"city": "Os'}) for event in events], "arguments-not-json"),
    M("arguments_are_a_list", "function_call_without_deltas", lambda events: [replace_strings(event, {"{}": "[]"}) for event in events], "arguments-not-object"),
    M("text_is_no_json", "text", everywhere("text", {"format": {"type": "json_schema", "name": "a", "schema": {}}}), "text-not-json"),
    M("no_logprobs", "text", everywhere("top_logprobs", 2), "logprobs-missing", request={"top_logprobs": 2}),
    M("logprobs_nobody_wanted", "text_with_logprobs", everywhere("top_logprobs", 0), "logprobs-unrequested", request={}),
    M("logprob_without_token", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry.pop("token")), "logprob-entry"),
    M("logprob_is_text", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry.update(logprob="0")), "logprob-entry"),
    M("logprob_is_probability", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry.update(logprob=0.5)), "logprob-positive"),
    M("logprob_bytes_of_another", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry.update(bytes=[1])), "logprob-bytes"),
    M("alternatives_reversed", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry["top_logprobs"].reverse()), "logprob-order"),
    M("alternatives_too_many", "text_with_logprobs", everywhere("top_logprobs", 1), "logprob-count"),
]  # fmt: skip

REQUEST = {"model": "m", "input": "x", "tools": [WEATHER]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
LOOSE_WEATHER = {**WEATHER, "strict": False}


def json_format(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, **fields}}


def write(*texts: str) -> Change:
    """Replaces the texts of the stream: each pair is the old one and the new one."""
    return lambda events: [replace_strings(event, dict(zip(texts[::2], texts[1::2], strict=True))) for event in events]


ANSWER = write("{", '{"a": ', "}", '"one"}', "{}", '{"a": "one"}')
ARGUMENTS = write('"Oslo"}', "7}", '{"city": "Oslo"}', '{"city": 7}')
CONTENT_OF_REQUEST = [
    M("instructions_that_nobody_sent", "text", everywhere("instructions", "Be brief."), "echo-uninvited", request=REQUEST),
    M("previous_response_that_nobody_sent", "text", everywhere("previous_response_id", "resp_0"), "echo-uninvited", request=REQUEST),
    M("conversation_that_nobody_sent", "text", everywhere("conversation", {"id": "conv_1"}), "echo-uninvited", request=REQUEST),
    M("conversation_is_another", "text", everywhere("conversation", {"id": "conv_1"}), "echo-differs", request=REQUEST | {"conversation": "conv_2"}),
    M("conversation_is_lost", "text", lambda events: None, "echo-differs", request=REQUEST | {"conversation": {"id": "conv_2"}}),
    M("store_flipped", "text", everywhere("store", False), "store-off", request=REQUEST),
    M("stored_in_spite_of_the_request", "text", lambda events: None, "echo-differs", request=REQUEST | {"store": False}),
    M("format_is_another", "json_text", lambda events: None, "echo-differs", request=REQUEST | {"text": json_format()}),
    M("two_calls_that_the_request_forbids", "two_calls", lambda events: None, "parallel-calls", request=REQUEST | {"parallel_tool_calls": False}),
    M("hosted_call_in_spite_of_none", "web_search_call", everywhere("tool_choice", "none"), "tool-choice-none"),
    M("more_hosted_calls_than_allowed", "web_search_call", everywhere("max_tool_calls", 0), "too-many-calls"),
    M("text_breaks_its_schema", "json_text", both(ANSWER, everywhere("text", json_format(strict=True))), "text-schema"),
    M("text_breaks_the_schema_of_the_request", "json_text", ANSWER, "text-schema", request=REQUEST | {"text": json_format(strict=True)}),
    M("text_breaks_a_loose_schema", "json_text", both(ANSWER, everywhere("text", json_format())), "text-schema-not-strict"),
    M("text_is_no_object", "json_text", write("{", "[", "}", "]", "{}", "[]"), "text-not-json"),
    M("arguments_break_a_strict_schema", "function_call", ARGUMENTS, "arguments-schema"),
    M("arguments_break_the_schema_of_the_request", "function_call", ARGUMENTS, "arguments-schema", request=REQUEST),
    M("arguments_break_a_loose_schema", "function_call", both(ARGUMENTS, everywhere("tools", [LOOSE_WEATHER])), "arguments-schema-not-strict"),
    M("arguments_break_a_schema_in_a_namespace", "function_call_in_namespace", ARGUMENTS, "arguments-schema"),
    M("logprob_tokens_spell_another_text", "text_with_logprobs", lambda events: _each_logprob(events, lambda entry: entry.update(token="Ho", bytes=[72, 111])), "logprobs-text"),
    M("logprob_token_is_lost", "text_with_logprobs", lambda events: _each_list(events, "logprobs", lambda entries: entries[:1]), "logprobs-text"),
    M("logprob_token_too_many", "text_with_logprobs", lambda events: _each_list(events, "logprobs", lambda entries: [*entries, *entries[-1:]]), "logprobs-text"),
    M("no_output_tokens_beside_text", "text", _count(output_tokens=0, total_tokens=10), "usage-no-output"),
    M("no_output_tokens_beside_a_call", "function_call", _count(output_tokens=0, total_tokens=10), "usage-no-output"),
    M("reasoning_tokens_without_reasoning", "text", _count(output_tokens_details={"reasoning_tokens": 3}), "usage-hidden-reasoning"),
    M("more_cached_writes_than_input", "text", _count(input_tokens_details={"cached_tokens": 0, "cache_write_tokens": 11}), "usage-part"),
    M("reasoning_above_the_limit", "raw_reasoning", everywhere("max_output_tokens", 6), "usage-limit-reasoning"),
    M("cut_call_has_another_call_id", "call_cut_open", put("incomplete", "response.output.0.call_id", "call_x"), "open-item-changed"),
    M("cut_call_has_another_name", "call_cut_open", put("incomplete", "response.output.0.name", "apply_patch"), "open-item-changed"),
    M("cut_message_is_another_kind", "cancelled", put("incomplete", "response.output.0.type", "reasoning"), "open-item-changed"),
]  # fmt: skip

BUILTIN_CALLS = [
    M("command_never_added", "shell_call", drop("shell_call_command.added"), "delta-after-done"),
    M("second_command_never_added", "shell_call", drop("shell_call_command.added", 1), "done-differs-from-deltas"),
    M("command_never_done", "shell_call", drop("shell_call_command.done"), "body-order"),
    M("last_command_never_done", "shell_call", drop("shell_call_command.done", 1), "body-unfinished"),
    M("command_missing_in_the_item", "shell_call", lambda events: find(events, "output_item.done")["item"]["action"]["commands"].pop(), "item-differs-from-deltas"),
    M("command_differs_in_the_item", "shell_call", put("output_item.done", "item.action.commands.0", "rm"), "item-differs-from-deltas"),
    M("shell_call_without_call_id", "shell_call", put("output_item.added", "item.call_id", ""), "call-id-empty"),
    M("shell_call_id_changes", "shell_call", put("output_item.done", "item.call_id", "call_x"), "call-id-changed"),
    M("cut_shell_call_is_done", "shell_call", put("output_item.done", "item.status", "incomplete"), "incomplete-call-done"),
    M("cut_command_has_more", "shell_call_cut_open", put("incomplete", "response.output.0.action.commands.1", "pwd"), "open-item-differs"),
    M("byte_of_a_diff_changed", "apply_patch_call", put("apply_patch_call_operation_diff.delta", "delta", "+b"), "done-differs-from-deltas"),
    M("diff_differs_in_the_item", "apply_patch_call", put("output_item.done", "item.operation.diff", "+x\n"), "item-differs-from-deltas"),
    M("diff_done_twice", "apply_patch_call", repeat("apply_patch_call_operation_diff.done"), "done-repeated"),
    M("diff_grows_after_its_end", "apply_patch_call", move("apply_patch_call_operation_diff.done", -1), "delta-after-done"),
    M("path_of_a_patch_changes", "apply_patch_call", put("output_item.done", "item.operation.path", "b.md"), "item-key-changed"),
    M("operation_of_a_patch_changes", "apply_patch_calls_without_events", put("output_item.done", "item.operation.type", "update_file"), "item-key-changed"),
    M("call_id_of_a_second_patch_repeated", "apply_patch_calls_without_events", put("output_item.added", "item.call_id", "call_0", 1), "call-id-repeated"),
    M("cut_patch_is_incomplete", "patch_cut_open", put("incomplete", "response.output.0.status", "incomplete"), "open-item-status"),
    M("cut_patch_has_more", "patch_cut_open", put("incomplete", "response.output.0.operation.diff", "@@\n+x\n"), "open-item-differs"),
    M("patches_when_calls_are_not_parallel", "apply_patch_calls_without_events", lambda events: find(events, "completed")["response"].update(parallel_tool_calls=False), "parallel-calls"),
]  # fmt: skip

MUTANTS = [
    *SEQUENCE,
    *LIFECYCLE,
    *ITEMS,
    *CONTENT,
    *TERMINAL,
    *USAGE,
    *POLICY,
    *CONTENT_OF_REQUEST,
    *BUILTIN_CALLS,
    *HOSTED_MUTANTS,
]


def _each_logprob(events: list[Event], change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the entry of the token `He` in each list of log-probabilities, wherever it stands."""

    def visit(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                visit(each)
        elif isinstance(value, dict):
            if value.get("logprobs") and value["logprobs"][0].get("token") == "He":
                change(value["logprobs"][0])
            for each in value.values():
                visit(each)

    visit(events)
