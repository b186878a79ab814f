"""The training of new skills beside the distillation of the earlier ones, and the options of training with pictures."""

from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from antiphon.engine.embedded import MODEL_DIR
from training.batches import TrainingBatches
from training.pictures.convert import add_tower, extend_tokenizer, load_text_model
from training.pictures.picture_batches import STRIPS
from training.pictures.train_pictures import PictureDialogues, PicturePlan, PictureRun
from training.pictures.train_skills import SkillPlan, compute_divergence, train_skills
from training.train import TrainingPlan, build_config


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return extend_tokenizer(load_text_model(MODEL_DIR)[1])


@pytest.fixture
def model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(1)
    vocabulary = load_text_model(MODEL_DIR)[1].get_vocab_size()
    return add_tower(Qwen3ForCausalLM(build_config(TrainingPlan(hidden=64, layers=4), vocabulary)).eval())


def test_divergence_from_itself_is_zero_with_its_gradient(model: Any, tokenizer: Tokenizer) -> None:
    (batch,) = islice(TrainingBatches(tokenizer.to_str(), 1, 512, course="patch"), 1)
    before = deepcopy(model)
    divergence = compute_divergence(model, before, batch)
    torch.autograd.backward(divergence)
    assert abs(divergence.item()) < 1e-6
    assert max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None) < 1e-6
    with torch.no_grad():
        model.model.language_model.layers[0].mlp.up_proj.weight.mul_(2)
    assert compute_divergence(model, before, batch).item() > 1e-6


def test_run_learns_continues_and_blends(model: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = SkillPlan(steps=2, warmup=1, new_tokens=512, old_tokens=512, picture_tokens=512, strips=0.0)
    before = deepcopy(model)
    run = PictureRun(PicturePlan(keep=1.0), model, tokenizer, "", tmp_path / "state.pt")
    train_skills(plan, run, before)
    initial, changed = before.state_dict(), run.model.state_dict()
    assert {"model.visual", "model.language_model"} <= {
        ".".join(name.split(".")[:2]) for name in initial if not torch.equal(initial[name], changed[name])
    }
    assert PictureRun(PicturePlan(), deepcopy(before), tokenizer, "", tmp_path / "state.pt").step == 2
    run.blend_weights()
    assert all(torch.allclose(value, initial[name]) for name, value in run.model.state_dict().items())


def test_frozen_tower_stays(model: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = PicturePlan(steps=1, tokens=512, warmup=1)
    PictureRun(plan, model, tokenizer, "tower", tmp_path / "state.pt").train()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and not [name for name in changed if "visual" in name]


def test_strips_show_nothing_known(tokenizer: Tokenizer) -> None:
    source = PictureDialogues(tokenizer.to_str(), 1, 2048, surroundings=0.0, strips=1.0)
    for _, _, (rows, columns), scenes in source.build_chunk(tokenizer, 0):
        assert (rows, columns) in STRIPS or (columns, rows) in STRIPS
        assert {scene.shape for scene in scenes} == {"other"}
