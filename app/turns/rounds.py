"""Rounds of a turn: each is one job of the engine, and the calls of tools that the server runs at its end.

A round's prompt is that of the round before, the tokens that the model generated, and the outputs of its calls. So the
engine computes only the outputs: the rest is in its prefix cache.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import islice
from typing import TypeGuard

import msgspec
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.tools.outcome import ResultImage
from antiphon.app.turns.compaction import SummaryReader
from antiphon.app.turns.jobs import build_job
from antiphon.app.turns.media.result_images import ResultImages, add_images
from antiphon.app.turns.prompts.kept_items import cut_middle
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.prompts.prompt_token_cache import FinishedTurn, TurnPrompt, to_input
from antiphon.engine.protocol import Chunk, Job
from antiphon.events.hosted import (
    McpApprovalRequest,
    McpListTools,
    ServerCallItem,
    ToolSearchCall,
    ToolSearchOutput,
)
from antiphon.events.inputs import AnyInput, InputFunctionCall, InputFunctionOutput, InputImage, InputText
from antiphon.events.items import Compaction
from antiphon.events.response import InputTokensDetails, OutputItem, OutputTokensDetails, Usage
from antiphon.events.result_images import split_output
from antiphon.harmony.format import ModelFormat, OutputReader, PromptInput
from antiphon.harmony.prompt.hosted_items import HostedCall, shown_call
from antiphon.harmony.tools import ToolSpec
from antiphon.state.segments import Call

OUTPUT_SHARE = 4
"""The output of one call may have this part of the room that is left in the context: a quarter."""
IMAGE_SHARE = 2
"""The pictures of one call may have this part of the room: a half."""
FRAME_TOKENS = 64
"""Tokens around an output, at most in most templates, and those of the note that it was cut."""
MAX_LISTED_TOOLS = 16
"""Names of called tools that are listed with a turn."""
MAX_INLINE_CHARS = 4096
"""Length of an output that is tokenized on the event loop."""
_UNSPOKEN_ITEMS = McpListTools | Compaction | ToolSearchOutput


class ServerCall(Struct, frozen=True):
    """A call that the server runs: its start, its whole arguments, and the output that the model reads."""

    call: Call
    arguments: str
    output: str = ""

    @property
    def shown_output(self) -> str | tuple[InputText | InputImage, ...]:
        """The output with the pictures that it names, as later turns show it, too."""
        return split_output(self.output) if self.call.kind == "mcp" else self.output


class Round:
    """The output of one job of the engine, and the calls at its end. `first_item` is the index of its first item."""

    def __init__(self, prompt: TurnPrompt, reader: OutputReader, first_item: int) -> None:
        self.prompt, self.reader, self.first_item = prompt, reader, first_item
        self.unoffered_calls = reader.unoffered_calls
        self.is_admitted = False
        """True once the engine has the job. Calls that the client has approved run before the first one."""
        self.cached_tokens = 0
        self._told_prompt_tokens = 0
        self.generated_tokens: list[int] = []
        self.calls: list[ServerCall] = []
        """Calls that the server runs, those with an output first."""
        self.num_client_calls = 0
        """Number of whole calls after which the turn ends: calls that the client runs, and requests to approve one."""
        self.output_tokens = 0
        """Tokens that the outputs so far will have in the next prompt, about."""

    def count_prompt(self, chunk: Chunk) -> None:
        """Takes the counts of the prompt's tokens that a chunk carries."""
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        self._told_prompt_tokens = max(self._told_prompt_tokens, chunk.prompt_tokens)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt: as the engine tells if it puts tokens of pictures into it, else as it was rendered."""
        return self._told_prompt_tokens or self.prompt.prompt.num_tokens

    @property
    def num_calls(self) -> int:
        """Number of whole calls."""
        return len(self.calls) + self.num_client_calls

    def list_spoken(self, output: Sequence[OutputItem]) -> tuple[OutputItem | AnyInput, ...]:
        """Returns the items that the model wrote in this round. Calls that the server ran are without their outputs.

        `output` is that of the response. A call that was cut off is shown as far as it was written; a search among
        deferred tools that was cut off is left out.
        """
        calls, spoken = iter(self.calls), list[OutputItem | AnyInput]()
        for item in output[self.first_item :]:
            if _is_server_search(item):
                spoken += [_show_call(call, item.call_id) for call in islice(calls, 1)]
            elif isinstance(item, ServerCallItem):
                call = next(calls, None)
                # The last one was cut before it was whole, so it is none of the calls.
                spoken.append(_show_cut_call(item) if call is None else _show_call(call, item.id))
            elif isinstance(item, McpApprovalRequest):
                spoken.append(
                    InputFunctionCall(
                        call_id=item.id, namespace=item.server_label, name=item.name, arguments=item.arguments
                    )
                )
            elif not isinstance(item, _UNSPOKEN_ITEMS):
                spoken.append(item)
        return tuple(spoken)

    def list_items(self, output: Sequence[OutputItem]) -> tuple[AnyInput, ...]:
        """Returns the items that the next prompt shows: those that the model wrote, then the outputs of its calls.

        Approved calls run before the first round. They are shown as they are in later turns: as items, each of which
        stands in the place of the request for its approval.
        """
        if not self.is_admitted:
            return to_input([item for item in output[self.first_item :] if isinstance(item, ServerCallItem)])
        spoken = self.list_spoken(output)
        calls = [item for item in spoken if isinstance(item, InputFunctionCall)]
        outputs = [
            InputFunctionOutput(call_id=shown.call_id, output=call.shown_output)
            for shown, call in zip(calls, self.calls, strict=True)
        ]
        return (*to_input(spoken), *outputs)


def list_called_tools(output: Sequence[OutputItem]) -> tuple[str, ...]:
    """Returns the name of each tool that was called, once; the type of a call without a name."""
    types = [(item, str(type(item).__struct_config__.tag)) for item in output]
    names = (getattr(item, "name", None) or kind for item, kind in types if kind.endswith("_call"))
    return tuple(islice(dict.fromkeys(names), MAX_LISTED_TOOLS))


def sum_usage(rounds: Sequence[Round], summary: SummaryReader | None) -> Usage:
    """Returns the sum of the rounds of a turn, and of the summary with which it began."""
    num_prompt = sum(each.num_prompt_tokens for each in rounds)
    cached = sum(each.cached_tokens for each in rounds)
    num_generated = sum(len(each.generated_tokens) for each in rounds)
    reasoning = sum(each.reader.reasoning_tokens for each in rounds)
    if summary is not None:
        num_prompt += summary.num_prompt_tokens
        cached += summary.num_cached_tokens
        num_generated += summary.num_generated_tokens
        reasoning += summary.reasoning_tokens
    return Usage(
        input_tokens=num_prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=num_generated,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
        total_tokens=num_prompt + num_generated,
    )


def _is_server_search(item: OutputItem) -> TypeGuard[ToolSearchCall]:
    return isinstance(item, ToolSearchCall) and item.execution == "server"


def _show_call(call: ServerCall, item_id: str) -> InputFunctionCall:
    """Returns a call as the model wrote it. Its id is the model's own, if it wrote one, else `item_id`."""
    start = call.call
    is_code = start.kind == "code_interpreter"
    return InputFunctionCall(
        call_id=start.approval_request_id or start.call_id or item_id,
        namespace=start.server_label or None,
        name=start.name,
        arguments=json.dumps({"code": call.arguments}, ensure_ascii=False) if is_code else call.arguments or "{}",
    )


def _show_cut_call(item: OutputItem) -> InputFunctionCall:
    """Returns the beginning of a call as later turns show it."""
    [shown] = to_input((item,))
    assert isinstance(shown, HostedCall)
    return shown_call(shown)


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
        # The choices of a request have different seeds: the first job has that of this one.
        sampling = msgspec.structs.replace(spec.sampling, seed=first_job.sampling.seed)
        self._spec = msgspec.structs.replace(
            spec, sampling=sampling, constraints=(), compact_threshold=None, comparison_id=None
        )

    async def plan_next(self, done: Round, output: Sequence[OutputItem], num_generated: int) -> NextRound | None:
        """Returns the next round; None if the context or the limit of tokens leaves no room for it. Raises `ApiError`.

        `output` is that of the response so far, `num_generated` the number of all tokens that were generated.
        """
        self.tools.num_rounds += 1
        if done.is_admitted:
            self._renderer.prompt_token_cache.add_turn(
                FinishedTurn(done.prompt, tuple(done.generated_tokens), done.list_spoken(output))
            )
        sampling = self._spec.sampling
        if sampling.max_tokens is not None:
            left = sampling.max_tokens - num_generated
            if left <= 0:
                return None
            min_tokens = max(sampling.min_tokens - num_generated, 0)
            sampling = msgspec.structs.replace(sampling, max_tokens=left, min_tokens=min_tokens)
        items = (*done.prompt.prompt_input.items, *done.list_items(output))
        spec = msgspec.structs.replace(self._spec, prompt_input=self._next_input(done, items), sampling=sampling)
        prompt = await self._render(spec, done.prompt)
        if prompt is None:
            return None
        number, first = self.tools.num_rounds, self._first_job
        job = build_job(self._model, spec, prompt, number, ())
        return NextRound(prompt, msgspec.structs.replace(job, id=f"{first.id}.{number}", affinity=first.affinity))

    async def _render(self, spec: TurnSpec, previous: TurnPrompt) -> TurnPrompt | None:
        now = previous.now.timestamp()
        try:
            return await self._renderer.render_and_check(self._model, spec, previous.owner, now)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return None
            raise

    def _next_input(self, done: Round, items: tuple[AnyInput, ...]) -> PromptInput:
        """Returns the conversation of the next round. A choice of tools binds until the model has called one."""
        prompt_input = self._spec.prompt_input
        mode, allowed = prompt_input.tool_choice, prompt_input.allowed_tools
        if mode == "required" and done.is_admitted:
            mode, allowed = "auto", self.tools.allowed_later
        tools = prompt_input.tools if self.tools.table is None else self.tools.table
        refused = frozenset(tool.model_name for tool in tools if self._is_refused(tool))
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

    def _is_refused(self, tool: ToolSpec) -> bool:
        """Tells whether the model may not call a tool any more: one that the server runs, at the limits of the turn."""
        if tool.server is not None:
            return not self.tools.can_call
        return tool.execution == "server" and not self.tools.can_search

    async def shorten_output(self, current: Round, text: str, images: Sequence[ResultImage] = ()) -> str:
        """Returns the output of a call, shortened to its share of the room that is left in the context.

        Its pictures have a share of their own. Those that the model does not see are placeholders that tell why.
        """
        used = current.num_prompt_tokens + len(current.generated_tokens) + current.output_tokens
        left = max(self._model.engine.info.max_model_len - used, 0)
        text, image_tokens = await add_images(self._images, text, images, left // IMAGE_SHARE, self._spec)
        current.output_tokens += image_tokens
        limit = (left - image_tokens) // OUTPUT_SHARE
        form, num_bytes = self._model.format, len(text.encode())
        if num_bytes <= limit:  # a token has one byte at least
            fitted, count = text, num_bytes
        elif len(text) <= MAX_INLINE_CHARS:
            fitted, count = _cut_to_tokens(form, text, limit)
        else:
            fitted, count = await asyncio.to_thread(_cut_to_tokens, form, text, limit)
        current.output_tokens += count + FRAME_TOKENS
        return fitted


def _cut_to_tokens(form: ModelFormat, text: str, limit: int) -> tuple[str, int]:
    """Returns a text, shortened to about `limit` tokens, and their number."""
    count = len(form.encode(text))
    if count <= limit:
        return text, count
    return cut_middle(text, len(text) * max(limit - FRAME_TOKENS, 0) // count), limit
