"""Estimates the memory of a checkpoint on a CPU from its headers: the bytes that its weights take once they are packed.

`engine/optimize/stored_linears.py` decides about the form of each layer. Needs no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from antiphon.engine.checkpoint.files import DTYPE_BYTES, Checkpoint
from antiphon.engine.checkpoint.quantized.support import DECODED_METHODS, explain_unread_format
from antiphon.engine.options import Quantization

INT4_BYTES, INT8_BYTES = 4.25 / 8, 1.0
"""Bytes of a weight in the packed layouts. Those of int4 include a scale in 16 bits for each group of 64."""
ZERO_POINT_BYTES = 4.0
"""Bytes of a group's zero point."""
INT4_BITS, INT4_GROUP_INPUTS = 4, 64
"""Largest number of bits, and the number that group sizes are a multiple of, where levels stay in int4."""
GGUF_EMBEDDING_BYTES, SCALED_EMBEDDING_BYTES = 2, 4
"""Bytes of a weight of an embedding in a GGUF file, at most, and of one of a class of its own, which is in fp32."""
SCALED_EMBEDDING_TYPES = ("gemma3", "gemma4")
"""Starts of the types of models whose embedding has a class of its own."""
QUANTIZED_DTYPES = {"I32", "U8", "I8", "F8_E4M3", "F8_E5M2", "GGUF"}
"""Types of tensors that hold quantized weights, as safetensors names them."""


class ResidentSize(NamedTuple):
    """Bytes of a model's weights: in memory, and in mapped files, of which only the parts in use are in memory."""

    packed: int
    mapped: int = 0


def estimate_resident_size(checkpoint: Checkpoint, quantization: Quantization | None) -> ResidentSize | None:
    """Returns the size of a checkpoint that is packed from few bits; None for one that is held in another way."""
    settings, is_gguf = checkpoint.quantization_settings, checkpoint.gguf_file is not None
    if not is_gguf and (settings.get("quant_method") not in DECODED_METHODS or explain_unread_format(settings)):
        return None
    embedding = sum(checkpoint.embedding_elements.values())
    numbers = checkpoint.count_weights(checkpoint.elements_by_dtype)
    quantized = sum(count for dtype, count in numbers.items() if dtype in QUANTIZED_DTYPES)
    plain = sum(numbers.values()) - quantized  # the output layer, norms, and the scales of quantized weights
    is_tied = bool(checkpoint.config.get("tie_word_embeddings", False))
    output_layer = embedding if is_tied or is_gguf else 0  # else it is one of the plain ones
    in_memory = 0
    if is_gguf:
        quantized -= embedding if is_tied else 2 * embedding
        is_scaled = str(checkpoint.config.get("model_type")).startswith(SCALED_EMBEDDING_TYPES)
        in_memory = embedding * SCALED_EMBEDDING_BYTES if is_scaled else 0
        mapped = 0 if is_scaled else embedding * GGUF_EMBEDDING_BYTES
    else:
        plain -= embedding
        mapped = sum(count * DTYPE_BYTES.get(dtype, 1) for dtype, count in checkpoint.embedding_elements.items())
    experts = sum(checkpoint.count_weights(checkpoint.expert_elements).values())
    dense = max(quantized - experts, 0) * _bytes_per_weight(settings, quantization)
    expert_bytes = INT4_BYTES if quantization == "int4" else INT8_BYTES
    packed = dense + experts * expert_bytes + (plain + output_layer) * INT8_BYTES
    return ResidentSize(int(packed) + in_memory, mapped)


def _bytes_per_weight(settings: Mapping[str, Any], quantization: Quantization | None) -> float:
    """Returns the bytes of a weight of a layer that is no expert."""
    groups = list(_list_groups(settings))
    keeps_int4 = bool(groups) and all(
        bits <= INT4_BITS and (size <= 0 or size % INT4_GROUP_INPUTS == 0) for bits, size in groups
    )
    if not keeps_int4 or quantization == "int8":
        return INT4_BYTES if quantization == "int4" else INT8_BYTES
    smallest = min((size for _, size in groups if size > 0), default=0)
    return INT4_BYTES + (ZERO_POINT_BYTES / smallest if smallest else 0.0)


def _list_groups(settings: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yields the bits and the inputs of a group for each kind of layer in whole numbers; -1 inputs for a whole row."""
    method = settings.get("quant_method")
    if method in {"awq", "gptq"}:
        yield int(settings.get("bits", 4)), int(settings.get("group_size", 128))
    elif method == "compressed-tensors":
        for group in (settings.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            bits = weights.get("num_bits", 8) if weights.get("type", "int") == "int" else 8
            yield int(bits), int(weights.get("group_size") or -1)
