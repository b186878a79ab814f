"""Packs the experts of a loaded model, layer by layer."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from antiphon.engine.errors import one_line
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.grouped import PackedGroupedLinear, make_activations_exact
from antiphon.engine.forward.experts.matmul import TORCH_LANES
from antiphon.engine.forward.experts.matrix import ExpertForm, PackedExpertWeight
from antiphon.engine.forward.experts.packed import PackedExperts, UnusableExpertsError
from antiphon.engine.host.malloc_tuning import return_freed_memory
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int4_layout import pack_int4_weight
from antiphon.engine.kernels.int8_layout import pack_int8_weight
from antiphon.engine.load.experts.grouped import StoredGroupedLinear
from antiphon.engine.load.experts.mxfp4_checkpoint import Mxfp4StoredExperts
from antiphon.engine.load.experts.replacement import wrap_all_experts
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.optimize.experts.routers import make_routers_exact, make_shared_gates_exact
from antiphon.engine.pack_cache.pack_file import PackEntry
from antiphon.engine.pack_cache.session import PackSession

Layer = TypeVar("Layer")

log = logging.getLogger(__name__)

STORED_LINEAR_TYPES = (StoredExperts, StoredGroupedLinear)
"""Classes whose weights are packed here. Their subclasses pack them in another way."""

STORED_FORMS: dict[torch.dtype, ExpertForm] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Types of stored weights that compiled kernels multiply by as they are."""

PROGRESS_INTERVAL_S = 2.0
"""Seconds between two reports of progress."""


def pack_mixture(
    model: nn.Module, form: ExpertForm | None, kernels: Kernels | None, kept: PackSession | None = None
) -> None:
    """Packs the experts of a model, and makes the routers of packed experts exact.

    Without a `form`, experts that are still as they are stored, in 16 bits, stay in 16 bits.
    """
    first = next((stored for _, stored in _find_stored(model)), None)
    if form is None and first is not None and kernels is not None:
        form = STORED_FORMS.get(first.dtype)
    if form is not None:
        pack_experts(model, form, kernels, kept)
    make_routers_exact(model, PackedExperts)
    make_shared_gates_exact(model, PackedExperts)
    make_activations_exact(model)


def describe_experts(model: nn.Module) -> str:
    """Returns a note on packed experts for the operator; nothing if there are none."""
    forms = {module.form for module in model.modules() if isinstance(module, (PackedExperts, PackedGroupedLinear))}
    return f"experts in {' and '.join(sorted(forms))}" if forms else ""


@torch.inference_mode()
def pack_experts(model: nn.Module, form: ExpertForm, kernels: Kernels | None, kept: PackSession | None = None) -> int:
    """Replaces fused experts by packed ones. Returns the number of layers packed.

    Experts that cannot be packed stay as they are, with a warning in the log. Weights are packed and freed one layer
    after the other, unless an earlier start has `kept` them.
    """
    failures = wrap_all_experts(model)
    names = [name for name, _ in _find_stored(model)]
    packed_count = 0
    for name in visit_layers(names):
        try:
            _replace_by_packed(model, name, form, kernels, kept or PackSession(None))
        except (UnusableExpertsError, RuntimeError) as failure:
            failures[name] = one_line(failure)
            continue
        packed_count += 1
    if failures:
        name, reason = next(iter(failures.items()))
        message = "the experts of %d layers are not packed, such as %s: %s"
        report_fallback(log, "experts", message, len(failures), name, reason)
    return packed_count


def _find_stored(model: nn.Module) -> Iterator[tuple[str, StoredExperts | StoredGroupedLinear]]:
    """Yields the name and the module of experts that can be packed here."""
    for name, module in model.named_modules():
        if isinstance(module, STORED_LINEAR_TYPES) and type(module) in STORED_LINEAR_TYPES:
            yield name, module


def report_progress(items: Sequence[Layer], message: str) -> Iterator[Layer]:
    """Yields the items to pack, and logs from time to time how many are packed."""
    reported_at = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if time.monotonic() - reported_at >= PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            log.info(message, count, len(items))


def visit_layers(layers: Sequence[Layer]) -> Iterator[Layer]:
    """Yields the layers to pack. The memory freed by each is given back: the heap would keep half of its size."""
    for layer in report_progress(layers, "packing experts: layer %d of %d"):
        yield layer
        return_freed_memory()


def _replace_by_packed(
    model: nn.Module, name: str, form: ExpertForm, kernels: Kernels | None, kept: PackSession
) -> None:
    """Replaces stored experts by packed ones that an earlier start has kept, or packs, verifies and keeps them."""
    stored, key = model.get_submodule(name), f"experts {form} {name}"
    assert isinstance(stored, STORED_LINEAR_TYPES)
    entry = None if kernels is None else kept.load_entry(key)
    packed = (
        pack_stored_experts(stored, form, kernels) if entry is None else _restore_packed(stored, entry.tensors, kernels)
    )
    if entry is None or kept.checks is None:
        packed.verify()
    if entry is None:
        kept.store_entry(key, PackEntry(packed.flatten(), {}))
    model.set_submodule(name, packed)


def _restore_packed(
    stored: StoredExperts | StoredGroupedLinear, tensors: dict[str, Tensor], kernels: Kernels | None
) -> PackedExperts | PackedGroupedLinear:
    if isinstance(stored, StoredGroupedLinear):
        return PackedGroupedLinear.restore(tensors, kernels)
    return PackedExperts.restore(stored.module, stored.layout, tensors, kernels)


def pack_stored_experts(
    stored: StoredExperts | StoredGroupedLinear, form: ExpertForm, kernels: Kernels | None
) -> PackedExperts | PackedGroupedLinear:
    """Returns the experts with packed weights."""
    pack = partial(_pack_weight, form=form, kernels=kernels)
    if isinstance(stored, StoredGroupedLinear):
        return PackedGroupedLinear(stored.pack_matrix(pack), kernels)
    up, down = (stored.pack_matrix(name, pack) for name in stored.layout.names)
    return PackedExperts(stored.module, stored.layout, up, down, kernels)


def _pack_weight(weight: Tensor, form: ExpertForm, kernels: Kernels | None) -> PackedExpertWeight:
    if form in STORED_FORMS.values() and kernels is not None and kernels.half.supports(weight):
        return kernels.half.pack(weight)
    if form == "int8":
        return pack_int8_weight(weight, TORCH_LANES) if kernels is None else kernels.pack_int8_weight(weight)
    if form == "int4":
        return pack_int4_weight(weight, TORCH_LANES) if kernels is None else kernels.pack_int4_weight(weight)
    raise UnusableExpertsError(f"weights are not converted to {form} here; choose int8 or int4")


@torch.inference_mode()
def pack_mxfp4_experts(model: nn.Module, kernels: Kernels | None) -> int:
    """Packs the experts that are in the model's files, one layer after the other. Returns the number of layers."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Mxfp4StoredExperts)]
    first: PackedExperts | None = None
    for name, stored in visit_layers(layers):
        up, down = (stored.pack_blocks(part, kernels) for part in stored.layout.names)
        packed = PackedExperts(stored.module, stored.layout, up, down, kernels)
        if first is None:
            first = packed
            first.verify()
        elif not first.is_compiled:
            packed.run_only_in_parts()
        model.set_submodule(name, packed)
    return len(layers)
