"""Experts of a checkpoint in MXFP4, as gpt-oss has them: read from the mapped files, and never expanded as a whole.

transformers builds the model without the experts' weights; their blocks and scales stay in the mapped files until they
are packed, expert by expert.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.experts.layout import ExpertsLayout, read_layout
from antiphon.engine.experts.matrix import ExpertMatrix
from antiphon.engine.experts.pack import PROGRESS_INTERVAL_S
from antiphon.engine.experts.packed import PackedExperts
from antiphon.engine.experts.products import TORCH_LANES, unpack_weight
from antiphon.engine.experts.stored import StoredExperts, check_stored_experts
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.mxfp4_layout import PackedMxfp4Weight, pack_mxfp4_blocks
from antiphon.engine.model.architectures import load_config
from antiphon.engine.model.mapped_weights import FileMappings, MappedWeight

log = logging.getLogger(__name__)

TENSOR_SUFFIXES = ("_blocks", "_scales")
"""Ends of the names of a matrix's two tensors: (experts, outputs, groups, 16) and (experts, outputs, groups), bytes."""

IGNORED_NAMES = r"\.experts\.(gate_up|up|down)_proj(_blocks|_scales)?$"
"""Pattern of the tensors that transformers need not know."""


class MissingBlocksError(Exception):
    """The files hold no blocks and scales for some experts, or experts are stored in another way."""


class Mxfp4StoredExperts(StoredExperts):
    """Experts whose blocks and scales are in the model's files. ``weights`` holds the blocks, ``scales`` the scales."""

    def __init__(
        self, module: nn.Module, layout: ExpertsLayout, blocks: dict[str, Tensor], scales: dict[str, Tensor]
    ) -> None:
        super().__init__(module, layout, blocks)
        self.scales = scales

    def pack_weight(self, name: str, index: int, lanes: int) -> PackedMxfp4Weight:
        """Returns an expert's packed matrix; outputs of the gate come first."""
        parts = (self.weights[name][index], self.scales[name][index])
        blocks, scales = (self.layout.order_outputs(name, part) for part in parts)
        return pack_mxfp4_blocks(blocks, scales, lanes)

    def read_weight(self, name: str, index: int) -> Tensor:
        """Returns an expert's matrix as the module's own code would read it, in fp32."""
        weight = unpack_weight(pack_mxfp4_blocks(self.weights[name][index], self.scales[name][index], TORCH_LANES))
        return weight.T if self.layout.is_transposed else weight

    def release(self, name: str) -> None:
        """Gives the pages of a matrix back to the system, and forgets its tensors."""
        mappings = FileMappings()
        for tensors in (self.weights, self.scales):
            MappedWeight(tensors.pop(name), mappings).release()


def keeps_mxfp4_experts(checkpoint: Checkpoint, device: str) -> bool:
    """Tells whether experts stay in MXFP4 on this device. On a GPU, transformers' own kernels compute them."""
    return checkpoint.quantization_method == "mxfp4" and device == "cpu"


def load_mxfp4_model(
    checkpoint: Checkpoint, load: Callable[[PreTrainedConfig], tuple[PreTrainedModel, list[str]]]
) -> tuple[PreTrainedModel, list[str]]:
    """Loads a model whose experts stay in the files. ``load`` gets the configuration and calls transformers.

    Raises :class:`MissingBlocksError`, or :class:`UnknownExpertsError` if transformers' code computes something else.
    """
    config: Any = load_config(checkpoint) or AutoConfig.from_pretrained(checkpoint.path, local_files_only=True)
    del config.quantization_config
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    with leave_out_experts(model_class):
        model, missing = load(config)
    hold_mxfp4_experts(model, checkpoint.path)
    return model, missing


@contextmanager
def leave_out_experts(model_class: type) -> Iterator[None]:
    """Within this context, transformers builds the fused experts of a model class without their matrices."""
    module: Any = __import__(model_class.__module__, fromlist=["*"])
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and hasattr(kind, "_apply_gate")]
    originals = [(kind, kind.__init__) for kind in classes]  # type: ignore[misc]
    ignored = model_class._keys_to_ignore_on_load_unexpected  # type: ignore[attr-defined]
    try:
        model_class._keys_to_ignore_on_load_unexpected = [*(ignored or ()), IGNORED_NAMES]  # type: ignore[attr-defined]
        for kind, original in originals:
            kind.__init__ = _without_matrices(original)  # type: ignore[misc]
        yield
    finally:
        model_class._keys_to_ignore_on_load_unexpected = ignored  # type: ignore[attr-defined]
        for kind, original in originals:
            kind.__init__ = original  # type: ignore[misc]


def _without_matrices(original: Any) -> Any:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        layout = read_layout(self)
        for name in layout.names if layout is not None else ():
            del self._parameters[name]
        self._is_hf_initialized = True  # transformers would fill the missing matrices with random numbers

    return build


def hold_mxfp4_experts(model: nn.Module, folder: Path) -> int:
    """Replaces experts that were left out by those in the files of a folder. Returns the number of layers.

    Raises :class:`MissingBlocksError`, or :class:`UnknownExpertsError` if transformers' code computes something else.
    """
    files = map_tensors_to_files(folder)
    count = 0
    for name, module in list(model.named_modules()):
        layout = read_layout(module)
        if layout is None:
            continue
        tensors = {
            suffix: {part: _read_mapped(files, f"{name}.{part}{suffix}") for part in layout.names}
            for suffix in TENSOR_SUFFIXES
        }
        stored = Mxfp4StoredExperts(module, layout, tensors["_blocks"], tensors["_scales"])
        if not count:
            check_stored_experts(stored, module)
        model.set_submodule(name, stored)
        count += 1
    if not count:
        raise MissingBlocksError("the model has no fused experts")
    return count


@torch.inference_mode()
def pack_mxfp4_experts(model: nn.Module, kernels: Kernels | None) -> int:
    """Packs the experts that are in the model's files, one layer after the other. Returns the number of layers."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Mxfp4StoredExperts)]
    lanes = TORCH_LANES if kernels is None else kernels.lanes
    reported_at = time.monotonic()
    for index, (name, stored) in enumerate(layers):
        matrices = [_pack_matrix(stored, part, lanes) for part in stored.layout.names]
        packed = PackedExperts(stored.module, stored.layout, matrices[0], matrices[1], kernels)
        if not index:
            packed.verify()
        model.set_submodule(name, packed)
        if time.monotonic() - reported_at >= PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            log.info("packing experts: layer %d of %d", index + 1, len(layers))
    return len(layers)


def _pack_matrix(stored: Mxfp4StoredExperts, name: str, lanes: int) -> ExpertMatrix:
    count = stored.num_experts
    biases = [stored.expert_bias(name, index) for index in range(count)]
    bias = torch.stack([row for row in biases if row is not None]) if stored.biases else None
    matrix = ExpertMatrix.allocate(count, stored.pack_weight(name, 0, lanes), bias)
    for index in range(1, count):
        matrix.store(index, stored.pack_weight(name, index, lanes))
    stored.release(name)
    return matrix


def map_tensors_to_files(folder: Path) -> dict[str, Path]:
    """Returns the file of each tensor of a model folder."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names: dict[str, str] = msgspec.json.decode(index.read_bytes())["weight_map"]
        return {name: folder / file for name, file in names.items()}
    with safe_open(folder / "model.safetensors", "pt") as file:
        return dict.fromkeys(file.keys(), folder / "model.safetensors")


def _read_mapped(files: dict[str, Path], name: str) -> Tensor:
    """Returns a tensor whose elements stay in the mapped file until they are used."""
    if name not in files:
        raise MissingBlocksError(f"{name} is missing")
    with safe_open(files[name], "pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor
