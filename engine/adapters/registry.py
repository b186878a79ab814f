"""The adapters of an engine: loaded and unloaded between two steps, and found by the name in a job."""

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from antiphon.engine.adapters.adapter import build_adapter, match_layers
from antiphon.engine.adapters.base_weights import check_base_weights
from antiphon.engine.adapters.layers import AdaptableLayers
from antiphon.engine.adapters.lora_config import WEIGHTS_FILE, check_adapter_folder, check_weights_file
from antiphon.engine.adapters.peft_files import MAX_WEIGHTS_BYTES, AdapterFiles, read_adapter_files
from antiphon.engine.errors import LoadError
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.adapter_weights import LoadedAdapter
from antiphon.engine.host.hardware import free_memory
from antiphon.engine.options import LoraModule
from antiphon.engine.protocol import EngineError

log = logging.getLogger(__name__)


class AdapterRegistry:
    """Adapters over one base model. `base_folder`, the model's folder, is compared with the adapters' own records."""

    def __init__(self, layers: AdaptableLayers, dtype: torch.dtype, base_folder: Path | None = None) -> None:
        self.on_unload: Callable[[int], None] = lambda _: None
        """Called with the number of an adapter that no new job will use."""
        self.layers, self._dtype, self._base_folder = layers, dtype, base_folder
        self._adapters: dict[str, LoadedAdapter] = {}
        self._files: dict[str, AdapterFiles] = {}
        """Files that `read_all` has read, by the adapter's name."""
        self._numbers = count(1)

    @property
    def description(self) -> str:
        """The adapters and their memory, for the operator; empty without adapters."""
        return "adapters " + ", ".join(each.description for each in self._adapters.values()) if self._adapters else ""

    def find(self, name: str) -> LoadedAdapter | None:
        """Returns the adapter of a job, None for the base model. Raises `EngineError` for an unknown name."""
        if not name:
            return None
        if name not in self._adapters:
            raise adapter_not_found(name)
        return self._adapters[name]

    def read_all(self, modules: tuple[LoraModule, ...]) -> None:
        """Reads adapters for `load_all`, before the model is packed. Raises `LoadError` as it does."""
        for module in modules:
            try:
                self._files[module.name] = self._read_files(Path(module.path), _find_root(module.root))
            except LoadError:
                if module.required:
                    raise

    def load_all(self, modules: tuple[LoraModule, ...]) -> None:
        """Loads adapters at start. Raises `LoadError` unless the adapter is not required."""
        for module in modules:
            log.info("loading adapter %s", module.name)
            try:
                self.load(module.name, module.path, module.root)
            except LoadError as error:
                if module.required:
                    raise
                report_fallback(log, "adapter", "adapter %s is not served: %s", module.name, error.message)

    def load(self, name: str, path: str, root: str = "") -> LoadedAdapter:
        """Loads an adapter; one with the same name is replaced. Raises `LoadError`.

        `root`: the folder that its files must be in, empty for any.
        """
        files = self._files.pop(name, None) or self._read_files(Path(path), _find_root(root))
        with torch.inference_mode():
            adapter = build_adapter(name, next(self._numbers), files, self.layers, self._dtype)
        if name in self._adapters:
            self.unload(name)
        self._adapters[name] = adapter
        return adapter

    def _read_files(self, folder: Path, root: Path | None) -> AdapterFiles:
        """Reads an adapter and compares it with the base model. Raises `LoadError`."""
        check_adapter_folder(folder, root)
        files_size = check_weights_file(folder).stat().st_size
        free = free_memory(str(self.layers.device))
        if free is not None and 2 * files_size > free:  # the file and the packed matrices
            raise LoadError(
                f"adapter {folder}: {WEIGHTS_FILE} has {files_size / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are "
                "free; unload another adapter, or free some memory"
            )
        files = read_adapter_files(folder, root, MAX_WEIGHTS_BYTES if free is None else free // 2)
        match_layers(files, self.layers)
        self._compare_base(folder, files.config.base_model)
        check_base_weights(files, self._base_folder)
        return files._replace(base_copies={})

    def unload(self, name: str) -> None:
        """Removes an adapter. Jobs that have it keep it until their end. Raises `EngineError`."""
        adapter = self.find(name)
        if adapter is None:
            raise adapter_not_found(name)
        del self._adapters[name]
        adapter.is_listed = False
        self.layers.rows.forget()
        self.on_unload(adapter.number)

    def _compare_base(self, folder: Path, trained_on: str) -> None:
        """Warns if the adapter names another base model than this one. Only the last part of a name is compared."""
        if self._base_folder is None or not trained_on:
            return
        name = trained_on.rstrip("/").rpartition("/")[2].casefold()
        served = {part.rpartition("--")[2].casefold() for part in self._base_folder.parts}
        if name not in served:
            report_fallback(
                log,
                "adapter_base",
                "adapter %s was trained on %s, and the base model is %s: its output may be useless",
                folder, trained_on, self._base_folder,
            )  # fmt: skip


def _find_root(root: str) -> Path | None:
    return Path(root) if root else None


def adapter_not_found(name: str) -> EngineError:
    """Returns the error for a job whose adapter is not loaded."""
    return EngineError("adapter_not_found", f"The adapter '{name}' is not loaded.")
