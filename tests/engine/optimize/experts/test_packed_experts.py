"""Fused experts in int8 and int4: the results of the rounded weights, in any batch, with and without a compiler."""

import logging
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.experts.layout import find_fused_experts
from antiphon.engine.forward.experts.matmul import unpack_weight
from antiphon.engine.forward.experts.matrix import ExpertForm, ExpertMatrix
from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.experts.replacement import wrap_all_experts
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.optimize.experts.pack import describe_experts, pack_experts
from antiphon.engine.optimize.experts.routers import ExactRouter
from antiphon.engine.options import EngineOptions
from tests.engine.kernel_builds import require_kernels
from tests.engine.mixtures import FAMILY_CONFIGS, ROUNDING_ERROR, VOCAB_SIZE, choose_routes, make_mixture, make_rows

FORMS: list[ExpertForm] = ["int8", "int4"]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return require_kernels()


def round_experts(module: nn.Module, packed: PackedExperts, names: tuple[str, str]) -> None:
    """Replaces the weights of a module by those that the packed ones stand for, in the module's own layout."""
    marked: Any = module
    for name, matrix in zip(names, (packed.up, packed.down), strict=True):
        parameter = marked._parameters[name]
        for index in range(matrix.num_experts):
            weight = unpack_weight(matrix.take(index))
            if name != "down_proj" and not marked.is_concatenated:
                weight = torch.stack(weight.chunk(2), 1).flatten(0, 1)
            parameter.data[index] = weight.T if marked.is_transposed else weight


def pack_single_layer(
    family: str, form: ExpertForm, kernels: Kernels | None
) -> tuple[nn.Module, PackedExperts, tuple[str, str]]:
    """Returns the last layer's experts: as transformers has them, packed, and the names of their matrices."""
    model, original = make_mixture(family), make_mixture(family)
    *_, (name, module, layout) = find_fused_experts(original)
    assert pack_experts(model, form, kernels)
    return module, cast("PackedExperts", model.get_submodule(name)), layout.names


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_packed_experts_compute_their_rounded_weights(
    family: str, form: ExpertForm, compiled: bool, kernels: Kernels
) -> None:
    module, packed, names = pack_single_layer(family, form, kernels if compiled else None)
    x, routes = make_rows(40), choose_routes(40, packed.up.num_experts)
    before = module(x, *routes)
    round_experts(module, packed, names)
    expected = module(x, *routes)
    assert relative_error(packed(x, *routes), expected) < ROUNDING_ERROR
    assert relative_error(expected, before) > (0.05 if form == "int4" else 0.002)  # the rounding is not the original


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_a_row_has_the_same_bits_with_any_other_rows(form: ExpertForm, compiled: bool, kernels: Kernels) -> None:
    for family in FAMILY_CONFIGS if compiled else ("gpt_oss",):
        _, packed, _ = pack_single_layer(family, form, kernels if compiled else None)
        x, (indices, weights) = make_rows(70), choose_routes(70, packed.up.num_experts)
        expected = packed(x, indices, weights)
        for first, count in ((0, 1), (3, 2), (20, 33)):
            rows = slice(first, first + count)
            assert torch.equal(packed(x[rows], indices[rows], weights[rows]), expected[rows])
        order = torch.arange(69, -1, -1)
        assert torch.equal(packed(x[order], indices[order], weights[order]), expected[order])


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@torch.inference_mode()
def test_a_layer_in_one_call_computes_what_its_parts_compute(family: str, kernels: Kernels) -> None:
    _, packed, _ = pack_single_layer(family, "int8", kernels)
    assert packed.is_compiled
    x, (indices, weights) = make_rows(70), choose_routes(70, packed.up.num_experts)
    indices[3, 0], indices[4] = -1, packed.up.num_experts
    x[5] *= 50  # beyond the limit of gpt-oss's activation
    result, expected = packed(x, indices, weights), packed.run_in_parts(x, indices, weights)
    errors = (result - expected).norm(dim=-1) / expected.norm(dim=-1)
    # The last bits of the activation differ, which moves single levels of the rows to the next one.
    assert not result[4].any() and float(errors.nan_to_num().max()) < 0.01 and float(errors.nanmedian()) < 1e-3
    x[6, 0] = float("nan")
    assert packed(x, indices, weights)[6].isnan().all()
    assert packed(x[:0], indices[:0], weights[:0]).shape == (0, 64)


@torch.inference_mode()
def test_an_index_outside_of_the_experts_chooses_none(kernels: Kernels) -> None:
    _, packed, _ = pack_single_layer("mixtral", "int8", kernels)
    x, (indices, weights) = make_rows(4), choose_routes(4, packed.up.num_experts)
    indices[1, 0], indices[2] = packed.up.num_experts, packed.up.num_experts
    result = packed(x, indices, weights)
    assert torch.equal(result[1:2], packed(x[1:2], indices[1:2, 1:], weights[1:2, 1:]))
    assert not result[2].any()


@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_experts_from_their_stored_tensors_have_the_same_bits(form: ExpertForm, kernels: Kernels) -> None:
    _, packed, _ = pack_single_layer("gpt_oss", form, kernels)
    *_, layout = next(find_fused_experts(make_mixture("gpt_oss")))
    stored = packed.flatten()
    restored = PackedExperts.restore(packed.module, layout, stored, kernels)
    assert restored.flatten().keys() == stored.keys() and restored.form == form
    assert restored.up.tensors["weights"].data_ptr() == packed.up.tensors["weights"].data_ptr()
    x, routes = make_rows(9), choose_routes(9, 4)
    assert torch.equal(restored(x, *routes), packed(x, *routes))


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@torch.inference_mode()
def test_stored_experts_in_bf16_compute_in_fp32(family: str) -> None:
    model = make_mixture(family)
    *_, (name, module, _) = find_fused_experts(model)
    module.bfloat16()
    wrap_all_experts(model)
    stored = model.get_submodule(name)
    assert isinstance(stored, StoredExperts) and not any(weight.ndim == 3 for weight in stored.parameters())
    x, routes = make_rows(10), choose_routes(10, stored.num_experts)
    assert relative_error(stored(x, *routes), module.float()(x, *routes)) < 1e-6


@pytest.mark.parametrize(("form", "bits"), [("int8", 8.6), ("int4", 4.7)])
def test_packed_experts_take_the_memory_of_their_form(form: ExpertForm, bits: float, kernels: Kernels) -> None:
    _, packed, _ = pack_single_layer("mixtral", form, kernels)
    matrices = (packed.up, packed.down)
    weights = sum(tensor.nbytes for matrix in matrices for tensor in matrix.tensors.values())
    padded = sum(matrix.num_experts * matrix.outputs * -(-matrix.inputs // 64) * 64 for matrix in matrices)
    assert weights * 8 / padded < bits * 192 / 128  # 192 outputs are padded to whole blocks at most


def test_experts_that_compute_something_else_stay_as_they_are(
    kernels: Kernels, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_mixture("mixtral")
    experts = next(module for _, module, _ in find_fused_experts(model))
    original = type(experts).forward.__wrapped__  # type: ignore[attr-defined]
    forward = lambda self, *args: original(self, *args) * 1.01  # noqa: E731
    forward.__wrapped__ = forward  # type: ignore[attr-defined]
    monkeypatch.setattr(type(experts), "forward", forward)
    with caplog.at_level(logging.WARNING):
        assert pack_experts(model, "int8", kernels) == 0
    line = (
        "the experts of 2 layers are not packed, such as model.layers.0.mlp.experts: its own results differ by 0.0099"
    )
    assert [record.message for record in caplog.records] == [line]
    assert describe_experts(model) == "" and len(list(find_fused_experts(model))) == 2


@pytest.mark.parametrize(("family", "form"), [*((family, "int8") for family in FAMILY_CONFIGS), ("gpt_oss", "int4")])
def test_a_sequence_has_the_same_logits_alone_and_among_others(family: str, form: ExpertForm, kernels: Kernels) -> None:
    options = EngineOptions(quantization=form, force_quantization=True, max_model_len=128, kv_cache_gib=0.01)
    model = make_mixture(family)
    core = build_core_from_model(model, options=options, optimize=True)
    assert f"experts in {form}" in core.info.description
    assert any(isinstance(module, ExactRouter) for module in model.modules())
    assert all(parameter.ndim == 1 or "embed" in name for name, parameter in model.named_parameters())
    forward = core.forward
    sequences = [[(7 * n + k * k) % VOCAB_SIZE for n in range(3 + 6 * k)] for k in range(6)]

    def run(*batch: list[int]) -> Tensor:
        return forward.run([SequenceInput(forward.new_cache(len(ids)), ids, len(ids)) for ids in batch])

    with torch.inference_mode():
        together = run(*sequences).split([len(ids) for ids in sequences])
        for ids, logits in zip(sequences, together, strict=True):
            assert torch.equal(run(ids), logits)


def test_expert_matrix_keeps_the_experts_apart(kernels: Kernels) -> None:
    weights = torch.randn(3, 40, 70, generator=torch.Generator().manual_seed(1))
    matrix = ExpertMatrix.pack(3, lambda index: kernels.pack_int8_weight(weights[index]), None)
    for index, weight in enumerate(weights):
        assert relative_error(unpack_weight(matrix.take(index)), weight) < 0.01
