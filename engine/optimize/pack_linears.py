"""Replaces a loaded model's linear layers by packed ones, where this provably changes nothing but speed.

A dry run comes first: the model runs once with stand-ins. It shows which layers the model only calls, and which of them
are always called with the same tensor. A layer whose weight the model reads itself, as some routers' are, stays
unchanged. Then the weights are packed and verified, and the originals freed, one after another.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphon.engine.errors import one_line
from antiphon.engine.experts.pack import pack_mixture
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.mapped_weights import MappedLinear, join_rows
from antiphon.engine.optimize.linears import (
    LinearKernel,
    MergedLinear,
    MergedLinearSlice,
    PackedLinear,
    build_exact_linear,
    build_int4_linear,
    build_int8_linear,
)
from antiphon.engine.optimize.replace import relative_error
from antiphon.engine.optimize.verification import UnusableKernelError
from antiphon.engine.options import Quantization

log = logging.getLogger(__name__)

MERGED_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers of one parent that may share their input, and can then be merged."""

ROUTER_NAMES = {"gate", "router", "shared_expert_gate"}
"""Layers that choose experts. They stay fp32: they are small, and an error could select other experts."""

DRY_RUN_RTOL = 1e-3
"""Largest relative error of the logits in the dry run."""

PROGRESS_INTERVAL_S = 2.0
"""Seconds between two reports of progress."""

RunModel = Callable[[], Tensor]
"""Runs the model on a fixed text and returns the logits (tokens, vocabulary)."""


class PackingResult(NamedTuple):
    """Result of packing. ``description`` is text for the operator, empty if nothing was packed.

    ``is_complete``: every matrix that tokens are multiplied by is packed, so no row depends on another.
    ``logits_before`` are the logits of ``run`` before packing.
    """

    description: str = ""
    is_complete: bool = False
    logits_before: Tensor | None = None


@torch.inference_mode()
def pack_linears(
    model: nn.Module, run: RunModel, quantize: Quantization | None = None, kernels: Kernels | None = None
) -> PackingResult:
    """Replaces the model's linear layers. ``run`` runs the model.

    A model that cannot be packed is left unchanged, with a warning in the log.
    """
    linears = dict(find_linears(model))
    reason = None if linears else "it has no linear layers"
    if any(_stored_weight(layer).device.type != "cpu" or not _computes_in_fp32(layer) for layer in linears.values()):
        reason = "packing requires fp32 weights on a CPU"
    logits_before = run() if reason is None else None
    groups: list[list[str]] = []
    if logits_before is not None:
        try:
            groups = plan_packing(model, linears, run, logits_before)
            reason = None if groups else "the model reads the weights of all of them itself"
        except Exception as failure:  # noqa: BLE001  the model's own layers can still serve it
            reason = one_line(failure)
    if logits_before is None or reason is not None:
        log.warning("linear layers are not packed%s: %s", " and not quantized" if quantize else "", reason)
        return PackingResult()
    pack_mixture(model, quantize, kernels)
    is_complete = _pack_groups(model, linears, groups, quantize, kernels)
    return PackingResult(quantize or "packed", is_complete, logits_before)


def find_linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yields the name and the layer of every linear layer of torch's own class, and of mapped ones.

    Any other subclass may compute anything.
    """
    for name, module in model.named_modules():
        if type(module) is nn.Linear or isinstance(module, MappedLinear):
            yield name, module


def _stored_weight(layer: nn.Linear) -> Tensor:
    """Returns the weight in the type in which it is in memory or in its file."""
    return layer.mapped.stored if isinstance(layer, MappedLinear) else layer.weight.detach()


def _computes_in_fp32(layer: nn.Linear) -> bool:
    return isinstance(layer, MappedLinear) or layer.weight.dtype == torch.float32


def plan_packing(model: nn.Module, linears: dict[str, nn.Linear], run: RunModel, expected: Tensor) -> list[list[str]]:
    """Returns the layers to pack, by dry runs: groups of layers that share their input, and groups of one.

    A layer whose weight or bias the model reads itself is in no group. If the model does not run with merged layers,
    none are merged. Raises :class:`UnusableKernelError` if the logits differ, or the model's own error.
    """
    candidates = _candidate_groups(linears)
    try:
        return _run_dry(model, linears, candidates, run, expected)
    except Exception:
        if not candidates:
            raise
        log.debug("the dry run with merged layers failed", exc_info=True)
    return _run_dry(model, linears, [], run, expected)


def _run_dry(
    model: nn.Module, linears: dict[str, nn.Linear], candidates: list[list[str]], run: RunModel, expected: Tensor
) -> list[list[str]]:
    """Implements :func:`plan_packing` for these candidates of merged groups."""
    stand_ins = {name: _LinearStandIn(layer) for name, layer in linears.items()}
    watchers = [_CallWatcher([stand_ins[name] for name in names]) for names in candidates]
    try:
        for name, stand_in in stand_ins.items():
            _set_submodule(model, name, stand_in)
        logits = run()
    finally:
        for name, layer in linears.items():
            _set_submodule(model, name, layer)
            stand_ins[name].watcher = None  # the reference cycle would keep the original weights
    error = relative_error(logits, expected)
    if not error <= DRY_RUN_RTOL:
        raise UnusableKernelError(f"the dry run's logits differ by {error:.2g}")
    groups = [names for names, watcher in zip(candidates, watchers, strict=True) if watcher.is_shared]
    merged = {name for names in groups for name in names}
    callable_only = (name for name, stand_in in stand_ins.items() if not stand_in.was_read)
    return [*groups, *([name] for name in callable_only if name not in merged)]


class _CallWatcher:
    """Records whether its layers are always called in turn, with the same tensor, which is not changed in between."""

    def __init__(self, members: list["_LinearStandIn"]) -> None:
        self._shared = True
        self._members = members
        for member in members:
            member.watcher = self
        self._waiting: list[_LinearStandIn] = []
        self._input: Tensor | None = None
        self._copy: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """True if all calls shared their input, the last round included every layer, and no weight was read."""
        return self._shared and not self._waiting and not any(member.was_read for member in self._members)

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
    """A linear layer that records whether the model reads its parameters, which a packed layer does not have.

    In a group, its results are views, as those of a merged layer are.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.watcher: _CallWatcher | None = None
        self.was_read = False
        self._layer = [layer]  # in a list, so that torch does not register it as a submodule

    @property
    def weight(self) -> Tensor:
        """Returns the layer's weight and records the access."""
        self.was_read = True
        return self._layer[0].weight

    @property
    def bias(self) -> Tensor | None:
        """Returns the layer's bias and records the access."""
        self.was_read = True
        return self._layer[0].bias

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._layer[0](x)
        if self.watcher is None:
            return result
        self.watcher.record_call(self, x)
        return torch.cat([result, result], -1)[..., : self.out_features]


def _candidate_groups(linears: dict[str, nn.Linear]) -> list[list[str]]:
    """Returns the groups of :data:`MERGED_NAMES` whose layers have the same inputs, and either all a bias or none."""
    groups = []
    for family in MERGED_NAMES:
        for first in [name for name in linears if name.rpartition(".")[2] == family[0]]:
            parent = first[: -len(family[0])]
            names = [parent + name for name in family]
            layers = [linears[name] for name in names if name in linears]
            are_compatible = len({(layer.in_features, layer._parameters["bias"] is None) for layer in layers}) == 1
            if len(layers) == len(names) and are_compatible:
                groups.append(names)
    return groups


def _pack_groups(
    model: nn.Module,
    linears: dict[str, nn.Linear],
    groups: list[list[str]],
    quantize: Quantization | None,
    kernels: Kernels | None,
) -> bool:
    """Packs group by group; layers that cannot be packed stay unchanged. Tells whether every matrix is packed."""
    failures: dict[str, str] = {}
    output_layer = _find_output_layer(model)
    reported_at = time.monotonic()
    for index, names in enumerate(groups):
        layers = [linears.pop(name) for name in names]
        form = _choose_form(names[0], quantize, output_layer)
        try:
            kernel = _build_kernel(layers, kernels, form)
        except (UnusableKernelError, RuntimeError, AttributeError, NotImplementedError) as failure:
            failures[names[0]] = one_line(failure)
            continue
        _replace_layers(model, names, layers, kernel)
        for layer in layers:
            if isinstance(layer, MappedLinear):
                layer.mapped.release()
        if time.monotonic() - reported_at >= PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            log.info("packing weights: %d of %d", index + 1, len(groups))
    if failures:
        name, reason = next(iter(failures.items()))
        log.warning("%d linear layers are not packed, such as %s: %s", len(failures), name, reason)
    for name, module in find_linears(model):
        if isinstance(module, MappedLinear):  # the model reads its weight itself, or no kernel can compute it
            _set_submodule(model, name, module.to_linear())
    unpacked = [
        name for name, parameter in model.named_parameters() if parameter.ndim > 1 and not _is_embedding(model, name)
    ]
    if unpacked and quantize is not None:
        log.warning(
            "%d weights stay fp32 because they are not in linear layers that can be packed: %s, …",
            len(unpacked),
            unpacked[0],
        )
    return not unpacked


def _is_embedding(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Embedding)


def _find_output_layer(model: nn.Module) -> str | None:
    """Returns the name of the layer that computes the logits; None if the model does not tell."""
    layer: Any = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None  # type: ignore[no-untyped-call]
    return next((name for name, module in model.named_modules() if module is layer), None)


def _choose_form(name: str, quantize: Quantization | None, output_layer: str | None) -> Quantization | None:
    """Returns the form of a layer's weights; None for fp32.

    The output layer stays int8: its error is that of the logits themselves, and no later layer evens it out.
    """
    if name.rpartition(".")[2] in ROUTER_NAMES:
        return None
    return "int8" if quantize is not None and name == output_layer else quantize


def _build_kernel(layers: list[nn.Linear], kernels: Kernels | None, form: Quantization | None) -> LinearKernel:
    weight = join_rows([layer.mapped if isinstance(layer, MappedLinear) else layer.weight.detach() for layer in layers])
    biases: list[Tensor | None] = [layer._parameters["bias"] for layer in layers]
    present = [bias.detach() for bias in biases if bias is not None]
    bias = torch.cat(present) if present else None
    if form is None:
        return build_exact_linear(weight, bias, kernels)
    return (build_int4_linear if form == "int4" else build_int8_linear)(weight, bias, kernels)


def _replace_layers(model: nn.Module, names: list[str], layers: list[nn.Linear], kernel: LinearKernel) -> None:
    sizes = [layer.out_features for layer in layers]
    inputs = layers[0].in_features
    linear = PackedLinear(kernel, inputs, sum(sizes))
    if len(names) == 1:
        _set_submodule(model, names[0], linear)
        return
    group = MergedLinear(linear, sizes)
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        _set_submodule(model, name, MergedLinearSlice(group, index, inputs, size))


def _set_submodule(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
