"""Schedulers and sequences without a model."""

from typing import Any

from antiphon.engine.protocol import Job
from antiphon.engine.scheduler.prefill_budget import PrefillBudget
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scheduler.sequence import Sequence

SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.4, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 20},
    {"temperature": 0.3, "seed": 7, "presence_penalty": 0.4, "frequency_penalty": 0.1, "repetition_penalty": 1.1},
    {"logit_bias": {9: -1.0}, "min_tokens": 30},
]


def make_sequence(name: str, owner: str = "", length: int = 10, priority: int = 0) -> Sequence:
    job = Job(id=name, tokens=(5,) * length, owner=owner, priority=priority)
    sampling_state: Any = None  # the scheduler does not read it, and it would need torch
    return Sequence(
        job,
        sampling_state,
        max_new_tokens=9,
        stop_ids=frozenset(),
        deadline_at=None,
    )


def make_scheduler(
    max_num_seqs: int = 1, max_waiting: int = 99, max_cache_tokens: int = 10_000, max_batched_tokens: int = 64
) -> Scheduler:
    return Scheduler(
        max_num_seqs=max_num_seqs,
        max_waiting=max_waiting,
        max_cache_tokens=max_cache_tokens,
        prefill_budget=PrefillBudget(max_batched_tokens),
    )
