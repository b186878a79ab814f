"""Reads the tensors of a quantized checkpoint: each weight by the name that it has in one that is not quantized."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from safetensors import safe_open
from torch import Tensor

from antiphon.engine.checkpoint.files import Checkpoint, find_weight_files
from antiphon.engine.checkpoint.quantized import awq, bitsandbytes, compressed_tensors, fp8, gptq
from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight

FindWeights = Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, QuantizedWeight]]

QUANTIZED_FORMATS: dict[str, tuple[FindWeights, tuple[str, ...]]] = {
    "awq": (awq.find_weights, awq.SUFFIXES),
    "bitsandbytes": (bitsandbytes.find_weights, bitsandbytes.SUFFIXES),
    "compressed-tensors": (compressed_tensors.find_weights, compressed_tensors.SUFFIXES),
    "fbgemm_fp8": (fp8.find_weights, fp8.SUFFIXES),
    "fp8": (fp8.find_weights, fp8.SUFFIXES),
    "gptq": (gptq.find_weights, gptq.SUFFIXES),
}
"""For each method, the function that finds the weights, and the suffixes of the other tensors of a quantized layer."""


def read_checkpoint(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, QuantizedWeight]]:
    """Returns the weights that are not quantized, in the mapped files, and those that are, each by name."""
    tensors = dict(_map_tensors(checkpoint))
    find_weights, suffixes = QUANTIZED_FORMATS[str(checkpoint.quantization_method)]
    weights = find_weights(tensors, checkpoint.quantization_settings)
    plain = {name: x for name, x in tensors.items() if name not in weights and not name.endswith(suffixes)}
    return plain, weights


def _map_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Yields the name of each tensor, and the tensor in the mapped file."""
    for path in find_weight_files(checkpoint.path):
        with safe_open(path, framework="pt", backend="mmap") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                yield name, file.get_slice(name)[...]
