"""The engine's jobs of a turn, and the key that keeps the jobs of a conversation on one replica of an engine."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import Sequence

import msgspec
import structlog

from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.responses.compaction import MAX_SUMMARY_TOKENS
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.engine.media_messages import MediaSpan
from antiphon.engine.protocol import Engine, EngineError, Job
from antiphon.events.inputs import AnyInput
from antiphon.events.response import ConversationRef, Response

_logger = structlog.get_logger(__name__)

ENGINE_RETRY_DELAY_S = 1.0
"""Pause between two attempts to give an engine a job."""


def build_job(
    model: ServedModel, spec: TurnSpec, prompt: TurnPrompt, number: int, stored_input: Sequence[AnyInput]
) -> Job:
    """Builds the engine's job of a turn. Each round adds its number to the seed, so that the rounds differ."""
    seed = None if spec.sampling.seed is None else spec.sampling.seed + number
    end_ids = () if spec.sampling.ignore_eos else model.format.stop_ids
    stop_ids = tuple(dict.fromkeys((*spec.sampling.stop_ids, *end_ids)))
    sampling = msgspec.structs.replace(spec.sampling, seed=seed, stop_ids=stop_ids)
    return Job(
        id=spec.base_response.id,
        tokens=prompt.prompt.tokens,
        sampling=sampling,
        owner=prompt.owner,
        grammar=prompt.grammar,
        cache_salt=spec.cache_salt,
        adapter=model.adapter,
        affinity=affinity_key(spec.base_response, prompt.owner, spec.prompt_input.items, stored_input),
        priority=spec.priority,
        deadline=_remaining_s(spec),
        prompt_logprobs=spec.details.prompt_logprobs,
        prefill_only=spec.prefill_only,
        media=_list_spans(prompt),
        texts=prompt.prompt.texts,
    )


def choose_seed(model: ServedModel, spec: TurnSpec, number: int) -> TurnSpec:
    """Returns a turn with the seed of this choice: that of the request and the number, so that the choices differ.

    Where an engine continues exactly, each turn has a seed: both parts of an interrupted job draw the same numbers.
    """
    seed = spec.sampling.seed
    if seed is not None:
        seed += number
    elif model.engine.info.capabilities.continues_exactly:
        seed = secrets.randbits(63)
    return msgspec.structs.replace(spec, sampling=msgspec.structs.replace(spec.sampling, seed=seed))


def replace_prompt(job: Job, prompt: TurnPrompt) -> Job:
    """Returns a job with the tokens and the images of another rendering of its prompt."""
    return msgspec.structs.replace(job, tokens=prompt.prompt.tokens, media=_list_spans(prompt))


def _list_spans(prompt: TurnPrompt) -> tuple[MediaSpan, ...]:
    return tuple(
        MediaSpan(key=span.key, offset=span.offset, length=span.length, rows=span.rows, grid=span.grid)
        for span in prompt.prompt.media
    )


def build_summary_spec(spec: TurnSpec, model: ServedModel, prompt: TurnPrompt) -> TurnSpec:
    """Returns the turn of a summary: with a limit of its own, and without what the request says of the answer."""
    context = model.engine.info.max_model_len
    limit = min(MAX_SUMMARY_TOKENS, context // 8, context - prompt.prompt.num_tokens)
    sampling = msgspec.structs.replace(spec.sampling, max_tokens=limit, min_tokens=0, top_logprobs=None)
    base_response = msgspec.structs.replace(spec.base_response, id=f"{spec.base_response.id}-summary")
    return msgspec.structs.replace(spec, sampling=sampling, base_response=base_response)


def _remaining_s(spec: TurnSpec) -> float | None:
    """Returns the seconds until the client's deadline; None if it has set none."""
    if spec.time_limit is None:
        return None
    return max(spec.time_limit - asyncio.get_running_loop().time(), 0.0)


def affinity_key(response: Response, owner: str, items: Sequence[AnyInput], stored_input: Sequence[AnyInput]) -> str:
    """Returns the same opaque key for all turns of a conversation; an empty string if nothing identifies it.

    The client's `prompt_cache_key` identifies it, or the conversation's id, or the id of its first item. `items`: the
    whole conversation; `stored_input`: the input of this turn with the ids under which it is stored. The key contains
    none of the client's own words.
    """
    first_ids = [item.id for item in (*items[:1], *stored_input[:1]) if item.id]
    if response.prompt_cache_key:
        source = f"key {response.prompt_cache_key}"
    elif isinstance(response.conversation, ConversationRef):
        source = f"conversation {response.conversation.id}"
    elif response.store and first_ids:
        source = f"item {first_ids[0]}"
    else:
        return ""
    return hashlib.sha256(f"{owner}\0{source}".encode()).hexdigest()[:32]


async def wait_for_engine(engine: Engine, response_id: str) -> None:
    """Waits until the engine can take a job, however long it takes to load. There is no client to tell an error."""
    while True:
        try:
            await engine.wait_ready()
        except EngineError as error:
            _logger.info("a response waits for its engine", response=response_id, reason=error.message)
            await asyncio.sleep(ENGINE_RETRY_DELAY_S)
        else:
            return


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end, whatever it is."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
