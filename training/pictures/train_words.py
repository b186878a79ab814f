"""Trains the table of soft words, and the embeddings of the tokens around a picture, through the frozen text model.

python -m training.pictures.train_words --from FOLDER --out FILE
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from training.pictures.convert import VISION_TOKENS, add_tower, extend_tokenizer, load_text_model
from training.pictures.soft_words import SoftWords, build_table, index_soft_tokens, save_words
from training.pictures.tower import MERGE
from training.pictures.train_pictures import PictureDialogues, PicturePlan, TextBatch, compute_loss

log = logging.getLogger(__name__)


def train_words(plan: PicturePlan, text_model: Any, text_tokenizer: Tokenizer, noise: float = 0.0) -> SoftWords:
    """Returns the trained table and rows. The table moves in units of its own spread.

    `noise` is the standard deviation, in the same units, of what is added to each soft token: the tower does not write
    the states exactly.
    """
    torch.manual_seed(plan.seed)
    model, known = add_tower(text_model), extend_tokenizer(text_tokenizer)
    model.requires_grad_(False)
    start = build_table(text_model, text_tokenizer).detach()
    mean, spread = start.mean(0), start.std(0)
    change = torch.zeros_like(start).requires_grad_()
    rows = model.model.language_model.embed_tokens.weight[-len(VISION_TOKENS) :].clone().requires_grad_()
    optimizer = torch.optim.AdamW([change, rows], betas=(0.9, 0.95), weight_decay=0.0)
    source = PictureDialogues(known.to_str(), plan.seed, plan.tokens, plan.surroundings, strips=plan.strips)
    batches = DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=8)
    results, begun = [], time.process_time()
    for step, batch in zip(range(plan.steps), batches, strict=False):
        states = pick_states(start + change * spread, batch)
        states = states + noise * spread * torch.randn_like(states)
        loss, share = compute_loss(model, rows, batch, [states])
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_([change, rows], 1.0)
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        results.append((loss.item(), share))
        if (step + 1) % 10 == 0:
            means = [sum(column) / 10 for column in zip(*results[-10:], strict=True)]
            log.info("step %d, loss %.4f, exact %.3f, %.0f s of CPU", step + 1, *means, time.process_time() - begun)
    return SoftWords((start + change * spread).detach(), rows.detach(), mean, spread)


def pick_states(table: Tensor, batch: TextBatch) -> Tensor:
    """Returns the soft tokens of a batch's pictures, [pictures, tokens, width]."""
    _, _, (height, width), scenes = batch
    return table[index_soft_tokens(scenes, height // MERGE, width // MERGE)]


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the soft words of pictures through the text model.")
    parser.add_argument("--from", type=Path, dest="source", required=True, help="folder of a qwen3 model")
    parser.add_argument("--out", type=Path, required=True, help="file of the table")
    parser.add_argument("--seed", type=int, default=PicturePlan.seed)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--surroundings", type=float, default=PicturePlan.surroundings)
    parser.add_argument("--strips", type=float, default=0.0, help="share of pictures that are a strip")
    parser.add_argument("--noise", type=float, default=0.0, help="added to the soft tokens, in spreads")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    names = ("seed", "steps", "tokens", "surroundings", "strips", "rate")
    plan = PicturePlan(**{name: getattr(options, name) for name in names}, warmup=10)
    save_words(train_words(plan, *load_text_model(options.source), noise=options.noise), options.out)


if __name__ == "__main__":
    main()
