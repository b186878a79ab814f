"""Records of turns in progress: which prompts the engine got, and how it was asked to sample."""

import contextlib

import msgspec

from antiphon.app.base.event_log import EventLog
from antiphon.app.base.turn_stats import TurnOrigin
from antiphon.app.inspection.record import MAX_GRAMMAR_CHARS, RoundRecord, TurnRecord
from antiphon.app.requests.secrets import remove_secrets
from antiphon.app.turns.output_processor import OutputProcessor
from antiphon.engine.protocol import Job
from antiphon.kit.cassette.redaction import Redactor


def create_record(log: EventLog, processor: OutputProcessor, job: Job, origin: TurnOrigin, dialect: str) -> TurnRecord:
    """Returns the record of a turn that begins with this job, and makes its details carry times and inputs."""
    times = processor.stats.times
    processor.recorded_from = times.parsed if times.arrived is None else times.arrived
    return TurnRecord(
        log,
        processor.stats,
        dialect=dialect,
        request=origin.body,
        redact=redact_request,
        list_rounds=lambda: list_rounds(processor, job),
    )


def redact_request(body: bytes) -> bytes:
    """Returns the body of a request without secrets: those of tools and media, then all that a cassette removes."""
    with contextlib.suppress(msgspec.DecodeError):
        value = msgspec.json.decode(body)
        if isinstance(value, dict) and (clean := remove_secrets(value)) != value:
            body = msgspec.json.encode(clean)
    redactor = Redactor()
    return redactor.redact_bytes(redactor.redact_json(body))


def list_rounds(processor: OutputProcessor, job: Job) -> list[RoundRecord]:
    """Returns the rounds of a turn so far."""
    sampling = msgspec.to_builtins(job.sampling)
    rounds = []
    for each in processor.rounds:
        prompt, grammar = each.prompt, each.prompt.grammar or ""
        rounds.append(
            RoundRecord(
                prompt=prompt.prompt.tokens,
                rendered=prompt.rendered_tokens,
                cached_tokens=each.cached_tokens,
                output_tokens=len(each.generated_tokens),
                sampling=sampling,
                grammar=grammar if len(grammar) <= MAX_GRAMMAR_CHARS else "",
            )
        )
    return rounds
