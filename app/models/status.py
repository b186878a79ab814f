"""State of a served model: whether it is loaded, and its properties."""

from contextlib import AbstractAsyncContextManager, nullcontext

from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.registry.model_registry import NamedModel
from antiphon.engine.protocol import Engine, EngineError, EngineInfo


def known_info(model: NamedModel) -> EngineInfo | None:
    """Returns the properties of a model; None if they are not known before it is loaded."""
    try:
        return model.engine.info
    except EngineError:
        return None


def loaded_info(model: NamedModel) -> EngineInfo | None:
    """Returns what the engine of a model reports; None if the model is not loaded."""
    is_unloaded = isinstance(model.engine, OnDemandEngine) and model.engine.load_state != "loaded"
    return None if is_unloaded else known_info(model)


def blocked_reason(engine: Engine) -> str | None:
    """Returns the reason why a model is not ready; None if it is, or if it is loaded when it is needed."""
    return engine.blocked_reason() if isinstance(engine, OnDemandEngine) else engine.unready_reason()


def is_starting(engine: Engine) -> bool:
    """Tells whether a model is being loaded at the start of the server."""
    return isinstance(engine, OnDemandEngine) and engine.is_starting


def shown_load_state(engine: Engine) -> str:
    """Returns "loaded", "loading", "unloaded" or "unloading". An engine that restarts counts as loading."""
    if isinstance(engine, OnDemandEngine) and engine.load_state != "loaded":
        return engine.load_state
    return "loaded" if engine.unready_reason() is None else "loading"


def keep_loaded(engine: Engine) -> AbstractAsyncContextManager[None]:
    """Loads an engine that is loaded on demand, and keeps it loaded during the block. Raises `EngineError`."""
    return engine.keep_loaded() if isinstance(engine, OnDemandEngine) else nullcontext()
