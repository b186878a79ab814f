"""Puts packed linear layers in the places of a loaded model's own, where that is proved to change nothing but speed.

First a rehearsal: stand-ins without a weight of their own run the model once. It shows whether the model calls its
linear layers and does nothing else with them, and which of them are always called with one and the same tensor. Then
each weight is packed, tried, and the original freed, one after the other.
"""

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.errors import one_line
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.linears import (
    LinearKernel,
    MergedLinear,
    MergedLinearSlice,
    OneDnnLinear,
    PackedLinear,
    UnusableKernelError,
    build_int8_linear,
)
from antiphon.engine.optimize.replace import relative_error
from antiphon.engine.options import Quantization

log = logging.getLogger(__name__)

MERGED_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that one parent holds and that may share their input."""

ROUTER_NAMES = {"gate", "router", "shared_expert_gate"}
"""Layers that choose experts: small, and an error there changes the way; they stay fp32."""

DRY_RUN_RTOL = 1e-3
"""Relative error of the logits up to which the rehearsal counts as the model itself."""

RunModel = Callable[[], Tensor]
"""Logits of a fixed text, (tokens, vocabulary)."""


class PackingResult(NamedTuple):
    """What was done: ``line`` says it to people and is empty if nothing was.

    ``whole``: every matrix that tokens are multiplied by is packed, so that no row depends on another. ``truth``: what
    ``run`` said before.
    """

    description: str = ""
    is_complete: bool = False
    logits_before: Tensor | None = None


@torch.inference_mode()
def pack_linears(
    model: nn.Module, run: RunModel, quantize: Quantization | None = None, kernels: Kernels | None = None
) -> PackingResult:
    """Replace the model's linear layers. ``run`` must work before and after.

    A model that cannot be packed is left as it was, with a line in the log.
    """
    found = dict(find_linears(model))
    reason = None if found else "it has no linear layers"
    if any(layer.weight.dtype != torch.float32 or layer.weight.device.type != "cpu" for layer in found.values()):
        reason = "packed weights are for fp32 on a CPU"
    truth = run() if reason is None else None
    groups: list[list[str]] = []
    if truth is not None:
        try:
            groups = find_merged_groups(model, found, run, truth)
        except Exception as failure:  # noqa: BLE001  whatever happens here, the model's own layers still serve it
            reason = one_line(failure)
    if truth is None or reason is not None:
        log.warning("linear layers are not packed%s: %s", " and not quantized" if quantize else "", reason)
        return PackingResult()
    whole = _pack_groups(model, found, groups, quantize, kernels)
    return PackingResult(quantize or "packed", whole, truth)


def find_linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Name and layer, of exactly torch's own class: a subclass may do anything."""
    return ((name, module) for name, module in model.named_modules() if type(module) is nn.Linear)


def find_merged_groups(model: nn.Module, found: dict[str, nn.Linear], run: RunModel, truth: Tensor) -> list[list[str]]:
    """The groups of layers that share their input. Raises :class:`UnusableError`, or what the model raises."""
    stand_ins = {name: _LinearStandIn(layer) for name, layer in found.items()}
    groups = _candidate_groups(found)
    for names in groups:
        watcher = _CallWatcher([stand_ins[name] for name in names])
        for name in names:
            stand_ins[name].watcher = watcher
    try:
        for name, stand_in in stand_ins.items():
            _set_submodule(model, name, stand_in)
        logits = run()
    finally:
        for name, layer in found.items():
            _set_submodule(model, name, layer)
    off = relative_error(logits, truth)
    if not off <= DRY_RUN_RTOL:
        raise UnusableKernelError(f"without them its logits differ by {off:.2g}")
    return [names for names in groups if (group := stand_ins[names[0]].watcher) is not None and group.is_shared]


class _CallWatcher:
    """Watches whether its layers are always called one after the other, with one tensor that nobody changes."""

    def __init__(self, members: list["_LinearStandIn"]) -> None:
        self._shared = True
        self._members = members
        self._waiting: list[_LinearStandIn] = []
        self._input: Tensor | None = None
        self._copy: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """Whether it was so in every call, and each had its part in the last."""
        return self._shared and not self._waiting

    def record_call(self, member: "_LinearStandIn", x: Tensor) -> None:
        if not self._waiting:
            self._waiting, self._input, self._copy = list(self._members), x, x.clone()
        same = x is self._input and self._copy is not None and torch.equal(x, self._copy)
        if not same or member not in self._waiting:
            self._shared = False
        self._waiting = [other for other in self._waiting if other is not member]
        if not self._waiting:
            self._input = self._copy = None


class _LinearStandIn(nn.Module):
    """A linear layer without a weight to look at, whose results are views as those of siblings are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.watcher: _CallWatcher | None = None
        self._layer = [layer]  # in a list, so that torch does not see it

    def forward(self, x: Tensor) -> Tensor:
        result = functional.linear(x, self._layer[0].weight, self._layer[0].bias)
        if self.watcher is None:
            return result
        self.watcher.record_call(self, x)
        return torch.cat([result, result], -1)[..., : self.out_features]


def _candidate_groups(found: dict[str, nn.Linear]) -> list[list[str]]:
    """Layers of one parent, by :data:`FAMILIES`, that agree in inputs and in having a bias."""
    groups = []
    for family in MERGED_NAMES:
        for first in [name for name in found if name.rpartition(".")[2] == family[0]]:
            parent = first[: -len(family[0])]
            names = [parent + name for name in family]
            layers = [found[name] for name in names if name in found]
            alike = len({(layer.in_features, layer._parameters["bias"] is None) for layer in layers}) == 1
            if len(layers) == len(names) and alike:
                groups.append(names)
    return groups


def _pack_groups(
    model: nn.Module,
    found: dict[str, nn.Linear],
    groups: list[list[str]],
    quantize: Quantization | None,
    kernels: Kernels | None,
) -> bool:
    """Pack group by group; where a weight cannot be, its layers stay. Whether no matrix was left."""
    grouped = {name for names in groups for name in names}
    stayed: dict[str, str] = {}
    for names in [*groups, *([name] for name in found if name not in grouped)]:
        layers = [found.pop(name) for name in names]
        exact = quantize is None or names[0].rpartition(".")[2] in ROUTER_NAMES
        try:
            kernel = _build_kernel(layers, kernels, exact=exact)
        except (UnusableKernelError, RuntimeError, AttributeError, NotImplementedError) as failure:
            stayed[names[0]] = one_line(failure)
            continue
        _replace_layers(model, names, layers, kernel)
    if stayed:
        name, reason = next(iter(stayed.items()))
        log.warning("%d linear layers stay as they are; %s: %s", len(stayed), name, reason)
    rest = [
        name for name, parameter in model.named_parameters() if parameter.ndim > 1 and not _is_embedding(model, name)
    ]
    if rest and quantize is not None:
        log.warning("%d weights stay fp32, since they are not in linear layers: %s, …", len(rest), rest[0])
    return not rest


def _is_embedding(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Embedding)


def _build_kernel(layers: list[nn.Linear], kernels: Kernels | None, *, exact: bool) -> LinearKernel:
    weights = [layer.weight.detach() for layer in layers]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    biases: list[Tensor | None] = [layer._parameters["bias"] for layer in layers]
    held = [bias.detach() for bias in biases if bias is not None]
    bias = torch.cat(held) if held else None
    return OneDnnLinear(weight, bias) if exact else build_int8_linear(weight, bias, kernels)


def _replace_layers(model: nn.Module, names: list[str], layers: list[nn.Linear], kernel: LinearKernel) -> None:
    sizes = [layer.out_features for layer in layers]
    inputs = layers[0].in_features
    linear = PackedLinear(kernel, inputs, sum(sizes))
    if len(names) == 1:
        _set_submodule(model, names[0], linear)
        return
    group = MergedLinear(linear, sizes)
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        _set_submodule(model, name, MergedLinearSlice(group, place, inputs, size))


def _set_submodule(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def mean_cosine(one: Tensor, two: Tensor) -> float:
    """The mean over rows of the cosine between two tables of logits."""
    return float(functional.cosine_similarity(one, two, dim=-1).mean())
