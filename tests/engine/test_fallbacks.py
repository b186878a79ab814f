"""Every check of a start that may fail on some machine tells its fallback; `docs/reference/fallbacks.md` has them all."""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.adapters import install
from antiphon.engine.builder import build_core, build_core_from_model
from antiphon.engine.fallbacks import FALLBACKS, Fallback, collect_fallbacks, list_kinds, report_fallback
from antiphon.engine.forward.adapter_weights import LoraWeight
from antiphon.engine.forward.experts import packed
from antiphon.engine.kernels import library
from antiphon.engine.load.experts import stored
from antiphon.engine.optimize import decoder_layer, fuse, linears, pack_linears, rms_norm, select, validation
from antiphon.engine.optimize.experts import routers
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import EngineInfo
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import copy_tiny_model
from tests.engine.vision_models import build_vision_model
from tests.fallbacks_page import DECIDING, OTHERS, find_comparisons, find_reports, render_page
from tests.syntax import ROOT

log = logging.getLogger("antiphon.engine.test")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_page_is_that_of_the_code() -> None:
    page = (ROOT / "docs/reference/fallbacks.md").read_text(encoding="utf-8")
    assert render_page() == page, "run: python -m tests.fallbacks_page > docs/reference/fallbacks.md"


def test_every_kind_is_reported_somewhere_and_every_report_has_a_kind() -> None:
    assert {kind for kind, _ in find_reports()} == set(FALLBACKS)


def test_every_comparison_of_the_engine_is_on_the_page() -> None:
    assert set(find_comparisons()) == set(DECIDING) | set(OTHERS), (
        "name the fallback, or the reason, in fallbacks_page.py"
    )
    assert set(DECIDING.values()) <= set(FALLBACKS)


def test_message_is_logged_once_in_a_start_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with collect_fallbacks() as told:
        for number in (1, 1, 2):
            report_fallback(log, "norms", "norm %d differs", number)
    report_fallback(log, "norms", "after the start")
    assert list(told) == [Fallback("norms", "norm 1 differs"), Fallback("norms", "norm 2 differs")]
    assert list_kinds(told) == ["norms"]
    assert [record.getMessage() for record in caplog.records] == ["norm 1 differs", "norm 2 differs", "after the start"]


def load_info(folder: Path, family: str, dtype: torch.dtype, **options: Any) -> EngineInfo:
    copy_tiny_model(family).to(dtype).save_pretrained(folder)
    return build_core(folder, EngineOptions(device="cpu", threads=1, **options)).info


def differ(*_: Any) -> float:
    return 1.0


def fail(*_: Any) -> Any:
    raise RuntimeError("not here")


class OddNorm(rms_norm.FusedRMSNorm):
    """A norm of ours whose last bits differ more than they may."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.0001


CHECKS: dict[str, tuple[str, list[tuple[Any, str, Any]]]] = {
    "decoder_layers": ("llama", [(decoder_layer, "DECODER_LAYER_RTOL", -1)]),
    "gated_layers": ("llama", [(fuse, "FUSED_RTOL", -1)]),
    "norms": ("llama", [(rms_norm, "FusedRMSNorm", OddNorm)]),
    "linear_kernel": ("llama", [(linears, "HALF_MAX_RELATIVE_ERROR", -1)]),
    "linears": ("llama", [(pack_linears.GroupPacker, "build_kernel", fail)]),
    "forward": ("llama", [(validation, "relative_error", differ)]),
    "interleaving": ("llama", [(validation, "relative_error", differ), (select, "relative_error", differ)]),
    "memory_probe": (
        "llama",
        [(validation, "relative_error", differ), (select.SequentialForward, "measure_memory", fail)],
    ),
    "kernels": ("llama", [(library, "_load_once", lambda: (None, "no compiler"))]),
    "experts": ("mixtral", [(stored, "STORED_EXPERTS_RTOL", -1)]),
    "expert_layer": ("mixtral", [(packed, "COMPILED_EXPERTS_RTOL", -1)]),
    "routers": ("mixtral", [(routers.ExactRouter, "uses_kernel", lambda _: False)]),
}
"""For each kind a tiny model, and what is changed so that a check of its start fails."""


@pytest.mark.parametrize("kind", CHECKS)
def test_failed_check_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_kernels()
    family, changes = CHECKS[kind]
    for place, name, value in changes:
        monkeypatch.setattr(place, name, value)
    info = load_info(tmp_path, family, torch.bfloat16)
    assert kind in list_kinds(info.fallbacks)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_model_whose_checks_pass_tells_nothing(family: str, tmp_path: Path) -> None:
    require_kernels()
    kinds = set(list_kinds(load_info(tmp_path, family, torch.bfloat16).fallbacks))
    assert kinds <= {"single_rows"}, "which depends on the CPU"


def test_single_rows_that_are_computed_twice_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "equal", differ_in_single_rows(torch.equal))
    core = build_core_from_model(copy_tiny_model("llama"), options=EngineOptions(), optimize=True)
    assert "single_rows" in list_kinds(core.info.fallbacks)


def differ_in_single_rows(equal: Callable[[Tensor, Tensor], bool]) -> Callable[[Tensor, Tensor], bool]:
    return lambda a, b: a.shape[0] != 1 and equal(a, b)


def test_blocks_of_adapters_that_are_single_rows_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LoraWeight, "_has_equal_places", lambda _: False)
    with collect_fallbacks() as told:
        LoraWeight(torch.ones(2, 8), torch.ones(8, 2), 1.0, torch.device("cpu"), torch.float32)
    assert list_kinds(told) == ["adapter_blocks"]
    assert "one by one" in caplog.text


@pytest.mark.parametrize("is_fused", [True, False])
def test_pass_of_their_own_for_rows_with_adapters_is_told(monkeypatch: pytest.MonkeyPatch, is_fused: bool) -> None:
    numbers = itertools.count()
    monkeypatch.setattr(install, "FusedDecoderLayer", torch.nn.Module if is_fused else decoder_layer.FusedDecoderLayer)
    monkeypatch.setattr(install, "_run_probe", lambda forward, vocabulary: torch.full((2, 4), float(next(numbers))))
    options = EngineOptions(allow_lora_updates=True)
    core = build_core_from_model(copy_tiny_model("llama"), options=options, optimize=True)
    assert ("adapter_pass" in list_kinds(core.info.fallbacks)) == is_fused
    assert core.adapters is not None and core.adapters.layers.rows.one_pass != is_fused


def test_vision_tower_that_text_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = build_vision_model("llava")
    language_model = model.model.language_model

    def read_tower(*_: Any, **__: Any) -> None:
        assert model.model.vision_tower.dtype is torch.float32

    language_model.register_forward_pre_hook(read_tower, with_kwargs=True)
    info = build_core_from_model(model, options=EngineOptions(), optimize=True).info
    assert info.image_form == "none"
    assert info.image_refusal == "llava takes no pictures here: its text reads parts of its vision tower"
    assert Fallback("pictures", info.image_refusal) in info.fallbacks
