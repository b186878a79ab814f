"""Trains the embedded model from nothing: tokenizer, weights and chat template, by one command and one seed.

    python -m antiphon.engine.embedded.train

Weights, gradients and optimizers are fp32; where the processor multiplies bf16 natively, the forward pass is autocast
to it. The weights are saved in bf16.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from antiphon.engine.embedded import MODEL_DIR, tokenizer
from antiphon.engine.embedded.batches import Batch, TrainingBatches
from antiphon.engine.embedded.muon import Muon

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingCourse:
    """One part of the training. The rate warms up, stays, and falls to nothing over the last `decay` of the steps.

    `keep`: how much of the weights that it began with is left in those that it ends with, which are the mean of both:
    what one course learns at the cost of another, their mean often knows both.
    """

    name: str
    steps: int
    rate: float
    decay: float = 1.0
    ramp: int = 1
    warmup: int = 100
    keep: float = 0.0

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


COURSES = (
    TrainingCourse("everything", 4000, 3e-3, decay=0.4, ramp=300),
    TrainingCourse("choosing", 1500, 1.5e-3),
    TrainingCourse("telling apart", 2800, 3e-3, decay=0.5),
    TrainingCourse("crowded", 2600, 3e-3, decay=0.5, keep=0.4),
)


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run is: everything that its result depends on. A course begins with what the last one saved."""

    courses: tuple[TrainingCourse, ...] = COURSES
    seed: int = 7
    texts: int = 4000
    """So many dialogues teach the tokenizer."""
    tokens: int = 6144
    hidden: int = 192
    layers: int = 6


def build_config(plan: TrainingPlan, vocabulary: int) -> Qwen3Config:
    """The architecture: Qwen3, small."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=plan.hidden,
        intermediate_size=plan.hidden * 8 // 3,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.hidden // 32,
        num_key_value_heads=plan.hidden // 64,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )


def build_optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices within the layers, AdamW for embeddings and norms. Each step sets their rate."""
    inner = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    return [Muon(inner, lr=0.0), torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.01)]


def compute_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the positions to learn; logits are made for these only."""
    ids, mask = (part.to(model.device) for part in batch)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = mask[:, 1:]
    return cross_entropy(model.lm_head(hidden[wanted]), ids[:, 1:][wanted])


def save_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the weights in bf16, beside the configuration."""
    copy: Any = Qwen3ForCausalLM(model.config)
    copy.to(torch.bfloat16).load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig.from_dict({"do_sample": False, "eos_token_id": 2, "pad_token_id": 0})
    copy.save_pretrained(folder)


def load_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Take the weights that were saved in a folder."""
    saved: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(saved.state_dict())


def prepare_model(plan: TrainingPlan, out: Path) -> tuple[Qwen3ForCausalLM, Tokenizer]:
    """An untrained model and its tokenizer, which is written to `out`."""
    torch.manual_seed(plan.seed)
    out.mkdir(parents=True, exist_ok=True)
    learned = tokenizer.build_tokenizer(plan.seed, plan.texts)
    tokenizer.save_tokenizer(learned, out)
    model: Any = Qwen3ForCausalLM(build_config(plan, learned.get_vocab_size()))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").train(), learned


def train_model(plan: TrainingPlan, out: Path, begun: Path | None = None) -> list[float]:
    """Run the plan's courses, leave the model in `out`, return each step's loss; `begun`: a model to go on from."""
    model, learned = prepare_model(plan, out)
    log.info("%s parameters", sum(p.numel() for p in model.parameters()))
    losses: list[float] = []
    for course in plan.courses:
        if begun:
            load_weights(model, begun)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        losses += run_course(model, plan, course, learned)
        model.load_state_dict(
            {name: value.lerp(before[name], course.keep) for name, value in model.state_dict().items()}
        )
        save_weights(model, out)
        begun = out
    return losses


def run_course(model: Qwen3ForCausalLM, plan: TrainingPlan, course: TrainingCourse, learned: Tokenizer) -> list[float]:
    """One course, with optimizers of its own; each step's loss."""
    chosen, seen, began = build_optimizers(model), 0, time.monotonic()
    losses: list[float] = []
    for step, batch in enumerate(course_batches(plan, course, learned)):
        losses.append(train_step(model, chosen, batch, course.learning_rate(step)))
        seen += batch[0].numel()
        if step % 25 == 0 or step == course.steps - 1:
            took, recent = time.monotonic() - began, sum(losses[-25:]) / len(losses[-25:])
            words = "%s: step %d loss %.4f %.2fM tokens %.0f s %.0f/s"
            log.info(words, course.name, step, recent, seen / 1e6, took, seen / took)
    return losses


def course_batches(plan: TrainingPlan, course: TrainingCourse, learned: Tokenizer) -> Iterator[Batch]:
    """The batches of a course, as many as it has steps."""
    source = TrainingBatches(learned.to_str(), plan.seed, plan.tokens, course.ramp, course=course.name)
    return islice(DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=32), course.steps)


def train_step(model: Qwen3ForCausalLM, chosen: list[torch.optim.Optimizer], batch: Batch, rate: float) -> float:
    """One step of learning; returns its loss."""
    device = model.device.type
    native = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=native):
        loss = compute_loss(model, batch)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for one in chosen:
        for group in one.param_groups:
            group["lr"] = rate
        one.step()
        one.zero_grad(set_to_none=True)
    return loss.item()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--seed", type=int, default=TrainingPlan.seed)
    names = [course.name for course in COURSES]
    parser.add_argument("--from", type=Path, dest="begun", help="a model to go on from")
    parser.add_argument("--course", choices=names, help="the first course to run: needs --from, but for the first")
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of a tiny model, to show that the command works"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.smoke:
        courses = (TrainingCourse("everything", 30, 3e-3, warmup=5), TrainingCourse("choosing", 5, 1.5e-3, warmup=5))
        plan = TrainingPlan(courses, options.seed, tokens=2048, hidden=64, layers=2)
    else:
        plan = TrainingPlan(COURSES[names.index(options.course) if options.course else 0 :], options.seed)
    train_model(plan, options.out, options.begun)


if __name__ == "__main__":
    main()
