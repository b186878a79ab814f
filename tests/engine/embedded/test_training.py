"""The training command, in small: what it writes loads, and what it learns shows in the loss."""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.embedded import evaluate
from engine.embedded.data import Batches
from engine.embedded.train import Plan, train


def test_a_short_training_learns_and_its_model_loads(tmp_path: Path) -> None:
    plan = Plan(steps=24, tokens=1024, warmup=4, ramp=400, hidden=64, layers=2)
    losses = train(plan, tmp_path)
    assert len(losses) == plan.steps
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


def test_the_rate_warms_up_stays_and_falls_to_nothing() -> None:
    plan = Plan()
    rates = [plan.at(step) for step in range(plan.steps)]
    assert rates[0] < rates[plan.warmup] == max(rates) == plan.rate
    assert rates[-1] < 0.01 * plan.rate
