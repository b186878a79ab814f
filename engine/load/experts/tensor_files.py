"""Weights of experts in a model's files: where they are, and models that are built without them.

The files are mapped into memory. An expert is read when it is needed, and its pages are given back afterwards.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.forward.experts.layout import is_experts_class, read_layout
from antiphon.engine.load.mmap_weights import FileMappings, MmapWeight

IGNORED_NAMES = r"\.experts\.(gate_up|up|down)_proj(_blocks|_scales)?$"
"""Pattern of the tensors that transformers need not know, by their names in the model."""

LoadedModel = tuple[PreTrainedModel, list[str]]
"""A model, and the names of weights that are missing from its files."""


class MissingExpertsError(Exception):
    """The files do not hold some experts, or in a way that is unknown here."""


class ExpertTensors:
    """A matrix of all experts in mapped files; `self[index]` is that of one expert.

    A part is one tensor whose first dimension are the experts, or a tensor for each expert. Parts are joined along the
    outputs.
    """

    def __init__(self, parts: Sequence[Tensor | list[Tensor]]) -> None:
        mappings = FileMappings()
        self._parts = [
            MmapWeight(part, mappings)
            if isinstance(part, Tensor)
            else [MmapWeight(tensor, mappings) for tensor in part]
            for part in parts
        ]

    def __len__(self) -> int:
        first = self._parts[0]
        return len(first.stored) if isinstance(first, MmapWeight) else len(first)

    def __getitem__(self, index: int) -> Tensor:
        tensors = [part.stored[index] if isinstance(part, MmapWeight) else part[index].stored for part in self._parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the weights are stored."""
        return self[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        return len(self) * self[0].nbytes

    def release(self, index: int) -> None:
        """Gives the pages of an expert back to the system."""
        for part in self._parts:
            if isinstance(part, MmapWeight):
                part.release(index, index + 1)
            else:
                part[index].release()


class TensorFiles:
    """The safetensors files of a model folder, and the file of each tensor."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.exists():
            names: dict[str, str] = msgspec.json.decode(index.read_bytes())["weight_map"]
            self._files = {name: folder / file for name, file in names.items()}
        else:
            with safe_open(folder / "model.safetensors", "pt") as file:
                self._files = dict.fromkeys(file.keys(), folder / "model.safetensors")
        self._open: dict[Path, Any] = {}

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._files)

    def read(self, name: str) -> Tensor:
        """Returns a tensor whose elements stay in the mapped file until they are used."""
        if name not in self._files:
            raise MissingExpertsError(f"{name} is missing")
        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(path, "pt")
        tensor: Tensor = self._open[path].get_tensor(name)
        return tensor


def has_fused_experts(model_class: type) -> bool:
    """Tells whether the module of a model class has classes of fused experts."""
    return bool(_find_expert_classes(model_class))


@contextmanager
def leave_out_experts(model_class: type) -> Iterator[None]:
    """Within this context, transformers builds the fused experts of a model class without their matrices."""
    patched: Any = model_class
    originals = [(kind, kind.__init__) for kind in _find_expert_classes(model_class)]
    ignored = patched._keys_to_ignore_on_load_unexpected
    try:
        patched._keys_to_ignore_on_load_unexpected = [*(ignored or ()), IGNORED_NAMES]
        for kind, original in originals:
            kind.__init__ = _without_matrices(original)
        yield
    finally:
        patched._keys_to_ignore_on_load_unexpected = ignored
        for kind, original in originals:
            kind.__init__ = original


def _find_expert_classes(model_class: type) -> list[Any]:
    module = sys.modules[model_class.__module__]
    return [kind for kind in vars(module).values() if isinstance(kind, type) and is_experts_class(kind)]


def _without_matrices(original: Any) -> Any:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        layout = read_layout(self)
        for name in layout.names if layout is not None else ():
            del self._parameters[name]
        self._is_hf_initialized = True  # transformers would fill the missing matrices with random numbers

    return build


def read_last_number(name: str) -> int:
    """Returns the last number between dots in a tensor's name: the index of an expert."""
    numbers = re.findall(r"\.(\d+)(?=\.)", name)
    if not numbers:
        raise MissingExpertsError(f"{name} has no number of an expert")
    return int(numbers[-1])
