"""Lanes of a connection: requests of one lane run one after another, those of different lanes at once.

A request may continue the latest response of any lane. Which response that is, is decided when its frame arrives: the
lane may continue meanwhile. A request that names the response before it in its own lane is bound when it starts.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import chain
from typing import Any

from antiphon.app.errors import ApiError
from antiphon.app.http.request_body import BodyReservation, body_memory_error
from antiphon.app.websocket.frames import CreateFrame, lane_suffix
from antiphon.app.websocket.held_memory import ConnectionHold
from antiphon.app.websocket.history import LaneResponse
from antiphon.app.websocket.steering import SteeredResponse

MAX_RUNNING_LANES = 16
"""Maximum number of responses that run at once on one connection. OpenAI's API has the same limit."""
MAX_LANES = 32
"""Maximum number of named lanes of one connection, as in OpenAI's API."""
MAX_HELD = 16
"""Maximum number of responses in a lane whose steers wait for a request of the client."""
MAX_WAITING = 64
"""Maximum number of requests that wait on one connection."""
MAX_WAITING_BYTES = 32 << 20
"""Maximum size of the requests that wait on one connection."""


class Lane:
    """One lane: its latest response, and the turn that runs."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id, self.suffix = stream_id, lane_suffix(stream_id)
        self.latest: LaneResponse | None = None
        self.is_running = False
        self.held_steers: dict[object, SteeredResponse] = {}
        """Responses that ended with calls, by id. The request with their outputs reads their steers first."""


class WaitingTurn:
    """A request in its lane. `previous`: the response that it continues, if it was known when the frame arrived."""

    def __init__(self, lane: Lane, frame: CreateFrame, previous: LaneResponse | None) -> None:
        self.lane, self.frame, self.previous = lane, frame, previous
        self.steers: SteeredResponse | None = None
        """The response whose steers this turn reads; None for a request of the client."""
        self.reserved_bytes = 0
        """Its part of the memory that requests take, while it waits."""


RunTurn = Callable[[WaitingTurn], Coroutine[Any, Any, None]]
OnSteersDropped = Callable[[SteeredResponse], None]


class LaneScheduler:
    """Starts the requests of all lanes of a connection, in the order in which they arrived.

    `reservation` is the memory of those that wait, `hold` that of what lanes keep: a client may open any number of
    connections. `on_steers_dropped` is called for steers that can be kept no longer.
    """

    def __init__(
        self,
        run_turn: RunTurn,
        on_idle: Callable[[], None],
        reservation: BodyReservation,
        hold: ConnectionHold,
        on_steers_dropped: OnSteersDropped,
    ) -> None:
        self._run_turn, self._on_idle, self._reservation = run_turn, on_idle, reservation
        self._hold, self._on_steers_dropped = hold, on_steers_dropped
        self._lanes: dict[str | None, Lane] = {None: Lane(None)}
        self._waiting: deque[WaitingTurn] = deque()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """True if no request runs or waits."""
        return not (self._tasks or self._waiting)

    def find_lane(self, stream_id: str | None) -> Lane:
        """Returns a lane, which may be new. Raises `ApiError` if the connection has too many."""
        lane = self._lanes.get(stream_id)
        if lane is None:
            if len(self._lanes) > MAX_LANES:
                message = f"This connection has reached its limit of streams ({MAX_LANES}). Open another connection."
                raise ApiError(400, "websocket_stream_limit_reached", message, "stream_id")
            lane = self._lanes[stream_id] = Lane(stream_id)
        return lane

    def find_response(self, response_id: object) -> LaneResponse | None:
        """Returns the response with this id if it is the latest of a lane. It counts as used now."""
        latest = (lane.latest for lane in self._lanes.values())
        found = next((each for each in latest if each is not None and each.response_id == response_id), None)
        self._hold.touch(found)
        return found

    def add(self, lane: Lane, frame: CreateFrame) -> None:
        """Adds a request. Raises `ApiError` 429 if too many wait, here or on all connections."""
        turn = WaitingTurn(lane, frame, self.find_response(frame.body.get("previous_response_id")))
        self._waiting.append(turn)
        self._waiting_bytes += frame.num_bytes
        self._start_turns()
        if turn not in self._waiting:
            return
        turn.reserved_bytes = frame.num_bytes
        has_memory = self._reservation.try_add(frame.num_bytes)
        if len(self._waiting) > MAX_WAITING or self._waiting_bytes > MAX_WAITING_BYTES:
            self._remove(turn)
            message = f"Too many requests wait on this connection: at most {MAX_WAITING}, {MAX_WAITING_BYTES} bytes."
            raise ApiError(429, "rate_limit_exceeded", message)
        if not has_memory:
            self._remove(turn)
            raise body_memory_error()

    def add_successor(self, lane: Lane, response: SteeredResponse) -> None:
        """Adds the turn that reads the steers of a response. It is the next one of its lane."""
        turn = WaitingTurn(lane, response.create_successor(), lane.latest)
        turn.steers = response
        self._waiting.appendleft(turn)
        self._waiting_bytes += turn.frame.num_bytes

    def is_awaited(self, lane: Lane, response_id: str) -> bool:
        """Tells whether a request that continues a response waits in a lane."""
        return any(
            turn.lane is lane and turn.frame.body.get("previous_response_id") == response_id for turn in self._waiting
        )

    async def cancel_all(self) -> None:
        """Cancels all requests: the connection has ended."""
        self._waiting.clear()
        self._reservation.release()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        self._hold.keep_only(())

    def _start_turns(self) -> None:
        for turn in self._list_ready():
            self._remove(turn)
            turn.lane.is_running = True
            for response in turn.lane.held_steers.values():  # the turn may read them, so they cannot be dropped now
                self._hold.remove(response)
            task = asyncio.create_task(self._run(turn), name=f"websocket-{turn.lane.stream_id or 'default'}")
            self._tasks.add(task)

    def _list_ready(self) -> list[WaitingTurn]:
        """Returns the first request of each lane that is free, as far as there are places."""
        ready: dict[Lane, WaitingTurn] = {}
        for turn in self._waiting:
            if not turn.lane.is_running:
                ready.setdefault(turn.lane, turn)
        return list(ready.values())[: MAX_RUNNING_LANES - len(self._tasks)]

    def _remove(self, turn: WaitingTurn) -> None:
        self._waiting.remove(turn)
        self._waiting_bytes -= turn.frame.num_bytes
        self._reservation.remove(turn.reserved_bytes)

    async def _run(self, turn: WaitingTurn) -> None:
        try:
            await self._run_turn(turn)
        finally:
            turn.lane.is_running = False
            task = asyncio.current_task()
            if task is not None:
                self._tasks.discard(task)
            self._count_lane(turn.lane)
            self._start_turns()
            self._forget_unused()
            if self.is_idle:
                self._on_idle()

    def _count_lane(self, lane: Lane) -> None:
        """Counts what a lane keeps after a turn, which may drop the oldest of it."""
        if (latest := lane.latest) is not None and latest.items is not None:
            self._hold.add(latest, latest.num_bytes, latest.drop_items)
        for response in list(lane.held_steers.values()):
            self._hold.add(response, response.num_bytes, partial(self._drop_steers, lane, response))

    def _drop_steers(self, lane: Lane, response: SteeredResponse) -> None:
        del lane.held_steers[response.response_id]
        self._on_steers_dropped(response)

    def _forget_unused(self) -> None:
        """Counts no history and no steers any more that neither a lane nor a request that waits refers to."""
        kept = {turn.previous for turn in self._waiting} | {lane.latest for lane in self._lanes.values()}
        steers = (lane.held_steers.values() for lane in self._lanes.values())
        self._hold.keep_only({*kept, *chain.from_iterable(steers)})
