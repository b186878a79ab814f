"""Parts of a multimodal model that text does not use are removed; nothing else is."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.optimize.vision_towers import remove_unused_towers
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import FAMILY_CONFIGS, copy_tiny_model
from tests.engine.vision_models import VISION_FAMILIES, build_vision_model

MIXTURES = {"qwen3_vl_moe", "glm4v_moe", "kimi_k25"}
"""Families whose experts are not linear layers, and stay unpacked."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_vision_tower_is_removed(family: str) -> None:
    model: Any = build_vision_model(family)
    core = build_core_from_model(
        model, options=EngineOptions(deterministic=True, keep_vision_tower=False), optimize=True
    )
    assert [name for name, _ in model.base_model.named_children()] in (["language_model"], ["text_model"])
    assert isinstance(core.forward, VarlenForward)
    assert core.forward.one_token_passes == (family in MIXTURES), "every matrix of the text model is packed"


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_text_model_stays_whole(family: str) -> None:
    model = copy_tiny_model(family)
    names = [name for name, _ in model.named_modules()]
    assert remove_unused_towers(model, lambda: reference_logits(SequentialForward(model), model)) == {}
    assert [name for name, _ in model.named_modules()] == names


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_tower_is_removed_where_equal_passes_differ_in_their_last_bits(family: str) -> None:
    model: Any = build_vision_model(family)
    runs = itertools.count(1)

    def run() -> Any:  # as MKL's kernels do on some CPUs, by the alignment of memory
        return reference_logits(SequentialForward(model), model) * (1 + next(runs) * 7e-6)

    assert remove_unused_towers(model, run)


def test_tower_without_which_the_text_calls_fewer_parts_stays() -> None:
    model: Any = build_vision_model("llava")
    body = model.model
    tower, projector = body.vision_tower, nn.Linear(2, 2)
    body.text_projector = projector

    def run() -> Any:
        if body.vision_tower is not None:
            body.text_projector(torch.ones(2))
        return reference_logits(SequentialForward(model), model)

    assert remove_unused_towers(model, run) == {}
    assert body.vision_tower is tower
    assert body.text_projector is projector


def test_tower_that_is_read_without_a_call_stays() -> None:
    model: Any = build_vision_model("llava")
    tower = model.model.vision_tower

    def run() -> Any:
        return reference_logits(SequentialForward(model), model) + model.model.vision_tower.dtype.itemsize

    assert remove_unused_towers(model, run) == {}
    assert model.model.vision_tower is tower


def test_model_that_does_not_run_on_text_is_refused() -> None:
    model = build_vision_model("llava")

    def run() -> Any:
        raise ValueError("You have to specify pixel_values")

    with pytest.raises(LoadError, match=r"LlavaForConditionalGeneration does not run on text alone .*pixel_values"):
        remove_unused_towers(model, run)
