"""Turn capacity: every acquired slot is released exactly once, whichever step raises."""

import asyncio
import contextlib
import itertools
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.core.turn_output import TurnOutput
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.turn import Turn
from antiphon.app.turns.turn_factory import TurnFactory
from antiphon.engine.protocol import BATCH_PRIORITY, Engine
from antiphon.engine.scripted.engine import ScriptedEngine
from tests.app.requests.request_builders import read_responses_spec
from tests.log_store import make_log_store
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry


def make_engine(max_num_seqs: int = 4) -> Engine:
    registry = scripted_registry([{"name": "any", "output": ["Yes."]}], max_num_seqs=max_num_seqs, max_waiting=0)
    return registry.served[0].engine


def test_acquire_takes_all_slots_or_none() -> None:
    engine = make_engine()
    capacity = TurnCapacity([engine])
    capacity.acquire(engine, 3)
    with pytest.raises(ApiError) as caught:
        capacity.acquire(engine, 2)
    assert (caught.value.status, capacity.free_slots(engine)) == (429, 1)


def test_a_slot_is_released_once() -> None:
    engine = make_engine()
    capacity = TurnCapacity([engine])
    slot, _ = capacity.acquire(engine, 2)
    slot.release()
    slot.release()
    assert capacity.free_slots(engine) == 3


def test_turns_of_batches_take_no_slot_from_others() -> None:
    """Four slots: turns of batches may take what is left of them, and others take all, whatever batches have."""
    engine = make_engine()
    capacity = TurnCapacity([engine])
    capacity.acquire(engine, 1)
    held = capacity.acquire(engine, 3, BATCH_PRIORITY)
    with pytest.raises(ApiError):
        capacity.acquire(engine, 1, BATCH_PRIORITY)
    assert (capacity.free_slots(engine), capacity.open_turns(engine)) == (3, 4)
    capacity.acquire(engine, 3)
    with pytest.raises(ApiError):
        capacity.acquire(engine, 1)
    for slot in held:
        slot.release()
    assert (capacity.free_slots(engine), capacity.open_turns(engine)) == (0, 4)


def test_check_any_raises_only_if_all_engines_are_full() -> None:
    engines = [make_engine(1), make_engine(1)]
    capacity = TurnCapacity(engines)
    capacity.acquire(engines[0])
    capacity.check_any()
    capacity.acquire(engines[1])
    with pytest.raises(ApiError):
        capacity.check_any()
    TurnCapacity([]).check_any()  # without a model, the reply is that the model does not exist


FAILING_STEPS = [
    (PromptRenderer, "render_and_check", 0),
    (TurnFactory, "create_turn", 0),
    (TurnFactory, "create_turn", 2),
    (Turn, "__init__", 1),
    (TurnCore, "_begin", 0),
    (TurnCore, "_begin", 1),
    (TurnOutput, "feed_all", 0),
    (TurnOutput, "feed_all", 2),
    (ScriptedEngine, "generate", 0),
    (ScriptedEngine, "generate", 1),
]
"""Class, method, and number of calls that succeed before one raises."""


@pytest.mark.parametrize(("owner", "method", "succeeding"), FAILING_STEPS)
async def test_every_slot_is_released_when_a_step_raises(
    owner: type, method: str, succeeding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(owner, method), itertools.count()

    def call_or_fail(*args: Any, **options: Any) -> Any:
        if next(calls) >= succeeding:
            raise RuntimeError(method)
        return original(*args, **options)

    monkeypatch.setattr(owner, method, call_or_fail)
    model = scripted_registry([{"name": "any", "output": ["Yes."]}]).served[0]
    capacity = TurnCapacity([model.engine])
    free = capacity.free_slots(model.engine)
    manager = TurnManager(make_log_store(), capacity)
    with contextlib.suppress(RuntimeError, ApiError):
        await manager.start_prompts(model, (msgspec.structs.replace(read_responses_spec(input="Hi"), n=3),))
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while manager.num_running:
            await asyncio.sleep(0)
    assert next(calls) > succeeding
    assert capacity.free_slots(model.engine) == free


async def test_every_slot_is_released_when_the_permit_release_raises() -> None:
    model = scripted_registry([{"name": "any", "output": ["Yes."]}]).served[0]
    capacity = TurnCapacity([model.engine])
    free = capacity.free_slots(model.engine)
    with pytest.raises(ZeroDivisionError):
        await TurnManager(make_log_store(), capacity).start_prompts(
            model, (read_responses_spec(input="Hi"),), "", lambda: 1 / 0
        )
    assert capacity.free_slots(model.engine) == free
