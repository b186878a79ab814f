"""Experts in 16 or 32 bits that stay in the model's files until they are packed, expert by expert.

Most checkpoints hold a tensor for each matrix of each expert. transformers would join them in memory as a whole; its
table of names tells which tensors belong to which matrix.
"""

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, rename_source_key
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.errors import LoadError, one_line, show_shape
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.layout import read_layout
from antiphon.engine.load.architectures import resolve_model_type
from antiphon.engine.load.experts.replacement import replace_experts
from antiphon.engine.load.experts.stored import StoredExperts, UnknownExpertsError
from antiphon.engine.load.experts.tensor_files import (
    ExpertTensors,
    LoadedModel,
    MissingExpertsError,
    TensorFiles,
    has_fused_experts,
    leave_out_experts,
    read_last_number,
)

log = logging.getLogger(__name__)

MatrixParts = list[str | dict[int, str]]
"""Names of tensors: of the parts of a matrix, each for all experts or by expert."""


def load_with_experts_in_files(auto_class: Any, checkpoint: Checkpoint, load: Callable[[], LoadedModel]) -> LoadedModel:
    """Returns what `load` returns, with fused experts still in the files, if they are stored in a known way.

    `auto_class` is transformers' automatic class by which `load` loads the model.
    """
    config_class = CONFIG_MAPPING[resolve_model_type(checkpoint)]
    model_class = auto_class._model_mapping[config_class]
    if checkpoint.quantization_method is not None or not has_fused_experts(model_class):
        return load()
    with leave_out_experts(model_class):
        model, missing = load()
    try:
        wrap_experts_in_files(model, TensorFiles(checkpoint.path))
    except (MissingExpertsError, UnknownExpertsError) as failure:
        report_fallback(log, "whole_load", "experts are loaded as a whole: %s", one_line(failure))
        del model
        return load()
    return model, missing


def wrap_experts_in_files(model: PreTrainedModel, files: TensorFiles) -> None:
    """Replaces experts that were left out by those in the files.

    Raises `MissingExpertsError`, or `UnknownExpertsError` if transformers' code computes something else.
    """
    matrices = find_matrices(model, files.names)
    for name, module in list(model.named_modules()):
        layout = read_layout(module)
        if layout is None or any(part in module._parameters for part in layout.names):
            continue
        weights = {part: read_matrix(files, matrices, f"{name}.{part}") for part in layout.names}
        stored = StoredExperts(module, layout, weights)
        _check_shapes(stored)
        replace_experts(model, name, stored, module)


def find_matrices(model: PreTrainedModel, names: list[str]) -> dict[str, MatrixParts]:
    """Returns the names of the tensors that make up each matrix of experts, by the matrix' name in the model."""
    transforms: list[Any] = get_model_conversion_mapping(model)
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    renamings = [transform for transform in transforms if not isinstance(transform, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    matrices: dict[str, MatrixParts] = {}
    for name in names:
        target, pattern = rename_source_key(name, renamings, converters)
        if pattern is None:
            matrices[target] = [name]
        elif _joins_experts(by_pattern[pattern]):
            parts = matrices.setdefault(target, [{} for _ in by_pattern[pattern].source_patterns])
            part = parts[by_pattern[pattern].source_patterns.index(pattern)]
            assert isinstance(part, dict)
            part[read_last_number(name)] = name
    return matrices


def _joins_experts(converter: Any) -> bool:
    """Tells whether a converter only joins a tensor for each expert, and parts along their outputs."""
    merge, *others = converter.operations
    is_merge = type(merge) is MergeModulelist and merge.dim == 0
    is_concatenation = len(others) == 1 and type(others[0]) is Concatenate and others[0].dim == 1
    return is_merge and (is_concatenation if len(converter.source_patterns) > 1 else not others)


def read_matrix(files: TensorFiles, matrices: dict[str, MatrixParts], name: str) -> ExpertTensors:
    """Returns a matrix of all experts, mapped.

    Raises `MissingExpertsError`, or `LoadError` if an expert's tensor has another shape than the first.
    """
    if name not in matrices:
        raise MissingExpertsError(f"{name} is missing")
    parts: list[Tensor | list[Tensor]] = []
    for part in matrices[name]:
        if isinstance(part, str):
            parts.append(files.read(part))
        elif sorted(part) == list(range(len(part))) and part:
            tensors = [files.read(part[index]) for index in range(len(part))]
            for index, tensor in enumerate(tensors):
                if tensor.shape != tensors[0].shape:
                    raise LoadError(
                        f"the weight {part[index]} has the shape {show_shape(tensor.shape)}, and {part[0]} has "
                        f"{show_shape(tensors[0].shape)}; fetch the model again"
                    )
            parts.append(tensors)
        else:
            raise MissingExpertsError(f"{name} lacks some experts")
    return ExpertTensors(parts)


def _check_shapes(stored: StoredExperts) -> None:
    """Raises `MissingExpertsError` unless the two matrices fit each other and the module."""
    layout = stored.layout
    up, down = (stored.expert_weight(name, 0) for name in layout.names)
    factor = 2 if layout.is_gated else 1
    expected: Any = getattr(stored.module, "num_routed_experts", getattr(stored.module, "num_experts", None))
    num_up, num_down = (len(stored.weights[name]) for name in layout.names)
    is_complete = num_down == expected or not isinstance(expected, int)
    # transformers writes first matrices of identities, too, and never reads them.
    has_pairs = num_up == num_down or (layout.has_identities and num_up > num_down)
    if not (is_complete and has_pairs) or up.ndim != 2 or len(up) != factor * down.shape[1] or len(down) != up.shape[1]:
        raise MissingExpertsError("the shapes of experts do not fit each other")
