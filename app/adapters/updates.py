"""Loads and unloads adapters while the server runs: in the engine, and among the names of models."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from antiphon.app.adapters.registration import describe_adapter
from antiphon.app.errors import NO_RETRY, ApiError, clip_text, from_engine, invalid_value, missing_field
from antiphon.app.models.status import keep_loaded
from antiphon.app.registry.engine_wrapper import unwrap_engine
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.process.adapters import WorkerAdapters
from antiphon.engine.protocol import EngineError
from antiphon.engine.regular_files import is_below

MAX_ADAPTERS, MAX_ADAPTERS_OF_OWNER = 64, 16
"""Largest number of adapters that clients have loaded at once: all of them, and those of an API key."""


class AdapterUpdates:
    """Applies one update after another. An update that has begun ends, also if its client disconnects.

    `folders`: those whose adapters may be loaded; without one, no update is allowed.
    """

    def __init__(self, models: ModelRegistry, folders: Sequence[str]) -> None:
        self._models, self._folders = models, [Path(os.path.realpath(folder)) for folder in folders]
        self._owners: dict[str, str] = {}
        """Owners of the adapters that clients have loaded, by name."""
        self._lock = asyncio.Lock()

    async def load(self, name: str, path: str, owner: str, *, replace: bool, base: str | None = None) -> None:
        """Loads an adapter of the model `base`, or of the only one.

        Raises `ApiError`: 404 if updates are not allowed, 409 if the name is in use or there are too many adapters, 403
        if the one to replace is another key's, 400.
        """
        await asyncio.shield(self._run(self._load(name, path, owner, base, replace=replace)))

    async def unload(self, name: str, owner: str) -> None:
        """Unloads an adapter; running turns keep it.

        Raises `ApiError`: 404 if there is none with this name, 403 if it is another key's.
        """
        await asyncio.shield(self._run(self._unload(name, owner)))

    async def _run(self, update: Coroutine[Any, Any, None]) -> None:
        async with self._lock:
            await update

    async def _load(self, name: str, path: str, owner: str, base_name: str | None, *, replace: bool) -> None:
        current = self._models.get_model(name)
        base = self._find_base(base_name, current)
        adapters = self._find_adapters(base)
        if self._models.get_encoder(name) is not None or (current is not None and not current.adapter):
            message = f"The name '{clip_text(name)}' belongs to another model. Choose another name."
            raise ApiError(409, "model_name_in_use", message, "lora_name", headers=NO_RETRY)
        if current is not None and not replace:
            message = (
                f"The lora adapter '{clip_text(name)}' has already been loaded. "
                "Set 'load_inplace' to true to load it again."
            )
            raise ApiError(409, "adapter_already_loaded", message, "lora_name", headers=NO_RETRY)
        if current is not None:
            self._check_owner(name, owner)
        else:
            self._check_number(owner)
        folder, root, shown_path = await asyncio.to_thread(self._find_folder, path)
        try:
            async with keep_loaded(base.engine):
                await adapters.load(name, folder, root)
        except EngineError as error:
            if error.code == "model_not_loadable":
                raise ApiError(400, "invalid_value", error.message, "lora_path") from None
            raise from_engine(error) from None
        if current is not None:
            self._models.remove_adapter(name)
        self._models.add_adapter(describe_adapter(base, name, shown_path))
        self._owners[name] = owner

    async def _unload(self, name: str, owner: str) -> None:
        current = self._models.get_model(name)
        adapters = self._find_adapters(current or self._models.served[0])
        if current is None or not current.adapter:
            raise ApiError(
                404, "model_not_found", f"The lora adapter '{clip_text(name)}' cannot be found.", "lora_name"
            )
        self._check_owner(name, owner)
        self._models.remove_adapter(name)  # first, so that no new turn names it
        try:
            async with keep_loaded(current.engine):
                await adapters.unload(name)
        except EngineError as error:
            if error.code != "adapter_not_found":  # a restarted engine may have lost it
                self._models.add_adapter(current)
                raise from_engine(error) from None
        del self._owners[name]

    def _check_owner(self, name: str, owner: str) -> None:
        """Raises `ApiError` unless this owner has loaded the adapter. Those of `--lora` belong to the operator."""
        if self._owners.get(name) != owner:
            whose = "with another API key" if name in self._owners else "at the start of the server"
            message = f"The lora adapter '{clip_text(name)}' was loaded {whose}. Choose another name."
            raise ApiError(403, "adapter_not_owned", message, "lora_name")

    def _check_number(self, owner: str) -> None:
        """Raises `ApiError` if no further adapter of this owner may be loaded."""
        owned = sum(other == owner for other in self._owners.values())
        if owned >= MAX_ADAPTERS_OF_OWNER or len(self._owners) >= MAX_ADAPTERS:
            message = (
                f"{owned} adapters were loaded with this API key, and {len(self._owners)} with all keys, of at most "
                f"{MAX_ADAPTERS_OF_OWNER} and {MAX_ADAPTERS}. Unload one first."
            )
            raise ApiError(409, "too_many_adapters", message, "lora_name", headers=NO_RETRY)

    def _find_folder(self, path: str) -> tuple[str, str, str]:
        """Returns the folder that a client's path names, the one of `--lora-dir` that it is in, and its path as shown.

        A relative path is below the first folder that has it. Clients see nothing of what lies above `--lora-dir`.
        Raises `ApiError`. It tells nothing of other folders: not even which ones exist.
        """
        for root in self._folders:
            if is_below(root / path, root) and os.path.isdir(root / path):  # noqa: PTH112  the method raises for long names
                shown_path = Path(os.path.realpath(root / path)).relative_to(root)
                return str(root / path), str(root), str(shown_path)
        message = f"There is no folder '{clip_text(path)}' in those of --lora-dir. Ask the operator to copy it there."
        raise invalid_value("lora_path", message)

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
            raise ApiError(409, "adapter_already_loaded", message, "lora_name", headers=NO_RETRY)
        return base

    def _find_adapters(self, model: ServedModel) -> WorkerAdapters:
        engine = unwrap_engine(model.engine)
        adapters = getattr(engine, "adapters", None)
        if not self._folders or not isinstance(adapters, WorkerAdapters):
            message = "Adapters cannot be loaded at run time. Start the server with --allow-lora-updates --lora-dir."
            raise ApiError(404, "lora_updates_disabled", message)
        return adapters
