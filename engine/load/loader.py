"""Loads a model from a local folder and describes it.

Only safetensors are read: no code from the repository, no pickles. The default dtype is fp32 on a CPU, bf16 on a GPU.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from antiphon.engine.checkpoint.context_length import DEFAULT_CONTEXT_TOKENS, read_context_length
from antiphon.engine.checkpoint.files import Checkpoint, inspect_checkpoint
from antiphon.engine.checkpoint.generation_settings import (
    read_eos_ids,
    read_max_repetition,
    read_token_ids,
    sampling_defaults,
)
from antiphon.engine.checkpoint.quantized.support import DECODED_METHODS
from antiphon.engine.errors import LoadError, is_out_of_memory, one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.host.hardware import free_memory
from antiphon.engine.load.architectures import LOAD_OPTIONS, check_quantization_method, choose_model_class, load_config
from antiphon.engine.load.decoded_checkpoint import load_decoded, load_gguf
from antiphon.engine.load.experts.mxfp4_checkpoint import keeps_mxfp4_experts, load_mxfp4_model
from antiphon.engine.load.experts.replacement import wrap_loaded_experts
from antiphon.engine.load.experts.stored_checkpoint import load_with_experts_in_files
from antiphon.engine.load.experts.tensor_files import LoadedModel
from antiphon.engine.load.load_method import LoadMethod, LoadPlan, check_memory, choose_device, plan_load
from antiphon.engine.load.loading_report import describe_missing, list_missing
from antiphon.engine.load.mixed_dtypes import convert_buffers, find_fp32_names, has_names, load_as_stored
from antiphon.engine.load.mmap_weights import map_weights
from antiphon.engine.protocol import EngineInfo

log = logging.getLogger(__name__)

IGNORED_GENERATION_SETTINGS = ("bad_words_ids", "no_repeat_ngram_size", "stop_strings", "begin_suppress_tokens")


def load_model(
    path: Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    to_quantize: bool = False,
    keeps_16_bits: bool = False,
) -> tuple[PreTrainedModel, Checkpoint]:
    """Loads a local folder. `device` is cpu or cuda, `dtype` one of `WEIGHT_DTYPES`. Raises `LoadError`.

    A model `to_quantize` on a CPU keeps its large weights in the files until they are packed, where possible. So does
    a model in bf16 or fp16 that `keeps_16_bits`, if no `dtype` is given and compiled kernels can multiply by them.
    """
    checkpoint = inspect_checkpoint(path)
    model_class = choose_model_class(checkpoint)
    check_quantization_method(checkpoint)
    plan = plan_load(checkpoint, choose_device(device), dtype, to_quantize=to_quantize, keeps_16_bits=keeps_16_bits)
    check_memory(checkpoint, plan.itemsize, free_memory(plan.device), unpacks=plan.unpacks, held=plan.packed_bytes)
    try:
        model, missing = _load_as_planned(model_class, checkpoint, plan)
    except LoadError:
        raise
    except Exception as error:  # transformers and a model's own code can raise anything
        log.debug("loading %s failed", path, exc_info=True)
        raise _explain_failure(path, plan.device, error) from error
    warn_about_ignored_settings(checkpoint.generation_config)
    if missing:
        raise LoadError(f"{path}: {describe_missing(missing)}; fetch the model again")
    return model, checkpoint


def _load_as_planned(model_class: Any, checkpoint: Checkpoint, plan: LoadPlan) -> LoadedModel:
    """Loads the model by the plan's method."""
    match plan.method:
        case LoadMethod.DECODED | LoadMethod.DECODED_ON_USE:
            return load_decoded(model_class, checkpoint, plan.dtype)
        case LoadMethod.GGUF | LoadMethod.GGUF_ON_USE:
            return load_gguf(model_class, checkpoint, plan.dtype, plan.device)
        case LoadMethod.MAPPED:
            return _load_mapped(model_class, checkpoint, plan.stored_dtype)
        case LoadMethod.WHOLE | LoadMethod.UNPACKED:
            return _load_pretrained(model_class, checkpoint, plan.dtype, plan.device)


def _explain_failure(path: Path, device: str, error: Exception) -> LoadError:
    """Returns the error for a model that transformers could not load."""
    if is_out_of_memory(error):
        return LoadError(f"{path} does not fit into the memory of {device}; choose a smaller model")
    if isinstance(error, ImportError):
        return LoadError(f"{path} needs a package that is not installed ({one_line(error)}); install it")
    return LoadError(f"{path} cannot be loaded ({type(error).__name__}: {error}); check its files")


def _load_pretrained(model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: str) -> LoadedModel:
    """The model on its device, and the names of weights that are missing from the files."""
    if keeps_mxfp4_experts(checkpoint, device):
        return load_mxfp4_model(checkpoint, lambda config: _load_config(model_class, checkpoint, dtype, device, config))
    return _load_config(model_class, checkpoint, dtype, device, load_config(checkpoint))


def _load_config(
    model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: str, config: PreTrainedConfig | None
) -> LoadedModel:
    """Implements `_load_pretrained` with a configuration; None for the one in the folder."""
    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]  # a progress bar is noise in a log file
    loaded: Any = model_class.from_pretrained(
        checkpoint.path,
        **({} if config is None else {"config": config}),
        dtype=dtype,
        use_safetensors=True,
        **LOAD_OPTIONS,
    )
    model, report = loaded
    return model.eval().to(device), list_missing(report, checkpoint.path)


def _load_mapped(model_class: Any, checkpoint: Checkpoint, stored_dtype: torch.dtype) -> LoadedModel:
    """The model in fp32, with the weights of linear layers and embeddings still in the files."""
    is_mixed = stored_dtype != torch.float32 and "F32" in checkpoint.elements_by_dtype
    fp32_names = find_fp32_names(checkpoint) if is_mixed else []
    with load_as_stored(stored_dtype, fp32_names):
        model, missing = load_with_experts_in_files(
            model_class, checkpoint, lambda: _load_pretrained(model_class, checkpoint, torch.float32, "cpu")
        )
    if not has_names(model, fp32_names):
        message = "the model is loaded as a whole, since some of its weights in fp32 would be rounded"
        report_fallback(log, "whole_load", message)
        del model
        return _load_pretrained(model_class, checkpoint, torch.float32, "cpu")
    convert_buffers(model)
    wrap_loaded_experts(model)
    log.debug("%d layers keep their weights in the files", map_weights(model))
    return model, missing


def engine_info(model: PreTrainedModel, folder: Checkpoint | None = None) -> EngineInfo:
    """Fixed properties of a loaded model; `folder` adds the defaults of its generation_config.json."""
    config = model.config.get_text_config(decoder=True)
    context = read_context_length(lambda name: getattr(config, name, None))
    generation = folder.generation_config if folder else {}
    suppressed = read_token_ids("suppress_tokens", generation.get("suppress_tokens"))
    parameters = _count_parameters(model, folder)
    return EngineInfo(
        max_model_len=context or DEFAULT_CONTEXT_TOKENS,
        vocab_size=int(config.vocab_size),
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        default_sampling=sampling_defaults(generation),
        eos_ids=read_eos_ids(generation, getattr(config, "eos_token_id", None)),
        suppressed_ids=tuple(token for token in suppressed if 0 <= token < config.vocab_size),
        max_repetition_tokens=read_max_repetition(generation),
        description=f"{type(model).__name__}, {parameters / 1e6:.1f} M parameters{_describe_method(folder)}",
        architecture=str(model.config.model_type),
    )


def _describe_method(folder: Checkpoint | None) -> str:
    method = None if folder is None else "gguf" if folder.gguf_file else folder.quantization_method
    return "" if method is None else f" stored in {method}"


def _count_parameters(model: PreTrainedModel, folder: Checkpoint | None) -> int:
    """Returns the number of weights. Layers that were repacked for this machine no longer count as parameters."""
    if folder is not None and folder.quantization_method in {None, "mxfp4", *DECODED_METHODS}:
        return folder.num_weights
    return sum(parameter.numel() for parameter in model.parameters())


def warn_about_ignored_settings(generation: dict[str, Any]) -> None:
    """Logs the settings of a generation_config.json that change the output and are not supported."""
    ignored = [name for name in IGNORED_GENERATION_SETTINGS if generation.get(name)]
    if ignored:
        message = "generation_config.json: %s is not supported and ignored"
        report_fallback(log, "generation_settings", message, ", ".join(ignored))
