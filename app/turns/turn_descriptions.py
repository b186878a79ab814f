"""Records and traces of turns in progress: which prompts the engine got, and how it was asked to sample."""

import asyncio
import contextlib
from functools import partial
from typing import Any

import msgspec

from antiphon.app.inspection.record import MAX_KEPT_GRAMMAR_CHARS, RoundRecord, TurnRecord, find_restored
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.tracing import conventions as names
from antiphon.app.tracing.content import build_content
from antiphon.app.tracing.tracer import Tracer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.tracing.turn_trace import TurnDescription, TurnTrace
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_stats import TurnOrigin, TurnStats
from antiphon.app.turns.continuation.turn_head import build_head, encode_head
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.prompts.cache_diagnostics import list_settings
from antiphon.app.turns.prompts.prompt_token_cache import FinishedTurn
from antiphon.app.turns.prompts.spoken_items import list_spoken
from antiphon.app.turns.turn import Turn
from antiphon.engine.protocol import Job
from antiphon.events.response import ConversationRef, Response
from antiphon.kit.cassette.redaction import Redactor
from antiphon.state.drafts import OutputSettings


def create_record(
    turn: Turn, settings: OutputSettings, job: Job, origin: TurnOrigin, prompt: TurnPrompt, dice_key: bytes
) -> TurnRecord:
    """Returns the record of a turn that begins with this job.

    It makes the details of the turn carry times and cells, and its steps their journals.
    """
    times = turn.stats.times
    turn.writer.recorded_from = times.parsed if times.arrived is None else times.arrived
    turn.writer.keeps_journal = True
    return TurnRecord(
        turn.log,
        turn.stats,
        dialect=prompt.format.name,
        request=origin.body,
        redact=redact_request,
        list_rounds=lambda: list_rounds(turn.core, job),
        encode_head=lambda: encode_head(build_head(turn.core.rules, prompt, settings, dice_key, turn.core.calls.rules)),
    )


def redact_request(body: bytes) -> bytes:
    """Returns the body of a request without secrets: those of tools and media, then all that a cassette removes."""
    with contextlib.suppress(msgspec.DecodeError):
        value = msgspec.json.decode(body)
        if isinstance(value, dict) and (clean := remove_secrets(value)) != value:
            body = msgspec.json.encode(clean)
    redactor = Redactor()
    return redactor.redact_bytes(redactor.redact_json(body))


def list_rounds(core: TurnCore, job: Job) -> list[RoundRecord]:
    """Returns the rounds of a turn so far."""
    sampling = msgspec.to_builtins(job.sampling)
    rounds: list[RoundRecord] = []
    for each in core.figures.rounds:
        prompt, grammar = each.prompt, each.prompt.grammar or ""
        rounds.append(
            RoundRecord(
                prompt=prompt.prompt.tokens,
                rendered=prompt.rendered_tokens,
                cached_tokens=each.cached_tokens,
                output_tokens=len(each.generated_tokens),
                sampling=sampling,
                in_reasoning=prompt.prompt.in_reasoning,
                in_text=prompt.prompt.in_text,
                in_wrapper=prompt.prompt.in_wrapper,
                grammar=grammar if len(grammar) <= MAX_KEPT_GRAMMAR_CHARS else "",
                offered=() if core.calls.rules is None else tuple(prompt.prompt_input.tools),
                may_call=prompt.prompt_input.tool_choice != "none" and not prompt.prompt_input.forbids_calls,
                num_tokens=prompt.prompt.num_tokens if prompt.prompt.media else 0,
            )
        )
    return rounds


class TurnTracing:
    """Traces of turns. Does nothing without a tracer."""

    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._ending: set[asyncio.Task[None]] = set()

    def begin(self, origin: TurnOrigin, *, background: bool) -> TurnTrace | None:
        """Returns the trace of a turn that begins; None if nothing is traced."""
        return None if self._tracer is None else self._tracer.begin_turn(origin.trace, background=background)

    def connect(
        self, turn: Turn, tools: HostedTurn | None, model: ServedModel, spec: TurnSpec, origin: TurnOrigin
    ) -> None:
        """Connects the parts of a turn with its trace: its tools, and what describes it once it has ended."""
        trace = turn.stats.trace
        if trace is None:
            return
        if tools is not None:
            tools.trace = trace
        if self._tracer is not None and trace.ids.is_sampled:
            has_content = self._tracer.exports_content(turn.log.owner)
            trace.describe = partial(describe_turn, model, spec, turn, origin, has_content=has_content)

    def end(self, log: EventLog, stats: TurnStats) -> None:
        """Makes the spans of a turn once its last event is published, since a reader may wait for the store."""
        if self._tracer is None or stats.trace is None or not stats.trace.ids.is_sampled:
            return
        if log.published >= len(log.entries):
            self._tracer.end_turn(stats)
            return
        waiting = asyncio.create_task(log.wait_published(), name=f"trace-{log.id}")
        self._ending.add(waiting)
        waiting.add_done_callback(partial(self._end_published, stats))

    def _end_published(self, stats: TurnStats, waiting: asyncio.Task[None]) -> None:
        self._ending.discard(waiting)
        if self._tracer is not None:
            self._tracer.end_turn(stats)


def describe_turn(
    model: ServedModel, spec: TurnSpec, turn: Turn, origin: TurnOrigin, *, has_content: bool
) -> TurnDescription:
    """Returns what the spans of a turn say besides its figures. Counts the cached tokens of each job."""
    figures = turn.core.figures
    rounds, jobs, prompt = figures.rounds, turn.stats.jobs, figures.round.prompt
    for job, each in zip(reversed(jobs), reversed(rounds), strict=False):
        job.cached_tokens = each.cached_tokens
    first = rounds[0].prompt if rounds else prompt
    finish_reason = name_finish_reason(turn)
    base = spec.base_response
    attributes: dict[str, Any] = {
        name: value for field, name in _SAMPLING.items() if (value := getattr(spec.sampling, field)) not in (None, 0)
    }
    attributes |= {
        names.RESPONSE_FINISH_REASONS: [finish_reason],
        names.DIALECT: model.format.name,
        names.REASONING_TOKENS: figures.build_usage().output_tokens_details.reasoning_tokens,
    }
    optional = {
        names.REQUEST_ID: origin.request_id,
        names.REQUEST_CHOICES: spec.n if spec.n > 1 else None,
        names.CONVERSATION_ID: base.conversation.id if isinstance(base.conversation, ConversationRef) else None,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    num_restored = 0
    if first.prompt.tokens is not first.rendered_tokens:
        start, end = find_restored(first.rendered_tokens, first.prompt.tokens)
        num_restored = end - start
    return TurnDescription(
        turn=attributes,
        render={
            names.PROMPT_TOKENS: len(first.prompt.tokens),
            names.RESTORED_TOKENS: num_restored,
            names.GRAMMAR: first.grammar is not None,
        },
        job={names.ENGINE: type(unwrap_engine(model.engine)).__name__.removesuffix("Engine").lower()},
        content=build_content(spec.prompt_input, turn.core.machine.output, finish_reason) if has_content else {},
    )


_SAMPLING = {
    "temperature": names.REQUEST_TEMPERATURE,
    "top_p": names.REQUEST_TOP_P,
    "top_k": names.REQUEST_TOP_K,
    "max_tokens": names.REQUEST_MAX_TOKENS,
    "seed": names.REQUEST_SEED,
    "presence_penalty": names.REQUEST_PRESENCE_PENALTY,
    "frequency_penalty": names.REQUEST_FREQUENCY_PENALTY,
}
_LIMITS = frozenset({"max_output_tokens", "context_full", "repetition"})
_FAULTS = frozenset({"rejected", "engine_fault", "store_unavailable", "server_bug", "deadline", "stopped_in_call"})


def name_finish_reason(turn: Turn) -> str:
    """Returns the finish reason of a turn in the words of the conventions."""
    ending, status = turn.core.end.ending, turn.stats.status
    cause = "server_bug" if ending is None else ending.cause
    if cause in _LIMITS:
        return "length"
    if cause in _FAULTS or status in ("failed", "refused"):
        return "error"
    if status == "cancelled":
        return "cancelled"
    return "tool_calls" if turn.core.figures.round.num_client_calls else "stop"


def describe_finished(turn: Turn, response: Response, model: str) -> FinishedTurn:
    """Returns what later turns of the conversation use of a turn that has ended: its tokens and its output."""
    log, last = turn.log, turn.core.figures.round
    return FinishedTurn(
        last.prompt,
        tuple(last.generated_tokens),
        list_spoken(last, response.output),
        len(log.entries[0].data) if log.entries else 0,
        log.id,
        list_settings(model, log.base_response.text),
    )
