"""Creates turns: their cores, jobs and logs, and what records and traces them."""

from collections.abc import Callable
from functools import partial
from secrets import token_bytes

from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.constraints import name_grammar_field
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.turn_types.blob_urls import NO_BLOBS
from antiphon.app.turn_types.encryption import Sealer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.turn_stats import TurnOrigin, TurnStats
from antiphon.app.turns.compaction import plan_compaction
from antiphon.app.turns.continuation.continuer import TurnContinuer
from antiphon.app.turns.continuation.replay import CoreRebuild
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn
from antiphon.app.turns.core.dice import DICE_KEY_BYTES, TurnDice
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.jobs import build_job
from antiphon.app.turns.prompts.preparation import Choice
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.rounds import RoundPlanner
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.app.turns.turn import Turn
from antiphon.app.turns.turn_descriptions import TurnTracing, create_record
from antiphon.events.inputs import AnyInput
from antiphon.state.drafts import OutputSettings


class TurnFactory:
    """Creates the turns of one server. `clock` returns seconds since 1970, `dice` the dice of a key."""

    def __init__(  # noqa: PLR0913  # parts of a server
        self,
        renderer: PromptRenderer,
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
        self._renderer, self._continuer, self._tracing, self._recorder = renderer, continuer, tracing, recorder
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
        job = build_job(model, spec, prompt, choice.number, input_items)
        dice_key, settings = token_bytes(DICE_KEY_BYTES), self.settings
        continuation = self._continuer.store_turn(model, spec, prompt, job, settings, dice_key, origin.key.id)
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
                continuation=continuation,
            ),
            core,
            stats,
            model.engine,
            job,
            self._timeouts,
            name_grammar_field(spec.constraints),
            plan_compaction(model, spec, input_items, prompt, self._renderer),
            None if tools is None else RoundPlanner(model, spec, self._renderer, tools, job, choice.results),
        )
        turn.media = media
        self._tracing.connect(turn, tools, model, spec, origin)
        if self._recorder is not None:
            self._recorder.begin(create_record(turn, settings, job, origin, prompt, dice_key), turn.log)
        return turn

    def prepare_rebuild(self, model: ServedModel, stored: ContinuableTurn, log: EventLog) -> CoreRebuild:
        """Returns what rebuilds the core of a turn that another process began."""
        dice, seal = self._dice(stored.head.dice_key), partial(self._sealer.seal, log.owner)
        return CoreRebuild(stored, log, model.format, dice=dice, clock=self._clock, seal=seal)

    def continue_turn(self, model: ServedModel, rebuilt: CoreRebuild, log: EventLog, stats: TurnStats) -> Turn:
        """Returns the rest of a turn that another process began, which runs from now on."""
        turn = Turn(log, rebuilt.core, stats, model.engine, rebuilt.continue_job(), self._timeouts)
        turn.is_continued = True
        return turn
