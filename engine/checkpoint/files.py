"""Checks of a model folder before anything is loaded. Missing or unsafe files are reported in one line.

This module reads JSON and the headers of safetensors files, never weights, and needs neither torch nor transformers.
"""

import math
import os
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

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
from antiphon.engine.regular_files import check_folder_entries, open_regular_file, parse_json, read_json_object

MAX_CHECKPOINT_HEADER_BYTES = 100_000_000
"""Largest header of a safetensors file, as the format limits it."""

DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
"""Bytes per element in a safetensors file; types not listed take 1."""
MXFP4_WEIGHTS_PER_BYTE = 32 / 17
"""MXFP4 stores 32 weights in 16 bytes and their common scale in one."""
EMBEDDING_NAME_PATTERN = re.compile(
    r"(embed_tokens|embeddings?|embed_in|tok_embeddings|token_embd|word_embeddings|wte)\.weight$"
)
EXPERT_NAME = re.compile(r"\.experts\.|_exps\.")
"""Parts of the names of tensors, in safetensors and GGUF files."""


Size = Annotated[int, msgspec.Meta(ge=0)]


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Checkpoint(msgspec.Struct, frozen=True):
    """Contents of a model folder. `elements_by_dtype` counts elements by safetensors dtype (BF16, F32, …).

    `gguf_file` names the file with the weights if they are in llama.cpp's format; their dtype is GGUF then.
    `embedding_elements` and `expert_elements` are the parts of the counts in embeddings and in experts.
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
        """Returns the memory of the weights at `itemsize` bytes each.

        Quantized weights keep their stored size, unless loading `unpacks` them.
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
    """Checks a local model folder and reads its metadata. Raises `LoadError`."""
    check_is_folder(path)
    check_folder_entries(path)
    if not (path / "config.json").exists():
        raise explain_missing_config(path)
    config = read_json_object(path / "config.json")
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
        read_json_object(generation) if generation.exists() else {},
        _count_by_dtype(tensors),
        None if gguf_file is None else gguf_file.name,
        _count_by_dtype(tensor for tensor in tensors if EMBEDDING_NAME_PATTERN.search(tensor[0])),
        _count_by_dtype(tensor for tensor in tensors if EXPERT_NAME.search(tensor[0])),
    )


def _count_by_dtype(tensors: Iterable[tuple[str, str, int]]) -> dict[str, int]:
    """Returns the number of elements by type. `tensors`: name, type and number of elements of each."""
    totals: dict[str, int] = {}
    for _, dtype, count in tensors:
        totals[dtype] = totals.get(dtype, 0) + count
    return totals


def find_weight_files(path: Path) -> list[Path]:
    """Returns the weight files. Raises `LoadError` if one is missing or there are none."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        names = {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else set()
        outside = next((name for name in sorted(names) if Path(name).is_absolute() or ".." in Path(name).parts), None)
        if outside is not None:
            raise LoadError(f"{index}: {outside[:200]} is outside of the model's folder; fetch the file again")
        files = [path / name for name in sorted(names)]
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
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise LoadError(f"{path} cannot be read ({error}); fetch it again") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if start == b"version ":
            raise LoadError(f"{path} is a git-lfs pointer, not the weights; run `git lfs pull`")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, MAX_CHECKPOINT_HEADER_BYTES):
            raise LoadError(f"{path} is cut short or not safetensors; fetch it again")
        try:
            table = parse_json(file.read(length))
            table.pop("__metadata__", None)
            entries = msgspec.convert(table, dict[str, TensorEntry])
        except (ValueError, TypeError, AttributeError) as error:
            raise LoadError(f"{path} is not safetensors; fetch it again") from error
    end = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != 8 + length + end:
        raise LoadError(f"{path} has {size} bytes, its header promises {8 + length + end}; fetch it again")
    return [(name, entry.dtype, entry.num_elements) for name, entry in entries.items()]
