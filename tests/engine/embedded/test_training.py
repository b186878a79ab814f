"""The training command, in small: what it writes loads, and what it learns shows in the loss."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.embedded import evaluate
from engine.embedded.data import Batches
from engine.embedded.train import Plan, batches, train


def test_a_short_training_learns_and_its_model_loads(tmp_path: Path) -> None:
    plan = Plan(steps=24, more=4, tokens=1024, warmup=4, ramp=400, hidden=64, layers=2)
    losses = train(plan, tmp_path)
    assert len(losses) == plan.whole
    assert sum(losses[-4:]) / 4 < losses[0] - 1
    model, tokenizer = evaluate.load(tmp_path)
    assert next(model.parameters()).dtype is torch.float32
    assert tokenizer.get_vocab_size() == model.config.vocab_size == 1024
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8")


def test_batches_come_out_the_same_and_hold_little_padding(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(evaluate.MODEL_DIR / "tokenizer.json"))
    source = Batches(tokenizer.to_str(), seed=1, tokens=4096, ramp=100)
    first, again = (source.chunk(tokenizer, 3, 1.0) for _ in range(2))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert all(ids.numel() <= 4096 for ids, _ in first)
    padding = sum(int((ids == 0).sum()) for ids, _ in first)
    assert padding < 0.1 * sum(ids.numel() for ids, _ in first)


def test_the_rate_warms_up_stays_and_falls_to_nothing_in_each_course() -> None:
    plan = Plan()
    rates = [plan.at(step) for step in range(plan.whole)]
    first, second = rates[: plan.steps], rates[plan.steps :]
    assert first[0] < first[plan.warmup] == max(first) == plan.rate
    assert first[-1] < 0.01 * plan.rate
    assert second[0] < max(second) <= plan.second_rate and second[-1] < 0.01 * plan.second_rate


def test_a_run_taken_up_between_the_courses_goes_on_as_if_it_had_never_stopped() -> None:
    plan = Plan(steps=2, more=2, tokens=1024)
    tokenizer = Tokenizer.from_file(str(evaluate.MODEL_DIR / "tokenizer.json"))
    whole = list(batches(plan, tokenizer, 0))
    rest = list(batches(plan, tokenizer, 2))
    assert len(whole) == 4 and len(rest) == 2
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[2:], rest, strict=True))
