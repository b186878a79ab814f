"""The part of a model that encodes pictures: kept apart while the text part is optimized, then put back as it was."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from antiphon.engine.checkpoint.vision_families import explain_refusal, find_two_way_layers, read_soft_ids
from antiphon.engine.forward.interface import ForwardPass
from antiphon.engine.forward.recurrent.forward import RecurrentForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.mmap_weights import MmapLinear, join_rows
from antiphon.engine.optimize.linears import PackedLinear, build_exact_linear


class VisionTower:
    """The children of a model's body that its text does not use, in the state in which they were loaded.

    They keep their own attention, since the attention of the packed pass knows no pictures, their own types, and get
    no adapters: no stage that fits the text part sees them.
    """

    def __init__(self, model: PreTrainedModel, children: Mapping[str, nn.Module]) -> None:
        self._model, self._children = model, dict(children)
        modules: list[Any] = [module for child in self._children.values() for module in child.modules()]
        configs = {id(module.config): module.config for module in modules if hasattr(module, "config")}
        self._attention = [(config, config._attn_implementation) for config in configs.values()]

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """The children."""
        return tuple(self._children.values())

    def attach(self, kernels: Kernels | None) -> None:
        """Puts the children back, with weights in memory and the attention that they were loaded with.

        `kernels` multiply by weights of 16 bits as they are stored, with the error of fp32.
        """
        body: Any = self._model.base_model
        for block in find_blocks(self.modules):  # other parts may read the weights of their layers
            _load_linears(block, kernels)
        for name, child in self._children.items():
            _load_linears(child, None)
            setattr(body, name, child)
        for config, attention in self._attention:
            config._attn_implementation_internal = attention


def explain_no_pictures(model: PreTrainedModel, children: Mapping[str, nn.Module]) -> str | None:
    """Returns the reason why a model with these unused children takes no pictures, in one line; None if it does.

    An empty reason means that it has no vision tower.
    """
    body: Any = model.base_model
    if getattr(model.config, "vision_config", None) is None and not hasattr(body, "get_image_features"):
        return ""
    name = model.config.model_type
    if (refusal := explain_refusal(name)) is not None:
        return refusal
    if not hasattr(body, "get_image_features"):
        return f"{name} takes no pictures here: transformers has no encoder of pictures for it"
    if not children:
        return f"{name} takes no pictures here: its text reads parts of its vision tower"
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
        return f"{name} takes no pictures here: its forward pass takes no encoded pictures"
    soft_ids = read_soft_ids(lambda name: getattr(model.config, name, None))
    if not soft_ids or soft_ids[0] >= model.config.get_text_config(decoder=True).vocab_size:
        return f"{name} takes no pictures here: no token of its vocabulary stands for one"
    return None


def explain_pass_without_pictures(model: PreTrainedModel, forward: ForwardPass) -> str | None:
    """Returns the reason why this pass takes no pictures, in one line; None if it does."""
    name = model.config.model_type
    if type(forward) not in (VarlenForward, RecurrentForward):
        return f"{name} takes no pictures here: it runs one sequence at a time, or with positions of its own"
    assert isinstance(forward, VarlenForward)
    if forward.one_token_passes and find_two_way_layers(model.config):
        return f"{name} takes no pictures here: its pictures attend both ways, which one token per pass cannot compute"
    return None


@torch.inference_mode()
def _load_linears(module: nn.Module, kernels: Kernels | None) -> None:
    """Replaces linear layers whose weights are in files by packed ones, or by ordinary ones in fp32."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, MmapLinear):
                setattr(parent, name, _load_linear(child, kernels))


def _load_linear(layer: MmapLinear, kernels: Kernels | None) -> nn.Module:
    rows = join_rows([layer.mapped])
    if kernels is None or not kernels.half.supports(rows):
        return layer.to_linear()
    return PackedLinear(build_exact_linear(rows, layer.bias, kernels), layer.in_features, layer.out_features)


def find_blocks(towers: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the blocks of the tower: the children of its longest list of modules."""
    modules = [module for tower in towers for module in tower.modules()]
    lists: list[nn.ModuleList] = [module for module in modules if isinstance(module, nn.ModuleList)]
    lengths = [len(each) for each in lists]
    return list(lists[lengths.index(max(lengths))]) if lists else []
