"""Continues responses of dead processes: the second part of a turn that the store has the first of."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from antiphon.app.errors import ApiError
from antiphon.app.inspection.summaries import RESTARTED_CODE
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.history.claimed_responses import RESTARTED_MESSAGE
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.continuation import Continuation
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.continuation.model_digest import digest_models
from antiphon.app.turns.continuation.replay import ReplayError
from antiphon.app.turns.continuation.stored_turn import ContinuableTurn, can_continue, decode_turn
from antiphon.state.recovery import failure_events

_logger = structlog.get_logger(__name__)

MAX_DIGEST_WAIT_S = 30.0
"""Time for which a background request waits, after the start, until the files of the models are read."""
FOREGROUND_DIGEST_WAIT_S = 2.0
"""The same for a stored request in the foreground, which then cannot continue elsewhere."""
DIGEST_OVERDUE = (
    "The server still reads the files of its models, by which it tells whether another server can go on with a "
    "background response. Retry later, or send the request without 'background'."
)
CANNOT_CONTINUE = (
    "The server process stopped before this response was complete, and no other can continue it: {reason}. Retry the "
    "request."
)
ResumeTurn = Callable[[ServedModel, ContinuableTurn, EventLog], Awaitable[None]]


class TurnContinuer:
    """Decides which turns other processes can continue, and passes on those of dead processes.

    `resume` starts the rest of a turn. Nothing is stored or continued before `start`.
    """

    def __init__(self, store: ResponseStore, resume: ResumeTurn) -> None:
        self._store, self._resume = store, resume
        self._models: dict[str, ServedModel] = {}
        self._digests: Mapping[str, str] = {}
        self._started: asyncio.Task[None] | None = None
        self._background_only = False
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._latest: dict[str, asyncio.Task[None]] = {}
        """The task of the response of each model that was claimed last."""

    def start(self, models: Sequence[ServedModel], continue_within_s: float, *, background_only: bool = False) -> None:
        """Reads the models' files, and continues their responses from then on; 0: ends all as failed.

        `background_only`: the events of others are shown before they are committed, so that they end with this process.
        In a store that ends with this process there is nothing to continue.
        """
        self._background_only = background_only
        if continue_within_s > 0 and self._store.is_durable:
            self._models = {model.names[0]: model for model in models}
        self._started = asyncio.create_task(self._read_digests(continue_within_s), name="model-digests")

    async def _read_digests(self, continue_within_s: float) -> None:
        try:
            self._digests = await asyncio.to_thread(digest_models, self._models)
        except Exception:  # the server works without
            _logger.exception("the models' files cannot be read, so that no response can go on after a restart")
        self._store.continue_turns(self._digests, continue_within_s, self._on_claimed)

    async def wait_started(self, *, is_needed: bool = True) -> None:
        """Waits until it is known which turns can continue. Raises `ApiError` 503 after `MAX_DIGEST_WAIT_S`.

        A turn for which it `is_needed` not waits for a short time, and else ends with this process.
        """
        if self._started is not None:  # a shutdown cancels it: then none can
            timeout = MAX_DIGEST_WAIT_S if is_needed else FOREGROUND_DIGEST_WAIT_S
            done, _ = await asyncio.wait({self._started}, timeout=timeout)
            if not done and is_needed:
                raise ApiError(503, "engine_unavailable", DIGEST_OVERDUE, headers=(("retry-after", "1"),))

    def store_turn(self, model: ServedModel, spec: TurnSpec, encode: Callable[[], bytes]) -> Continuation | None:
        """Returns what another process needs to continue a turn; None if none could.

        `encode` returns the turn as bytes: see `encode_turn`.
        """
        name = model.names[0]
        is_shown_early = self._background_only and not spec.base_response.background
        if name not in self._digests or is_shown_early or not can_continue(spec):
            return None
        return Continuation(model=name, digest=self._digests[name], data=encode())

    async def close(self) -> None:
        """Continues no response any more. What is claimed is left to the next process."""
        self._is_closed = True
        for task in [*self._tasks, *filter(None, (self._started,))]:
            task.cancel()
            await asyncio.wait({task})

    def _on_claimed(self, log: EventLog) -> None:
        if self._is_closed:
            return
        assert log.continuation is not None
        previous = self._latest.get(log.continuation.model)
        task = asyncio.create_task(self._continue(log, log.continuation, previous), name=f"continue-{log.id}")
        self._latest[log.continuation.model] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _continue(self, log: EventLog, continuation: Continuation, previous: asyncio.Task[None] | None) -> None:
        """Starts the rest of a turn after those that arrived before it."""
        if previous is not None:
            await asyncio.wait({previous})
        try:
            await self._resume(self._models[continuation.model], decode_turn(continuation.data), log)
        except (ReplayError, ValueError) as error:
            _logger.warning("a response of another process cannot go on", response=log.id, reason=str(error))
            self._fail_log(log, CANNOT_CONTINUE.format(reason=str(error).rstrip(".")))
        except Exception:
            _logger.exception("unhandled exception in a response of another process", response=log.id)
            self._fail_log(log)

    def _fail_log(self, log: EventLog, message: str = RESTARTED_MESSAGE) -> None:
        self._store.adopt_log(log)
        events = [entry.event for entry in log.entries]
        log.append_step(failure_events(events, code=RESTARTED_CODE, message=message))
        log.end_log()
