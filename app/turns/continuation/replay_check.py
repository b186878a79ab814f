"""Checks that the token ids of a recorded turn give its stored events: the log holds the same output twice.

The request is parsed again, and the ids of the tokens go through reader, stop filter and state machine as they did in
the turn. Ids of items, sealed texts and the time of the end are taken from the stored events. Log-probabilities are not
compared, since the record has none. Pieces of a text are compared as a whole: steps without events are replayed with
the next ones.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.app.base.endings import Ending
from antiphon.app.base.errors import ApiError
from antiphon.app.base.event_log import EventLog, LogEntry
from antiphon.app.base.settings import DEFAULT_SETTINGS, Settings
from antiphon.app.base.turn_stats import Api
from antiphon.app.inspection.record import RoundRecord, TurnRecord
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import ParsedRequest, TurnSpec
from antiphon.app.turns.continuation.replay import RecordedIds
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.app.turns.prompts.prompt_token_cache import TurnPrompt
from antiphon.engine.protocol import Chunk, FinishReason
from antiphon.events import sse
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import Compaction
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.state.table import IllegalInput, State

STORED_FIELDS = ("previous_response_id", "conversation", "background", "store")
"""Fields of a request that only its history and the store need."""
MAX_SHOWN_CHARS = 300
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
    rounds, entries = record.read_rounds(), log.entries
    if len(rounds) != 1 or any(_is_compaction(entry.event) for entry in entries):
        raise UncheckableTurnError("the server ran tools, or compacted the conversation")
    processor = _create_processor(record, log, rounds[0], models, settings)
    stored = [_normalize(msgspec.json.decode(entry.data)) for entry in entries]
    try:
        events = list(_replay(processor, entries, rounds[0]))
    except (IllegalInput, ValueError, RuntimeError, LookupError) as error:
        return ReplayDifference(
            position=max(len(entries) - 1, 0),
            subject="tokens",
            expected="tokens that can be replayed",
            actual=str(error),
        )
    replayed = [_normalize(msgspec.json.decode(sse.encode_event(event))) for event in events]
    return _compare(_merge_deltas(stored), _merge_deltas(replayed), len(entries))


def _is_compaction(event: Event) -> bool:
    return isinstance(event, ev.ItemAdded) and isinstance(event.item, Compaction)


def _create_processor(
    record: TurnRecord, log: EventLog, each: RoundRecord, models: ModelRegistry, settings: Settings
) -> OutputProcessor:
    spec, form = _read_spec(record, models, settings)
    if spec.server_tools is not None or spec.compact or spec.comparison_id is not None:
        raise UncheckableTurnError("its events do not depend on the tokens alone")
    spec = structs.replace(spec, base_response=log.base_response)
    prompt = TurnPrompt(
        format=form,
        owner=log.owner,
        prompt_input=spec.prompt_input,
        now=datetime.fromtimestamp(log.base_response.created_at, UTC),
        rendered_tokens=(),
        prompt=RenderedPrompt(tuple(each.prompt), "", in_reasoning=each.in_reasoning, in_text=each.in_text),
    )
    ids, last = RecordedIds(log.entries, lambda prefix: f"{prefix}_new"), log.response.completed_at
    return OutputProcessor(
        spec,
        prompt,
        form,
        new_id=ids.new_id,
        clock=lambda: int(last or 0),
        settings=record.settings,
        seal=lambda purpose, text: ids.take_sealed(purpose) or text,
    )


def _read_spec(record: TurnRecord, models: ModelRegistry, settings: Settings) -> tuple[TurnSpec, ModelFormat]:
    """Returns what the request asked for, and the format of its model."""
    try:
        sent = msgspec.json.decode(record.read_request())
    except msgspec.DecodeError:
        raise UncheckableTurnError("the request was not kept") from None
    if not isinstance(sent, dict) or record.stats.api == "compact":
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
        parsed = read_responses_request(sent, models, settings=settings)
    return parsed.model, parsed.spec


def _replay(processor: OutputProcessor, entries: Sequence[LogEntry], each: RoundRecord) -> Iterator[Event]:
    """Yields the events that the steps of a log give."""
    for step in _split_steps(entries):
        _repeat_step(processor, step, each)
        yield from processor.collect_events()


def _split_steps(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """Yields the entries of each step, whose last one has its detail. The end of another process has none."""
    start = 0
    for number, entry in enumerate(entries, 1):
        if entry.detail is not None or number == len(entries):
            yield entries[start:number]
            start = number


def _repeat_step(processor: OutputProcessor, step: Sequence[LogEntry], each: RoundRecord) -> None:
    last, state = step[-1], processor.machine.state
    tokens = () if last.detail is None else last.detail.tokens
    is_last = isinstance(last.event, ev.Terminal)
    if state in (State.NEW, State.QUEUED) and any(isinstance(entry.event, ev.InProgress) for entry in step):
        processor.on_admitted(Chunk(cached_tokens=each.cached_tokens))
        if not tokens and not is_last:
            return
    elif state is State.NEW:
        processor.on_queued()
        if not is_last:
            return
    if is_last:
        _repeat_end(processor, last, tokens)
    elif tokens:
        processor.process_chunk(Chunk(tokens=tokens))
    else:
        processor.keepalive()


def _repeat_end(processor: OutputProcessor, last: LogEntry, tokens: tuple[int, ...]) -> None:
    """Repeats the last step: the engine's last chunk, or what ended the turn without the engine."""
    event, detail = last.event, last.detail
    assert isinstance(event, ev.Terminal)
    response = event.response
    stop_id = None if detail is None else detail.stop_id
    finish: FinishReason | None = "stop"
    if response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens":
        finish = "length"
    if response.status == "cancelled" or (response.error is not None and not processor.round.reader.call_failed):
        finish = None
    processor.process_chunk(Chunk(tokens=tokens, finish=finish, stop_id=stop_id))
    if processor.is_ended:
        return
    if response.status == "cancelled":
        processor.cancel(Ending("cancelled"))
    elif response.error is not None:
        processor.fail(response.error.code, response.error.message, Ending("engine_fault"))
    else:
        processor.request_steer()


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
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
