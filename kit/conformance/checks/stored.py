"""Checks of what a server keeps: GET, replays, input items, conversations, deletion, background responses."""

import time

from antiphon.kit.checker.hosted import is_same_reading
from antiphon.kit.checker.stream import ENDED_RESPONSE_STATUSES
from antiphon.kit.checker.terminal import compare_responses
from antiphon.kit.conformance.checks.context import CheckContext
from antiphon.kit.conformance.client import LiveReply
from antiphon.kit.conformance.exchanges import RESPONSES_PATH, check_arrival, list_frames, read_json_reply
from antiphon.kit.findings import FindingList, quote, quote_start
from antiphon.kit.json_values import Json, as_objects

STATUS_POLL_INTERVAL_S = 0.05


def check_stored(context: CheckContext, findings: FindingList) -> None:
    """Checks that GET returns the response as the stream ended with it."""
    if (stored := _fetch_response(context, findings)) is not None:
        compare_responses(context.exchange.value, stored, "get-differs", findings)


def check_deleted(context: CheckContext, findings: FindingList) -> None:
    """Checks that DELETE confirms, and that the response is gone afterwards."""
    path = f"{RESPONSES_PATH}/{context.response_id}"
    deleted = context.fetch("DELETE", path)
    if deleted.status != 200 or (deleted.read_object() or {}).get("deleted") is not True:
        findings.add("live-delete", '200 with "deleted": true', f"{deleted.status}: {quote_start(deleted.body)}")
    after = context.send("GET", path)
    if after.status != 404:
        findings.add("live-delete", "404 after DELETE", str(after.status), "GET")


def check_not_stored(context: CheckContext, findings: FindingList) -> None:
    """Checks that a response with store false cannot be retrieved."""
    reply = context.send("GET", f"{RESPONSES_PATH}/{context.response_id}")
    if reply.status == 200:
        findings.add("live-store-false", "404", "200 with the response")


def check_input_items(context: CheckContext, findings: FindingList) -> None:
    """Checks the list of the input items: as many as were sent, each with an id."""
    reply = context.fetch("GET", f"{RESPONSES_PATH}/{context.response_id}/input_items?order=asc&limit=100")
    items = read_list(reply, findings)
    sent = context.exchange.request.get("input")
    count = len(sent) if isinstance(sent, list) else 1
    if items is not None and len(items) != count:
        findings.add("live-input-items", f"{count} items", str(len(items)))


def check_poll(context: CheckContext, findings: FindingList) -> None:
    """Waits until a background response has ended; it becomes the value of the step."""
    value = context.exchange.value
    deadline = time.monotonic() + context.client.timeout
    if value.get("status") not in ("queued", *ENDED_RESPONSE_STATUSES, "in_progress"):
        findings.add("live-ending", "queued, in_progress or an end", quote(value.get("status")))
    while value.get("status") not in ENDED_RESPONSE_STATUSES:
        fetched = _fetch_response(context, findings)
        if fetched is None:
            break
        value = fetched
        if value.get("status") not in ENDED_RESPONSE_STATUSES and time.monotonic() > deadline:
            findings.add(
                "live-background-stuck", "an end", f"{quote(value.get('status'))} after {context.client.timeout:g} s"
            )
            break
        time.sleep(STATUS_POLL_INTERVAL_S)
    context.exchange.value = value


def check_cancel(context: CheckContext, findings: FindingList) -> None:
    """Checks that a background response can be cancelled, or is returned as it ended."""
    reply = context.fetch("POST", f"{RESPONSES_PATH}/{context.response_id}/cancel")
    value = reply.read_object() or {}
    if reply.status != 200 or value.get("status") not in ENDED_RESPONSE_STATUSES:
        findings.add("live-cancel", "200 with an ended response", f"{reply.status}: {quote_start(reply.body)}")


def check_replay(context: CheckContext, _: FindingList) -> None:
    """Checks that replays after several numbers send exactly the recorded rest of the stream."""
    events = context.exchange.events
    numbers = [event.get("sequence_number") for event in events]
    last = numbers[-1] if numbers else None
    if not isinstance(last, int):
        return  # the missing numbers have been reported
    for after in dict.fromkeys((None, 0, last // 2, last - 1, last)):
        findings = FindingList()
        _check_one_replay(context, after, findings)
        context.report("replay" if after is None else f"replay after {after}", findings)


def check_conversation(context: CheckContext, findings: FindingList) -> None:
    """Checks that the conversation ends with the output of the turn."""
    conversation = context.exchange.value.get("conversation")
    identifier = conversation.get("id") if isinstance(conversation, dict) else conversation
    reply = context.fetch("GET", f"/conversations/{identifier}/items?order=asc&limit=100")
    items = read_list(reply, findings)
    expected = _list_ids(context.exchange.value.get("output"))
    if items is not None and expected and _list_ids(items)[-len(expected) :] != expected:
        findings.add("live-conversation-items", quote(expected), quote(_list_ids(items)))


def read_list(reply: LiveReply, findings: FindingList) -> list[Json] | None:
    """Returns the entries of a list object. Reports a reply that is none."""
    value = reply.read_object() or {}
    data = value.get("data")
    if reply.status != 200 or value.get("object") != "list" or not isinstance(data, list):
        findings.add("live-list", '{"object": "list", "data": […]}', f"{reply.status}: {quote_start(reply.body)}")
        return None
    for key, entry in (("first_id", data[:1]), ("last_id", data[-1:])):
        expected = entry[0].get("id") if entry and isinstance(entry[0], dict) else None
        if value.get(key) != expected or (entry and not expected):
            findings.add("live-list", quote(expected), quote(value.get(key)), key)
    if not isinstance(value.get("has_more"), bool):
        findings.add("live-list", "true or false", quote(value.get("has_more")), "has_more")
    return data


def _check_one_replay(context: CheckContext, after: int | None, findings: FindingList) -> None:
    query = "" if after is None else f"&starting_after={after}"
    reply = context.fetch("GET", f"{RESPONSES_PATH}/{context.response_id}?stream=true{query}")
    if reply.status != 200 or not reply.is_stream:
        findings.add("replay-differs", "a stream", f"{reply.status} {reply.content_type}: {quote_start(reply.body)}")
        return
    check_arrival(reply, findings)
    start = -1 if after is None else after
    expected = [event for event in context.exchange.events if _has_number_after(event, start)]
    actual = list_frames(reply.body)
    if len(actual) != len(expected):
        findings.add("replay-differs", f"{len(expected)} events", f"{len(actual)} events", "events")
    for recorded, replayed in zip(expected, actual, strict=False):
        if not is_same_reading(recorded, replayed):
            findings.set_event(None, recorded.get("sequence_number"))
            findings.add("replay-differs", quote(recorded), quote(replayed), str(recorded.get("type")))


def _list_ids(items: object) -> list[tuple[object, object]]:
    return [(item.get("type"), item.get("id")) for item in as_objects(items)]


def _has_number_after(event: Json, start: int) -> bool:
    number = event.get("sequence_number")
    return isinstance(number, int) and number > start


def _fetch_response(context: CheckContext, findings: FindingList) -> Json | None:
    reply = context.fetch("GET", f"{RESPONSES_PATH}/{context.response_id}")
    if reply.status != 200:
        findings.add("http-status", "200", f"{reply.status}: {quote_start(reply.body)}")
        return None
    return read_json_reply(f"{RESPONSES_PATH}/ID", {}, reply, findings)
