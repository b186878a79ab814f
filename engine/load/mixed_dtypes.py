"""Loads a model that computes in fp32 with weights in the types in which a checkpoint stores them."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from antiphon.engine.checkpoint.files import Checkpoint

COMMON_NAMES = {"weight", "bias"}
"""Last parts of names that do not tell which weight it is."""

ANY_NAME = "."
"""Pattern that transformers finds in every name."""


def find_fp32_names(checkpoint: Checkpoint) -> list[str]:
    """Returns the ends of the names of all weights in fp32, without the parts that transformers may rename."""
    names = set()
    for file in sorted(checkpoint.path.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118  it is no mapping
                if weights.get_slice(name).get_dtype() == "F32":
                    parts = name.split(".")
                    names.add(".".join(parts[-2:] if parts[-1] in COMMON_NAMES else parts[-1:]))
    return sorted(names)


@contextmanager
def load_as_stored(stored_dtype: torch.dtype, fp32_names: Sequence[str]) -> Iterator[None]:
    """Within this context, transformers leaves weights in `stored_dtype` while it builds a model in fp32.

    Weights whose names end in one of `fp32_names` stay in fp32, and so do those that transformers keeps in it.
    Tensors that a model computes when it is built, such as the buffer of a factor, are not rounded.
    """
    model_class: Any = PreTrainedModel
    original = model_class._get_dtype_plan

    def plan_dtypes(model: PreTrainedModel, _: torch.dtype) -> dict[str, torch.dtype]:
        # All patterns match at the beginning of a name, where the first one counts. transformers turns * into .*
        own = [f"^*{pattern}" for pattern in original(model, stored_dtype)]
        named = [f"^(?:*\\.)?{re.escape(name)}$" for name in fp32_names]
        return {**dict.fromkeys([*own, *named], torch.float32), ANY_NAME: stored_dtype}

    model_class._get_dtype_plan = plan_dtypes
    try:
        yield
    finally:
        model_class._get_dtype_plan = original


def has_names(model: nn.Module, names: Sequence[str]) -> bool:
    """Tells whether every one of `names` ends the name of a weight of the model: none was renamed or fused."""
    known = [f".{name}" for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    return all(any(full_name.endswith(f".{name}") for full_name in known) for name in names)


def convert_buffers(model: nn.Module) -> None:
    """Converts all floating-point buffers to fp32. After `load_as_stored`, only stored ones have other types."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.float()
