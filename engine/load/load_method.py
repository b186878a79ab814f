"""Decides how the weights of a checkpoint get into a model, and whether they fit into the memory."""

from enum import Enum, auto
from importlib.util import find_spec
from typing import NamedTuple

import torch

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.checkpoint.resident_size import estimate_resident_size
from antiphon.engine.errors import LoadError
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.load.decoded_checkpoint import decodes_weights, maps_gguf
from antiphon.engine.load.experts.mxfp4_checkpoint import keeps_mxfp4_experts

NATIVE_FP8_CAPABILITY = (8, 9)
"""CUDA compute capability from which transformers keeps FP8 weights as they are stored."""

STORED_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types of weights in safetensors files that can stay there until they are used."""

QUANTIZED_ITEMSIZE = 1
"""Bytes of a weight that a model to quantize needs at most, if its large weights stay in the files until packed."""

WEIGHT_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadMethod(Enum):
    """How the weights of a checkpoint get into a model."""

    DECODED = auto()
    """Quantized weights are decoded here, into the type that was asked for."""
    DECODED_ON_USE = auto()
    """Quantized weights stay in the files, and are packed into as many bits."""
    GGUF = auto()
    """transformers dequantizes a GGUF file as a whole."""
    GGUF_ON_USE = auto()
    """Matrices stay in the GGUF file, and are packed into as many bits."""
    MAPPED = auto()
    """Weights stay in the files in the type in which they are stored, until they are packed."""
    UNPACKED = auto()
    """transformers unpacks quantized weights."""
    WHOLE = auto()
    """transformers loads all weights, quantized ones as they are stored."""


class LoadPlan(NamedTuple):
    """The decision about a checkpoint. The model computes in `dtype`; mapped weights stay in `stored_dtype`.

    A weight takes `itemsize` bytes, or all of them together `packed_bytes`, if that is known.
    """

    method: LoadMethod
    device: str
    dtype: torch.dtype
    stored_dtype: torch.dtype
    itemsize: int
    packed_bytes: int | None = None

    @property
    def unpacks(self) -> bool:
        """True if quantized weights do not keep their stored size."""
        return self.method in {LoadMethod.DECODED, LoadMethod.UNPACKED}


def plan_load(
    checkpoint: Checkpoint, device: str, dtype: str | None, *, to_quantize: bool, keeps_16_bits: bool
) -> LoadPlan:
    """Decides how to load a checkpoint; see `load_model`. Raises `LoadError` if the `dtype` is unknown."""
    computed = choose_dtype(dtype, device)
    if decodes_weights(checkpoint, device):
        method = LoadMethod.DECODED_ON_USE if dtype is None else LoadMethod.DECODED
    elif checkpoint.gguf_file is not None:
        method = LoadMethod.GGUF_ON_USE if maps_gguf(checkpoint, computed, device) else LoadMethod.GGUF
    else:
        keeps_16_bits = keeps_16_bits and dtype is None
        stored = _mappable_dtype(checkpoint) if device == "cpu" and computed == torch.float32 else None
        if stored is not None and (to_quantize or (keeps_16_bits and _has_kernels_for(stored))):
            itemsize = QUANTIZED_ITEMSIZE if to_quantize else stored.itemsize
            return LoadPlan(LoadMethod.MAPPED, device, computed, stored, itemsize)
        method = LoadMethod.UNPACKED if unpacks_weights(checkpoint, device) else LoadMethod.WHOLE
    size = None
    if method in {LoadMethod.DECODED_ON_USE, LoadMethod.GGUF_ON_USE}:
        size = estimate_resident_size(checkpoint, "int4" if to_quantize else None)  # the smallest form
    return LoadPlan(method, device, computed, computed, computed.itemsize, None if size is None else size.packed)


def choose_dtype(requested: str | None, device: str) -> torch.dtype:
    """Returns the `requested` type; by default fp32 on a CPU, bf16 on a GPU. Raises `LoadError` if it is unknown."""
    if requested is None:
        return torch.float32 if device == "cpu" else torch.bfloat16
    if requested not in WEIGHT_DTYPES:
        raise LoadError(f"dtype {requested} is unknown; choose one of {', '.join(WEIGHT_DTYPES)}")
    return WEIGHT_DTYPES[requested]


def choose_device(requested: str | None) -> str:
    """The `requested` device; by default cuda if available, else cpu. Raises `LoadError` without CUDA."""
    available = torch.cuda.is_available()
    if requested is None:
        return "cuda" if available else "cpu"
    if requested.split(":")[0] == "cuda" and not available:
        raise LoadError("no CUDA device is available; omit the device, or choose cpu")
    return requested


def _mappable_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """Returns the type of most weights in the files; None if they must be converted as a whole."""
    elements = {name: count for name, count in checkpoint.elements_by_dtype.items() if name in STORED_DTYPES}
    if checkpoint.quantization_method not in {None, "mxfp4"} or not elements:
        return None
    if {"BF16", "F16"} <= elements.keys():  # one of them would be rounded
        return None
    return STORED_DTYPES.get(max(elements, key=lambda name: elements[name]))


def _has_kernels_for(stored_dtype: torch.dtype) -> bool:
    """Tells whether compiled kernels multiply by weights of this type as they are."""
    return stored_dtype in HALF_DTYPES and load_kernels() is not None


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
