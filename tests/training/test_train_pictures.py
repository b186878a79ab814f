"""The training with pictures: beside an earlier course, with a frozen part, and with strips."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from antiphon.engine.embedded import MODEL_DIR
from training.pictures.convert import add_tower, extend_tokenizer, load_text_model
from training.pictures.picture_batches import STRIPS
from training.pictures.soft_words import build_table, list_slots
from training.pictures.train_pictures import PictureDialogues, PicturePlan, PictureRun
from training.pictures.train_words import train_words
from training.train import TrainingPlan, build_config


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return extend_tokenizer(load_text_model(MODEL_DIR)[1])


@pytest.fixture
def model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(1)
    vocabulary = load_text_model(MODEL_DIR)[1].get_vocab_size()
    return add_tower(Qwen3ForCausalLM(build_config(TrainingPlan(hidden=64, layers=4), vocabulary)).eval())


def test_run_learns_continues_and_blends(model: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    plan = PicturePlan(steps=2, warmup=1, tokens=512, old_tokens=512, picture_weight=0.3, keep=1.0)
    before = deepcopy(model)
    run = PictureRun(plan, model, tokenizer, "", tmp_path / "state.pt")
    run.train("questions")
    run.save()
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


def test_frozen_text_stays_with_the_rows_of_the_vision_tokens(model: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = PictureRun(PicturePlan(steps=1, tokens=512, warmup=1), model, tokenizer, "text", tmp_path / "state.pt")
    run.train()
    run.save()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all("visual" in name for name in changed)


def test_strips_show_nothing_known(tokenizer: Tokenizer) -> None:
    source = PictureDialogues(tokenizer.to_str(), 1, 2048, surroundings=0.0, strips=1.0)
    shares = []
    for _, patches, (rows, columns), scenes in source.build_chunk(tokenizer, 0):
        assert (rows, columns) in STRIPS or (columns, rows) in STRIPS
        assert {scene.shape for scene in scenes} == {"other"}
        shares += [bool((picture == picture[:1]).all()) for picture in patches]
    assert 0.2 < sum(shares) / len(shares) < 0.8, "some are blank"


def test_words_learn_strips_as_nothing_known() -> None:
    text_model, text_tokenizer = load_text_model(MODEL_DIR)
    before = build_table(text_model, text_tokenizer)
    words = train_words(PicturePlan(steps=1, tokens=2048, warmup=1, strips=1.0), text_model, text_tokenizer)
    changed = (words.table != before).any(1).nonzero().flatten().tolist()
    assert changed and set(changed) <= {slot.stop - 1 for slot in list_slots()}
