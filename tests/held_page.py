"""Prints `docs/reference/held.md`: `python -m tests.held_page > docs/reference/held.md`."""

import importlib
import re
import sys
from typing import Any, NamedTuple

from msgspec import structs

HEAD = """# What a client can make the server hold

This page is printed by `python -m tests.held_page`: the numbers are those of the code, every table of the store is on it, and every test that it
names exists. A test compares the two, and each row has tests that reach the limit. An owner is the one of an API key, or all clients of a
server that requires none.
"""


class Held(NamedTuple):
    """A kind of thing that clients make the server hold."""

    what: str
    limits: tuple[str, ...]
    """Constants as `module:NAME`, or fields as `module:Class.field`, of modules of `antiphon.app`, or words."""
    share: str
    """Part of it that one owner may have."""
    above: str
    """What happens above the limit."""
    tests: tuple[str, ...]
    """Tests that reach the limit, and the share of an owner: `path::function` below `tests/`, or `::function` in the file before."""
    tables: tuple[str, ...] = ()
    """Tables of the store that hold it."""


STORE = "options.settings:Settings.store_max_gib"
SIZE = "store.store:MAX_OWNER_BYTES"
IN_MEMORY: tuple[Held, ...] = (
    Held("bodies of requests", ("http.request_body:MAX_BODIES", "options.settings:Settings.max_body_bytes"), "all of it", "429; small ones are read", ("app/http/test_request_body.py::test_unfinished_bodies_take_bounded_memory",)),
    Held("files and URLs that a request names", ("turns.media.reading:MAX_NAMED_BYTES", "turns.media.reading:MAX_NAMED_FILE_BYTES"), "each request; together part of the bodies", "400, or 429 while bodies take the memory", ("app/turns/test_named_files.py::test_files_above_the_limit_are_not_read",)),
    Held("turns, waiting ones included", ("`--max-num-seqs` and 256 that wait, for each model",), "`max_concurrent` of a key or owner", "429", ("app/usage/test_limits.py::test_turns_at_the_same_time",)),
    Held("lines of batches that run", ("batches.batch_run:RunnerLimits.slot_share", "batches.batch_run:QUEUED_LINES"), "equal shares of the places", "the line waits", ("app/batches/test_line_scheduler.py::test_owners_share_the_places_equally",)),
    Held("lanes of a WebSocket, and requests that run on it", ("websocket.lanes:MAX_LANES", "websocket.lanes:MAX_RUNNING_LANES"), "each connection", "400; a request waits", ("clients/test_websocket_lanes.py::test_thirty_third_lane_is_refused", "::test_seventeenth_response_waits")),
    Held("requests that wait on a WebSocket", ("websocket.lanes:MAX_WAITING", "websocket.lanes:MAX_WAITING_BYTES"), "each connection; together part of the bodies", "429", ("clients/test_websocket_lanes.py::test_request_beyond_sixty_four_waiting_ones_is_refused", "::test_waiting_requests_have_a_limit_of_bytes", "clients/test_websocket_memory.py::test_requests_that_wait_on_connections_take_bounded_memory")),
    Held("messages of WebSockets whose ends have not arrived", ("http.websocket_protocol:MAX_UNFINISHED_MESSAGES", "options.settings:Settings.max_body_bytes"), "all of it", "the connection with the oldest is closed", ("clients/test_websocket_messages.py::test_oldest_message_without_an_end_makes_room_for_another_owner",)),
    Held("steers of a response", ("websocket.steering:MAX_STEERS", "websocket.steering:MAX_STEER_BYTES"), "each response", "`response.steer.failed`", ("clients/test_hostile_frames.py::test_thousand_steers_of_one_response", "::test_steer_of_a_megabyte_is_given_back", "::test_steers_of_a_response_take_no_place_of_another")),
    Held("histories of the lanes of WebSockets, and steers that wait for a request", ("websocket.held_memory:MAX_HELD_BYTES",), "half of it", "what the owner with too much, or the most, used longest ago is dropped: 400 `previous_response_not_found`, `response.steer.failed`", ("clients/test_websocket_held_memory.py::test_history_used_longest_ago_by_an_owner_is_dropped_above_its_share", "::test_owner_with_the_most_loses_a_history_above_the_limit", "::test_steers_that_wait_for_a_request_are_given_back_above_the_share")),
    Held("items of a conversation that a turn continues", ("turns.stored_history:MAX_CHAIN_ITEMS", "turns.stored_history:MAX_CHAIN_BYTES"), "each turn", "400 `context_length_exceeded`", ("app/store/test_conversation_pages.py::test_turn_loads_no_conversation_that_is_too_large",)),
    Held("a page of items", ("requests.pagination:MAX_LIMIT", "store.conversation_tables:MAX_PAGE_BYTES"), "each request", "the page ends early", ("app/store/test_conversation_pages.py::test_page_ends_where_it_would_be_too_large",)),
    Held("records of turns, with `--inspect`", ("options.settings:Settings.inspect_mib",), "half of it", "the oldest are dropped", ("app/inspection/test_recorder.py::test_owner_has_at_most_half",)),
    Held("tokens of earlier turns, for prompts", ("2 000 000 tokens of 8 bytes",), "all of it", "the oldest are dropped", ("app/turns/test_prompt_token_cache.py::test_oldest_turns_are_evicted",)),
    Held("prefixes in the KV cache", ("`--kv-cache-gib`",), "all of it", "the least recently used are dropped", ("engine/scheduler/test_prefix_cache.py::test_capacity_never_exceeds_max_cache_tokens", "::test_prefixes_of_one_owner_leave_room_for_another")),
    Held("prepared pictures", ("options.settings:Settings.media_memory_mib", "media.prepared_image:MAX_KEPT_IMAGES"), "all of it", "they are prepared again", ("app/media/test_media_queue.py::test_prepared_pictures_used_longest_ago_are_dropped_above_the_limit_of_bytes", "::test_prepared_pictures_used_longest_ago_are_dropped_above_the_limit_of_descriptors")),
    Held("pictures that wait to be prepared", ("media.media_queue:MAX_WAITING_MEDIA",), "media.media_queue:MAX_WAITING_OF_OWNER", "503 `server_busy`", ("app/media/test_media_queue.py::test_owners_together_are_refused_above_the_limit", "::test_owner_above_its_share_is_refused_and_another_is_served", "clients/media/test_image_requests.py::test_picture_above_the_share_of_an_owner_is_refused")),
    Held("URLs that are fetched", ("outbound.fetcher:MAX_FETCHES_OF_OWNER",), "each owner", "the fetch waits", ("app/outbound/test_fetcher.py::test_owner_has_four_downloads_at_a_time",)),
    Held("lists of the tools of MCP servers", ("tools.mcp.tool_servers:MAX_KNOWN_SERVERS",), "all of it", "the oldest is dropped", ("app/tools/test_tool_lists.py::test_oldest_list_is_dropped",)),
    Held("containers of `code_interpreter`", ("tools.code.code_runner:CodeLimits.containers", "tools.code.code_runner:CodeLimits.memory_bytes"), "the owner of the most loses one first", "the one used longest ago ends", ("app/tools/test_code_runner.py::test_owner_of_many_containers_loses_one",)),
    Held("adapters, with `--allow-lora-updates`", ("adapters.updates:MAX_ADAPTERS",), "adapters.updates:MAX_ADAPTERS_OF_OWNER", "409", ("app/adapters/test_adapter_requests.py::test_number_of_adapters_is_limited",)),
    Held("connections", ("the open files of the process (`ulimit -n`)",), "all of them", "a new one is closed at once; a proxy can limit those of a client", ("app/http/test_open_files.py::test_connection_beyond_the_open_files_is_closed_and_the_others_are_served",)),
)  # fmt: skip
STORED: tuple[Held, ...] = (
    Held("responses with their events, items and pictures", (STORE, "with `--store memory` store.sqlite.store:MAX_MEMORY_RESPONSES and store.sqlite.store:MAX_MEMORY_BYTES"), "`store_gib` of its key", "the oldest of the owner with the largest share are deleted", ("app/store/test_persistent_stores.py::test_full_store_takes_from_the_owner_with_the_largest_share",), ("responses", "events", "items", "blobs", "blob_pieces", "blob_references")),
    Held("stored chat completions", (STORE,), "as a part of responses", "deleted with their responses", ("app/store/test_persistent_stores.py::test_full_store_deletes_the_oldest_responses_until_the_rest_fits",), ("chat_completions", "chat_choices")),
    Held("summaries and records of responses", (STORE,), "as a part of responses", "deleted with their responses", ("app/store/test_persistent_stores.py::test_full_store_deletes_the_oldest_responses_until_the_rest_fits",), ("turn_summaries", "turn_records", "prompt_blocks")),
    Held("turns that another process can continue", ("store.history.continuation_tables:MAX_CONTINUATIONS",), "one for each background response that runs", "the response fails", ("app/store/test_continued_responses.py::test_response_that_ends_its_servers_is_given_up",), ("continuations",)),
    Held("conversations and their items, with pictures", (SIZE, f"half of {STORE}"), f"{SIZE}, or `store_gib` of its key", "400 `storage_limit_exceeded`", ("app/store/test_conversation_sizes.py::test_items_are_refused_above_the_limit",), ("conversations", "conversation_items")),
    Held("files and parts of uploads", (SIZE, f"half of {STORE}"), SIZE, "400 `storage_limit_exceeded`", ("app/batches/test_files.py::test_files_of_a_key_are_limited_together",), ("files", "file_pieces")),
    Held("uploads", ("routes.files.uploads:MAX_OPEN_UPLOADS", "routes.files.uploads:MAX_KEPT_UPLOADS"), "each owner", "429", ("app/batches/test_numbers.py::test_number_is_limited",), ("uploads",)),
    Held("batches", ("routes.batches:MAX_OPEN_BATCHES", "routes.batches:MAX_KEPT_BATCHES"), "each owner", "429", ("app/batches/test_numbers.py::test_number_is_limited",), ("batches",)),
    Held("lines of a batch, and their replies", ("batches.line_scanner:MAX_BATCH_LINES", "batches.line_scanner:MAX_BATCH_LINE_BYTES"), "each batch", "the batch fails", ("app/batches/test_line_scanner.py::test_number_of_lines_is_limited",), ("batch_lines",)),
    Held("places of deleted entries of lists", ("store.history.deleted_entries:DELETED_ENTRY_LIFETIME_S",), "store.history.deleted_entries:MAX_DELETED_ENTRIES", "the oldest are deleted, and a page after such an entry gets a 400", ("app/store/test_deleted_entries.py::test_places_are_limited_in_number_and_age",), ("deleted_entries",)),
    Held("used approvals of tool calls", ("turn_types.tool_rules:MAX_APPROVAL_AGE_S", "store.writing.upkeep:MAX_CLOCK_DIFFERENCE_S"), "one for each approved call", "deleted once the approval has expired by any clock", ("app/store/test_approvals.py::test_record_of_a_use_is_deleted_once_nobody_could_use_it_again", "::test_approval_is_good_once_for_its_owner"), ("used_approvals",)),
    Held("sums of usage", ("store.writing.upkeep:USAGE_RETENTION_S",), "a row for each hour, key and model", "deleted", ("app/store/test_usage_sums.py::test_sums_are_deleted_after_400_days", "::test_hour_has_one_row_for_each_key_and_model"), ("usage_hours",)),
    Held("servers that are alive", ("store.writing.upkeep:WRITER_LIFETIME_S",), "none, since clients make no rows", "deleted at the end of a server, or after this time if it was killed", ("app/store/test_writer_watch.py::test_rows_of_servers_that_died_a_day_ago_are_deleted",), ("writers",)),
)  # fmt: skip
_NAME = re.compile(r"[a-z_]+(?:\.[a-z_]+)*:[A-Za-z_]+(?:\.[a-z_]+)?")
DAY_S = 86_400
_UNITS = (("_bytes", ""), ("_gib", " GiB"), ("_mib", " MiB"))


def find_value(name: str) -> Any:
    """Returns the value of a constant, or the default of a field."""
    module, _, path = name.partition(":")
    found = importlib.import_module(f"antiphon.app.{module}")
    owner, _, field = path.rpartition(".")
    if not owner:
        return getattr(found, path)
    return next(each.default for each in structs.fields(getattr(found, owner)) if each.name == field)


def list_tests(held: Held) -> list[tuple[str, str]]:
    """Returns the file, below `tests/`, and the function of each test of a kind."""
    found, path = list[tuple[str, str]](), ""
    for test in held.tests:
        file, _, name = test.partition("::")
        path = file or path
        found.append((path, name))
    return found


def show_limit(text: str) -> str:
    """Returns a limit with the values of what it names; words stay as they are."""
    return _NAME.sub(lambda match: _show_name(match[0]), text)


def _show_name(name: str) -> str:
    value, label = find_value(name), name.partition(":")[2]
    return f"{_show_number(value, label)} (`{label}`)"


def _show_number(value: float, label: str) -> str:
    field = label.rpartition(".")[2].lower()
    if field.endswith("_s") and value % DAY_S == 0:
        return f"{value // DAY_S} day{'s' if value > DAY_S else ''}"
    if field.endswith("_bytes") and value >= 1 << 20:
        return f"{value / 2**20:g} MiB" if value < 1 << 30 else f"{value / 2**30:g} GiB"
    unit = next((unit for suffix, unit in _UNITS if field.endswith(suffix)), "")
    return f"{value:,g}".replace(",", " ") + unit if value < 10**6 else f"{int(value):,}".replace(",", " ") + unit


def render_page() -> str:
    """Returns the text of `docs/reference/held.md`."""
    text = HEAD
    for title, kinds in (("In memory", IN_MEMORY), ("In the store", STORED)):
        text += f"\n## {title}\n\n| what | limit | share of an owner | above it | tests |\n|---|---|---|---|---|\n"
        for held in kinds:
            tests = ", ".join(f"`{test}`" for test in held.tests)
            limits = ", ".join(map(show_limit, held.limits))
            text += f"| {held.what} | {limits} | {show_limit(held.share)} | {held.above} | {tests} |\n"
    return text


if __name__ == "__main__":
    sys.stdout.write(render_page())
