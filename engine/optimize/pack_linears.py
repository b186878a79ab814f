"""Replaces a loaded model's linear layers by packed ones, where this provably changes nothing but speed.

`engine/optimize/packing_plan.py` finds the layers to pack. Then their weights are packed and verified, and the
originals freed, one after another. Packed weights that an earlier start has kept are used again (`engine/pack_cache`).
"""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.host.malloc_tuning import return_freed_memory
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.weight_rows import WeightRows
from antiphon.engine.load.mmap_weights import MmapLinear, QuantizedMmapWeight, join_rows
from antiphon.engine.optimize.experts.pack import pack_mixture, report_progress
from antiphon.engine.optimize.linears import (
    CompiledLinear,
    LinearKernel,
    MergedLinear,
    MergedLinearSlice,
    PackedLinear,
    build_exact_linear,
    build_int4_linear,
    build_int8_linear,
)
from antiphon.engine.optimize.packing_plan import DryRun, RunModel, plan_packing
from antiphon.engine.optimize.stored_linears import build_stored_linear
from antiphon.engine.optimize.verification import UnusableKernelError
from antiphon.engine.options import Quantization
from antiphon.engine.pack_cache.session import PackSession

log = logging.getLogger(__name__)

ROUTER_NAMES = {"gate", "router", "shared_expert_gate"}
"""Layers that choose experts. They stay fp32: they are small, and an error could select other experts."""


class PackingResult(NamedTuple):
    """Result of packing. `description` is text for the operator, empty if nothing was packed.

    `is_complete`: every matrix that tokens are multiplied by is packed, so no row depends on another.
    `groups` are the layers that were to be packed, and merged.
    """

    description: str = ""
    is_complete: bool = False
    groups: tuple[tuple[str, ...], ...] = ()


@torch.inference_mode()
def pack_linears(
    model: nn.Module,
    run: RunModel,
    quantize: Quantization | None = None,
    kernels: Kernels | None = None,
    kept: PackSession | None = None,
    groups: list[list[str]] | None = None,
) -> PackingResult:
    """Replaces the model's linear layers. `run` runs the model; `kept` are packed weights of an earlier start.

    A model that cannot be packed is left unchanged, with a warning in the log. The model runs only if neither an
    earlier start nor a dry run has found the `groups` of layers to pack.
    """
    linears, kept = dict(find_linears(model)), kept or PackSession(None)
    reason = _explain_unpackable_layers(linears)
    if kept.checks is not None:
        groups = kept.checks.groups
    if reason is None:
        try:
            groups = plan_packing(model, linears, run) if groups is None else groups
            reason = None if groups else "the model reads the weights of all of them itself"
        except Exception as failure:  # noqa: BLE001  the model's own layers can still serve it
            reason = one_line(failure)
    if reason is not None or groups is None:
        ending = " and not quantized" if quantize else ""
        report_fallback(log, "linears", "linear layers are not packed%s: %s", ending, reason)
        _read_mapped_layers(model)
        return PackingResult()
    stored_types = {str(_stored_weight(layer).dtype).removeprefix("torch.") for layer in linears.values()}
    return_freed_memory()  # of the runs, before packing takes more
    kept.begin()
    pack_mixture(model, "int8" if quantize == "stored" else quantize, kernels, kept)
    is_complete = _pack_groups(model, linears, groups, quantize, GroupPacker(kernels, kept))
    return_freed_memory()  # of packing, before the packed model runs
    return PackingResult(
        quantize or " in ".join(["packed", *stored_types - {"float32"}]),
        is_complete,
        tuple(map(tuple, groups)),
    )


def prepare_dry_run(model: nn.Module) -> DryRun | None:
    """Returns a dry run for the layers that `pack_linears` would pack; None if it would pack none."""
    linears = dict(find_linears(model))
    return None if _explain_unpackable_layers(linears) else DryRun(model, linears)


def _explain_unpackable_layers(linears: dict[str, nn.Linear]) -> str | None:
    """Returns the reason why no layer of a model can be packed; None if there is none."""
    if not linears:
        return "it has no linear layers"
    if any(_stored_weight(layer).device.type != "cpu" or not _computes_in_fp32(layer) for layer in linears.values()):
        return "packing requires fp32 weights on a CPU"
    return None


def find_linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yields the name and the layer of every linear layer of torch's own class, and of mapped ones.

    Any other subclass may compute anything.
    """
    for name, module in model.named_modules():
        if type(module) is nn.Linear or isinstance(module, MmapLinear):
            yield name, module


def _stored_weight(layer: nn.Linear) -> Tensor:
    """Returns the weight in the type in which it is in memory or in its file."""
    mapped = layer.mapped if isinstance(layer, MmapLinear) else None
    if isinstance(mapped, QuantizedMmapWeight):
        return mapped.lazy
    return layer.weight.detach() if mapped is None else mapped.stored


def _computes_in_fp32(layer: nn.Linear) -> bool:
    return isinstance(layer, MmapLinear) or layer.weight.dtype == torch.float32


def _pack_groups(
    model: nn.Module,
    linears: dict[str, nn.Linear],
    groups: list[list[str]],
    quantize: Quantization | None,
    packer: "GroupPacker",
) -> bool:
    """Packs group by group; layers that cannot be packed stay unchanged. Tells whether every matrix is packed."""
    failures: dict[str, str] = {}
    output_layer = _find_output_layer(model)
    for names in report_progress(groups, "packing weights: %d of %d"):
        layers = [linears.pop(name) for name in names]
        form = _choose_form(names[0], quantize, output_layer)
        try:
            kernel = packer.build_kernel(names, layers, form)
        except (UnusableKernelError, RuntimeError, AttributeError, NotImplementedError) as failure:
            failures[names[0]] = one_line(failure)
            continue
        _replace_layers(model, names, layers, kernel)
        for layer in layers:
            if isinstance(layer, MmapLinear):
                layer.mapped.release()
    if failures:
        name, reason = next(iter(failures.items()))
        report_fallback(log, "linears", "%d linear layers are not packed, such as %s: %s", len(failures), name, reason)
    _read_mapped_layers(model)
    unpacked = [
        name for name, parameter in model.named_parameters() if parameter.ndim > 1 and not _is_embedding(model, name)
    ]
    if unpacked and quantize is not None:
        report_fallback(
            log,
            "linears",
            "%d weights stay fp32 because they are not in linear layers that can be packed: %s, …",
            len(unpacked),
            unpacked[0],
        )
    return not unpacked


def _read_mapped_layers(model: nn.Module) -> None:
    """Replaces layers that are still mapped: the model reads their weights itself, or no kernel can compute them."""
    for name, module in find_linears(model):
        if isinstance(module, MmapLinear):
            model.set_submodule(name, module.to_linear())


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
    if ROUTER_NAMES & set(name.split(".")):
        return None
    return "int8" if quantize == "int4" and name == output_layer else quantize


class GroupPacker:
    """Builds the kernels of groups of layers from the packed weights of an earlier start, or by packing them."""

    def __init__(self, kernels: Kernels | None, kept: PackSession) -> None:
        self._kernels, self._kept = kernels, kept

    def build_kernel(self, names: list[str], layers: list[nn.Linear], form: Quantization | None) -> LinearKernel:
        """Returns the kernel of the layers with these names, merged."""
        stored = build_stored_linear(layers, self._kernels, form)
        if stored is not None:
            return stored
        biases: list[Tensor | None] = [layer._parameters["bias"] for layer in layers]
        present = [bias.detach() for bias in biases if bias is not None]
        bias = torch.cat(present) if present else None
        if form is None:
            return build_exact_linear(_join_layers(layers), bias, self._kernels)
        return self._build_quantized(" ".join([form, *names]), layers, bias, form)

    def _build_quantized(
        self, key: str, layers: list[nn.Linear], bias: Tensor | None, form: Quantization
    ) -> LinearKernel:
        packed = None if self._kernels is None else self._kept.load(key)
        shape = sum(layer.out_features for layer in layers), layers[0].in_features
        if packed is not None and (packed.outputs, packed.inputs) != shape:
            packed = None
        if packed is not None and self._kernels is not None and self._kept.checks is not None:
            return CompiledLinear(packed, bias, self._kernels)
        build = build_int4_linear if form == "int4" else build_int8_linear
        kernel = build(_join_layers(layers), bias, self._kernels, packed)
        if isinstance(kernel, CompiledLinear):
            self._kept.store(key, kernel.packed)
        return kernel


def _join_layers(layers: list[nn.Linear]) -> WeightRows:
    """Returns the rows of all weights. Those of a quantized checkpoint are decoded for it."""
    return join_rows([layer.mapped if isinstance(layer, MmapLinear) else layer.weight.detach() for layer in layers])


def _replace_layers(model: nn.Module, names: list[str], layers: list[nn.Linear], kernel: LinearKernel) -> None:
    sizes = [layer.out_features for layer in layers]
    inputs = layers[0].in_features
    linear = PackedLinear(kernel, inputs, sum(sizes))
    if len(names) == 1:
        model.set_submodule(names[0], linear)
        return
    group = MergedLinear(linear, sizes)
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        model.set_submodule(name, MergedLinearSlice(group, index, inputs, size))
