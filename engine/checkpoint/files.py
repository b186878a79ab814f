"""Checks of a model folder before anything is loaded. Missing or unsafe files are reported in one line.

This module reads JSON and the headers of safetensors files, never weights, and needs neither torch nor transformers.
"""

import json
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.checkpoint.formats import (
    check_is_folder,
    check_kind,
    check_quantization,
    explain_missing_config,
    explain_missing_weights,
)
from antiphon.engine.checkpoint.gguf.folder import find_gguf_file
from antiphon.engine.checkpoint.gguf.header import read_gguf_sizes
from antiphon.engine.checkpoint.quantized.support import read_settings, stored_bits
from antiphon.engine.errors import LoadError

DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
"""Bytes per element in a safetensors file; types not listed take 1."""
MXFP4_WEIGHTS_PER_BYTE = 32 / 17
"""MXFP4 stores 32 weights in 16 bytes and their common scale in one."""
EMBEDDING_NAME = re.compile(
    r"(embed_tokens|embeddings?|embed_in|tok_embeddings|token_embd|word_embeddings|wte)\.weight$"
)
EXPERT_NAME = re.compile(r"\.experts\.|_exps\.")
"""Parts of the names of tensors, in safetensors and GGUF files."""


class Checkpoint(msgspec.Struct, frozen=True):
    """Contents of a model folder. ``elements_by_dtype`` counts elements by safetensors dtype (BF16, F32, …).

    ``gguf_file`` names the file with the weights if they are in llama.cpp's format; their dtype is GGUF then.
    ``embedding_elements`` and ``expert_elements`` are the parts of the counts in embeddings and in experts.
    """

    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    elements_by_dtype: dict[str, int]
    gguf_file: str | None = None
    embedding_elements: dict[str, int] = {}
    expert_elements: dict[str, int] = {}

    @property
    def quantization_settings(self) -> Mapping[str, Any]:
        """How the weights are quantized, as the configuration says; empty if they are not."""
        return read_settings(self.config) or {}

    @property
    def quantization_method(self) -> str | None:
        """The method by which the weights are quantized; None if they are not."""
        settings = read_settings(self.config)
        return None if settings is None else str(settings.get("quant_method", ""))

    @property
    def num_weights(self) -> int:
        """Number of weights, also where several of them are packed into an element."""
        return sum(self.count_weights(self.elements_by_dtype).values())

    def count_weights(self, elements_by_dtype: Mapping[str, int]) -> dict[str, int]:
        """Returns the numbers of weights that elements of each type hold."""
        method, factors = self.quantization_method, {}
        if method == "mxfp4":
            factors = {"U8": MXFP4_WEIGHTS_PER_BYTE}
        elif method is not None:
            bits = stored_bits(self.quantization_settings)
            factors = {"I32": 32 / bits, "U8": max(8 / bits, 1)}
        return {dtype: int(count * factors.get(dtype, 1)) for dtype, count in elements_by_dtype.items()}

    def weight_bytes(self, itemsize: float, *, unpacks: bool = False) -> int:
        """Returns the memory of the weights at ``itemsize`` bytes each.

        Quantized weights keep their stored size, unless loading ``unpacks`` them.
        """
        method = self.quantization_method
        if method is None or unpacks:
            return int(self.num_weights * itemsize)
        if method == "mxfp4":  # only experts are quantized
            return int(
                sum(count * (1 if dtype == "U8" else itemsize) for dtype, count in self.elements_by_dtype.items())
            )
        return sum(count * DTYPE_BYTES.get(dtype, 1) for dtype, count in self.elements_by_dtype.items())


def inspect_checkpoint(path: Path) -> Checkpoint:
    """Checks a local model folder and reads its metadata. Raises :class:`LoadError`."""
    check_is_folder(path)
    if not (path / "config.json").exists():
        raise explain_missing_config(path)
    config = _read_json_object(path / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise LoadError(f"{path / 'config.json'}: no model_type; give a model folder in transformers' format")
    check_kind(path, config)
    check_quantization(path, config)
    generation = path / "generation_config.json"
    gguf_file = find_gguf_file(path)
    if gguf_file is not None:
        tensors = [(name, "GGUF", count) for name, count in read_gguf_sizes(gguf_file).items()]
    else:
        tensors = [tensor for weights in find_weight_files(path) for tensor in _read_header(weights)]
    return Checkpoint(
        path,
        config,
        _read_json_object(generation) if generation.exists() else {},
        _count_by_dtype(tensors),
        None if gguf_file is None else gguf_file.name,
        _count_by_dtype(tensor for tensor in tensors if EMBEDDING_NAME.search(tensor[0])),
        _count_by_dtype(tensor for tensor in tensors if EXPERT_NAME.search(tensor[0])),
    )


def _count_by_dtype(tensors: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """Returns the number of elements by type. ``tensors``: name, type and number of elements of each."""
    totals: dict[str, int] = {}
    for _, dtype, count in tensors:
        totals[dtype] = totals.get(dtype, 0) + count
    return totals


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: not readable as JSON ({error}); fetch the file again") from error
    if not isinstance(table, dict):
        raise LoadError(f"{path}: not a JSON object; fetch the file again")
    return table


def find_weight_files(path: Path) -> list[Path]:
    """Returns the weight files. Raises :class:`LoadError` if one is missing or there are none."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = _read_json_object(index).get("weight_map")
        names = sorted(set(weight_map.values())) if isinstance(weight_map, dict) else []
        files = [path / str(name) for name in names]
        missing = [file.name for file in files if not file.exists()]
        if missing or not files:
            example = missing[0] if missing else "every shard"
            raise LoadError(f"{path}: {example} is missing ({len(missing)} of {len(files)}); finish the download")
        return files
    if (path / "model.safetensors").exists():
        return [path / "model.safetensors"]
    raise explain_missing_weights(path)


def _read_header(path: Path) -> list[tuple[str, str, int]]:
    """Returns name, dtype and number of elements of each tensor in a safetensors file, whose length must be right."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise LoadError(f"{path} is a git-lfs pointer, not the weights; run `git lfs pull`")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > size - 8:
            raise LoadError(f"{path} is cut short or not safetensors; fetch it again")
        try:
            entries = json.loads(file.read(length))
            entries.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            tensors = [(name, str(entry["dtype"]), _num_elements(entry["shape"])) for name, entry in entries.items()]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise LoadError(f"{path} is not safetensors; fetch it again") from error
    if size != 8 + length + end:
        raise LoadError(f"{path} has {size} bytes, its header promises {8 + length + end}; fetch it again")
    return tensors


def _num_elements(shape: list[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
