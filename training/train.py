"""Trains the embedded model from scratch: one command and one seed produce tokenizer, weights and chat template.

    python -m training.train

Weights, gradients and optimizer states are fp32. On a CPU with native bf16 multiplication, and on a GPU, the forward
pass is autocast to bf16. The weights are saved in bf16.
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

from antiphon.engine.embedded import MODEL_DIR
from training import tokenizer
from training.batches import Batch, TrainingBatches
from training.muon import Muon

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingCourse:
    """One part of the training. The rate warms up, stays constant, and falls to 0 over the last part of the steps."""

    name: str
    """Key of the course in `generator.COURSES`."""
    steps: int
    rate: float
    """Peak learning rate."""
    decay: float = 1.0
    """Share of the steps, at the end of the course, over which the rate falls to 0."""
    ramp: int = 1
    """Number of batches over which dialogues grow from short to full size."""
    warmup: int = 100
    """Number of steps over which the rate rises to its peak."""
    tokens: int | None = None
    """Maximum number of tokens in a batch, padding included; by default the plan's."""
    keep: float = 0.0
    """Weight of the initial weights in the final mean of initial and trained weights, from 0 to 1.

    A course improves some skills at the cost of others; the mean often has both.
    """

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step."""
        return self.rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


COURSES = (
    TrainingCourse("everything", 4000, 3e-3, decay=0.4, ramp=300),
    TrainingCourse("choosing", 1500, 1.5e-3),
    TrainingCourse("telling apart", 2800, 3e-3, decay=0.5),
    TrainingCourse("crowded", 2600, 3e-3, decay=0.5, keep=0.4),
    TrainingCourse("sessions", 1500, 2.5e-3, decay=0.6, tokens=8192, keep=0.25),
    TrainingCourse("refinement", 650, 1.5e-3, tokens=8192),
    TrainingCourse("polish", 1100, 2e-3, decay=0.7, tokens=8192, keep=0.5),
    TrainingCourse("shell", 400, 1.5e-3, decay=0.6, warmup=20, tokens=4096, keep=0.2),
    TrainingCourse("patch", 1200, 1.5e-3, decay=0.6, warmup=20, tokens=4096, keep=0.12),
)


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that a training run's result depends on. Each course starts from the weights of the previous one."""

    courses: tuple[TrainingCourse, ...] = COURSES
    seed: int = 7
    texts: int = 4000
    """Number of dialogues that the tokenizer is trained on."""
    tokens: int = 6144
    """Maximum number of tokens in a batch, padding included, of a course that has none of its own."""
    hidden: int = 192
    layers: int = 6


def build_config(plan: TrainingPlan, vocabulary: int) -> Qwen3Config:
    """Returns the configuration of a small Qwen3."""
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
    """Returns Muon for the layers' matrices and AdamW for embeddings and norms. Each step sets their learning rate."""
    matrices = [param for param in model.model.layers.parameters() if param.ndim == 2]
    embeddings_and_norms = [
        param for name, param in model.named_parameters() if param.ndim != 2 or "layers" not in name
    ]
    return [Muon(matrices, lr=0.0), torch.optim.AdamW(embeddings_and_norms, betas=(0.9, 0.95), weight_decay=0.01)]


def compute_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Returns the mean cross-entropy over the positions to learn. Logits are computed only for these."""
    ids, mask = (tensor.to(model.device) for tensor in batch)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    loss_mask = mask[:, 1:]
    return cross_entropy(model.lm_head(hidden[loss_mask]), ids[:, 1:][loss_mask])


def save_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Writes the weights in bf16, with the model and generation configuration."""
    bf16_model: Any = Qwen3ForCausalLM(model.config)
    bf16_model.to(torch.bfloat16).load_state_dict(model.state_dict())
    bf16_model.generation_config = GenerationConfig.from_dict(
        {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0}
    )
    bf16_model.save_pretrained(folder)


def load_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Loads the weights saved in a folder into `model`."""
    model_on_disk: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(model_on_disk.state_dict())


def prepare_model(
    plan: TrainingPlan, out: Path, initial_folder: Path | None = None
) -> tuple[Qwen3ForCausalLM, Tokenizer]:
    """Returns an untrained model and its tokenizer, and writes the tokenizer to `out`.

    The tokenizer is that of `initial_folder`, whose weights are bound to it, or else newly trained.
    """
    torch.manual_seed(plan.seed)
    out.mkdir(parents=True, exist_ok=True)
    if initial_folder:
        new_tokenizer = Tokenizer.from_file(str(initial_folder / "tokenizer.json"))
    else:
        new_tokenizer = tokenizer.build_tokenizer(plan.seed, plan.texts)
    tokenizer.save_tokenizer(new_tokenizer, out)
    model: Any = Qwen3ForCausalLM(build_config(plan, new_tokenizer.get_vocab_size()))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").train(), new_tokenizer


def train_model(plan: TrainingPlan, out: Path, initial_folder: Path | None = None) -> list[float]:
    """Runs the plan's courses, saves the model in `out` and returns each step's loss.

    With `initial_folder`, the first course starts from the weights and the tokenizer in that folder.
    """
    model, new_tokenizer = prepare_model(plan, out, initial_folder)
    log.info("%s parameters", sum(p.numel() for p in model.parameters()))
    losses: list[float] = []
    for course in plan.courses:
        if initial_folder:
            load_weights(model, initial_folder)
        initial_weights = {name: value.clone() for name, value in model.state_dict().items()}
        losses += run_course(model, plan, course, new_tokenizer)
        model.load_state_dict(
            {name: value.lerp(initial_weights[name], course.keep) for name, value in model.state_dict().items()}
        )
        save_weights(model, out)
        initial_folder = out
    return losses


def run_course(
    model: Qwen3ForCausalLM, plan: TrainingPlan, course: TrainingCourse, tokenizer: Tokenizer
) -> list[float]:
    """Runs one course with new optimizers and returns each step's loss."""
    optimizers, token_count, start = build_optimizers(model), 0, time.monotonic()
    losses: list[float] = []
    for step, batch in enumerate(course_batches(plan, course, tokenizer)):
        losses.append(train_step(model, optimizers, batch, course.learning_rate(step)))
        token_count += batch[0].numel()
        if step % 25 == 0 or step == course.steps - 1:
            elapsed, mean_loss = time.monotonic() - start, sum(losses[-25:]) / len(losses[-25:])
            message = "%s: step %d, loss %.4f, %.2fM tokens, %.0f s, %.0f tokens/s"
            log.info(message, course.name, step, mean_loss, token_count / 1e6, elapsed, token_count / elapsed)
    return losses


def course_batches(plan: TrainingPlan, course: TrainingCourse, tokenizer: Tokenizer) -> Iterator[Batch]:
    """Yields the batches of a course, one per step."""
    source = TrainingBatches(
        tokenizer.to_str(), plan.seed, course.tokens or plan.tokens, course.ramp, course=course.name
    )
    return islice(DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=32), course.steps)


def cast_forward(device: str) -> torch.autocast:
    """Returns the context of a forward pass: in bf16 on a GPU, and on a CPU that multiplies bf16 natively."""
    has_bf16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.autocast(device, dtype=torch.bfloat16, enabled=has_bf16)


def train_step(model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], batch: Batch, rate: float) -> float:
    """Performs one training step and returns its loss."""
    with cast_forward(model.device.type):
        loss = compute_loss(model, batch)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--seed", type=int, default=TrainingPlan.seed)
    names = [course.name for course in COURSES]
    parser.add_argument("--from", type=Path, dest="begun", help="folder of a model to continue training")
    parser.add_argument("--course", choices=names, help="course to start with; any but the first needs --from")
    parser.add_argument(
        "--smoke", action="store_true", help="train a tiny model for a few steps, to check that the command works"
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
