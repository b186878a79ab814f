"""Compaction inside a turn: a summary is generated first, then the turn continues with it and with the newest items.

The summary is the output of a job of its own, whose prompt is that of the turn and one more message. No event carries
its text. If it is empty, or if its job fails, the turn continues with the whole conversation, which is then the content
of the compaction.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.jobs import build_job, build_summary_spec
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.engine.protocol import Job
from antiphon.events.inputs import AnyInput

STAGE_INTERVAL_S = 5.0
"""Interval at which the stream of a compaction repeats that it is in progress."""


class CompactedTurn(Struct, frozen=True, kw_only=True):
    """A turn after its compaction: the content of the item, not yet encrypted, and the prompt and job that follow.

    Without them, the turn ends with the compaction.
    """

    content: str
    prompt: TurnPrompt | None = None
    job: Job | None = None


class CompactionJob(Struct, frozen=True, kw_only=True):
    """The job that generates a summary, and the function that returns the turn after it for a summary."""

    job: Job
    finish: Callable[[str], Awaitable[CompactedTurn]]


def plan_compaction(
    model: ServedModel, spec: TurnSpec, input_items: tuple[AnyInput, ...], prompt: TurnPrompt, renderer: PromptRenderer
) -> CompactionJob | None:
    """Returns the compaction with which a turn begins, if its prompt asks for one."""
    summary_prompt = prompt if spec.compact else prompt.summary
    if summary_prompt is None:
        return None
    summary_spec = spec if spec.compact else build_summary_spec(spec, model, summary_prompt)

    async def finish(summary: str) -> CompactedTurn:
        content, following = await renderer.render_compacted(model, spec, prompt, summary)
        job = None if following is None else build_job(model, spec, following, 0, input_items)
        return CompactedTurn(content=content, prompt=following, job=job)

    return CompactionJob(job=build_job(model, summary_spec, summary_prompt, 0, input_items), finish=finish)
