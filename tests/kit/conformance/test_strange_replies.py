"""Cases end with findings, and never with an exception, whatever a server sends."""

import json
import random
from functools import partial
from typing import Any

import pytest

from antiphon.kit.conformance.client import LiveClient
from antiphon.kit.conformance.runner import CaseRunner
from antiphon.kit.conformance.suites import CaseSuite, LiveCase, select_cases
from tests.counts import FULL_COUNTS
from tests.kit.conformance.breaking_transport import Breakage, BreakingTransport, Received
from tests.kit.conformance.suite_scripts import write_script
from tests.serving import RunningServer, scripted_registry, serve

SERVER = partial(serve, lambda: scripted_registry(write_script()))
SEEDS = range(20) if FULL_COUNTS else range(1)
JUNK: tuple[Any, ...] = (None, True, -1, 0.5, "", "x", [], [None], ["x"], {}, {"x": None}, [[]], "\ud800", 10**30)
CASES = [
    (suite, case)
    for suite, case in select_cases((), ())
    if all(step.transport == "http" for step in case.step) and "poll" not in {name for step in case.step for name in step.checks}
]  # fmt: skip


def break_value(value: Any, rng: random.Random) -> Any:
    """Returns the value with a few parts replaced by others."""
    if rng.random() < 0.03:
        return rng.choice(JUNK)
    if isinstance(value, dict):
        return {key: break_value(entry, rng) for key, entry in value.items() if rng.random() > 0.01}
    return [break_value(entry, rng) for entry in value] if isinstance(value, list) else value


def break_body(reply: Received, rng: random.Random) -> Received:
    if reply.content_type == "application/json":
        return reply.with_json(break_value(json.loads(reply.body), rng))
    lines = []
    for line in reply.body.split(b"\n"):
        is_event = line.startswith(b"data: {")
        lines.append(b"data: " + json.dumps(break_value(json.loads(line[6:]), rng)).encode() if is_event else line)
    body = b"\n".join(line for line in lines if rng.random() > 0.01)
    return Received(reply.status, reply.content_type, body)


@pytest.mark.parametrize("seed", SEEDS)
def test_strange_replies_raise_nothing(server: RunningServer, seed: int) -> None:
    rng = random.Random(seed)
    breakages = [Breakage(method, "", lambda reply: break_body(reply, rng)) for method in ("GET", "POST", "DELETE")]
    with LiveClient(server.url, timeout=20, transport=BreakingTransport(server.url, *breakages)) as client:
        runner = CaseRunner(client, "scripted", context_length=131_072)
        for suite, case in CASES:
            run_one(runner, suite, case)


def run_one(runner: CaseRunner, suite: CaseSuite, case: LiveCase) -> None:
    try:
        runner.run_case(suite, case)
    except Exception as error:
        raise AssertionError(f"{suite.name}.{case.id}") from error
