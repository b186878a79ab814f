"""A server of two models in processes of their own."""

from typing import Any

import httpx
from msgspec import structs

from antiphon.app.models.memory import MemoryEstimate, measure_engine
from antiphon.app.models.memory_pool import GIB, ModelMemory, ModelMemoryPool, PoolTimeouts
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.process.client import ProcessEngine
from tests.app.server_helpers import process_engine_registry
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer


def two_worker_models() -> ModelRegistry:
    host = ModelMemoryPool(8 * GIB, PoolTimeouts(min_stay_s=0.0))
    models = []
    for name in ("first", "second"):
        (model,) = process_engine_registry().served

        def measure(engine: Any = model.engine) -> int | None:
            return measure_engine(engine, MemoryEstimate(GIB // 2, GIB))

        engine = OnDemandEngine(
            model.engine,
            host,
            name,
            on_demand=True,
            idle_unload_s=0.3 if name == "second" else None,
            memory=ModelMemory(growth=GIB, measure=measure),
        )
        models.append(structs.replace(model, names=(name,), engine=engine))
    return ModelRegistry(models)


def respond(server: RunningServer, model: str, text: str = "hello", num_tokens: int = 3) -> dict[str, Any]:
    body = {"model": model, "input": text, "max_output_tokens": num_tokens}
    reply: dict[str, Any] = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).json()
    return reply


def worker(server: RunningServer, number: int) -> ProcessEngine:
    engine = unwrap_engine(server.context.models.served[number].engine)
    assert isinstance(engine, ProcessEngine)
    return engine
