"""Rounds of a turn: each is one job of the engine, and the calls of tools that the server runs at its end.

A round's prompt is that of the round before, the tokens that the model generated, and the outputs of its calls. So the
engine computes only the outputs: the rest is in its prefix cache.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.tools.outcome import ResultImage
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.core.calls import RoundLimits
from antiphon.app.turns.core.inputs import ResultInput
from antiphon.app.turns.core.rounds import Round, ServerCall
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.jobs import build_job
from antiphon.app.turns.media.result_images import ResultImages, add_images
from antiphon.app.turns.prompts.kept_items import cut_middle
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.prompts.prompt_token_cache import FinishedTurn
from antiphon.app.turns.prompts.spoken_items import list_items, list_spoken
from antiphon.engine.protocol import Job
from antiphon.events.inputs import AnyInput
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.tools import ToolSpec

OUTPUT_SHARE = 4
"""The output of one call may have this part of the room that is left in the context: a quarter."""
IMAGE_SHARE = 2
"""The pictures of one call may have this part of the room: a half."""
FRAME_TOKENS = 64
"""Tokens around an output, at most in most templates, and those of the note that it was cut."""
MAX_INLINE_CHARS = 4096
"""Length of an output that is tokenized on the event loop."""


class NextRound(Struct, frozen=True):
    """The prompt and the job of the next round."""

    prompt: TurnPrompt
    job: Job


class RoundPlanner:
    """Prepares the rounds of one turn after the first. `tools` are those that the server runs.

    `images` takes the pictures in their results; None for a model that sees none.
    """

    def __init__(
        self,
        model: ServedModel,
        spec: TurnSpec,
        renderer: PromptRenderer,
        tools: HostedTurn,
        first_job: Job,
        images: ResultImages | None = None,
    ) -> None:
        self.tools, self._images = tools, images
        self._model, self._renderer, self._first_job = model, renderer, first_job
        self._spec = msgspec.structs.replace(spec, constraints=(), compact_threshold=None, comparison_id=None)

    async def plan_next(self, core: TurnCore) -> NextRound | None:
        """Returns the next round; None if the context or the limit of tokens leaves no room. Raises `ApiError`."""
        done, output, num_generated = core.figures.round, core.machine.output, core.figures.num_generated_tokens
        limits = core.calls.describe_next()
        if done.is_admitted:
            self._renderer.prompt_token_cache.add_turn(
                FinishedTurn(done.prompt, tuple(done.generated_tokens), list_spoken(done, output))
            )
        sampling = self._spec.sampling
        if sampling.max_tokens is not None:
            left = sampling.max_tokens - num_generated
            if left <= 0:
                return None
            min_tokens = max(sampling.min_tokens - num_generated, 0)
            sampling = msgspec.structs.replace(sampling, max_tokens=left, min_tokens=min_tokens)
        items = (*done.prompt.prompt_input.items, *list_items(done, output))
        spec = msgspec.structs.replace(
            self._spec, prompt_input=self._next_input(done, items, limits), sampling=sampling
        )
        prompt = await self._render(spec, done.prompt)
        if prompt is None:
            return None
        first = self._first_job
        job = build_job(self._model, spec, prompt, limits.number, ())
        job = msgspec.structs.replace(job, id=f"{first.id}.{limits.number}", affinity=first.affinity)
        return NextRound(prompt, job)

    async def _render(self, spec: TurnSpec, previous: TurnPrompt) -> TurnPrompt | None:
        now = previous.now.timestamp()
        try:
            return await self._renderer.render_and_check(self._model, spec, previous.owner, now)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return None
            raise

    def _next_input(self, done: Round, items: tuple[AnyInput, ...], limits: RoundLimits) -> PromptInput:
        """Returns the conversation of the next round. A choice of tools binds until the model has called one."""
        prompt_input = self._spec.prompt_input
        mode, allowed = prompt_input.tool_choice, prompt_input.allowed_tools
        if mode == "required" and done.is_admitted:
            mode, allowed = "auto", self.tools.allowed_later
        tools = prompt_input.tools if limits.table is None else limits.table
        refused = frozenset(tool.model_name for tool in tools if _is_refused(tool, limits))
        if refused:
            names = {tool.model_name for tool in tools if allowed is None or tool.model_name in allowed}
            allowed = frozenset(names - refused)
        forbids_calls = prompt_input.forbids_calls or allowed == frozenset()
        if forbids_calls or not self._model.engine.info.capabilities.grammar:
            allowed = None  # it would promise a grammar
        # The model has said what it was to continue: an answer of its own follows the outputs.
        template = msgspec.structs.replace(
            prompt_input.template, continue_final_message=False, add_generation_prompt=True
        )
        return msgspec.structs.replace(
            prompt_input,
            items=items,
            tools=tools,
            tool_choice=mode,
            allowed_tools=allowed,
            forbids_calls=forbids_calls,
            template=template,
            images=prompt_input.images if self._images is None else {**prompt_input.images, **self._images.shown},
        )

    async def run_call(self, current: Round, due: ServerCall) -> ResultInput:
        """Runs the call that is due, and returns its end. A failed call has one, too."""
        num_tokens = 0

        async def shorten_output(text: str, images: Sequence[ResultImage] = ()) -> str:
            nonlocal num_tokens
            text, num_tokens = await self._shorten_output(current, text, images)
            return text

        finished = await self.tools.run_call(due.call, due.arguments, shorten_output)
        outcome = finished.outcome
        return ResultInput(outcome.result, outcome.output, num_tokens, finished.elapsed_ms, outcome.sources)

    async def restore_images(self, output: str) -> None:
        """Prepares the pictures in the output of a call that another process has run."""
        if self._images is not None:
            await self._images.restore(output)

    async def _shorten_output(self, current: Round, text: str, images: Sequence[ResultImage]) -> tuple[str, int]:
        """Returns the output of a call, shortened to its share of the room in the context, and its tokens, about.

        Its pictures have a share of their own. Those that the model does not see are placeholders that tell why.
        """
        used = current.num_prompt_tokens + len(current.generated_tokens) + current.output_tokens
        left = max(self._model.engine.info.max_model_len - used, 0)
        text, image_tokens = await add_images(self._images, text, images, left // IMAGE_SHARE, self._spec)
        limit = (left - image_tokens) // OUTPUT_SHARE
        form, num_bytes = self._model.format, len(text.encode())
        if num_bytes <= limit:  # a token has one byte at least
            fitted, count = text, num_bytes
        elif len(text) <= MAX_INLINE_CHARS:
            fitted, count = _cut_to_tokens(form, text, limit)
        else:
            fitted, count = await asyncio.to_thread(_cut_to_tokens, form, text, limit)
        return fitted, image_tokens + count + FRAME_TOKENS


def _is_refused(tool: ToolSpec, limits: RoundLimits) -> bool:
    """Tells whether the model may not call a tool any more: one that the server runs, at the limits of the turn."""
    if tool.server is not None:
        return not limits.can_call
    return tool.execution == "server" and not limits.can_search


def _cut_to_tokens(form: ModelFormat, text: str, limit: int) -> tuple[str, int]:
    """Returns a text, shortened to about `limit` tokens, and their number."""
    count = len(form.encode(text))
    if count <= limit:
        return text, count
    return cut_middle(text, len(text) * max(limit - FRAME_TOKENS, 0) // count), limit
