"""Finds the weights of a model in its GGUF file, under the names and with the values that transformers gives them.

transformers has two readers. Both rename a tensor, decode it and convert its values, and hold the whole model in fp32
in the end. Here their own functions do the same, for a matrix only when it is read.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from transformers import modeling_gguf_pytorch_utils
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.gguf import utils as gguf_utils

from antiphon.engine.checkpoint.gguf.stored_matrix import Finish, GgufMatrix
from antiphon.engine.checkpoint.quantized.fused_weight import FusedExpertsWeight, FusedWeight
from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight

older_reader: Any = modeling_gguf_pytorch_utils
newer_reader: Any = gguf_utils
"""transformers' two readers, which have no types."""

MIXTURE_PROCESSORS = (older_reader.MiniMaxM2TensorProcessor, older_reader.Qwen2MoeTensorProcessor)
"""Processors that join the matrices gate and up of all experts, and convert nothing else."""

PURE_PROCESSORS = (
    *MIXTURE_PROCESSORS,
    older_reader.TensorProcessor,
    older_reader.Gemma2TensorProcessor,
    older_reader.Lfm2TensorProcessor,
    older_reader.LlamaTensorProcessor,
    older_reader.NemotronTensorProcessor,
)
"""Processors that convert a matrix by its values and its name alone."""

GGUF_EMBEDDING_NAME = "token_embd.weight"
"""The matrix that no processor converts. So its rows can be read one by one."""

EXPERTS_NAME = re.compile(r"(.*\.ffn_(gate|down|up)_exps)\.weight")


class GgufWeights(NamedTuple):
    """The weights of a file by the names of the model: in memory, or matrices that stay in the mapped file."""

    plain: dict[str, Tensor]
    stored: dict[str, QuantizedWeight]

    def matrices(self) -> Iterator[GgufMatrix]:
        """Yields every matrix of the file, those of experts one by one."""
        for weight in self.stored.values():
            joined = weight.matrices if isinstance(weight, FusedExpertsWeight) else [FusedWeight([weight], 0)]
            yield from (part for matrix in joined for part in matrix.parts if isinstance(part, GgufMatrix))


class _MappedTensor(NamedTuple):
    """A tensor of the file, with its shape in the model's order."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: np.ndarray

    def is_matrix(self, shape: tuple[int, ...] | None) -> bool:
        """Tells whether the tensor is a matrix that the model has in this shape, too."""
        return len(self.shape) == 2 and self.shape == shape

    def matrix(self, finish: Finish | None = None) -> GgufMatrix:
        return GgufMatrix(self.data, self.kind, finish)

    def experts(self) -> list[GgufMatrix]:
        return [GgufMatrix(expert, self.kind) for expert in self.data]

    def decode(self) -> np.ndarray:
        """Returns the values in fp32."""
        return gguf.quants.dequantize(self.data, self.kind).reshape(self.shape)

    def as_stored(self) -> Tensor:
        """Returns the values in the type of the file, or in fp32 if they are in blocks."""
        if self.kind == gguf.GGMLQuantizationType.BF16:
            return torch.from_numpy(self.data.view(np.int16).copy()).view(torch.bfloat16).view(self.shape)
        is_half = self.kind == gguf.GGMLQuantizationType.F16
        return torch.from_numpy(np.copy(self.data)) if is_half else torch.from_numpy(np.copy(self.decode()))


def read_gguf_weights(file: Path, model: nn.Module) -> GgufWeights:
    """Returns the weights for a model, which may be on the meta device. Tensors that it does not have are left out.

    Raises whatever transformers' own functions raise for a file that they cannot read.
    """
    reader = gguf.GGUFReader(file, "c")  # torch warns of memory that must not be written
    tensors = [
        _MappedTensor(each.name, tuple(map(int, reversed(each.shape))), each.tensor_type, np.asarray(each.data))
        for each in reader.tensors
    ]
    architecture = str(reader.fields["general.architecture"].contents())
    if newer_reader.is_gguf_arch_supported(architecture):
        return _NewerReader(architecture, model).read(tensors)
    return _OlderReader(architecture, file, model).read(tensors)


class _OlderReader:
    """Reads as transformers reads most architectures: in fp32, with a processor that converts each tensor."""

    def __init__(self, architecture: str, file: Path, model: nn.Module) -> None:
        config = older_reader.load_gguf_checkpoint(str(file))["config"]
        kind = older_reader.TENSOR_PROCESSORS.get(architecture, older_reader.TensorProcessor)
        self._processor = kind(config=config)
        self._is_pure, self._joins_experts = kind in PURE_PROCESSORS, kind in MIXTURE_PROCESSORS
        self._names = older_reader.get_gguf_hf_weights_map(model, self._processor)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}

    def read(self, tensors: list[_MappedTensor]) -> GgufWeights:
        """Returns the weights of all tensors."""
        parsed: dict[str, Any] = {"tensors": {}}
        stored: dict[str, QuantizedWeight] = {}
        experts: dict[str, dict[str, list[GgufMatrix]]] = {}
        for tensor in tensors:
            name = self._names.get(tensor.name)
            match = EXPERTS_NAME.fullmatch(tensor.name) if self._joins_experts else None
            if match is not None and match[1] in self._names:
                experts.setdefault(self._names[match[1]], {})[match[2]] = tensor.experts()
            elif name is not None and self._is_pure and tensor.is_matrix(self._shapes.get(name)):
                is_converted = tensor.name != GGUF_EMBEDDING_NAME
                stored[name] = tensor.matrix(partial(self._convert_matrix, tensor.name) if is_converted else None)
            else:
                self._convert(tensor, parsed)
        stored |= _stack_experts(experts)
        return GgufWeights({name: value.float() for name, value in parsed["tensors"].items()}, stored)

    def _convert(self, tensor: _MappedTensor, parsed: dict[str, Any]) -> None:
        """Adds what a tensor becomes to the parsed ones."""
        result = self._processor.process(
            weights=tensor.decode(), name=tensor.name, tensor_key_mapping=self._names, parsed_parameters=parsed
        )
        if result.name in self._names:
            parsed["tensors"][self._names[result.name]] = torch.from_numpy(np.copy(result.weights))

    def _convert_matrix(self, name: str, values: Tensor) -> Tensor:
        result = self._processor.process(weights=values.numpy(), name=name, tensor_key_mapping={}, parsed_parameters={})
        return torch.from_numpy(np.ascontiguousarray(result.weights))


class _NewerReader:
    """Reads as transformers reads the architectures of its newer reader: operations convert each tensor."""

    def __init__(self, architecture: str, model: Any) -> None:
        mapping = newer_reader.get_gguf_conversion_mapping(architecture, model.config)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}

    def read(self, tensors: list[_MappedTensor]) -> GgufWeights:
        """Returns the weights of all tensors."""
        plain: dict[str, Tensor] = {}
        stored: dict[str, QuantizedWeight] = {}
        experts: dict[str, dict[str, list[GgufMatrix]]] = {}
        for tensor in tensors:
            name, pattern = rename_source_key(tensor.name, self._renamings, self._converters)
            match = EXPERTS_NAME.fullmatch(tensor.name)
            if name not in self._shapes:
                continue
            if match is not None:
                experts.setdefault(name, {})[match[2]] = tensor.experts()
                continue
            operations = deepcopy(self._by_pattern[pattern].operations) if pattern is not None else []
            convert = partial(_apply_operations, operations, name)
            if tensor.is_matrix(self._shapes[name]):
                stored[name] = tensor.matrix(convert if operations else None)
            else:
                plain[name] = convert(tensor.as_stored()).float()
        return GgufWeights(plain, stored | _stack_experts(experts))


def _apply_operations(operations: list[Any], name: str, values: Tensor) -> Tensor:
    for operation in operations:
        (values,) = operation.convert({name: values}, [name], [name], full_layer_name=name).values()
    return values


def _stack_experts(experts: Mapping[str, Mapping[str, list[GgufMatrix]]]) -> dict[str, QuantizedWeight]:
    """Returns the matrices of all experts by name. Each has the rows of gate above those of up."""
    stacks: dict[str, QuantizedWeight] = {}
    for name, parts in experts.items():
        rows = zip(*(parts[part] for part in ("gate", "up", "down") if part in parts), strict=True)
        stacks[name] = FusedExpertsWeight([FusedWeight(each, 0) for each in rows])
    return stacks
