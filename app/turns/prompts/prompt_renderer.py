"""Renders prompts off the event loop: checks constraints, replays history, truncates and builds the grammar."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec

from antiphon.app.errors import ApiError, unsupported_field
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.constraints import check_constraint
from antiphon.app.requests.responses.compaction import (
    ask_for_summary,
    compact_items,
    encode_compacted,
    expand_compacted,
)
from antiphon.app.requests.turn_spec import CompletionTurn, TurnSpec
from antiphon.app.sandbox.cpu_limit import run_with_cpu_limit
from antiphon.app.sandbox.messages import SANDBOX_CPU_LIMIT_S
from antiphon.app.sandbox.report import report_sandbox_error
from antiphon.app.sandbox.sandbox_process import SandboxError
from antiphon.app.sandbox.sandboxed_template import TEMPLATE_EXECUTOR, limit_template_cpu
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.prompts.cache_diagnostics import compare_prompt, list_settings
from antiphon.app.turns.prompts.kept_items import KeptItems
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.app.turns.prompts.truncation import truncate_input
from antiphon.harmony.format import PromptInput
from antiphon.harmony.rendered_prompt import RenderError, UnsupportedOptionError
from antiphon.harmony.tokens.vocabulary import TokenizeError

KEPT_SHARE = 0.25
"""Share of the threshold of a compaction that the items may have which are kept as they are."""
MIN_SUMMARY_TOKENS = 64
"""Room that a summary needs at least."""
T = TypeVar("T")

_large_executor = ThreadPoolExecutor(2, thread_name_prefix="render-large")
"""Threads of their own for the prompts of large requests: a few of them would occupy all threads for a minute."""


class EmptySummaryError(ApiError):
    """The model has written nothing as the summary that the request asked for."""

    def __init__(self) -> None:
        super().__init__(500, "server_error", "The model produced an empty summary. Retry the request.")


class PromptRenderer:
    """Renders each prompt in a thread with a CPU-time limit: chat templates are part of a model and may be slow."""

    def __init__(self, cpu_limit_s: float) -> None:
        self._cpu_limit_s = cpu_limit_s
        self.prompt_token_cache = PromptTokenCache()

    async def render_and_check(
        self, model: ServedModel, spec: TurnSpec, owner: str, now: float, *, is_large: bool = False
    ) -> TurnPrompt:
        """Returns a prompt shorter than the context. `now` is in seconds since 1970. Raises `ApiError`.

        `is_large`: other prompts must not wait for a thread until this one is rendered.
        """
        prompt = await self.render_in_thread(model, spec, owner, now, is_large=is_large)
        length, limit = prompt.prompt.num_tokens, model.engine.info.max_model_len
        if length >= limit:
            message = f"This model's maximum context length is {limit} tokens, but the input has {length}."
            if num_image_tokens := sum(span.rows for span in prompt.prompt.media):
                message += f" {num_image_tokens} of them are images."
            raise ApiError(400, "context_length_exceeded", message, spec.prompt_param)
        return prompt

    async def render_in_thread(
        self, model: ServedModel, spec: TurnSpec, owner: str, now: float, *, is_large: bool = False
    ) -> TurnPrompt:
        """Returns the prompt, however long it is. Raises `ApiError`."""
        for constraint in spec.constraints:
            await check_constraint(constraint)
        render = partial(self._render_prompt, model, spec, owner, datetime.fromtimestamp(now, UTC))
        return await self._run_in_thread(render, spec, is_large=is_large)

    async def restore_prompt(
        self,
        model: ServedModel,
        spec: TurnSpec,
        owner: str,
        now: datetime,
        tokens: tuple[int, ...],
        summary_tokens: tuple[int, ...] = (),
    ) -> TurnPrompt:
        """Returns a prompt that was rendered in another process. Raises `ApiError`.

        `tokens` are those that the model read there; `summary_tokens` those of the summary that is generated first.
        """

        def restore() -> TurnPrompt:
            rendered = self.prompt_token_cache.render(model.format, owner, spec.prompt_input, now)
            prompt = rendered.replace_tokens(tokens)
            if spec.max_prompt_tokens is not None:  # it has lost its beginning: see `_keep_last_tokens`
                prompt = msgspec.structs.replace(prompt, rendered_tokens=(), start=None)
            if not summary_tokens:
                return prompt
            summary = self._render_summary(model, prompt)
            if summary is None:
                raise RenderError("The context has no room for a summary.")
            return msgspec.structs.replace(prompt, summary=summary.replace_tokens(summary_tokens))

        return await self._run_in_thread(restore, spec)

    async def render_compacted(
        self, model: ServedModel, spec: TurnSpec, prompt: TurnPrompt, summary: str
    ) -> tuple[str, TurnPrompt | None]:
        """Returns the content of a compaction, and the prompt that follows. Raises `ApiError`.

        `prompt` is the one that was too long. A turn that ends with its compaction has no other.
        """
        if spec.compact and not summary:
            raise EmptySummaryError
        return await self._run_in_thread(partial(self._render_compacted, model, spec, prompt, summary), spec)

    async def _run_in_thread(self, render: Callable[[], T], spec: TurnSpec, *, is_large: bool = False) -> T:
        limited = partial(self._limit_cpu, render)
        executor = _large_executor if is_large else None
        if spec.prompt_input.template.source is not None:
            executor = TEMPLATE_EXECUTOR
        try:
            return await run_with_cpu_limit(self._cpu_limit_s, limited, executor)
        except SandboxError as error:
            raise report_sandbox_error(error, "chat_template") from None
        except TimeoutError:
            message = "Rendering the prompt exceeded the time limit."
            raise ApiError(400, "prompt_too_complex", message, spec.prompt_param) from None
        except UnsupportedOptionError as error:
            raise unsupported_field(_find_param(error, spec), error.message) from None
        except RenderError as error:
            raise ApiError(400, "invalid_prompt", error.message, _find_param(error, spec)) from None
        except TokenizeError as error:
            raise ApiError(400, "invalid_prompt", str(error), spec.prompt_param) from None

    def _limit_cpu(self, render: Callable[[], T]) -> T:
        with limit_template_cpu(min(self._cpu_limit_s, SANDBOX_CPU_LIMIT_S)):
            return render()

    def _render_prompt(self, model: ServedModel, spec: TurnSpec, owner: str, now: datetime) -> TurnPrompt:
        if spec.text_completion is not None:
            return self._render_completion(model, spec.text_completion, owner, now)
        prompt = self.prompt_token_cache.render(model.format, owner, spec.prompt_input, now)
        prompt = self._fit_context(model, spec, prompt)
        if spec.max_prompt_tokens is not None:
            prompt = _keep_last_tokens(prompt, spec.max_prompt_tokens)
        prompt = self._compare(model, spec, _add_grammar(model, prompt))
        if spec.compact_threshold is not None and prompt.prompt.num_tokens > spec.compact_threshold:
            return msgspec.structs.replace(prompt, summary=self._render_summary(model, prompt))
        return prompt

    def _render_summary(self, model: ServedModel, prompt: TurnPrompt) -> TurnPrompt | None:
        """Returns the prompt of a summary; None if the context has no room for it."""
        asking = ask_for_summary(prompt.prompt_input)
        summary = self.prompt_token_cache.render(model.format, prompt.owner, asking, prompt.now)
        if summary.prompt.num_tokens + MIN_SUMMARY_TOKENS > model.engine.info.max_model_len:
            return None
        return _add_grammar(model, summary)

    def _render_compacted(
        self, model: ServedModel, spec: TurnSpec, prompt: TurnPrompt, summary: str
    ) -> tuple[str, TurnPrompt | None]:
        context = model.engine.info.max_model_len
        budget = int((spec.compact_threshold or context) * KEPT_SHARE)
        items = prompt.prompt_input.items[:-1] if spec.compact else prompt.prompt_input.items
        kept = KeptItems(items, budget, lambda text: len(model.format.encode(text))).select() if summary else items
        content = encode_compacted(compact_items(items, kept, summary))
        if spec.compact:
            return content, None
        if not summary:
            return content, msgspec.structs.replace(prompt, summary=None)
        compacted = msgspec.structs.replace(prompt.prompt_input, items=expand_compacted(content, ()))
        rendered = self.prompt_token_cache.render(model.format, prompt.owner, compacted, prompt.now)
        rendered = self._fit_context(model, spec, rendered)
        if rendered.prompt.num_tokens >= context:
            message = (
                f"This model's maximum context length is {context} tokens, and a summary of the conversation has more."
            )
            raise ApiError(400, "context_length_exceeded", message, spec.prompt_param)
        compared = msgspec.structs.replace(rendered, diagnostics=prompt.diagnostics)
        return content, self._compare(model, spec, _add_grammar(model, compared))

    def _compare(self, model: ServedModel, spec: TurnSpec, prompt: TurnPrompt) -> TurnPrompt:
        """Adds the diagnosis of the prompt cache, if the request names a response that is remembered."""
        if spec.comparison_id is None:
            return prompt
        earlier = self.prompt_token_cache.find_turn(prompt.owner, spec.comparison_id)
        if earlier is None:
            return prompt
        return compare_prompt(prompt, list_settings(model.names[0], spec.base_response.text), earlier)

    def _render_completion(self, model: ServedModel, turn: CompletionTurn, owner: str, now: datetime) -> TurnPrompt:
        passthrough = model.format.passthrough
        prompt = passthrough.render_prompt(turn.prompt)
        return TurnPrompt(
            format=model.format,
            owner=owner,
            prompt_input=PromptInput(),
            now=now,
            rendered_tokens=prompt.tokens,
            prompt=prompt,
            grammar=None if turn.output_constraint is None else passthrough.build_grammar(turn.output_constraint),
        )

    def _fit_context(self, model: ServedModel, spec: TurnSpec, prompt: TurnPrompt) -> TurnPrompt:
        """Removes the oldest items until the output fits the context, if the request allows that and if it helps."""
        if not spec.truncate or prompt.prompt.num_tokens < model.engine.info.max_model_len:
            return prompt
        context = model.engine.info.max_model_len
        max_prompt = context - min(spec.sampling.max_tokens or context, context // 4)

        def render(prompt_input: PromptInput) -> TurnPrompt:
            return self.prompt_token_cache.render(model.format, prompt.owner, prompt_input, prompt.now)

        def fits(prompt_input: PromptInput) -> bool:
            try:
                return render(prompt_input).prompt.num_tokens <= max_prompt
            except RenderError:  # the template rejects the remaining items
                return False

        truncated = truncate_input(prompt.prompt_input, fits)
        return prompt if truncated is None else render(truncated)


def _add_grammar(model: ServedModel, prompt: TurnPrompt) -> TurnPrompt:
    """Adds the grammar that the output should follow. Raises `ApiError` if the dialect has none."""
    prompt_input = prompt.prompt_input
    can_follow_grammar = model.engine.info.capabilities.grammar or prompt_input.promises_grammar
    if not prompt_input.needs_grammar or not can_follow_grammar:
        return prompt
    grammar = model.format.build_grammar(prompt.prompt, prompt_input)
    if grammar is None:
        message = "This model's dialect does not support tool calls."
        if not prompt_input.callable_tools:
            message = (
                "No tool that 'tool_choice' allows is offered to the model: the server runs none of its type, or "
                "its list has none. Send a function in 'tools', or the 'tool_choice' 'auto'."
            )
        raise ApiError(400, "unsupported_parameter", message, "tool_choice")
    return msgspec.structs.replace(prompt, grammar=grammar)


def _keep_last_tokens(prompt: TurnPrompt, count: int) -> TurnPrompt:
    """Returns the prompt's last `count` tokens. A prompt that lost its beginning is not remembered for later turns.

    A picture leaves as a whole.
    """
    whole = prompt.prompt
    start = max(len(whole.tokens) - count, 0)
    if start == 0:
        return prompt
    if whole.texts:
        message = "With images, this model's engine takes whole prompts only."
        raise ApiError(400, "unsupported_parameter", message, "truncate_prompt_tokens")
    start = max([start, *(span.end for span in whole.media if span.offset < start)])
    tokens = whole.tokens[start:]
    if not tokens:
        message = f"The last {count} tokens of the prompt are the inside of an image."
        raise ApiError(400, "invalid_value", message, "truncate_prompt_tokens")
    media = tuple(
        msgspec.structs.replace(span, offset=span.offset - start) for span in whole.media if span.offset >= start
    )
    shortened = msgspec.structs.replace(whole, tokens=tokens, text=prompt.format.decode(tokens), media=media)
    return msgspec.structs.replace(prompt, prompt=shortened, rendered_tokens=(), start=None)


def _find_param(error: RenderError, spec: TurnSpec) -> str:
    """Returns the request's field that an error names. harmony calls the conversation "input", as in Responses."""
    return spec.prompt_param if error.param in (None, "input") else error.param
