"""Creates turns: their cores, jobs and logs, and what records and traces them."""

import asyncio
from collections.abc import Callable
from functools import partial
from secrets import token_bytes

from msgspec import MsgspecError, structs

from antiphon.app.errors import ApiError
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.constraints import name_grammar_field
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.turn_types.blob_urls import NO_BLOBS
from antiphon.app.turn_types.encryption import Sealer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnOrigin, TurnStats
from antiphon.app.turns.compaction import plan_compaction
from antiphon.app.turns.continuation.continuer import TurnContinuer
from antiphon.app.turns.continuation.replay import ReplayError, TurnRebuild
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn, StoredFigures, encode_turn
from antiphon.app.turns.core.dice import DICE_KEY_BYTES, TurnDice
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.jobs import build_job, choose_seed
from antiphon.app.turns.media.resolver import NO_MEDIA
from antiphon.app.turns.prompts.preparation import Choice, TurnPreparer
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.app.turns.turn import Turn
from antiphon.app.turns.turn_descriptions import TurnTracing, create_record
from antiphon.events.inputs import AnyInput
from antiphon.harmony.rendered_prompt import RenderError
from antiphon.state.drafts import OutputSettings

MAX_REBUILDS = 10
"""Attempts to rebuild a turn while the store or the preparation of images is busy."""
REBUILD_DELAY_S = 1.0
"""Pause between two of them."""
_PASSING_STATUSES = (429, 503)


class TurnFactory:
    """Creates the turns of one server. `clock` returns seconds since 1970, `dice` the dice of a key."""

    def __init__(  # noqa: PLR0913  # parts of a server
        self,
        renderer: PromptRenderer,
        preparer: TurnPreparer,
        continuer: TurnContinuer,
        tracing: TurnTracing,
        recorder: TurnRecorder | None,
        *,
        clock: Callable[[], float],
        dice: Callable[[bytes], TurnDice],
        settings: OutputSettings,
        timeouts: TurnTimeouts,
        sealer: Sealer,
    ) -> None:
        self._renderer, self._preparer, self._continuer = renderer, preparer, continuer
        self._tracing, self._recorder = tracing, recorder
        self._clock, self._dice, self.settings, self._timeouts, self._sealer = clock, dice, settings, timeouts, sealer

    def create_turn(
        self,
        model: ServedModel,
        choice: Choice,
        spec: TurnSpec,
        input_items: tuple[AnyInput, ...],
        stats: TurnStats,
        origin: TurnOrigin,
    ) -> Turn:
        """Returns a turn, which runs from now on."""
        base_response, prompt, tools, media = spec.base_response, choice.prompt, choice.tools, choice.media
        seeded = choose_seed(model, spec, choice.number)
        job = build_job(model, seeded, prompt, 0, input_items)
        dice_key, settings = token_bytes(DICE_KEY_BYTES), self.settings
        figures = StoredFigures(origin.api, origin.key.id, stats.counts_input, stats.counts_request)
        encode = partial(encode_turn, seeded, choice, job, settings, dice_key, figures)
        runs_again = origin.is_batch and not base_response.background  # the line of a batch
        core = TurnCore(
            spec.build_rules(),
            prompt,
            base_response,
            dice=self._dice(dice_key),
            clock=lambda: int(self._clock()),
            settings=settings,
            seal=partial(self._sealer.seal, prompt.owner),
            calls=None if tools is None else tools.rules,
        )
        turn = Turn(
            EventLog(
                base_response,
                prompt.owner,
                input_items,
                keeps_details=spec.stored_chat is not None,
                blobs=media.blobs if base_response.store else NO_BLOBS,
                continuation=None if runs_again else self._continuer.store_turn(model, seeded, encode),
            ),
            core,
            stats,
            model.engine,
            job,
            self._timeouts,
            name_grammar_field(spec.constraints),
            plan_compaction(model, seeded, input_items, prompt, self._renderer),
            None if tools is None else RoundPlanner(model, seeded, self._renderer, tools, job, choice.results),
        )
        turn.media = media
        self._tracing.connect(turn, tools, model, spec, origin)
        if self._recorder is not None:
            self._recorder.begin(create_record(turn, settings, job, origin, prompt, dice_key), turn.log)
        return turn

    async def rebuild_turn(self, model: ServedModel, stored: ContinuableTurn, log: EventLog) -> TurnRebuild:
        """Returns a turn that another process began, at the end of its log. Raises `ReplayError` or `ValueError`."""
        tries_left = MAX_REBUILDS
        while True:
            try:
                rebuilt = await self._prepare_rebuild(model, stored, log)
                await rebuilt.replay()
            except MsgspecError as error:
                raise ReplayError(f"the stored turn is unreadable: {error}") from error
            except (ApiError, RenderError) as error:
                tries_left -= 1
                if not tries_left or not isinstance(error, ApiError) or error.status not in _PASSING_STATUSES:
                    raise ReplayError(f"a prompt cannot be rendered again: {error.message}") from error
                await asyncio.sleep(REBUILD_DELAY_S)
            else:
                return rebuilt

    async def _prepare_rebuild(self, model: ServedModel, stored: ContinuableTurn, log: EventLog) -> TurnRebuild:
        head, later, job, owner = stored.head, stored.later, stored.job, log.owner
        spec = stored.restore_spec(log.base_response)
        media = NO_MEDIA
        if later is None:
            prompt = head.build_prompt(model.format, owner, stored.prompt_end.build_prompt(job.tokens))
        else:
            spec, media = await self._preparer.resolve_media(model, spec, owner)
            if {span.key for span in job.media} - {image.key for image in spec.prompt_input.images.values()}:
                raise ReplayError("an image of its conversation was deleted")
            prompt = await self._renderer.restore_prompt(
                model, spec, owner, later.now, job.tokens, later.summary_tokens
            )
        prompt = structs.replace(
            prompt, grammar=job.grammar, diagnostics=head.diagnostics, num_comparable=head.num_comparable
        )
        tools = None if later is None or later.tools is None else await self._preparer.reopen_tools(later.tools, owner)
        core = head.create_core(
            prompt,
            log.base_response,
            self._dice(head.dice_key),
            lambda: int(self._clock()),
            partial(self._sealer.seal, owner),
            sign=(lambda *_: "") if tools is None else tools.sign,
            search=None if tools is None else tools.search,
        )
        compaction = None if later is None else plan_compaction(model, spec, log.input_items, prompt, self._renderer)
        if tools is None or core.calls.rules is None:
            return TurnRebuild(log, core, job, media, compaction)
        hosted = HostedTurn(runners=tools.runners, rules=core.calls.rules, allowed_later=tools.allowed_later)
        images = self._preparer.open_results(model, spec, owner)
        rounds = RoundPlanner(model, spec, self._renderer, hosted, job, images)
        return TurnRebuild(log, core, job, media, compaction, rounds)

    def continue_turn(self, model: ServedModel, rebuilt: TurnRebuild, stats: TurnStats) -> Turn:
        """Returns the rest of a turn that another process began, which runs from now on."""
        turn = Turn(
            *(rebuilt.log, rebuilt.core, stats, model.engine, rebuilt.job, self._timeouts),
            compaction=rebuilt.compaction,
            rounds=rebuilt.rounds,
        )
        turn.is_continued, turn.media = True, rebuilt.media
        return turn
