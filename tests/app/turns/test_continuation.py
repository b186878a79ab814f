"""A turn continues in another process: the stored tokens give the stored events, and the rest follows them."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from antiphon.app.requests.turn_spec import ApprovalAnswer, TurnSpec
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.continuation import stored_turn
from antiphon.app.turns.continuation.replay import TurnRebuild, split_steps
from antiphon.app.turns.media.resolver import NO_MEDIA
from antiphon.app.turns.prompts.preparation import Choice
from antiphon.app.turns.turn_factory import TurnFactory
from antiphon.engine.protocol import Job, Sampling
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.state.drafts import OutputSettings
from tests.counts import FULL_COUNTS
from tests.numbered_dice import repeat_dice
from tests.snapshots import run_case
from tests.snapshots.builtin_cases import BUILTIN_CASES
from tests.snapshots.cases import CASES, Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import load_case_format

REPLAYED = [
    case
    for case in (*CASES, *EXTRA_CASES, *BUILTIN_CASES)
    if "responses" in case.faces
    and not (case.refused or case.waits or case.cancel or case.chars_before_refusal is not None)
]


async def run_recorded(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[EventLog, list[bytes]]:
    """Runs a case. Returns its log, and the turn as it would be stored, if it can continue elsewhere."""
    stored: list[bytes] = []
    create = TurnFactory.create_turn

    def create_recorded(self: TurnFactory, model: Any, choice: Any, spec: Any, *parts: Any) -> Any:
        turn = create(self, model, choice, spec, *parts)
        turn.writer.keeps_journal = True
        response = msgspec.structs.replace(spec.base_response, background=True, store=True)
        replaced = msgspec.structs.replace(spec, base_response=response)
        if stored_turn.can_continue(replaced) and choice.prompt.summary is None and not spec.compact:
            figures = stored_turn.StoredFigures()
            stored.append(stored_turn.encode_turn(spec, choice, turn._job, self.settings, b"", figures))
        return turn

    monkeypatch.setattr(TurnFactory, "create_turn", create_recorded)
    result = await run_case.read_responses(case)
    assert result.log is not None
    return result.log, stored


def truncate_log(log: EventLog, num_entries: int) -> EventLog:
    shorter = EventLog(log.base_response, log.owner, log.input_items)
    shorter.add_stored(log.entries[:num_entries])
    return shorter


def rebuild(case: Case, data: bytes, log: EventLog) -> TurnRebuild:
    stored, form = stored_turn.decode_turn(data), load_case_format(case.dialect)
    prompt = stored.head.build_prompt(form, log.owner, stored.prompt_end.build_prompt(stored.job.tokens))
    seal = partial(run_case.PlainSealer().seal, log.owner)
    core = stored.head.create_core(prompt, log.base_response, repeat_dice(b""), lambda: 1_700_000_000, seal)
    return TurnRebuild(log, core, stored.job)


@pytest.mark.parametrize("case", REPLAYED, ids=lambda case: case.name)
async def test_stored_tokens_give_the_stored_events(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    log, stored = await run_recorded(case, monkeypatch)
    for data in stored:
        steps = list(split_steps(log.entries))
        for count in range(len(steps)) if FULL_COUNTS else {0, 1, len(steps) // 2, len(steps) - 1}:
            entries = sum(len(step) for step in steps[:count])
            rebuilt = rebuild(case, data, truncate_log(log, entries))
            await rebuilt.replay()
            tokens = tuple(token for entry in log.entries[:entries] if entry.detail for token in entry.detail.tokens)
            assert rebuilt.job.generated == (tokens if count else None)


def encode_first(spec: TurnSpec, prompt: TurnPrompt) -> bytes:
    choice, job = Choice(spec, None, prompt, 0, NO_MEDIA, None), Job(id="j", tokens=(1, 2))
    return stored_turn.encode_turn(spec, choice, job, OutputSettings(), b"", stored_turn.StoredFigures())


@pytest.mark.parametrize("end", [{}, {"in_reasoning": True}, {"in_text": True}, {"in_wrapper": True}])
def test_stored_turn_knows_where_its_prompt_ends(end: dict[str, bool]) -> None:
    prompt_input = PromptInput()
    prompt = TurnPrompt(
        format=load_case_format("hermes"),
        owner="",
        prompt_input=prompt_input,
        now=datetime(2026, 11, 21, tzinfo=UTC),
        rendered_tokens=(1, 2),
        prompt=RenderedPrompt((1, 2), "ab", **end),  # type: ignore[arg-type] # the fields are booleans
    )
    response = Response(id="resp_x", created_at=0, model="x", status="queued")
    spec = TurnSpec(base_response=response, prompt_input=prompt_input, sampling=Sampling())
    data = encode_first(spec, prompt)
    assert stored_turn.decode_turn(data).prompt_end.build_prompt((1, 2)) == RenderedPrompt((1, 2), "", **end)  # type: ignore[arg-type] # as above


def test_stored_turn_keeps_the_denials_that_can_be_sent_again_if_it_fails() -> None:
    prompt_input = PromptInput()
    prompt = TurnPrompt(
        format=load_case_format("hermes"),
        owner="",
        prompt_input=prompt_input,
        now=datetime(2026, 11, 21, tzinfo=UTC),
        rendered_tokens=(1, 2),
        prompt=RenderedPrompt((1, 2), "ab"),
    )
    response = Response(id="resp_x", created_at=0, model="x", status="queued")
    answers = (ApprovalAnswer("mcpr_1", "n" * 32),)
    spec = TurnSpec(base_response=response, prompt_input=prompt_input, sampling=Sampling(), answers=answers)
    data = encode_first(spec, prompt)
    assert stored_turn.decode_turn(data).answers == answers
