"""Which jobs the engine refuses, and how often it tries: one condition at a time, limits at their value and after."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.engine.protocol import Capabilities, EngineError
from antiphon.engine.remote.engine import RemoteEngine, common_capabilities
from antiphon.engine.remote.options import RemoteOptions
from antiphon.engine.remote.remote_job import MAX_JOB_ATTEMPTS, check_job
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from tests.engine.remote.fake_server import Pause, Reply, json_reply, play_vllm
from tests.engine.remote.remote_helpers import (
    EOS,
    FAST,
    build_engine,
    load_model,
    make_job,
    merge_chunks,
    remote_engine,
)
from tests.progress import HANG_TIMEOUT_S

CONTEXT = 10
BUSY = json_reply({"error": "queue is full"}, 429)


def build_ready_engine(**capabilities: Any) -> RemoteEngine:
    """Returns an engine that believes to have shaken hands."""
    model, info = load_model()
    engine = RemoteEngine(RemoteOptions(endpoints=(RemoteEndpoint(),)), model, info)
    engine._info = msgspec.structs.replace(info, max_model_len=CONTEXT, capabilities=Capabilities(**capabilities))
    return engine


NOTHING = {
    "prompt_logprobs": False,
    "logit_bias": False,
    "min_tokens": False,
    "seed": False,
    "priority": False,
    "max_top_logprobs": -1,
}


@pytest.mark.parametrize(
    ("capabilities", "fields", "message"),
    [
        ({}, {"tokens": tuple(range(3, CONTEXT + 2))}, None),
        ({}, {"tokens": tuple(range(3, CONTEXT + 3))}, "the prompt has 10 tokens, the context holds 10"),
        ({}, {"adapter": "a"}, "adapters of other servers"),
        ({}, {"logit_bias": {0: 1.0, 1023: 1.0}}, None),
        ({}, {"logit_bias": {1027: 1.0}}, "the vocabulary has 1027 tokens"),
        ({}, {"logit_bias": {-1: 1.0}}, "the vocabulary has 1027 tokens"),
        ({"grammar": True}, {"grammar": 'start: "a"'}, None),
        ({"grammar": False}, {"grammar": None}, None),
        ({"grammar": False}, {"grammar": 'start: "a"'}, "does not follow grammars"),
        ({"grammar": False, "grammar_remedy": "--flag"}, {"grammar": 'start: "a"'}, "start it with --flag"),
        ({"max_top_logprobs": None}, {"top_logprobs": 100}, None),
        ({"max_top_logprobs": 5}, {"top_logprobs": 5}, None),
        ({"max_top_logprobs": 5}, {"top_logprobs": 6}, "does not support top_logprobs"),
        ({"max_top_logprobs": -1}, {"top_logprobs": 0}, "does not support top_logprobs"),
        (NOTHING, {}, None),
        (NOTHING, {"prompt_logprobs": 0}, "does not support prompt_logprobs"),
        (NOTHING, {"logit_bias": {5: 1.0}}, "does not support logit_bias"),
        (NOTHING, {"min_tokens": 1}, "does not support min_tokens"),
        (NOTHING, {"seed": 0}, "does not support seed"),
        (NOTHING, {"priority": -1}, "does not support priority"),
        (
            {},
            {
                "prompt_logprobs": 0,
                "logit_bias": {5: 1.0},
                "min_tokens": 1,
                "seed": 0,
                "priority": 1,
                "top_logprobs": 9,
            },
            None,
        ),
    ],
)
def test_job_that_the_servers_would_not_honor(
    capabilities: dict[str, Any], fields: dict[str, Any], message: str | None
) -> None:
    engine, job = build_ready_engine(**capabilities), make_job(**fields)
    if message is None:
        check_job(job, engine.info)
        return
    with pytest.raises(EngineError, match=message):
        check_job(job, engine.info)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [(None, None, None), (5, None, 5), (None, 5, 5), (5, 3, 3), (-1, 5, -1)],
)
def test_common_number_of_log_probabilities(one: int | None, other: int | None, common: int | None) -> None:
    found = common_capabilities(Capabilities(max_top_logprobs=one), Capabilities(max_top_logprobs=other))
    assert found.max_top_logprobs == common


@pytest.mark.parametrize(
    "name", [name for name in Capabilities.__struct_fields__ if name not in ("max_top_logprobs", "grammar_remedy")]
)
def test_common_capabilities_are_those_of_both(name: str) -> None:
    everything, lacking = Capabilities(), Capabilities(**{name: False})
    assert getattr(common_capabilities(everything, everything), name)
    assert not getattr(common_capabilities(everything, lacking), name)
    assert not getattr(common_capabilities(lacking, everything), name)
    assert common_capabilities(lacking, Capabilities(grammar_remedy="--flag")).grammar_remedy == "--flag"


class TestTries:
    """A job that got no token is tried on other replicas, a limited number of times."""

    @pytest.mark.parametrize(
        ("num_servers", "reply", "window_s", "num_tries"),
        [
            (2, BUSY, 5.0, 2),
            (MAX_JOB_ATTEMPTS, BUSY, 5.0, MAX_JOB_ATTEMPTS),
            (MAX_JOB_ATTEMPTS + 1, BUSY, 5.0, MAX_JOB_ATTEMPTS),
            (2, json_reply({"error": "bad"}, 400), 5.0, 1),
            (2, BUSY, 0.0, 1),
        ],
    )
    async def test_number_of_tries(self, num_servers: int, reply: Reply, window_s: float, num_tries: int) -> None:
        timeouts = msgspec.structs.replace(FAST, retry_window_s=window_s)
        async with remote_engine(num_servers, timeouts=timeouts) as (engine, servers):
            for server in servers:
                server.default = reply
            with pytest.raises(EngineError):
                await engine.generate(make_job(), lambda _: None)
            assert sum(len(server.jobs) for server in servers) == num_tries

    async def test_replica_that_is_down_is_not_tried(self) -> None:
        async with remote_engine(2, timeouts=msgspec.structs.replace(FAST, health_interval_s=30)) as (engine, servers):
            servers[0].overrides["/v1/models"] = json_reply({}, 503)
            engine.replicas[0].request_handshake("down")
            servers[1].default = BUSY
            for number in range(4):
                with pytest.raises(EngineError):
                    await engine.generate(make_job(f"job-{number}", owner=str(number)), lambda _: None)
            assert not servers[0].jobs and len(servers[1].jobs) == 4

    async def test_job_of_a_known_id_is_refused(self) -> None:
        async with remote_engine(default=Reply([Pause()])) as (engine, [server]):
            job = asyncio.create_task(engine.generate(make_job("same"), lambda _: None))
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while not server.jobs:
                    await asyncio.sleep(0.005)
            with pytest.raises(EngineError, match="already running"):
                await engine.generate(make_job("same"), lambda _: None)
            await engine.cancel("other")
            assert not job.done()
            await engine.cancel("same")
            with pytest.raises(EngineError):
                await job

    async def test_counts_of_a_replica(self) -> None:
        async with remote_engine(default=play_vllm(50, EOS)) as (engine, [server]):
            chunks: list[Any] = []
            await engine.generate(make_job(), chunks.append)
            server.replies = [json_reply({}, 503), json_reply({"error": "bad"}, 400)]
            for _ in range(2):
                with pytest.raises(EngineError):
                    await engine.generate(make_job(), lambda _: None)
                await engine.wait_ready()
            stats = engine.replicas[0].stats
            assert merge_chunks(chunks) == (50, EOS)
            assert (stats.attempts, stats.failures, stats.running, stats.waiting) == (3, 1, 0, 0)
            assert (engine.stats().finished_jobs, engine.stats().failed_jobs) == (1, 0)


class TestState:
    """What the engine says before it has started and after it was closed."""

    async def test_engine_that_is_not_running(self) -> None:
        engine = build_engine([])
        for _ in range(2):
            assert engine.unready_reason() == "the engine is not running"
            with pytest.raises(EngineError, match="was stopped"):
                await engine.wait_ready()
            with pytest.raises(EngineError, match="was stopped"):
                await engine.generate(make_job(), lambda _: None)
            with pytest.raises(EngineError, match="not running"):
                _ = engine.info
            await engine.close()

    @pytest.mark.parametrize(("policy", "has_followers"), [("probe", True), ("require", True), ("off", False)])
    async def test_grammars_are_followed_unless_they_are_off(self, policy: Any, has_followers: bool) -> None:
        assert (build_engine([], grammar=policy).setup.followers is not None) == has_followers
        model, info = load_model()
        model = msgspec.structs.replace(model, tokenizer_file=None)
        assert RemoteEngine(RemoteOptions(endpoints=(), grammar=policy), model, info).setup.followers is None
