"""Loads a model from a local folder and describes it.

Only safetensors are read: no code from the repository, no pickles. The default dtype is fp32 on a CPU, bf16 on a GPU.
"""

import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from antiphon.engine.checkpoint.context_length import DEFAULT_CONTEXT_TOKENS, read_context_length
from antiphon.engine.checkpoint.files import Checkpoint, inspect_checkpoint
from antiphon.engine.checkpoint.generation_settings import read_eos_ids, read_token_ids, sampling_defaults
from antiphon.engine.checkpoint.held_size import estimate_held_size
from antiphon.engine.checkpoint.quantized.support import DECODED_METHODS
from antiphon.engine.errors import LoadError, one_line
from antiphon.engine.hardware import free_memory
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.load.architectures import check_quantization_method, choose_model_class, load_config
from antiphon.engine.load.decoded_checkpoint import decodes_weights, load_decoded, load_gguf, maps_gguf
from antiphon.engine.load.experts.mxfp4_checkpoint import keeps_mxfp4_experts, load_mxfp4_model
from antiphon.engine.load.experts.replacement import hold_all_experts
from antiphon.engine.load.experts.stored_checkpoint import load_with_experts_in_files
from antiphon.engine.load.loading_report import describe_missing, list_missing
from antiphon.engine.load.mapped_weights import map_weights
from antiphon.engine.load.mixed_dtypes import convert_buffers, find_fp32_names, has_names, load_as_stored
from antiphon.engine.protocol import EngineInfo

log = logging.getLogger(__name__)

IGNORED_GENERATION_SETTINGS = ("bad_words_ids", "no_repeat_ngram_size", "stop_strings", "begin_suppress_tokens")

NATIVE_FP8_CAPABILITY = (8, 9)
"""CUDA compute capability from which transformers keeps FP8 weights as they are stored."""

STORED_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types of weights in safetensors files that can stay there until they are used."""

QUANTIZED_ITEMSIZE = 1
"""Bytes of a weight that a model to quantize needs at most, if its large weights stay in the files until packed."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    to_quantize: bool = False,
    keeps_16_bits: bool = False,
) -> tuple[PreTrainedModel, Checkpoint]:
    """Loads a local folder. `device` is cpu or cuda, `dtype` one of `DTYPES`. Raises `LoadError`.

    A model `to_quantize` on a CPU keeps its large weights in the files until they are packed, where possible. So does
    a model in bf16 or fp16 that `keeps_16_bits`, if no `dtype` is given and compiled kernels can multiply by them.
    """
    checkpoint = inspect_checkpoint(path)
    model_class = choose_model_class(checkpoint)
    check_quantization_method(checkpoint)
    device, torch_dtype = choose_device(device), None if dtype is None else DTYPES.get(dtype)
    if dtype is not None and torch_dtype is None:
        raise LoadError(f"dtype {dtype} is unknown; choose one of {', '.join(DTYPES)}")
    torch_dtype = torch_dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    decodes = decodes_weights(checkpoint, device)
    unpacks = unpacks_weights(checkpoint, device) or (decodes and dtype is not None)
    stored_dtype = _mappable_dtype(checkpoint) if device == "cpu" and torch_dtype == torch.float32 else None
    if not to_quantize and not (keeps_16_bits and dtype is None and _has_kernels_for(stored_dtype)):
        stored_dtype = None
    stays_in_files = stored_dtype is not None and to_quantize
    itemsize = QUANTIZED_ITEMSIZE if stays_in_files else (stored_dtype or torch_dtype).itemsize
    is_packed = maps_gguf(checkpoint, torch_dtype, device) or (decodes and dtype is None)
    held = _find_held_bytes(checkpoint, is_packed=is_packed, to_quantize=to_quantize)
    check_memory(checkpoint, itemsize, free_memory(device), unpacks=unpacks, held=held)
    try:
        if decodes:
            model, missing = load_decoded(model_class, checkpoint, torch_dtype)
        elif checkpoint.gguf_file is not None:
            model, missing = load_gguf(model_class, checkpoint, torch_dtype, device)
        elif stored_dtype is not None:
            model, missing = _load_mapped(model_class, checkpoint, stored_dtype)
        else:
            model, missing = _load_pretrained(model_class, checkpoint, torch_dtype, device)
    except LoadError:
        raise
    except Exception as error:
        log.debug("loading %s failed", path, exc_info=True)
        raise _explain_failure(path, device, error) from error
    warn_about_ignored_settings(checkpoint.generation_config)
    if missing:
        raise LoadError(f"{path}: {describe_missing(missing)}; fetch the model again")
    return model, checkpoint


def _explain_failure(path: Path, device: str, error: Exception) -> LoadError:
    """Returns the error for a model that transformers could not load."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return LoadError(f"{path} does not fit into the memory of {device}; choose a smaller model")
    if isinstance(error, ImportError):
        return LoadError(f"{path} needs a package that is not installed ({one_line(error)}); install it")
    return LoadError(f"{path} cannot be loaded ({type(error).__name__}: {error}); check its files")


def _load_pretrained(
    model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: str
) -> tuple[PreTrainedModel, list[str]]:
    """The model on its device, and the names of weights that are missing from the files."""
    if keeps_mxfp4_experts(checkpoint, device):
        return load_mxfp4_model(checkpoint, lambda config: _load_config(model_class, checkpoint, dtype, device, config))
    return _load_config(model_class, checkpoint, dtype, device, load_config(checkpoint))


def _load_config(
    model_class: Any, checkpoint: Checkpoint, dtype: torch.dtype, device: str, config: PreTrainedConfig | None
) -> tuple[PreTrainedModel, list[str]]:
    """Implements `_load_pretrained` with a configuration; None for the one in the folder."""
    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]  # a progress bar is noise in a log file
    loaded: Any = model_class.from_pretrained(
        checkpoint.path,
        **({} if config is None else {"config": config}),
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    model, report = loaded
    return model.eval().to(device), list_missing(report, checkpoint.path)


def _mappable_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """Returns the type of most weights in the files; None if they must be converted as a whole."""
    elements = {name: count for name, count in checkpoint.elements_by_dtype.items() if name in STORED_DTYPES}
    if checkpoint.quantization_method not in {None, "mxfp4"} or not elements:
        return None
    if {"BF16", "F16"} <= elements.keys():  # one of them would be rounded
        return None
    return STORED_DTYPES.get(max(elements, key=lambda name: elements[name]))


def _has_kernels_for(stored_dtype: torch.dtype | None) -> bool:
    """Tells whether compiled kernels multiply by weights of this type as they are."""
    return stored_dtype in HALF_DTYPES and load_kernels() is not None


def _load_mapped(
    model_class: Any, checkpoint: Checkpoint, stored_dtype: torch.dtype
) -> tuple[PreTrainedModel, list[str]]:
    """The model in fp32, with the weights of linear layers and embeddings still in the files."""
    is_mixed = stored_dtype != torch.float32 and "F32" in checkpoint.elements_by_dtype
    fp32_names = find_fp32_names(checkpoint) if is_mixed else []
    with load_as_stored(stored_dtype, fp32_names):
        model, missing = load_with_experts_in_files(
            model_class, checkpoint, lambda: _load_pretrained(model_class, checkpoint, torch.float32, "cpu")
        )
    if not has_names(model, fp32_names):
        log.debug("%s has weights that would be rounded; it is loaded as a whole", checkpoint.path)
        del model
        return _load_pretrained(model_class, checkpoint, torch.float32, "cpu")
    convert_buffers(model)
    hold_all_experts(model)
    log.debug("%d layers keep their weights in the files", map_weights(model))
    return model, missing


def choose_device(requested: str | None) -> str:
    """The `requested` device; by default cuda if available, else cpu. Raises `LoadError` without CUDA."""
    available = torch.cuda.is_available()
    if requested is None:
        return "cuda" if available else "cpu"
    if requested.split(":")[0] == "cuda" and not available:
        raise LoadError("no CUDA device is available; omit the device, or choose cpu")
    return requested


def unpacks_weights(checkpoint: Checkpoint, device: str) -> bool:
    """Tells whether transformers unpacks the quantized weights of the checkpoint when it loads them on the device."""
    method = checkpoint.quantization_method
    if decodes_weights(checkpoint, device):
        return False
    if method == "mxfp4":
        has_kernels = find_spec("kernels") is not None and find_spec("triton") is not None
        return not keeps_mxfp4_experts(checkpoint, device) and not has_kernels
    if method in {"fp8", "mxfp8"}:
        return not device.startswith("cuda") or torch.cuda.get_device_capability(device) < NATIVE_FP8_CAPABILITY
    return False


def _find_held_bytes(checkpoint: Checkpoint, *, is_packed: bool, to_quantize: bool) -> int | None:
    """Returns the bytes that packed weights take, of those to quantize in the smallest form; None if unknown."""
    held = estimate_held_size(checkpoint, "int4" if to_quantize else None) if is_packed else None
    return None if held is None else held.packed


def check_memory(
    folder: Checkpoint, itemsize: int, free: int | None, *, unpacks: bool = False, held: int | None = None
) -> None:
    """Raises `LoadError` if the weights do not fit into `free` bytes.

    A weight takes `itemsize` bytes; quantized weights take as much if loading `unpacks` them. `held`: bytes of
    all weights, if they are known.
    """
    needed = folder.weight_bytes(itemsize, unpacks=unpacks) if held is None else held
    if free is not None and needed > free:
        unpacked = f" once {folder.quantization_method} is unpacked" if unpacks else ""
        raise LoadError(
            f"{folder.path} needs {needed / 2**30:.1f} GiB for its weights{unpacked}, {free / 2**30:.1f} GiB are free; "
            "free some memory, or choose a smaller model"
        )


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
        log.warning("generation_config.json: %s is not supported and ignored", ", ".join(ignored))
