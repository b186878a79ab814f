"""The training command with a small plan: the loss falls, and the written model loads."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from training import evaluate, generator
from training.batches import TrainingBatches
from training.muon import Muon, orthogonalize
from training.train import COURSES, TrainingCourse, TrainingPlan, train_model


def test_short_training_lowers_the_loss_and_writes_a_loadable_model(tmp_path: Path) -> None:
    courses = (
        TrainingCourse("everything", 24, 3e-3, ramp=400, warmup=4),
        TrainingCourse("choosing", 4, 1e-3, warmup=4),
    )
    plan = TrainingPlan(courses, texts=1000, tokens=1024, hidden=64, layers=2)
    losses = train_model(plan, tmp_path)
    assert len(losses) == 28
    assert sum(losses[20:24]) / 4 < losses[0] - 1
    assert losses[24] < losses[0] - 1, "the second course starts from the weights of the first"
    model, tokenizer = evaluate.load_model(tmp_path)
    assert next(model.parameters()).dtype is torch.float32
    assert tokenizer.get_vocab_size() == model.config.vocab_size == 1024
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")
    continued_losses = train_model(replace(plan, courses=courses[1:]), tmp_path / "more", initial_folder=tmp_path)
    assert continued_losses[0] < losses[0] - 1, "a single course continues from a saved model"


def test_batches_are_reproducible_and_have_little_padding(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(evaluate.MODEL_DIR / "tokenizer.json"))
    source = TrainingBatches(tokenizer.to_str(), seed=1, tokens=4096, ramp=100)
    first, repeated = (source.build_chunk(tokenizer, 3, 1.0) for _ in range(2))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, repeated, strict=True))
    assert all(ids.numel() <= 4096 for ids, _ in first)
    padding = sum(int((ids == 0).sum()) for ids, _ in first)
    assert padding < 0.1 * sum(ids.numel() for ids, _ in first)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name)
def test_learning_rate_warms_up_stays_constant_and_decays(course: TrainingCourse) -> None:
    rates = [course.learning_rate(step) for step in range(course.steps)]
    assert rates[0] < rates[course.warmup] <= max(rates) <= course.rate
    assert rates[-1] < 0.01 * course.rate
    if course.decay < 1:
        assert rates[course.warmup] == course.rate


PICTURE_COURSES = ("questions", "first questions", "custom", "custom end")


def test_courses_of_the_plan_match_those_of_the_generator() -> None:
    """The last four are trained with pictures."""
    assert [*(course.name for course in COURSES), *PICTURE_COURSES] == list(generator.COURSES)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_muon_update_has_nearly_equal_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    singular_values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert float(singular_values.min()) > 0.6 and float(singular_values.max()) < 1.3


def test_muon_step_equals_that_of_torch() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(12, 20), [torch.randn(12, 20) for _ in range(3)]
    our_weight, torch_weight = (torch.nn.Parameter(start.clone()) for _ in range(2))
    for optimizer, matrix in (
        (Muon([our_weight], lr=0.1), our_weight),
        (torch.optim.Muon([torch_weight], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), torch_weight),
    ):
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(our_weight, torch_weight, atol=0.02), "torch computes the iterations in bf16"
    assert not torch.allclose(our_weight, start, atol=0.1)
