"""Loads a quantized checkpoint whose weights are decoded here, instead of by packages that transformers would need."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.checkpoint.formats import check_packages
from antiphon.engine.checkpoint.quantized.lazy_weight import LazyWeight
from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight
from antiphon.engine.checkpoint.quantized.support import DECODED_METHODS, explain_unread_format
from antiphon.engine.checkpoint.quantized.tensor_files import read_checkpoint
from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.load.architectures import LOAD_OPTIONS, load_plain_config
from antiphon.engine.load.experts.replacement import wrap_loaded_experts
from antiphon.engine.load.experts.tensor_files import LoadedModel
from antiphon.engine.load.loading_report import list_missing
from antiphon.engine.load.mmap_weights import (
    FileMappings,
    MmapWeight,
    decode_parameters,
    has_exact_buffers,
    map_weights,
)

log = logging.getLogger(__name__)


def decodes_weights(checkpoint: Checkpoint, device: str) -> bool:
    """Tells whether the weights are decoded here: on a CPU, if their format is known.

    A GPU has kernels for quantized weights, which transformers loads. Raises `LoadError` if these are missing.
    """
    settings = checkpoint.quantization_settings
    if checkpoint.quantization_method not in DECODED_METHODS or explain_unread_format(settings) is not None:
        return False
    if device == "cpu":
        return True
    check_packages(checkpoint.path, settings)
    return False


def keeps_stored_form(checkpoint: Checkpoint, device: str) -> bool:
    """Tells whether weights are packed in few bits by default, because the checkpoint has no more than these."""
    return device == "cpu" and (checkpoint.gguf_file is not None or decodes_weights(checkpoint, device))


def maps_gguf(checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> bool:
    """Tells whether matrices of a GGUF file can stay in it until they are used."""
    has_reader = checkpoint.gguf_file is not None and find_spec("gguf") is not None
    return has_reader and dtype == torch.float32 and device == "cpu"


def load_decoded(model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> LoadedModel:
    """Returns the model on the CPU, and the names of weights that are missing from the files.

    In fp32, the weights of linear layers, embeddings and fused experts stay in the files until they are used.
    """
    if dtype != torch.float32:
        model, missing = _load_lazily(model_class, checkpoint, dtype, dtype)
        decode_parameters(model)
        return model, missing
    model, missing = _load_lazily(model_class, checkpoint, None, dtype)
    if not has_exact_buffers(model):
        model, missing = _load_lazily(model_class, checkpoint, dtype, dtype)
    wrap_loaded_experts(model)
    log.debug("%d layers keep their weights in the files", map_weights(model))
    for config in {id(config): config for config in (model.config, model.config.get_text_config())}.values():
        config.dtype = dtype
    return model, missing


def _load_lazily(
    model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype | None, decoded_dtype: torch.dtype
) -> LoadedModel:
    """Implements `load_decoded`, leaving quantized weights lazy.

    The other weights have type `dtype`, by default the one in which all of them are stored, or fp32.
    """
    concrete, config = _choose_concrete_class(model_class, load_plain_config(checkpoint))
    plain, stored = read_checkpoint(checkpoint)
    types = {tensor.dtype for tensor in plain.values() if tensor.is_floating_point()}
    dtype = dtype or (types.pop() if len(types) == 1 else torch.float32)
    _release_pages_after_reading(stored.values())
    lazy = {name: LazyWeight(weight, dtype, decoded_dtype) for name, weight in stored.items()}
    return _build_model(concrete, config, plain | lazy, dtype, checkpoint)


def _build_model(
    model_class: Any, config: PreTrainedConfig, weights: dict[str, Tensor], dtype: torch.dtype, checkpoint: Checkpoint
) -> LoadedModel:
    """Returns a model with these weights, and the names of those that it lacks."""
    options = {"config": config, "state_dict": weights, "dtype": dtype}
    model, report = model_class.from_pretrained(None, **options, **LOAD_OPTIONS)
    return model.eval(), list_missing(report, checkpoint.path)


def _choose_concrete_class(model_class: Any, config: PreTrainedConfig) -> tuple[Any, PreTrainedConfig]:
    """Returns the class that an automatic one chooses, and its configuration: only the former take a state dict."""
    candidates = model_class._model_mapping[type(config)]
    if not isinstance(candidates, list | tuple):
        candidates = [candidates]
    names = config.architectures or []
    concrete = next((each for each in candidates if each.__name__ in names), candidates[0])
    text_config = config.sub_configs.get("text_config")
    is_text_part = text_config is not None and concrete.config_class == text_config
    return concrete, config.get_text_config() if is_text_part else config


def _release_pages_after_reading(weights: Iterable[QuantizedWeight]) -> None:
    """Makes weights give back the pages of the mapped files that they were decoded from."""
    mappings = FileMappings()
    for weight in weights:
        weight.release = partial(_release_all, [MmapWeight(tensor, mappings) for tensor in weight.tensors])


def _release_all(stored: Sequence[MmapWeight]) -> None:
    for tensor in stored:
        tensor.release()


def _load_mapped_gguf(model_class: Any, checkpoint: Checkpoint) -> LoadedModel:
    """Returns the model on the CPU in fp32, and the names of weights that were not found in its GGUF file."""
    from antiphon.engine.checkpoint.gguf.tensor_files import read_gguf_weights  # noqa: PLC0415  gguf is optional

    concrete, config = _choose_concrete_class(model_class, load_plain_config(checkpoint))
    with torch.device("meta"):
        outline = concrete(config)
    weights = read_gguf_weights(checkpoint.path / str(checkpoint.gguf_file), outline)
    _release_pages_after_reading(weights.matrices())
    lazy = {name: LazyWeight(weight, torch.float32, torch.float32) for name, weight in weights.stored.items()}
    model, missing = _build_model(concrete, config, weights.plain | lazy, torch.float32, checkpoint)
    wrap_loaded_experts(model)
    log.debug("%d layers keep their weights in the file", map_weights(model))
    return model, missing


def load_gguf(model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> LoadedModel:
    """Returns the model on its device, and the names of weights that are missing from its GGUF file.

    In fp32 on the CPU, matrices stay in the file until they are used. Otherwise, and for a file whose tensors are not
    found so, transformers' own reader dequantizes the model as a whole.
    """
    if maps_gguf(checkpoint, dtype, device):
        try:
            model, missing = _load_mapped_gguf(model_class, checkpoint)
        except (
            Exception
        ) as failure:  # whatever fails here, transformers' own reader may do, or gives the reason why not
            log.debug("%s is loaded as a whole", checkpoint.path, exc_info=True)
            report_fallback(log, "whole_load", "the GGUF file is loaded as a whole: %s", one_line(failure))
        else:
            if not missing:
                return model, missing
            report_fallback(log, "whole_load", "the GGUF file is loaded as a whole: it lacks %s", missing[0])
            del model
    model, report = model_class.from_pretrained(
        checkpoint.path,
        config=AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True),
        gguf_file=checkpoint.gguf_file,
        dtype=dtype,
        **LOAD_OPTIONS,
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.eval().to(device), list_missing(report, checkpoint.path)
