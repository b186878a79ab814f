"""Frames of the live view: the turns that run, and the figures of the engines and processes."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.app.inspection.process_memory import ProcessMemory
from antiphon.app.inspection.record import TurnRecord
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.registry.model_registry import ServedModel

Json = dict[str, Any]


def build_frame(
    recorder: TurnRecorder | None,
    models: Sequence[ServedModel],
    owner: str,
    processes: Sequence[ProcessMemory],
    now: float,
) -> Json:
    """Returns one frame. `now` is in seconds since 1970. Turns of other owners are counted, not shown."""
    running = [] if recorder is None else recorder.list_running()
    return {
        "at": now,
        "turns": [_describe_turn(record) for record in running if record.owner == owner],
        "turns_of_others": sum(record.owner != owner for record in running),
        "engines": [_describe_engine(model) for model in models],
        "processes": [msgspec.to_builtins(each) for each in processes],
    }


def _describe_turn(record: TurnRecord) -> Json:
    """Returns a running turn: its stage, its age and its counts so far."""
    stats, times = record.stats, record.stats.times
    num_prompt, num_cached, num_output = record.count_tokens()
    stage = "decode" if times.first_token else "prefill" if times.admitted else "queue"
    return {
        "id": stats.response_id,
        "api": stats.api,
        "model": stats.model,
        "background": record.background,
        "stage": stage,
        "seconds": round(times.seconds_until(time.monotonic()) or 0.0, 3),
        "input_tokens": num_prompt,
        "cached_tokens": num_cached,
        "output_tokens": num_output,
        "started_at": stats.started_at,
    }


def _describe_engine(model: ServedModel) -> Json:
    return {"model": model.names[0], **msgspec.to_builtins(model.engine.stats())}
