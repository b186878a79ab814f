"""Teaches a model that sees new skills, and keeps its earlier ones by distillation.

    python -m training.pictures.train_skills --from FOLDER --before FOLDER --out FOLDER --state FILE

Each step learns a batch of the new skills, in every second step one of pictures, and a batch of an earlier course.
From the last one, the model learns the distribution of the model before the new skills, token by token, and not the
one right answer: its gradient is zero where nothing was unlearned.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from torch.utils.data import DataLoader, IterableDataset

from training import generator
from training.batches import Batch, TrainingBatches
from training.evaluate import load_model
from training.pictures import train_pictures
from training.pictures.convert import VISION_TOKENS, save_model
from training.pictures.tower import encode_pictures
from training.pictures.train_pictures import PictureDialogues, PicturePlan, PictureRun
from training.pictures.train_tower import set_rate
from training.train import cast_forward

log = logging.getLogger(__name__)

OLD_WEIGHT, NEW_WEIGHT, PICTURE_WEIGHT = 3.0, 0.3, 0.3
"""Weights of the losses: a divergence, and two cross-entropies, which are far greater."""


@dataclass(frozen=True)
class SkillPlan:
    """Everything that one run depends on. Batches have at most so many tokens, padding included."""

    seed: int = 11
    steps: int = 230
    rate: float = 8e-4
    warmup: int = 30
    new_course: str = "first questions"
    new_tokens: int = 1280
    old_course: str = "patch"
    old_tokens: int = 2560
    picture_tokens: int = 1024
    surroundings: float = 0.15
    strips: float = 0.2

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step: it rises, then falls to 0."""
        return self.rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / self.steps)


def compute_logits(model: Any, batch: Batch) -> Tensor:
    """Returns the logits, in fp32, at the positions to learn of a batch without pictures."""
    ids, mask = batch
    language = model.model.language_model
    hidden = language(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[mask[:, 1:]]
    logits: Tensor = hidden @ language.embed_tokens.weight[: -len(VISION_TOKENS)].T
    return logits.float()


def compute_divergence(model: Any, before: Any, batch: Batch) -> Tensor:
    """Returns the mean divergence, over the positions to learn, of the model from that before the new skills."""
    with torch.no_grad():
        known = log_softmax(compute_logits(before, batch), -1)
    return kl_div(log_softmax(compute_logits(model, batch), -1), known, log_target=True, reduction="batchmean")


def load_batches(source: IterableDataset[Any]) -> Iterator[Any]:
    """Yields the batches of a source, which a process of its own makes."""
    return iter(DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=8))


def train_skills(plan: SkillPlan, run: PictureRun, before: Any) -> None:
    """Runs the plan's remaining steps, beside `before`, the frozen model before the new skills."""
    text = run.tokenizer.to_str()
    new = load_batches(TrainingBatches(text, plan.seed + run.step, plan.new_tokens, course=plan.new_course))
    old = load_batches(TrainingBatches(text, plan.seed + run.step, plan.old_tokens, course=plan.old_course))
    pictures = load_batches(
        PictureDialogues(text, plan.seed, plan.picture_tokens, plan.surroundings, 1000 * run.step, plan.strips)
    )
    trained = [p for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]]
    divergences, losses = [], []
    for step in range(run.step, plan.steps):
        with cast_forward("cpu"):
            divergence = compute_divergence(run.model, before, next(old))
            loss = train_pictures.compute_text_loss(run.model, next(new))
        torch.autograd.backward(OLD_WEIGHT * divergence + NEW_WEIGHT * loss)
        if step % 2 == 0:
            batch = next(pictures)
            with cast_forward("cpu"):
                features = encode_pictures(run.model.model.visual, batch[1], *batch[2])
                picture_loss, _ = train_pictures.compute_loss(run.model, run.rows, batch, features)
            torch.autograd.backward(PICTURE_WEIGHT * picture_loss)
        nn.utils.clip_grad_norm_(trained, 1.0)
        set_rate(run.optimizers, plan.learning_rate(step))
        for optimizer in run.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        run.step = step + 1
        divergences.append(divergence.item())
        losses.append(loss.item())
        if run.step % 25 == 0 or run.step == plan.steps:
            message = "step %d, divergence %.4f, loss of the new skills %.4f"
            log.info(message, run.step, np.mean(divergences[-25:]), np.mean(losses[-25:]))
            run.save()


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description="Teach the embedded model new skills.")
    parser.add_argument("--from", type=Path, dest="source", required=True, help="folder of the model to train")
    parser.add_argument("--before", type=Path, required=True, help="folder of the model whose skills are kept")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--state", type=Path, required=True, help="file of the run's state")
    parser.add_argument("--new-course", choices=list(generator.COURSES), default=SkillPlan.new_course)
    parser.add_argument("--old-course", choices=list(generator.COURSES), default=SkillPlan.old_course)
    parser.add_argument("--steps", type=int, default=SkillPlan.steps)
    parser.add_argument("--rate", type=float, default=SkillPlan.rate)
    parser.add_argument("--keep", type=float, default=0.0, help="weight of the model before in the final mean")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    names = ("new_course", "old_course", "steps", "rate")
    plan = SkillPlan(**{name: getattr(options, name) for name in names})
    model, before = (load_model(folder)[0] for folder in (options.source, options.before))
    tokenizer = Tokenizer.from_file(str(options.source / "tokenizer.json"))
    torch.manual_seed(plan.seed)
    run = PictureRun(PicturePlan(keep=options.keep), model.train(), tokenizer, "", options.state)
    run.initial_weights = before.state_dict()
    train_skills(plan, run, before.requires_grad_(False))
    run.blend_weights()
    options.out.mkdir(parents=True, exist_ok=True)
    save_model(model, tokenizer, options.out)


if __name__ == "__main__":
    main()
