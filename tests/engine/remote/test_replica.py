"""One replica: its health checks, its handshakes, and the steps that it shows."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from antiphon.engine.remote.options import RemoteOptions, RemoteSetup
from antiphon.engine.remote.replica import MAX_HEALTH_FAILURES, Replica
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from tests.engine.remote.fake_server import FakeServer, Pause, Reply, fake_server, json_reply, play_vllm
from tests.engine.remote.remote_helpers import EOS, FAST, encode, follow_grammars, load_model
from tests.progress import HANG_TIMEOUT_S


def build_replica(port: int = 1, steps: list[str | None] | None = None, **timeouts: Any) -> Replica:
    """Returns a replica. `steps` receives its reason whenever it changes."""
    model, _ = load_model()
    endpoint = RemoteEndpoint(host="127.0.0.1", port=port)
    replica = Replica(
        endpoint,
        RemoteSetup(
            RemoteOptions(endpoints=(endpoint,), grammar="off"), model, None, msgspec.structs.replace(FAST, **timeouts)
        ),
        api_key="sk-engine",
        on_change=lambda: None if steps is None else steps.append(replica.unready_reason),
    )
    return replica


@asynccontextmanager
async def monitored(replica: Replica) -> AsyncIterator[asyncio.Task[None]]:
    """Runs the replica's monitor during the block."""
    monitor = asyncio.create_task(replica.run_monitor())
    try:
        yield monitor
    finally:
        monitor.cancel()
        await asyncio.wait({monitor})
        replica.close()


async def wait_until_up(replica: Replica) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while replica.profile is None:
            await asyncio.sleep(0.005)


async def check_health(results: Sequence[bool], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Returns true if the replica is still watched after health checks with these results."""
    replica, left, all_done = build_replica(health_interval_s=0.001), list(results), asyncio.Event()

    async def answer() -> bool:
        if not left:
            all_done.set()
            await asyncio.Event().wait()
        return left.pop(0)

    monkeypatch.setattr(replica, "is_healthy", answer)
    watch = asyncio.create_task(replica.watch_health())
    done = asyncio.create_task(all_done.wait())
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await asyncio.wait({watch, done}, return_when=asyncio.FIRST_COMPLETED)
    is_watched = not watch.done()
    for task in (watch, done):
        task.cancel()
    await asyncio.wait({watch, done})
    return is_watched


class TestHealth:
    """Failures in a row take a replica out."""

    @pytest.mark.parametrize(
        ("results", "is_watched"),
        [
            ([False] * (MAX_HEALTH_FAILURES - 1), True),
            ([False] * MAX_HEALTH_FAILURES, False),
            ([False, False, True, False, False, True], True),
            ([False, True, False, True, False, True, False], True),
            ([True, False, False, False], False),
        ],
    )
    async def test_only_failures_in_a_row_count(
        self, results: list[bool], is_watched: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await check_health(results, monkeypatch) == is_watched

    @pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False), (500, False), (204, False)])
    async def test_status_of_a_health_check(self, status: int, is_healthy: bool) -> None:
        async with running_server() as server:
            server.health_status = status
            replica = build_replica(server.port)
            assert await replica.is_healthy() == is_healthy
            replica.close()

    async def test_health_check_without_an_answer_is_a_failure(self) -> None:
        async with running_server() as server:
            server.overrides["/health"] = Reply([Pause()])
            replica = build_replica(server.port, health_timeout_s=0.02)
            assert not await replica.is_healthy()
            replica.close()

    async def test_refused_connection_takes_the_replica_out_at_once(self) -> None:
        steps: list[str | None] = []
        async with running_server() as server:
            replica = build_replica(server.port, steps)
            async with monitored(replica):
                await wait_until_up(replica)
                await server.kill()
                async with asyncio.timeout(HANG_TIMEOUT_S):
                    while replica.profile is not None:
                        await asyncio.sleep(0.005)
                assert any("cannot be reached" in str(step) for step in steps)
                await server.start()
                await wait_until_up(replica)


class TestHandshakes:
    """A replica shakes hands until a handshake succeeds, and again after an outage."""

    async def test_requested_handshake_runs_again(self) -> None:
        async with running_server() as server:
            replica = build_replica(server.port, health_interval_s=30)
            async with monitored(replica):
                await wait_until_up(replica)
                replica.request_handshake("why")
                assert replica.profile is None and replica.unready_reason == "why"
                await wait_until_up(replica)
                num_requests = len(server.requests)
                await asyncio.sleep(0.05)
                assert len(server.requests) == num_requests, "one request leads to one handshake"

    async def test_reason_of_a_replica_that_is_down_stays(self) -> None:
        replica = build_replica()
        replica.unready_reason = "first"
        replica.request_handshake("second")
        assert replica.unready_reason == "first" and replica._recheck.is_set()

    async def test_error_of_the_handshake_itself_is_retried(self) -> None:
        async with running_server() as server:
            replica = build_replica(server.port)
            options = RemoteOptions(endpoints=(replica.client.endpoint,))
            setup = msgspec.structs.replace(replica.setup, options=options)
            replica.setup = msgspec.structs.replace(setup, followers=object())
            async with monitored(replica):
                async with asyncio.timeout(HANG_TIMEOUT_S):
                    while "the handshake with" not in str(replica.unready_reason):
                        await asyncio.sleep(0.005)
                assert replica.mismatch is None
                replica.setup = setup
                await wait_until_up(replica)

    async def test_mismatch_is_told_and_forgotten(self) -> None:
        async with running_server() as server:
            server.version = "0.1"
            replica = build_replica(server.port)
            assert not await replica.shake_hands() and "0.12 or later" in str(replica.mismatch)
            server.overrides["/version"] = json_reply({}, 503)
            assert not await replica.shake_hands() and replica.mismatch is None
            server.overrides.clear()
            server.version = "0.32"
            assert await replica.shake_hands() and replica.mismatch is None
            replica.close()

    async def test_mismatch_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        async with running_server() as server:
            replica = build_replica(server.port)
            server.overrides["/version"] = json_reply({}, 503)
            assert not await replica.shake_hands() and not caplog.messages, "it may fit, once it answers"
            server.overrides.clear()
            server.version = "0.1"
            for _ in range(3):
                assert not await replica.shake_hands()
            assert len(caplog.messages) == 1 and "0.12 or later" in caplog.messages[0]
            server.version = "0.32"
            assert await replica.shake_hands() and replica.mismatch is None
            server.version = "0.1"
            caplog.clear()
            assert not await replica.shake_hands() and len(caplog.messages) == 1
            replica.close()

    async def test_key_is_sent(self) -> None:
        async with running_server() as server:
            replica = build_replica(server.port)
            await replica.is_healthy()
            assert server.requests[0].headers["authorization"] == "Bearer sk-engine"
            replica.close()


class TestSteps:
    """Each step is shown once until a handshake succeeds."""

    async def test_server_that_loads_for_a_long_time(self) -> None:
        steps: list[str | None] = []
        async with running_server() as server:
            await server.kill()
            replica = build_replica(server.port, steps, max_reconnect_delay_s=0.02)
            for _ in range(20):
                assert not await replica.shake_hands()
            [reason] = set(steps)
            assert f"{replica.name} cannot be reached" in str(reason)
            await server.start()
            server.overrides["/tokenize"] = json_reply({}, 503)
            del steps[:]
            for _ in range(20):
                assert not await replica.shake_hands()
            assert list(dict.fromkeys(steps)) == [
                f"comparing the tokenizer of {replica.name}",
                f"{replica.name} is not ready yet",
            ]
            assert steps.count(f"comparing the tokenizer of {replica.name}") == 1
            server.overrides.clear()
            assert await replica.shake_hands()
            del steps[:]
            assert await replica.shake_hands()
            assert f"comparing the tokenizer of {replica.name}" in steps, "after a success all steps are shown again"
            replica.close()


@asynccontextmanager
async def running_server() -> AsyncIterator[FakeServer]:
    async with fake_server(encode, play_vllm(50, EOS), follow_grammars) as server:
        yield server
