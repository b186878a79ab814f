"""The training command, in small: what it writes loads, and what it learns shows in the loss."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from antiphon.engine.embedded import evaluate, generator
from antiphon.engine.embedded.batches import TrainingBatches
from antiphon.engine.embedded.muon import Muon, orthogonalize
from antiphon.engine.embedded.train import COURSES, TrainingCourse, TrainingPlan, train_model


def test_a_short_training_learns_and_its_model_loads(tmp_path: Path) -> None:
    courses = (
        TrainingCourse("everything", 24, 3e-3, ramp=400, warmup=4),
        TrainingCourse("choosing", 4, 1e-3, warmup=4),
    )
    plan = TrainingPlan(courses, texts=1000, tokens=1024, hidden=64, layers=2)
    losses = train_model(plan, tmp_path)
    assert len(losses) == 28
    assert sum(losses[20:24]) / 4 < losses[0] - 1
    assert losses[24] < losses[0] - 1, "the second course begins with what the first has learned"
    model, tokenizer = evaluate.load_model(tmp_path)
    assert next(model.parameters()).dtype is torch.float32
    assert tokenizer.get_vocab_size() == model.config.vocab_size == 1024
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")
    more = train_model(replace(plan, courses=courses[1:]), tmp_path / "more", begun=tmp_path)
    assert more[0] < losses[0] - 1, "a course alone goes on from a model that was saved"


def test_batches_come_out_the_same_and_hold_little_padding(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(evaluate.MODEL_DIR / "tokenizer.json"))
    source = TrainingBatches(tokenizer.to_str(), seed=1, tokens=4096, ramp=100)
    first, again = (source.build_chunk(tokenizer, 3, 1.0) for _ in range(2))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert all(ids.numel() <= 4096 for ids, _ in first)
    padding = sum(int((ids == 0).sum()) for ids, _ in first)
    assert padding < 0.1 * sum(ids.numel() for ids, _ in first)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name)
def test_the_rate_warms_up_stays_and_falls_to_nothing(course: TrainingCourse) -> None:
    rates = [course.learning_rate(step) for step in range(course.steps)]
    assert rates[0] < rates[course.warmup] <= max(rates) <= course.rate
    assert rates[-1] < 0.01 * course.rate
    if course.decay < 1:
        assert rates[course.warmup] == course.rate


def test_the_courses_of_the_plan_are_those_of_the_generator() -> None:
    assert [course.name for course in COURSES] == list(generator.COURSES)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_a_step_of_muon_moves_every_direction_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    sizes = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert float(sizes.min()) > 0.6 and float(sizes.max()) < 1.3


def test_muon_steps_as_the_one_of_torch_does() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(12, 20), [torch.randn(12, 20) for _ in range(3)]
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    for optimizer, matrix in (
        (Muon([ours], lr=0.1), ours),
        (torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), theirs),
    ):
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=0.02), "torch's iterates in bf16"
    assert not torch.allclose(ours, start, atol=0.1)
