"""Turns that another manager continues in the same process, after any of their steps."""

import json
import math
from typing import Any

import pytest

from antiphon.app.turn_types.event_log import EventLog, begins_tool_run
from antiphon.app.turn_types.turn_stats import NO_ORIGIN, TurnTimes, create_stats
from antiphon.app.turns.continuation import continuer
from antiphon.app.turns.continuation.replay import split_steps
from antiphon.app.turns.continuation.stored_turn import decode_turn
from antiphon.app.turns.manager import TurnManager
from tests.counts import FULL_COUNTS
from tests.numbered_dice import repeat_dice

MAX_CUTS = 1000 if FULL_COUNTS else 6
STORED: dict[str, bytes] = {}
"""The latest turn of each id as it was stored. A log forgets its own when it has ended."""


def store_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every turn one that another process can continue."""
    monkeypatch.setattr(continuer, "can_continue", lambda _: True)
    create = continuer.TurnContinuer.__init__

    def create_knowing(self: continuer.TurnContinuer, *parts: Any) -> None:
        create(self, *parts)
        self._digests = {"scripted": "digest"}

    store = continuer.TurnContinuer.store_turn

    def store_known(self: continuer.TurnContinuer, model: Any, spec: Any, encode: Any) -> Any:
        continuation = store(self, model, spec, encode)
        assert continuation is not None
        STORED[spec.base_response.id] = continuation.data
        return continuation

    monkeypatch.setattr(continuer.TurnContinuer, "__init__", create_knowing)
    monkeypatch.setattr(continuer.TurnContinuer, "store_turn", store_known)


def truncate_log(log: EventLog, num_entries: int) -> EventLog:
    shorter = EventLog(log.base_response, log.owner, log.input_items)
    shorter.add_stored(log.entries[:num_entries])
    shorter.mark_kept(math.inf)
    return shorter


def choose_cuts(log: EventLog) -> list[int]:
    """Returns numbers of entries after which the first process ends: whole steps, also those before a call."""
    cuts, before_calls, end = list[int](), list[int](), 0
    for step in split_steps(log.entries):
        end += len(step)
        (before_calls if begins_tool_run(step) else cuts).append(end)
    return sorted({*cuts[:: max(1, len(cuts) // MAX_CUTS)], *before_calls} - {end})


async def continue_log(manager: TurnManager, model: Any, log: EventLog, data: bytes) -> list[dict[str, Any]]:
    """Returns the events of a turn that this manager continues."""
    manager._factory._dice = repeat_dice
    rebuilt = await manager._factory.rebuild_turn(model, decode_turn(data), log)
    stats = create_stats(log.base_response, NO_ORIGIN, TurnTimes(parsed=0.0), 0.0)
    turn = manager._factory.continue_turn(model, rebuilt, stats)
    await turn.task
    return [json.loads(entry.data) for entry in log.entries]


def drop_cached(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response without what the engine tells of its cache."""
    usage = response["usage"] and {k: v for k, v in response["usage"].items() if k != "input_tokens_details"}
    return response | {"usage": usage}
