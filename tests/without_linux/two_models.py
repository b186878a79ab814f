"""Serves two models in worker processes within a memory limit, uses both, and prints what the host knows of them."""

import json

from antiphon.app.models.on_demand_engine import OnDemandEngine
from tests.app.models.two_models import respond, two_worker_models, worker
from tests.serving import serve

with serve(two_worker_models()) as server:
    statuses = [respond(server, name)["status"] for name in ("first", "second", "first")]
    hosted = [model.engine for model in server.context.models.served]
    assert all(isinstance(engine, OnDemandEngine) for engine in hosted)
    first = hosted[0]
    assert isinstance(first, OnDemandEngine)
    print(json.dumps({"statuses": statuses, "pid": worker(server, 0).pid, "reserved": first.reserved_bytes}))
