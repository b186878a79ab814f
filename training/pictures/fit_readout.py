"""Fits the tower's last matrix to a table of soft words by least squares, in place of the one that training found.

    python -m training.pictures.fit_readout --tower FILE --words TABLE --out FILE2

The last layer is linear, so its best weights for given activations are found directly. They are better than what
gradient steps reach, and a table that was trained further or for another text model needs no new tower.
"""

from __future__ import annotations

import argparse
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.pictures.convert import read_tower
from training.pictures.picture_batches import PictureBatches
from training.pictures.soft_words import SoftWords, index_soft_tokens, load_words
from training.pictures.tower import MERGE, encode_pictures
from training.pictures.train_tower import ProbedTower

log = logging.getLogger(__name__)

BATCH_SIZE = 64


@torch.inference_mode()
def fit_readout(model: ProbedTower, words: SoftWords, seed: int, num_batches: int, ridge: float = 1.0) -> float:
    """Sets the weight and bias of the tower's last layer. Returns the mean squared error on later batches.

    `ridge` is added to the diagonal of the normal equations. The error is in units of the table's spread.
    """
    tower: Any = model.tower
    layer, states = tower.merger.linear_fc2, ((words.table - words.mean) / words.spread).double()
    inputs: list[Tensor] = []
    hook = tower.merger.act_fn.register_forward_hook(lambda _layer, _given, output: inputs.append(output))
    width = layer.in_features + 1
    squares, products = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, states.shape[1]).double()
    weight, errors = products, list[float]()
    num_tests = max(num_batches // 20, 1)
    for number, (patches, grid, scenes) in enumerate(islice(PictureBatches(seed, BATCH_SIZE), num_batches + num_tests)):
        inputs.clear()
        encode_pictures(tower, patches, *grid)
        hidden = inputs[-1].reshape(-1, width - 1).double()
        hidden = torch.cat([hidden, torch.ones(len(hidden), 1)], 1)
        targets = states[index_soft_tokens(scenes, grid[0] // MERGE, grid[1] // MERGE)].reshape(len(hidden), -1)
        if number < num_batches:
            squares += hidden.T @ hidden
            products += hidden.T @ targets
            continue
        if not errors:
            weight = torch.linalg.solve(squares + ridge * torch.eye(width, dtype=torch.float64), products)
        errors.append(float((hidden @ weight - targets).square().mean()))
    hook.remove()
    layer.weight.copy_(weight[:-1].T)
    layer.bias.copy_(weight[-1])
    return sum(errors) / len(errors)


def load_tower(path: Path, hidden: int) -> ProbedTower:
    """Returns the tower in a state file of `train_tower`, or in a model's folder, which has no probes."""
    model = ProbedTower(hidden)
    if path.is_dir():
        model.tower.load_state_dict(read_tower(path))
    else:
        model.load_state_dict(torch.load(path, weights_only=True)["model"])
    return model


def main() -> None:
    """Parses the command line and fits."""
    parser = argparse.ArgumentParser(description="Fit the tower's last matrix to a table of soft words.")
    parser.add_argument("--tower", type=Path, required=True, help="state file of train_tower, or a folder")
    parser.add_argument("--words", type=Path, required=True, help="table of train_words")
    parser.add_argument("--out", type=Path, required=True, help="file of the new state")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    words = load_words(options.words)
    model = load_tower(options.tower, words.table.shape[1])
    error = fit_readout(model, words, options.seed, options.batches)
    log.info("mean squared error %.4f", error)
    torch.save({"model": model.state_dict()}, options.out)


if __name__ == "__main__":
    main()
