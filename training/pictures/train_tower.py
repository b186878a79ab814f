"""Trains the vision tower without the text model: first with linear probes, then to write soft words.

    python -m training.pictures.train_tower --out FILE
    python -m training.pictures.train_tower --out FILE2 --start FILE --words TABLE

The run writes its whole state to the file and continues from it if it exists.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from training.muon import Muon
from training.pictures.picture_batches import LABEL_SIZES, UNKNOWN, PictureBatches, label_scenes
from training.pictures.soft_words import DIGIT_ROLE, SoftWords, index_soft_tokens, load_words, map_cells
from training.pictures.tower import MERGE, build_tower, encode_pictures

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TowerPlan:
    """Everything that the tower's training depends on. The rate warms up, stays constant and falls to 0."""

    seed: int = 7
    hidden: int = 192
    steps: int = 2400
    batch: int = 64
    rate: float = 4e-3
    decay: float = 0.7
    """Share of the steps, at the end, over which the rate falls to 0."""
    warmup: int = 60
    distance: float = 0.25
    """Mean squared distance from a state, in units of the table's spread, that costs one nat among its neighbours."""
    digit_weight: float = 4.0
    """Weight of the soft tokens that tell the digit, the hardest thing to see. That of the others is 1."""
    same: float = 0.1
    """Mean squared distance below which two states are the same word: "b" is that of "blue" and that of "black"."""

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step."""
        return self.rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


class ProbedTower(nn.Module):
    """The tower and one linear probe for each label, on the mean of a picture's soft tokens."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.tower = build_tower(hidden)
        self.probes = nn.ModuleDict({name: nn.Linear(hidden, size) for name, size in LABEL_SIZES.items()})

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the logits of each label, [batch, values], and the soft tokens, [batch, tokens, hidden]."""
        soft_tokens = encode_pictures(self.tower, patches, *grid)[0]
        mean = soft_tokens.mean(1)
        return {name: probe(mean) for name, probe in self.probes.items()}, soft_tokens


def build_optimizers(model: ProbedTower) -> list[torch.optim.Optimizer]:
    """Returns Muon for the tower's matrices and AdamW for positions, norms, biases and probes."""
    tower: Any = model.tower
    matrices = [parameter for parameter in tower.parameters() if parameter.ndim == 2]
    matrices = [parameter for parameter in matrices if parameter is not tower.pos_embed.weight]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.01)]


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Sets the learning rate of every group: that of Muon, and half of it for AdamW."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate if isinstance(optimizer, Muon) else rate / 2


def compute_word_loss(
    plan: TowerPlan, soft_tokens: Tensor, states: Tensor, grid: tuple[int, int], targets: Tensor
) -> tuple[Tensor, float]:
    """Returns the loss of soft tokens that should be states of a table, and the share of pictures without an error.

    The loss is the mean squared distance to the right state, and the cross-entropy of choosing its word among all of
    the table. `states` is the table in units of its spread, `targets` the right indices, [batch, tokens].
    """
    cells = torch.tensor(map_cells(grid[0] // MERGE, grid[1] // MERGE))
    is_same = torch.cdist(states, states).square() / states.shape[1] < plan.same
    squares = torch.cdist(soft_tokens, states[None]).square() / states.shape[1]
    shares = (-squares / plan.distance).log_softmax(-1).masked_fill(~is_same[targets], -torch.inf)
    weights = torch.where(cells == DIGIT_ROLE, plan.digit_weight, 1.0)
    choice = -(shares.logsumexp(-1) * weights).mean()
    is_right = is_same[targets, squares.argmin(-1)].all(1)
    return (soft_tokens - states[targets]).square().mean() + choice, float(is_right.float().mean())


def train_tower(
    plan: TowerPlan, out: Path, stop: int | None = None, start: Path | None = None, words: SoftWords | None = None
) -> ProbedTower:
    """Runs the plan, or continues the run saved in `out`, up to step `stop`, and returns the model.

    `start` is the state file of an earlier run whose weights are taken. With `words`, soft tokens are learned, and the
    labels are not.
    """
    torch.manual_seed(plan.seed)
    model = ProbedTower(plan.hidden)
    if start:
        load_probed(model, start)
    states = None if words is None else (words.table - words.mean) / words.spread
    optimizers, first = build_optimizers(model), 0
    if out.exists():
        first = load_state(out, model, optimizers)
    source = DataLoader(PictureBatches(plan.seed, plan.batch, first), batch_size=None, num_workers=1, prefetch_factor=8)
    scores: list[dict[str, float]] = []
    begun = time.process_time()
    for step, (patches, grid, scenes) in zip(range(first, stop or plan.steps), source, strict=False):
        labels = label_scenes(scenes)
        logits, soft_tokens = model(patches, grid)
        losses = [cross_entropy(logits[name], target, ignore_index=UNKNOWN) for name, target in labels.items()]
        scores.append({name: score_label(logits[name], target) for name, target in labels.items()})
        if states is not None:
            targets = index_soft_tokens(scenes, grid[0] // MERGE, grid[1] // MERGE)
            loss, share = compute_word_loss(plan, soft_tokens, states, grid, targets)
            losses, scores[-1] = [loss], {"words": share, "loss": loss.item()}
        torch.autograd.backward(torch.stack(losses).sum())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        set_rate(optimizers, plan.learning_rate(step))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0 or step + 1 == (stop or plan.steps):
            means = {name: sum(row[name] for row in scores[-50:]) / len(scores[-50:]) for name in scores[-1]}
            shown = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
            log.info("step %d, %s, %.0f s of CPU", step + 1, shown, time.process_time() - begun)
            save_state(out, model, optimizers, step + 1)
    return model


def load_probed(model: ProbedTower, start: Path) -> None:
    """Loads the tower of an earlier run. Its last matrix is cleared, since it served the probes."""
    model.load_state_dict(torch.load(start, weights_only=True)["model"])
    tower: Any = model.tower
    nn.init.zeros_(tower.merger.linear_fc2.weight)
    nn.init.zeros_(tower.merger.linear_fc2.bias)


def score_label(logits: Tensor, target: Tensor) -> float:
    """Returns the share of right answers among the pictures that have this label."""
    has_label = target != UNKNOWN
    return float((logits.argmax(-1) == target)[has_label].float().mean()) if has_label.any() else 1.0


def save_state(out: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Writes weights, optimizers and the number of steps done, through a temporary file."""
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
    torch.save(state, out.with_suffix(".partial"))
    out.with_suffix(".partial").replace(out)


def load_state(out: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    """Loads what `save_state` wrote and returns the number of steps done."""
    state = torch.load(out, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    steps: int = state["step"]
    return steps


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the embedded model's vision tower.")
    parser.add_argument("--out", type=Path, required=True, help="file of the run's state")
    parser.add_argument("--seed", type=int, default=TowerPlan.seed)
    parser.add_argument("--steps", type=int, default=TowerPlan.steps)
    parser.add_argument("--rate", type=float, default=TowerPlan.rate)
    parser.add_argument("--start", type=Path, help="state file of an earlier run to take the weights from")
    parser.add_argument("--words", type=Path, help="table of train_words; its states are learned as soft tokens")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    plan = TowerPlan(options.seed, steps=options.steps, rate=options.rate)
    train_tower(plan, options.out, None, options.start, load_words(options.words) if options.words else None)


if __name__ == "__main__":
    main()
