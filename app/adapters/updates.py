"""Loads and unloads adapters while the server runs: in the engine, and among the names of models."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from antiphon.app.adapters.served import describe_adapter
from antiphon.app.errors import ApiError, clip_text, from_engine, invalid_value, missing_field
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.models.status import keep_loaded
from antiphon.app.scripted.recording_engine import unwrap_engine
from antiphon.engine.process.adapters import WorkerAdapters
from antiphon.engine.protocol import EngineError


class AdapterUpdates:
    """Applies one update after another. An update that has begun ends, also if its client disconnects."""

    def __init__(self, models: ModelRegistry, *, allowed: bool) -> None:
        self._models, self._allowed = models, allowed
        self._lock = asyncio.Lock()

    async def load(self, name: str, path: str, *, replace: bool, base: str | None = None) -> None:
        """Loads an adapter of the model `base`, or of the only one.

        Raises `ApiError`: 404 if updates are not allowed, 409 if the name is in use, 400.
        """
        await asyncio.shield(self._run(self._load(name, _make_absolute(path), base, replace=replace)))

    async def unload(self, name: str) -> None:
        """Unloads an adapter; running turns keep it. Raises `ApiError`: 404 if there is none with this name."""
        await asyncio.shield(self._run(self._unload(name)))

    async def _run(self, update: Coroutine[Any, Any, None]) -> None:
        async with self._lock:
            await update

    async def _load(self, name: str, path: str, base_name: str | None, *, replace: bool) -> None:
        current = self._models.get_model(name)
        base = self._find_base(base_name, current)
        adapters = self._find_adapters(base)
        if self._models.get_encoder(name) is not None or (current is not None and not current.adapter):
            message = f"The name '{clip_text(name)}' belongs to another model. Choose another name."
            raise ApiError(409, "model_name_in_use", message, "lora_name")
        if current is not None and not replace:
            message = (
                f"The lora adapter '{clip_text(name)}' has already been loaded. "
                "Set 'load_inplace' to true to load it again."
            )
            raise ApiError(409, "adapter_already_loaded", message, "lora_name")
        try:
            async with keep_loaded(base.engine):
                await adapters.load(name, path)
        except EngineError as error:
            if error.code == "model_not_loadable":
                raise ApiError(400, "invalid_value", error.message, "lora_path") from None
            raise from_engine(error) from None
        if current is not None:
            self._models.remove_adapter(name)
        self._models.add_adapter(describe_adapter(base, name, path))

    async def _unload(self, name: str) -> None:
        current = self._models.get_model(name)
        adapters = self._find_adapters(current or self._models.served[0])
        if current is None or not current.adapter:
            raise ApiError(
                404, "model_not_found", f"The lora adapter '{clip_text(name)}' cannot be found.", "lora_name"
            )
        self._models.remove_adapter(name)  # first, so that no new turn names it
        try:
            async with keep_loaded(current.engine):
                await adapters.unload(name)
        except EngineError as error:
            if error.code != "adapter_not_found":  # a restarted engine may have lost it
                self._models.add_adapter(current)
                raise from_engine(error) from None

    def _find_base(self, name: str | None, current: ServedModel | None) -> ServedModel:
        """Returns the base model of an adapter to load. Raises `ApiError` if it is unclear which one is meant.

        An adapter that takes the place of `current` stays with its base model.
        """
        if name is not None:
            try:
                base = self._models.find_model(name)
            except ApiError as error:
                error.param = "base_model_name"
                raise
            if base.adapter:
                raise invalid_value("base_model_name", f"The model '{clip_text(name)}' is an adapter itself.")
        elif current is not None and current.adapter:
            return self._models.find_model(current.parent)
        elif len(self._models.served) == 1:
            base = self._models.served[0]
        else:
            raise missing_field("base_model_name")
        if current is not None and current.adapter and current.parent != base.names[0]:
            message = f"The lora adapter '{clip_text(current.adapter)}' belongs to '{current.parent}'. Unload it first."
            raise ApiError(409, "adapter_already_loaded", message, "lora_name")
        return base

    def _find_adapters(self, model: ServedModel) -> WorkerAdapters:
        engine = unwrap_engine(model.engine)
        adapters = getattr(engine, "adapters", None)
        if not self._allowed or not isinstance(adapters, WorkerAdapters):
            message = "Adapters cannot be loaded at run time. Start the server with --allow-lora-updates."
            raise ApiError(404, "lora_updates_disabled", message)
        return adapters


def _make_absolute(path: str) -> str:
    """Returns the path from the root, since the worker process may have another current folder."""
    return str(Path(path).expanduser().absolute())
