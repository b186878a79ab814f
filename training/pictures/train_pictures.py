"""Trains the whole model to describe pictures: first the tower against a frozen text model, then both.

    python -m training.pictures.train_pictures --from FOLDER --out FOLDER --state FILE

While the text model is frozen, its answers to prompts without pictures stay the same to the last bit. When both are
trained, every step also learns a batch of an earlier course. The state file lets a run continue.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen3VLForConditionalGeneration

from training import chat, generator
from training.batches import Batch, TrainingBatches, pad_rows
from training.muon import Muon
from training.pictures.convert import VISION_TOKENS, save_model
from training.pictures.drawing import DIGIT_SHARE, OTHER_SHARE, Scene, draw_picture
from training.pictures.picture_batches import GRIDS, SQUARE, SQUARE_SHARE, STRIPS
from training.pictures.picture_dialogues import PictureDialogue, make_picture_dialogue
from training.pictures.tower import MERGE, PATCH, cut_patches, encode_pictures
from training.pictures.train_tower import load_state, save_state, set_rate
from training.train import cast_forward

log = logging.getLogger(__name__)

DIALOGUES_PER_CHUNK = 128
"""Number of dialogues that are drawn and sorted by length together. All their pictures have one size."""
STRIPS_PER_CHUNK = 32
"""The same number for pictures that are a strip."""
BLANK_STRIP_SHARE = 0.5
"""Share of plain grounds among the strips."""
TextBatch = tuple[Batch, Tensor, tuple[int, int], list[Scene]]
"""Token ids with their loss mask, the patches of all pictures in order, rows and columns of patches, and the scenes."""


@dataclass(frozen=True)
class PicturePlan:
    """Everything that one run depends on."""

    seed: int = 7
    steps: int = 1200
    tokens: int = 4096
    """Maximum number of tokens in a batch, padding included."""
    surroundings: float = 0.1
    """Share of dialogues with what clients send around a request: tools and system texts. They are long."""
    strips: float = 0.0
    """Share of chunks whose pictures are many times as wide as high, or as high as wide."""
    old_tokens: int | None = None
    """Maximum number of tokens in a batch of an earlier course; by default the same as for the pictures."""
    picture_weight: float = 1.0
    """Weight of the pictures' loss beside that of an earlier course, which is 1."""
    keep: float = 0.0
    """Weight of the initial weights in the final mean of initial and trained weights, from 0 to 1."""
    rate: float = 2e-3
    decay: float = 0.7
    warmup: int = 40

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step."""
        return self.rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


def encode_dialogue(tokenizer: Tokenizer, example: PictureDialogue, soft_tokens: int) -> tuple[list[int], list[bool]]:
    """Returns token ids and loss mask, with every picture's placeholder repeated `soft_tokens` times.

    Only what follows the last picture is learned.
    """
    soft = tokenizer.token_to_id(VISION_TOKENS[1])
    ids, mask = chat.encode_dialogue(tokenizer, example.dialogue)
    last = len(ids) - 1 - ids[::-1].index(soft) if soft in ids else -1
    mask = [learned and n > last for n, learned in enumerate(mask)]
    counts = [soft_tokens if token == soft else 1 for token in ids]
    return [t for t, n in zip(ids, counts, strict=True) for _ in range(n)], [
        learned for learned, n in zip(mask, counts, strict=True) for _ in range(n)
    ]


class PictureDialogues(IterableDataset[TextBatch]):
    """Endless stream of batches of dialogues with pictures, from chunk number `first` on."""

    def __init__(
        self, tokenizer: str, seed: int, tokens: int, surroundings: float, first: int = 0, strips: float = 0.0
    ) -> None:
        self.tokenizer, self.seed, self.tokens = tokenizer, seed, tokens
        self.surroundings, self.first, self.strips = surroundings, first, strips

    def build_chunk(self, tokenizer: Tokenizer, number: int) -> list[TextBatch]:
        """Builds the batches of one chunk, in random order."""
        random = np.random.default_rng([self.seed, number])
        grid = SQUARE if random.random() < SQUARE_SHARE else GRIDS[random.integers(len(GRIDS))]
        digits, others = DIGIT_SHARE, OTHER_SHARE
        if random.random() < self.strips:
            grid, digits, others = STRIPS[random.integers(len(STRIPS))], 0.0, 1.0
            grid = grid if random.random() < 0.7 else (grid[1], grid[0])
        count = grid[0] * grid[1] // MERGE**2
        examples = [
            make_picture_dialogue(f"{self.seed} pictures {number} {n}", self.surroundings, digits=digits, others=others)
            for n in range(DIALOGUES_PER_CHUNK if others < 1 else STRIPS_PER_CHUNK)
        ]
        rows = [(encode_dialogue(tokenizer, example, count), example) for example in examples]
        rows.sort(key=lambda row: len(row[0][0]))
        groups: list[list[Any]] = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * len(row[0][0]) > self.tokens:
                groups.append([])
            groups[-1].append(row)
        random.shuffle(groups)
        return [self._finish_batch(random, group, grid) for group in groups if group]

    def _finish_batch(self, random: np.random.Generator, group: list[Any], grid: tuple[int, int]) -> TextBatch:
        blank = BLANK_STRIP_SHARE if grid in STRIPS or grid[::-1] in STRIPS else 0.0
        scenes = [scene for _, example in group for scene in example.scenes]
        pictures = np.stack([draw_picture(random, scene, grid[0] * PATCH, grid[1] * PATCH, blank) for scene in scenes])
        return pad_rows([row for row, _ in group]), cut_patches(pictures), grid, scenes

    def __iter__(self) -> Iterator[TextBatch]:
        """Yields the batches of one chunk after another, without end."""
        torch.set_num_threads(1)
        tokenizer, number = Tokenizer.from_str(self.tokenizer), self.first
        while True:
            yield from self.build_chunk(tokenizer, number)
            number += 1


def compute_loss(model: Any, rows: Tensor, batch: TextBatch, features: list[Tensor]) -> tuple[Tensor, float]:
    """Returns the mean cross-entropy over the positions to learn, and the share of rows predicted exactly.

    `rows` are the vision tokens' rows of the embedding; they are no targets. `features` are the soft tokens and the
    deepstack features, if any, each [pictures, tokens, width].
    """
    (ids, mask), patches, grid, _ = batch
    ids, mask = ids[:, :-1], mask[:, 1:]
    targets = batch[0][0][:, 1:][mask]
    language, soft = model.model.language_model, model.config.image_token_id
    table = language.embed_tokens.weight[: -len(rows)]
    is_soft = ids == soft
    embedded = embedding(ids, torch.cat([table, rows]))
    embedded = embedded.masked_scatter(is_soft[..., None], features[0].to(embedded.dtype))
    positions, _ = model.model.get_rope_index(
        ids, mm_token_type_ids=is_soft.int(), image_grid_thw=torch.tensor([[1, *grid]] * len(patches))
    )
    hidden = language(
        inputs_embeds=embedded,
        position_ids=positions,
        use_cache=False,
        visual_pos_masks=is_soft,
        deepstack_visual_embeds=[feature.flatten(0, 1) for feature in features[1:]] or None,
    ).last_hidden_state
    logits = hidden[mask] @ table.T
    wrong = torch.zeros(mask.shape, dtype=torch.bool)
    wrong[mask] = logits.argmax(-1) != targets
    return cross_entropy(logits, targets), 1 - float(wrong.any(1).float().mean())


def build_optimizers(model: Any, rows: Tensor) -> list[torch.optim.Optimizer]:
    """Returns Muon for the tower's matrices and AdamW for the remaining trained parameters."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tables = {id(model.model.visual.pos_embed.weight), id(model.model.language_model.embed_tokens.weight)}
    matrices = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in tables]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in trained if id(parameter) not in chosen]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW([*others, rows], betas=(0.9, 0.95), weight_decay=0.01)]


class PictureRun:
    """One run: the model, the vision tokens' rows, the optimizers and the number of steps done."""

    def __init__(self, plan: PicturePlan, model: Any, text_tokenizer: Tokenizer, frozen: str, state: Path) -> None:
        self.plan, self.model, self.tokenizer, self.state = plan, model, text_tokenizer, state
        self.step = 0
        table = model.model.language_model.embed_tokens.weight
        self.rows = table[-len(VISION_TOKENS) :].detach().clone().requires_grad_(frozen != "text")
        model.model.language_model.requires_grad_(frozen != "text")
        model.model.visual.requires_grad_(frozen != "tower")
        self.initial_weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.optimizers = build_optimizers(model, self.rows)
        if state.exists():
            self.step = load_state(state, model, self.optimizers)
            with torch.no_grad():
                self.rows.copy_(table[-len(VISION_TOKENS) :])

    def save(self) -> None:
        """Writes the state, with the rows in the model's table."""
        with torch.no_grad():
            self.model.model.language_model.embed_tokens.weight[-len(VISION_TOKENS) :] = self.rows
        save_state(self.state, self.model, self.optimizers, self.step)

    def train(self, old_course: str | None = None) -> None:
        """Runs the plan's remaining steps. With `old_course`, each step also learns one of its batches."""
        plan = self.plan
        source = PictureDialogues(
            self.tokenizer.to_str(), plan.seed, plan.tokens, plan.surroundings, 1000 * self.step, plan.strips
        )
        batches = DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=8)
        old_batches = self._load_old_batches(old_course) if old_course else repeat(None)
        losses, old_losses, exact, start = [], [0.0], [], time.process_time()
        steps = range(self.step, self.plan.steps)
        for step, batch, old_batch in zip(steps, batches, old_batches, strict=False):
            with cast_forward("cpu"):
                features = encode_pictures(self.model.model.visual, batch[1], *batch[2])
                loss, share = compute_loss(self.model, self.rows, batch, features)
            torch.autograd.backward(plan.picture_weight * loss)
            if old_batch is not None:
                with cast_forward("cpu"):
                    old_loss = compute_text_loss(self.model, old_batch)
                torch.autograd.backward(old_loss)
                old_losses.append(old_loss.item())
            self._update(step)
            losses.append(loss.item())
            exact.append(share)
            if (step + 1) % 25 == 0 or step + 1 == self.plan.steps:
                message = "step %d, loss %.4f, exact %.3f, old course's loss %.4f, %.0f s of CPU"
                means = [np.mean(values[-25:]) for values in (losses, exact, old_losses)]
                log.info(message, step + 1, *means, time.process_time() - start)
                self.save()

    def blend_weights(self) -> None:
        """Replaces the weights by the mean of those before and after the run, as `PicturePlan.keep` says."""
        weights = self.model.state_dict()
        self.model.load_state_dict(
            {name: value.lerp(self.initial_weights[name], self.plan.keep) for name, value in weights.items()}
        )

    def _load_old_batches(self, course: str) -> Iterator[Batch]:
        tokens = self.plan.old_tokens or self.plan.tokens
        source = TrainingBatches(self.tokenizer.to_str(), self.plan.seed + self.step, tokens, course=course)
        return iter(DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=8))

    def _update(self, step: int) -> None:
        trained = [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, 1.0)
        set_rate(self.optimizers, self.plan.learning_rate(step))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step = step + 1


def compute_text_loss(model: Any, batch: Batch) -> Tensor:
    """Returns the mean cross-entropy of a batch without pictures, over the positions to learn."""
    ids, mask = batch
    language = model.model.language_model
    hidden = language(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    learned, table = mask[:, 1:], language.embed_tokens.weight[: -len(VISION_TOKENS)]
    return cross_entropy(hidden[learned] @ table.T, ids[:, 1:][learned])


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the embedded model to describe pictures.")
    parser.add_argument("--from", type=Path, dest="source", required=True, help="folder of a qwen3_vl model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--state", type=Path, required=True, help="file of the run's state")
    parser.add_argument("--freeze", choices=["text", "tower"], default="", help="part that is not trained")
    parser.add_argument("--old-course", choices=list(generator.COURSES), help="course to repeat beside the pictures")
    parser.add_argument("--seed", type=int, default=PicturePlan.seed)
    parser.add_argument("--steps", type=int, default=PicturePlan.steps)
    parser.add_argument("--rate", type=float, default=PicturePlan.rate)
    parser.add_argument("--tokens", type=int, default=PicturePlan.tokens)
    parser.add_argument("--old-tokens", type=int, help="tokens in a batch of the old course")
    parser.add_argument("--surroundings", type=float, default=PicturePlan.surroundings)
    parser.add_argument("--strips", type=float, default=0.0, help="share of pictures that are a strip")
    parser.add_argument("--picture-weight", type=float, default=PicturePlan.picture_weight)
    parser.add_argument("--keep", type=float, default=0.0, help="weight of the initial weights in the mean")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    names = ("seed", "steps", "tokens", "old_tokens", "surroundings", "strips", "picture_weight", "keep", "rate")
    plan = PicturePlan(**{name: getattr(options, name) for name in names})
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(options.source, dtype=torch.float32)
    text_tokenizer = Tokenizer.from_file(str(options.source / "tokenizer.json"))
    torch.manual_seed(plan.seed)
    run = PictureRun(plan, model.train(), text_tokenizer, options.freeze, options.state)
    run.train(options.old_course)
    run.save()
    run.blend_weights()
    options.out.mkdir(parents=True, exist_ok=True)
    save_model(model, text_tokenizer, options.out)


if __name__ == "__main__":
    main()
