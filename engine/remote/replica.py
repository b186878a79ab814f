"""One server of a remote engine: its handshake, its health, and its counts."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from antiphon.engine.remote.handshakes.handshake import Handshake, ServerProfile
from antiphon.engine.remote.handshakes.queries import HandshakeError
from antiphon.engine.remote.options import RemoteSetup
from antiphon.engine.remote.transport.connection import RemoteConnectionError
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.engine.remote.transport.http_client import HttpClient

log = logging.getLogger(__name__)

MAX_HEALTH_FAILURES = 3
"""Failed health checks in a row after which a replica is down."""


class ReplicaStats(msgspec.Struct, kw_only=True):
    """Counts of one replica: current numbers of jobs, then totals since the start."""

    running: int = 0
    """Jobs with a token."""
    waiting: int = 0
    """Jobs that wait for their first token."""
    attempts: int = 0
    failures: int = 0
    """Attempts that ended with an error of the replica."""
    grammar_departures: int = 0
    """Jobs that left their grammar."""


class Replica:
    """A server. `run_monitor` keeps `profile` up to date: None while the server cannot take jobs.

    `on_change` is called whenever the state changes.
    """

    def __init__(
        self,
        endpoint: RemoteEndpoint,
        setup: RemoteSetup,
        *,
        api_key: str | None,
        on_change: Callable[[], None],
    ) -> None:
        self.client = HttpClient(
            endpoint,
            {} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            silence_timeout_s=setup.options.silence_timeout_s,
            secrets=() if api_key is None else (api_key,),
        )
        self.name = endpoint.name
        self.profile: ServerProfile | None = None
        self.unready_reason: str | None = f"connecting to {self.name}"
        self.mismatch: str | None = None
        """Reason why the server does not fit; None if it does, or has not answered."""
        self.stats = ReplicaStats()
        self.setup, self._timeouts, self._on_change = setup, setup.timeouts, on_change
        self._recheck = asyncio.Event()
        self._shown_steps = {self.unready_reason}

    @property
    def num_jobs(self) -> int:
        """Number of jobs on this replica."""
        return self.stats.running + self.stats.waiting

    def request_handshake(self, reason: str) -> None:
        """Takes the replica out until a new handshake succeeds."""
        if self.profile is not None:
            log.warning("engine %s: %s", self.name, reason)
            self._set_state(None, reason)
        self._recheck.set()

    async def run_monitor(self) -> None:
        """Shakes hands and watches the server's health, until cancelled."""
        delay = self._timeouts.min_reconnect_delay_s
        while True:
            self._recheck.clear()
            if await self.shake_hands():
                delay = self._timeouts.min_reconnect_delay_s
                await self.watch_health()
            else:
                await asyncio.sleep(delay)
                delay = min(2 * delay, self._timeouts.max_reconnect_delay_s)

    def close(self) -> None:
        """Closes the idle connections."""
        self._set_state(None, "the engine was stopped")
        self.client.close()

    async def shake_hands(self) -> bool:
        """Runs one handshake, which sets `profile` and `mismatch`. Returns True if the server can take jobs."""
        handshake = Handshake(self.client, self.setup, self._show_step)
        try:
            profile = await handshake.run()
        except HandshakeError as error:
            if error.is_permanent and self.mismatch != str(error):
                log.warning("engine %s", error)
            self.mismatch = str(error) if error.is_permanent else None
            self._set_state(None, str(error))
            return False
        except Exception:  # the handshake is tried again
            log.exception("engine %s: the handshake failed", self.name)
            self._set_state(None, f"the handshake with {self.name} failed")
            return False
        self.mismatch = None
        self._shown_steps.clear()
        for warning in profile.warnings:
            log.warning("engine %s", warning)
        log.info(
            "engine %s counts anew in a response that goes on after a loss: %s",
            self.name,
            ", ".join(profile.api.uncounted_fields),
        )
        self._set_state(profile, None)
        return True

    async def watch_health(self) -> None:
        """Returns as soon as the server is down."""
        failures = 0
        while failures < MAX_HEALTH_FAILURES:
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which in Python 3.11 can lose a cancellation.
                async with asyncio.timeout(self._timeouts.health_interval_s):
                    await self._recheck.wait()
                    return
            failures = 0 if await self.is_healthy() else failures + 1
        self.request_handshake("does not answer health checks")

    async def is_healthy(self) -> bool:
        """Sends one health check. A connection that fails takes the replica out."""
        try:
            async with asyncio.timeout(self._timeouts.health_timeout_s):
                response = await self.client.request("GET", "/health")
        except TimeoutError:
            return False
        except RemoteConnectionError as error:
            self.request_handshake(str(error))
            return False
        return response.status == 200

    def _show_step(self, step: str) -> None:
        """Shows each step once until a handshake succeeds. While one after another fails, the reason stays."""
        if step not in self._shown_steps:
            self._shown_steps.add(step)
            self.unready_reason = step
            self._on_change()

    def _set_state(self, profile: ServerProfile | None, reason: str | None) -> None:
        self.profile, self.unready_reason = profile, reason
        self._on_change()
