"""Prepares turns: opens their tools, reads their images and files, and renders their prompts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from antiphon.app.errors import ApiError
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.media.sent_media import SentMedia
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.tools.stored_tools import ReopenedTools, StoredTools
from antiphon.app.tools.tool_host import ToolHost
from antiphon.app.turn_types.blob_urls import BlobContents
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.media.resolver import MediaResolver, TurnMedia
from antiphon.app.turns.media.result_images import ResultImages
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.events.inputs import AnyInput
from antiphon.events.response import CacheUnavailable, ComparisonNotFound
from antiphon.harmony.rendered_prompt import RenderedPrompt


class Choice(NamedTuple):
    """A turn to run: its tools, its prompt, its number among the choices of its prompt, and its images and files."""

    spec: TurnSpec
    tools: HostedTurn | None
    prompt: TurnPrompt
    number: int
    media: TurnMedia
    results: ResultImages | None
    """Takes the pictures in results of its tools."""


class TurnPreparer:
    """Prepares turns. `clock` returns seconds since 1970."""

    def __init__(
        self,
        store: ResponseStore,
        renderer: PromptRenderer,
        tool_host: ToolHost,
        media: MediaResolver,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._renderer, self._clock = store, renderer, clock
        self._tool_host, self._media = tool_host, media

    async def read_items(
        self, items: Sequence[AnyInput], media: Sequence[SentMedia], owner: str
    ) -> tuple[tuple[AnyInput, ...], BlobContents]:
        """Returns the items of a conversation, and the contents that they refer to. Raises `ApiError`."""
        return await self._media.read_items(items, media, owner)

    async def close(self) -> None:
        """Ends the processes and the connections of tools and media."""
        await self._tool_host.close()
        await self._media.close()

    async def prepare_choices(
        self, model: ServedModel, specs: Sequence[TurnSpec], owner: str, *, is_large: bool
    ) -> list[Choice]:
        """Returns the choices of each prompt, numbered. Raises `ApiError`."""
        choices = []
        for sent in specs:
            spec, media = await self._media.resolve(model, sent, owner)
            numbers = range(spec.n)
            # Tools of the server have a container, sources and limits for each choice.
            for group in [numbers] if spec.hosted_tools is None else [[number] for number in numbers]:
                opened, tools = await self.open_tools(spec, owner)
                prompt = await self._render(model, opened, owner, is_large=is_large)
                results = None if tools is None else self.open_results(model, opened, owner)
                choices += [Choice(opened, tools, prompt, number, media, results) for number in group]
        return choices

    async def render_prompt(self, model: ServedModel, spec: TurnSpec, owner: str = "") -> RenderedPrompt:
        """Returns a turn's prompt, however many tokens it has. Raises `ApiError`."""
        spec, _ = await self._media.resolve(model, spec, owner)
        spec, _ = await self.open_tools(spec, owner)
        return (await self._renderer.render_in_thread(model, spec, owner, self._clock())).prompt

    async def open_tools(self, spec: TurnSpec, owner: str) -> tuple[TurnSpec, HostedTurn | None]:
        """Returns the turn with the tools that the server runs. One that only prefills outputs nothing and runs none.

        Raises `ApiError`.
        """
        spec, tools = await self._tool_host.open_tools(spec, owner, self._clock())
        return (msgspec.structs.replace(spec, answers=()), None) if spec.prefill_only else (spec, tools)

    async def resolve_media(self, model: ServedModel, spec: TurnSpec, owner: str) -> tuple[TurnSpec, TurnMedia]:
        """Returns a turn with its images, and its media. Raises `ApiError`."""
        return await self._media.resolve(model, spec, owner)

    async def reopen_tools(self, stored: StoredTools, owner: str) -> ReopenedTools:
        """Returns what runs the calls of a turn that another process began."""
        return await self._tool_host.reopen_tools(stored, owner)

    def open_results(self, model: ServedModel, spec: TurnSpec, owner: str) -> ResultImages | None:
        """Returns what takes the pictures in results of the tools of a turn; None for a model that sees none."""
        return self._media.open_results(model, spec, owner)

    async def _render(self, model: ServedModel, spec: TurnSpec, owner: str, *, is_large: bool) -> TurnPrompt:
        """Returns the prompt of a turn. Raises `ApiError`."""
        prompt = await self._renderer.render_and_check(model, spec, owner, self._clock(), is_large=is_large)
        if spec.comparison_id is None or prompt.diagnostics is not None:
            return prompt
        try:
            await self._store.prepare_read(owner, spec.comparison_id)
            is_stored = await self._store.read_log(owner, spec.comparison_id) is not None
        except ApiError:  # the store cannot be read now
            is_stored = True
        diagnostics = CacheUnavailable() if is_stored else ComparisonNotFound()
        return msgspec.structs.replace(prompt, diagnostics=diagnostics)
