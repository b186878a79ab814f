"""Loads the weights of a checkpoint that stores some in 16 bits and some in fp32 without rounding the latter."""

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
def keep_in_fp32(names: Sequence[str]) -> Iterator[None]:
    """Within this context, transformers loads weights whose names end in one of ``names`` in fp32."""
    model_class: Any = PreTrainedModel
    original = model_class._get_dtype_plan
    patterns = [f"(?:^|\\.){re.escape(name)}$" for name in names]

    def plan_dtypes(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.dtype]:
        return {**original(model, dtype), **dict.fromkeys(patterns, torch.float32)}

    model_class._get_dtype_plan = plan_dtypes
    try:
        yield
    finally:
        model_class._get_dtype_plan = original


def has_names(model: nn.Module, names: Sequence[str]) -> bool:
    """Tells whether every one of ``names`` ends the name of a weight of the model: none was renamed or fused."""
    known = [f".{name}" for name, _ in [*model.named_parameters(), *model.named_buffers()]]
    return all(any(full_name.endswith(f".{name}") for full_name in known) for name in names)
