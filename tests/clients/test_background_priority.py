"""Requests that may wait: the engine gets their priority, and the Response says which tier they got."""

from typing import Any

import httpx
import pytest

from antiphon.engine.protocol import Job
from antiphon.engine.scripted.engine import ScriptedEngine
from tests.serving import scripted_registry, serve

LATE: dict[str, Any] = {"background": True, "background_options": {"completion_window": "8h", "continuation_id": "c"}}


@pytest.mark.parametrize(
    ("sent", "tier", "priority"),
    [
        ({}, "default", 0),
        ({"service_tier": "priority"}, "default", 0),
        ({"service_tier": "flex"}, "flex", -50),
        ({"service_tier": "flex", "stream": True}, "flex", -50),
        (LATE, "default", -100),
        ({"service_tier": "flex", **LATE}, "flex", -100),
    ],
)
def test_engine_gets_the_priority_of_a_request(sent: dict[str, Any], tier: str, priority: int) -> None:
    registry = scripted_registry([{"name": "any", "output": ["Yes."]}])
    jobs: list[Job] = []
    engine = registry.served[0].engine
    assert isinstance(engine, ScriptedEngine)
    engine.on_reply = lambda job, _: jobs.append(job)
    with serve(registry) as server:
        body = {"model": "scripted", "input": "Hi", **sent}
        reply = httpx.post(f"{server.url}/responses", json=body)
        assert reply.status_code == 200
        assert f'"service_tier":"{tier}"' in reply.text
    assert [job.priority for job in jobs] == [priority]
