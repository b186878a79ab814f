"""Packs the experts of a loaded model, layer by layer."""

import logging
import time

import torch
from torch import nn

from antiphon.engine.errors import one_line
from antiphon.engine.experts.layout import find_fused_experts
from antiphon.engine.experts.matrix import ExpertForm, ExpertMatrix, PackedExpertWeight
from antiphon.engine.experts.packed import PackedExperts, UnusableExpertsError
from antiphon.engine.experts.products import TORCH_LANES
from antiphon.engine.experts.routers import make_routers_exact, make_shared_gates_exact
from antiphon.engine.experts.stored import StoredExperts, UnknownExpertsError, check_stored_experts
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int4_layout import pack_int4_weight
from antiphon.engine.kernels.int8_layout import pack_int8_weight
from antiphon.engine.pack_cache.pack_file import PackEntry
from antiphon.engine.pack_cache.session import PackSession

log = logging.getLogger(__name__)

STORED_FORMS: dict[torch.dtype, ExpertForm] = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Types of stored weights that compiled kernels multiply by as they are."""

PROGRESS_INTERVAL_S = 2.0
"""Seconds between two reports of progress."""


def pack_mixture(
    model: nn.Module, form: ExpertForm | None, kernels: Kernels | None, kept: PackSession | None = None
) -> None:
    """Packs the experts of a model, and makes the routers of packed experts exact.

    Without a ``form``, experts that are still as they are stored, in 16 bits, stay in 16 bits.
    """
    stored = [module for module in model.modules() if type(module) is StoredExperts]
    if form is None and stored and kernels is not None:
        form = STORED_FORMS.get(stored[0].expert_weight(stored[0].layout.up_name, 0).dtype)
    if form is not None:
        pack_experts(model, form, kernels, kept)
    make_routers_exact(model, PackedExperts)
    make_shared_gates_exact(model, PackedExperts)


def describe_experts(model: nn.Module) -> str:
    """Returns a note on packed experts for the operator; nothing if there are none."""
    forms = {module.form for module in model.modules() if isinstance(module, PackedExperts)}
    return f"experts in {' and '.join(sorted(forms))}" if forms else ""


@torch.inference_mode()
def pack_experts(model: nn.Module, form: ExpertForm, kernels: Kernels | None, kept: PackSession | None = None) -> int:
    """Replaces fused experts by packed ones. Returns the number of layers packed.

    Experts that cannot be packed stay as they are, with a warning in the log. Weights are packed and freed one layer
    after the other, unless an earlier start has ``kept`` them.
    """
    failures = hold_all_experts(model)
    layers = [(name, module) for name, module in model.named_modules() if type(module) is StoredExperts]
    reported_at, packed_count = time.monotonic(), 0
    for index, (name, stored) in enumerate(layers):
        try:
            packed = _load_or_pack(f"experts {form} {name}", stored, form, kernels, kept or PackSession(None))
        except (UnusableExpertsError, RuntimeError) as failure:
            failures[name] = one_line(failure)
            continue
        model.set_submodule(name, packed)
        stored.weights = {}
        packed_count += 1
        if time.monotonic() - reported_at >= PROGRESS_INTERVAL_S:
            reported_at = time.monotonic()
            log.info("packing experts: layer %d of %d", index + 1, len(layers))
    if failures:
        name, reason = next(iter(failures.items()))
        log.warning("the experts of %d layers are not packed, such as %s: %s", len(failures), name, reason)
    return packed_count


def hold_all_experts(model: nn.Module) -> dict[str, str]:
    """Replaces fused experts by :class:`StoredExperts`. Returns the reason for each that computes something else."""
    failures = {}
    for name, module, layout in list(find_fused_experts(model)):
        stored = StoredExperts(module, layout)
        try:
            check_stored_experts(stored, module)
        except UnknownExpertsError as failure:
            failures[name] = str(failure)
            continue
        model.set_submodule(name, stored)
    return failures


def _load_or_pack(
    key: str, stored: StoredExperts, form: ExpertForm, kernels: Kernels | None, kept: PackSession
) -> PackedExperts:
    """Returns the packed experts that an earlier start has kept, or packs, verifies and keeps them."""
    entry = None if kernels is None else kept.load_entry(key)
    if entry is not None:
        packed = PackedExperts.restore(stored.module, stored.layout, entry.tensors, kernels)
        if kept.checks is None:
            packed.verify()
        return packed
    packed = pack_stored_experts(stored, form, kernels)
    packed.verify()
    kept.store_entry(key, PackEntry(packed.flatten(), {}))
    return packed


def pack_stored_experts(stored: StoredExperts, form: ExpertForm, kernels: Kernels | None) -> PackedExperts:
    """Returns the experts with packed weights."""
    matrices = []
    for name in stored.layout.names:
        biases = [stored.expert_bias(name, index) for index in range(stored.num_experts)]
        bias = torch.stack([row for row in biases if row is not None]) if stored.biases else None
        matrix = None
        for index in range(stored.num_experts):
            packed = _pack_weight(stored.expert_weight(name, index).contiguous(), form, kernels)
            if matrix is None:
                matrix = ExpertMatrix.allocate(stored.num_experts, packed, bias)
            else:
                matrix.store(index, packed)
            stored.release_pages(name, index)
        assert matrix is not None
        matrices.append(matrix)
    return PackedExperts(stored.module, stored.layout, matrices[0], matrices[1], kernels)


def _pack_weight(weight: torch.Tensor, form: ExpertForm, kernels: Kernels | None) -> PackedExpertWeight:
    if form in STORED_FORMS.values() and kernels is not None and kernels.half.supports(weight):
        return kernels.half.pack(weight)
    if form == "int8":
        return pack_int8_weight(weight, TORCH_LANES, 0) if kernels is None else kernels.pack_int8_weight(weight)
    if form == "int4":
        return pack_int4_weight(weight, TORCH_LANES) if kernels is None else kernels.pack_int4_weight(weight)
    raise UnusableExpertsError(f"weights are not converted to {form} here; choose int8 or int4")
