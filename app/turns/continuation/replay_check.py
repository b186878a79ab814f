"""Checks that the journal of a recorded turn gives its stored events: the log holds the same output twice.

Sealed texts, ids of requests for approval, tools that a search has found and the time of the end are taken from the
stored events: they depend on a secret, on definitions that are not kept, and on a clock.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from antiphon.app.inspection.record import RoundRecord, TurnRecord, list_tool_tables
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.tools.call_rules import FoundTools
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import Purpose
from antiphon.app.turns.continuation.replay import JournalReplay, split_steps
from antiphon.app.turns.continuation.turn_head import PromptEnd, TurnHead, decode_head
from antiphon.app.turns.core.dice import TurnDice
from antiphon.events import stream as ev
from antiphon.events.hosted import McpApprovalRequest, ToolSearchCall, ToolSearchOutput
from antiphon.events.items import Compaction, Reasoning
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.tools import ToolTable
from antiphon.state.table import IllegalInput

MAX_DIFFERENCE_CHARS = 300
"""Length of what a difference quotes of an event."""
Json = dict[str, Any]


class UncheckableTurnError(Exception):
    """The turn cannot be repeated from its record. The message says why."""


class ReplayDifference(Struct, frozen=True, kw_only=True):
    """The first event that the journal does not give. `position` is its number in the log."""

    position: int
    subject: str
    expected: str
    """The value that the journal gives."""
    actual: str
    """The value that is stored."""


class _StoredOutcomes:
    """The outcomes that are taken from the stored events, each in its order."""

    table = None
    """The table of each round is in the record."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        done = [entry.event.item for entry in entries if isinstance(entry.event, ev.ItemDone)]
        self._requests = deque(item.id for item in done if isinstance(item, McpApprovalRequest))
        self._found = deque(item for item in done if isinstance(item, ToolSearchOutput) and item.execution == "server")
        self._sealed: defaultdict[Purpose, deque[str]] = defaultdict(deque)
        for item in done:
            if isinstance(item, Reasoning) and item.encrypted_content:
                self._sealed["reasoning"].append(item.encrypted_content)
            elif isinstance(item, Compaction):
                self._sealed["compaction"].append(item.encrypted_content)

    def seal(self, purpose: Purpose, text: str, _label: str) -> str:
        """Returns the next sealed text; the text itself if there are no more."""
        return self._sealed[purpose].popleft() if self._sealed[purpose] else text

    def sign(self, *_: str) -> str:
        """Returns the next id of a request to approve a call."""
        return self._requests.popleft()

    def load_tools(self, call: ToolSearchCall) -> FoundTools:
        """Returns what the search has found. What the model reads of it is in the next prompt."""
        return FoundTools(structs.replace(self._found.popleft(), call_id=call.call_id), "")


def check_replay(
    record: TurnRecord, log: EventLog, models: ModelRegistry, dice: Callable[[bytes], TurnDice] = TurnDice
) -> ReplayDifference | None:
    """Returns the first difference between the stored events of a turn that has ended and those of its journal.

    `dice` returns the dice of a key. Raises `UncheckableTurnError`. It takes long: call it in a thread.
    """
    entries, replayed = log.entries, list[bytes]()
    replay = _create_replay(record, log, models, dice)
    for step in split_steps(entries):
        if not step[-1].journal:
            raise UncheckableTurnError("a step was kept without its journal")
        try:
            replayed += replay.apply_step(step[-1].encode_journal())
        except (IllegalInput, ValueError, RuntimeError, LookupError, TypeError) as error:
            return ReplayDifference(
                position=step[-1].event.sequence_number,
                subject="journal",
                expected="inputs that can be applied again",
                actual=str(error),
            )
    return _find_difference([entry.data for entry in entries], replayed)


def _create_replay(
    record: TurnRecord, log: EventLog, models: ModelRegistry, dice: Callable[[bytes], TurnDice]
) -> JournalReplay:
    form, rounds = _find_format(record, log, models), record.read_rounds()
    try:
        head = decode_head(record.read_head())
    except ValueError:
        raise UncheckableTurnError("its record has no head") from None
    if record.stats.ending is not None and record.stats.ending.cause == "server_bug":
        raise UncheckableTurnError("a bug of the server ended it")
    if not rounds:
        raise UncheckableTurnError("it was interrupted before the model read a prompt")
    tables = list_tool_tables(rounds)
    prompts = [_build_prompt(head, form, log, *each) for each in zip(rounds, tables, strict=True)]
    outcomes, ended = _StoredOutcomes(log.entries), int(log.response.completed_at or 0)
    core = head.create_core(
        prompts[0],
        log.base_response,
        dice(head.dice_key),
        lambda: ended,
        outcomes.seal,
        sign=outcomes.sign,
        search=outcomes,
    )
    return JournalReplay(core, prompts)


def _find_format(record: TurnRecord, log: EventLog, models: ModelRegistry) -> ModelFormat:
    model = models.get_model(log.base_response.model)
    if model is None:
        raise UncheckableTurnError(f"the model '{log.base_response.model}' is not served")
    if model.format.name != record.dialect:
        raise UncheckableTurnError(f"the model has the dialect '{model.format.name}' now, not '{record.dialect}'")
    return model.format


def _build_prompt(
    head: TurnHead, form: ModelFormat, log: EventLog, each: RoundRecord, table: ToolTable | None
) -> TurnPrompt:
    end = PromptEnd(each.num_tokens or len(each.prompt), each.in_reasoning, each.in_text, each.in_wrapper)
    prompt = head.build_prompt(form, log.owner, end.build_prompt())
    if table is None:
        return prompt
    prompt_input = structs.replace(
        prompt.prompt_input, tools=table, tool_choice="auto", allowed_tools=None, forbids_calls=not each.may_call
    )
    return structs.replace(prompt, prompt_input=prompt_input)


def _find_difference(stored: Sequence[bytes], replayed: Sequence[bytes]) -> ReplayDifference | None:
    for position in range(max(len(stored), len(replayed))):
        actual = stored[position] if position < len(stored) else b"{}"
        expected = replayed[position] if position < len(replayed) else b"{}"
        if actual != expected:
            pair: tuple[Json, Json] = msgspec.json.decode(expected), msgspec.json.decode(actual)
            names = sorted({*pair[0], *pair[1]}) if all(pair) else []
            name = next((name for name in names if pair[0].get(name) != pair[1].get(name)), "")
            shown = [_show(each, name) for each in pair]
            return ReplayDifference(position=position, subject=name, expected=shown[0], actual=shown[1])
    return None


def _show(event: Json, name: str) -> str:
    """Returns a field of an event, or its type."""
    text = msgspec.json.encode(event.get(name)).decode() if name else str(event.get("type", "no event"))
    return text if len(text) <= MAX_DIFFERENCE_CHARS else text[:MAX_DIFFERENCE_CHARS] + "…"
