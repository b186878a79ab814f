"""Checks that the token ids of a recorded turn give its stored events: the log holds the same output twice.

The request is parsed again, and the ids of the tokens go through reader, stop filter and state machine as they did in
the turn. Ids of items, sealed texts and the time of the end are taken from the stored events. Log-probabilities are not
compared, since the record has none. Pieces of a text are compared as a whole: steps without events are replayed with
the next ones.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.app.errors import ApiError
from antiphon.app.inspection.record import RoundRecord, TurnRecord, list_tool_tables
from antiphon.app.options.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.requests.responses.input_items import add_compaction_trigger
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.tools.call_rules import MAX_TOOL_TIME_S
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_stats import Api
from antiphon.app.turns.continuation.recorded_tools import RecordedTools
from antiphon.app.turns.continuation.replay import RecordedIds
from antiphon.app.turns.continuation.turn_replay import TurnReplay
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.events import sse
from antiphon.events import stream as ev
from antiphon.events.hosted import ServerCallItem
from antiphon.events.items import Compaction
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolTable
from antiphon.state.table import IllegalInput

STORED_FIELDS = ("previous_response_id", "conversation", "background", "store")
"""Fields of a request that only its history and the store need."""
MAX_DIFFERENCE_CHARS = 300
"""Length of what a difference quotes of an event."""
Json = dict[str, Any]


class UncheckableTurnError(Exception):
    """The turn cannot be replayed from its record. The message says why."""


class ReplayDifference(Struct, frozen=True, kw_only=True):
    """The first event that the tokens do not give. `position` is its number in the log."""

    position: int
    subject: str
    expected: str
    """The value that the tokens give."""
    actual: str
    """The value that is stored."""


def check_replay(
    record: TurnRecord, log: EventLog, models: ModelRegistry, settings: Settings = DEFAULT_SETTINGS
) -> ReplayDifference | None:
    """Returns the first difference between the stored events of a turn that has ended and those that its tokens give.

    Raises `UncheckableTurnError`. It takes long: call it in a thread.
    """
    entries = log.entries
    replay = _create_replay(record, log, models, settings)
    stored = [_normalize(msgspec.json.decode(entry.data)) for entry in entries]
    try:
        events = list(replay.replay(entries))
    except (IllegalInput, ValueError, RuntimeError, LookupError, TypeError) as error:
        return ReplayDifference(
            position=max(len(entries) - 1, 0),
            subject="tokens",
            expected="tokens that can be replayed",
            actual=str(error),
        )
    replayed = [_normalize(msgspec.json.decode(sse.encode_event(event))) for event in events]
    return _compare(_merge_deltas(stored), _merge_deltas(replayed), len(entries))


def _create_replay(record: TurnRecord, log: EventLog, models: ModelRegistry, settings: Settings) -> TurnReplay:
    spec, form = _read_spec(record, models, settings)
    if spec.comparison_id is not None:
        raise UncheckableTurnError("its events depend on the response that its prompt is compared with")
    rounds = record.read_rounds()
    tables = list_tool_tables(rounds)
    _check_tools(record, log, tables)
    if not rounds:
        raise UncheckableTurnError("it was interrupted before the model read a prompt")
    spec = structs.replace(spec, base_response=log.base_response)
    prompts = [_build_prompt(spec, form, log, *each) for each in zip(rounds, tables, strict=True)]
    added = [entry.event.item for entry in log.entries if isinstance(entry.event, ev.ItemAdded)]
    has_tools, is_compacted = tables[0] is not None, any(isinstance(item, Compaction) for item in added)
    tools = RecordedTools(log.entries, spec.max_tool_calls) if has_tools else None
    first = structs.replace(prompts[0], summary=prompts[0]) if is_compacted and not spec.compact else prompts[0]
    ids, last = RecordedIds(log.entries, lambda prefix: f"{prefix}_new"), log.response.completed_at
    core = TurnCore(
        spec.build_rules(),
        first,
        spec.base_response,
        new_id=ids.new_id,
        clock=lambda: int(last or 0),
        settings=record.settings,
        seal=lambda purpose, text: ids.take_sealed(purpose) or text,
        calls=None if tools is None else tools.rules,
    )
    core.figures.restore_summary(rounds[0].summary)
    return TurnReplay(core, rounds, prompts, tools, ends_compacted=spec.compact)


def _check_tools(record: TurnRecord, log: EventLog, tables: Sequence[ToolTable | None]) -> None:
    """Raises `UncheckableTurnError` for turns with tools of the server that depend on more than the record has."""
    has_calls = any(
        isinstance(entry.event, ev.ItemAdded) and isinstance(entry.event.item, ServerCallItem) for entry in log.entries
    )
    if tables[:1] in ([], [None]) and (has_calls or len(tables) > 1):
        raise UncheckableTurnError("the server ran tools, which its record does not have")
    ending = record.stats.ending
    if has_calls and ending is not None and ending.cause == "rejected":
        raise UncheckableTurnError("the prompt of a later round was refused")
    if has_calls and log.entries[-1].detail is not None and log.entries[-1].detail.at_us > MAX_TOOL_TIME_S * 1e6:
        raise UncheckableTurnError("its tools may have reached the limit of time, which its events do not tell")


def _build_prompt(
    spec: TurnSpec, form: ModelFormat, log: EventLog, each: RoundRecord, table: ToolTable | None
) -> TurnPrompt:
    prompt_input = spec.prompt_input
    if table is not None:
        prompt_input = structs.replace(
            prompt_input, tools=table, tool_choice="auto", allowed_tools=None, forbids_calls=not each.may_call
        )
    return TurnPrompt(
        format=form,
        owner=log.owner,
        prompt_input=prompt_input,
        now=datetime.fromtimestamp(log.base_response.created_at, UTC),
        rendered_tokens=(),
        prompt=RenderedPrompt(
            tuple(each.prompt),
            "",
            in_reasoning=each.in_reasoning,
            in_text=each.in_text,
            in_wrapper=each.in_wrapper,
        ),
    )


def _read_spec(record: TurnRecord, models: ModelRegistry, settings: Settings) -> tuple[TurnSpec, ModelFormat]:
    """Returns what the request asked for, and the format of its model."""
    try:
        sent = msgspec.json.decode(record.read_request())
    except msgspec.DecodeError:
        raise UncheckableTurnError("the request was not kept") from None
    if not isinstance(sent, dict):
        raise UncheckableTurnError("its events do not depend on the tokens alone")
    sent = {name: value for name, value in sent.items() if name not in STORED_FIELDS}
    try:
        model, spec = _parse(record.stats.api, sent, models, settings)
    except ApiError as error:
        raise UncheckableTurnError(f"the request cannot be parsed again: {error.message}") from None
    if model.format.name != record.dialect:
        raise UncheckableTurnError(f"the model has the dialect '{model.format.name}' now, not '{record.dialect}'")
    return spec, model.format


def _parse(api: Api, sent: Json, models: ModelRegistry, settings: Settings) -> tuple[ServedModel, TurnSpec]:
    """Returns the model and the turn of a request. Raises `ApiError`."""
    if api == "completions":
        completion = read_completion_request(sent, models)
        return completion.model, completion.specs[0]
    parsed: ParsedRequest[Any]
    if api == "chat":
        parsed = read_chat_request(sent, models, settings)
    elif api == "messages":
        parsed = read_messages_request(sent, models, lambda _: None, settings)
    else:
        sent = add_compaction_trigger(sent) if api == "compact" else sent
        parsed = read_responses_request(sent, models, settings=settings)
    return parsed.model, parsed.spec


def _normalize(event: Json) -> Json:
    """Returns an event without what is not compared."""
    event.pop("sequence_number", None)
    shown: Json = _drop_logprobs(event)
    return shown


def _drop_logprobs(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: [] if name == "logprobs" and each else _drop_logprobs(each) for name, each in value.items()}
    return [_drop_logprobs(each) for each in value] if isinstance(value, list) else value


def _merge_deltas(events: Sequence[Json]) -> list[tuple[int, Json]]:
    """Returns the events, each with the number of its first piece; pieces of one text in a row are one event."""
    merged: list[tuple[int, Json]] = []
    for number, event in enumerate(events):
        previous = merged[-1][1] if merged else {}
        is_piece = isinstance(event.get("delta"), str) and isinstance(previous.get("delta"), str)
        if is_piece and event | {"delta": ""} == previous | {"delta": ""}:
            merged[-1] = merged[-1][0], event | {"delta": previous["delta"] + event["delta"]}
        else:
            merged.append((number, event))
    return merged


def _compare(
    stored: Sequence[tuple[int, Json]], replayed: Sequence[tuple[int, Json]], num_events: int
) -> ReplayDifference | None:
    for index in range(max(len(stored), len(replayed))):
        number, actual = stored[index] if index < len(stored) else (num_events, {})
        expected = replayed[index][1] if index < len(replayed) else {}
        if actual != expected:
            names = sorted({*actual, *expected}) if actual and expected else []
            name = next((name for name in names if actual.get(name) != expected.get(name)), "")
            shown = [_show(each, name) for each in (expected, actual)]
            return ReplayDifference(position=number, subject=name, expected=shown[0], actual=shown[1])
    return None


def _show(event: Json, name: str) -> str:
    """Returns a field of an event, or its type."""
    text = msgspec.json.encode(event.get(name)).decode() if name else str(event.get("type", "no event"))
    return text if len(text) <= MAX_DIFFERENCE_CHARS else text[:MAX_DIFFERENCE_CHARS] + "…"
