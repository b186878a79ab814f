"""Experts of a checkpoint in MXFP4, as gpt-oss has them: read from the mapped files, and never expanded as a whole.

transformers builds the model without the experts' weights; their blocks and scales stay in the mapped files until they
are packed, expert by expert.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.forward.experts.layout import ExpertsLayout, read_layout
from antiphon.engine.forward.experts.matmul import TORCH_LANES, unpack_weight
from antiphon.engine.forward.experts.matrix import ExpertMatrix
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.mxfp4_layout import PackedMxfp4Weight, pack_mxfp4_blocks
from antiphon.engine.load.architectures import load_plain_config
from antiphon.engine.load.experts.stored import StoredExperts, check_stored_experts
from antiphon.engine.load.experts.tensor_files import (
    ExpertTensors,
    LoadedModel,
    MissingExpertsError,
    TensorFiles,
    leave_out_experts,
)

BLOCKS_SUFFIX, SCALES_SUFFIX = "_blocks", "_scales"
"""Ends of the names of a matrix's two tensors: (experts, outputs, groups, 16) and (experts, outputs, groups), bytes."""


class Mxfp4StoredExperts(StoredExperts):
    """Experts whose blocks and scales are in the model's files. `weights` holds the blocks, `scales` the scales."""

    def __init__(
        self,
        module: nn.Module,
        layout: ExpertsLayout,
        blocks: dict[str, ExpertTensors],
        scales: dict[str, ExpertTensors],
    ) -> None:
        super().__init__(module, layout, blocks)
        self.scales = scales

    def pack_blocks(self, name: str, kernels: Kernels | None) -> ExpertMatrix:
        """Returns a packed matrix of all experts, and gives its pages back to the system.

        Outputs of the gate come first.
        """

        def pack_expert(index: int) -> PackedMxfp4Weight:
            parts = (self.weights[name][index], self.scales[name][index])
            blocks, scales = (self.layout.order_outputs(name, part) for part in parts)
            packed = (
                pack_mxfp4_blocks(blocks, scales, TORCH_LANES)
                if kernels is None
                else kernels.pack_mxfp4_blocks(blocks, scales)
            )
            self.release_pages(name, index)
            return packed

        return ExpertMatrix.pack(self.num_experts, pack_expert, self.stack_biases(name))

    def read_weight(self, name: str, index: int) -> Tensor:
        """Returns an expert's matrix as the module's own code would read it, in fp32."""
        weight = unpack_weight(pack_mxfp4_blocks(self.weights[name][index], self.scales[name][index], TORCH_LANES))
        return weight.T if self.layout.is_transposed else weight

    def release_pages(self, name: str, index: int) -> None:
        """Gives the pages of an expert's matrix back to the system."""
        super().release_pages(name, index)
        self.scales[name].release(index)


def keeps_mxfp4_experts(checkpoint: Checkpoint, device: str) -> bool:
    """Tells whether experts stay in MXFP4 on this device. On a GPU, transformers' own kernels compute them."""
    return checkpoint.quantization_method == "mxfp4" and device == "cpu"


def load_mxfp4_model(checkpoint: Checkpoint, load: Callable[[PreTrainedConfig], LoadedModel]) -> LoadedModel:
    """Loads a model whose experts stay in the files. `load` gets the configuration and calls transformers.

    Raises `MissingExpertsError`, or `UnknownExpertsError` if transformers' code computes something else.
    """
    config = load_plain_config(checkpoint)
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    with leave_out_experts(model_class):
        model, missing = load(config)
    wrap_mxfp4_experts(model, checkpoint.path)
    return model, missing


def wrap_mxfp4_experts(model: nn.Module, folder: Path) -> None:
    """Replaces experts that were left out by those in the files of a folder.

    Raises `MissingExpertsError`, or `UnknownExpertsError` if transformers' code computes something else.
    """
    files = TensorFiles(folder)
    count = 0
    for name, module in list(model.named_modules()):
        layout = read_layout(module)
        if layout is None:
            continue
        blocks, scales = (
            {part: ExpertTensors([files.read(f"{name}.{part}{suffix}")]) for part in layout.names}
            for suffix in (BLOCKS_SUFFIX, SCALES_SUFFIX)
        )
        stored = Mxfp4StoredExperts(module, layout, blocks, scales)
        if not count:
            check_stored_experts(stored, module)
        model.set_submodule(name, stored)
        count += 1
    if not count:
        raise MissingExpertsError("the model has no fused experts")
