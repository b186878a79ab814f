"""A forward pass is validated with stand-ins for experts, which do not amplify the last bits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.load.experts.placeholders import mix_rows, use_placeholders
from antiphon.engine.load.experts.replacement import wrap_all_experts
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.load.loader import load_model
from antiphon.engine.optimize.experts.pack import pack_experts
from antiphon.engine.options import EngineOptions
from tests.engine.kernel_builds import require_kernels
from tests.engine.mixtures import (
    VOCAB_SIZE,
    choose_routes,
    make_mixture,
    make_rows,
    save_mixture,
    save_mxfp4_checkpoint,
)

IDS = torch.tensor([[(5 + 17 * n) % VOCAB_SIZE for n in range(20)]])
AMPLIFYING = {"num_local_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 32, "initializer_range": 0.3}
"""So many routers choose among so many experts that a difference in the last bits becomes one of a tenth of the logits."""

VALIDATION_RTOL = 0.01
"""Relative error of the logits above which a pass is not used."""

Arguments = tuple[Tensor, Tensor, Tensor]
"""Rows, the indices of their experts, and the experts' weights."""


def test_a_model_whose_experts_amplify_the_last_bits_runs_packed(tmp_path: Path) -> None:
    require_kernels()
    model, checkpoint = load_model(save_mxfp4_checkpoint(tmp_path, **AMPLIFYING), device="cpu")
    options = EngineOptions(max_model_len=128, kv_cache_gib=0.01, pack_linears=False)
    core = build_core_from_model(model, checkpoint, options, optimize=True)
    assert isinstance(core.forward, VarlenForward)


def test_experts_in_the_files_are_not_read_to_validate_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, checkpoint = load_model(save_mixture("mixtral", tmp_path), device="cpu", to_quantize=True)
    monkeypatch.setattr(StoredExperts, "read_weight", lambda *_: pytest.fail("an expert was read"))
    options = EngineOptions(max_model_len=128, kv_cache_gib=0.01, pack_linears=False)
    core = build_core_from_model(model, checkpoint, options)
    assert isinstance(core.forward, VarlenForward)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, indices, weights: (x.roll(1, 0), indices, weights),
        lambda x, indices, weights: (x, indices.roll(1, 0), weights),
        lambda x, indices, weights: (x, indices, weights.flip(-1)),
        lambda x, indices, weights: (x, indices, weights * 1.2),
    ],
    ids=["row", "index", "order of the weights", "weight"],
)
@torch.inference_mode()
def test_another_argument_of_experts_changes_the_logits(change: Callable[[Tensor, Tensor, Tensor], Arguments]) -> None:
    model = make_mixture("mixtral")
    assert not wrap_all_experts(model)
    with use_placeholders(model):
        expected = model(IDS).logits
        for module in model.modules():
            if isinstance(module, StoredExperts):
                module.register_forward_pre_hook(lambda _, args: change(*args))
        assert relative_error(model(IDS).logits, expected) > 5 * VALIDATION_RTOL


def test_mixed_rows_do_not_depend_on_each_other() -> None:
    x, (indices, weights) = make_rows(9), choose_routes(9, 5)
    expected = mix_rows(x, indices, weights)
    for row in range(9):
        only = slice(row, row + 1)
        assert torch.equal(mix_rows(x[only], indices[only], weights[only])[0], expected[row])


@pytest.mark.parametrize("kind", [StoredExperts, PackedExperts])
@torch.inference_mode()
def test_experts_compute_their_weights_again_after_validation(kind: type[nn.Module]) -> None:
    model = make_mixture("mixtral")
    if kind is StoredExperts:
        wrap_all_experts(model)
    else:
        pack_experts(model, "int8", None)
    assert any(isinstance(module, kind) for module in model.modules())
    expected = model(IDS).logits

    def run_and_fail() -> None:
        with use_placeholders(model):
            assert relative_error(model(IDS).logits, expected) > VALIDATION_RTOL
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_fail()
    assert torch.equal(model(IDS).logits, expected)
