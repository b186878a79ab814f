"""Trains the embedded model from nothing: tokenizer, weights and chat template, by one command and one seed.

    python -m engine.embedded.train

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

from engine.embedded import MODEL_DIR, tokenizer
from engine.embedded.data import PER_CHUNK, Batch, Batches

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What a training run is: everything that its result depends on.

    Two courses: `steps` of everything, then `more` in which tools are chosen by words that were never seen before.
    """

    steps: int = 4000
    more: int = 1500
    seed: int = 7
    tokens: int = 6144
    rate: float = 3e-3
    second_rate: float = 1.5e-3
    warmup: int = 100
    decay: float = 0.4
    ramp: int = 300
    hidden: int = 192
    layers: int = 6

    @property
    def whole(self) -> int:
        """The steps of both courses."""
        return self.steps + self.more

    def at(self, step: int) -> float:
        """The learning rate of a step: a warm-up, a plateau, a linear descent to nothing; then a second descent."""
        if step >= self.steps:
            return self.second_rate * min((step - self.steps + 1) / self.warmup, (self.whole - step) / self.more)
        left = (self.steps - step) / (self.decay * self.steps)
        return self.rate * min(1.0, (step + 1) / self.warmup, left)


def shape(plan: Plan, vocabulary: int) -> Qwen3Config:
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


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices within the layers, AdamW for embeddings and norms."""
    inner = [p for p in model.model.layers.parameters() if p.ndim == 2]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers" not in n]
    return [
        torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the positions to learn; logits are made for these only."""
    ids, mask = (part.to(model.device) for part in batch)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = mask[:, 1:]
    return cross_entropy(model.lm_head(hidden[wanted]), ids[:, 1:][wanted])


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write the weights in bf16, beside the configuration."""
    copy: Any = Qwen3ForCausalLM(model.config)
    copy.to(torch.bfloat16).load_state_dict(model.state_dict())
    copy.generation_config = GenerationConfig.from_dict({"do_sample": False, "eos_token_id": 2, "pad_token_id": 0})
    copy.save_pretrained(folder)


def checkpoint(model: Qwen3ForCausalLM, chosen: list[torch.optim.Optimizer], step: int, file: Path) -> None:
    """Write all that a later run needs to take this one up."""
    states = [one.state_dict() for one in chosen]
    torch.save({"step": step, "model": model.state_dict(), "chosen": states}, file)


def prepare(plan: Plan, out: Path) -> tuple[Qwen3ForCausalLM, Tokenizer]:
    """An untrained model and its tokenizer, which is written to `out`."""
    torch.manual_seed(plan.seed)
    out.mkdir(parents=True, exist_ok=True)
    learned = tokenizer.build(plan.seed)
    tokenizer.save(learned, out)
    model: Any = Qwen3ForCausalLM(shape(plan, learned.get_vocab_size()))
    return model.to("cuda" if torch.cuda.is_available() else "cpu").train(), learned


def train(plan: Plan, out: Path, kept: Path | None = None, every: int = 50) -> list[float]:
    """Run the plan, leave the model in `out`, return each step's loss; with `kept`, keep and take up the run there."""
    model, learned = prepare(plan, out)
    chosen, seen, began = optimizers(model), 0, time.monotonic()
    losses: list[float] = []
    first = restore(model, chosen, kept) if kept and kept.exists() else 0
    log.info("%s parameters", sum(p.numel() for p in model.parameters()))
    for step, batch in enumerate(batches(plan, learned, first), first):
        losses.append(advance(model, chosen, batch, plan.at(step)))
        seen += batch[0].numel()
        if step % 25 == 0 or step == plan.whole - 1:
            took, recent = time.monotonic() - began, sum(losses[-25:]) / len(losses[-25:])
            log.info("step %d loss %.4f %.2fM tokens %.0f s %.0f/s", step, recent, seen / 1e6, took, seen / took)
        if kept and (step + 1) % every == 0:
            save(model, out)
            checkpoint(model, chosen, step + 1, kept)
    save(model, out)
    return losses


def batches(plan: Plan, learned: Tokenizer, first: int) -> Iterator[Batch]:
    """The batches of both courses from a step on, as many as the plan has steps."""
    for choosing, begin, end in ((False, 0, plan.steps), (True, plan.steps, plan.whole)):
        done = max(first - begin, 0)
        if begin + done < end:
            ramp = 1 if choosing else plan.ramp
            source = Batches(learned.to_str(), plan.seed, plan.tokens, ramp, done // PER_CHUNK, choosing=choosing)
            loader = DataLoader(source, batch_size=None, num_workers=1, prefetch_factor=32)
            yield from islice(loader, end - begin - done)


def advance(model: Qwen3ForCausalLM, chosen: list[torch.optim.Optimizer], batch: Batch, rate: float) -> float:
    """One step of learning; returns its loss."""
    device = model.device.type
    native = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=native):
        loss = loss_of(model, batch)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for one in chosen:
        for group in one.param_groups:
            group["lr"] = rate
        one.step()
        one.zero_grad(set_to_none=True)
    return loss.item()


def restore(model: Qwen3ForCausalLM, chosen: list[torch.optim.Optimizer], file: Path) -> int:
    """Take up a run where a checkpoint left it; returns the next step."""
    kept = torch.load(file, weights_only=True)
    model.load_state_dict(kept["model"])
    for one, state in zip(chosen, kept["chosen"], strict=True):
        one.load_state_dict(state)
    return int(kept["step"])


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--more", type=int, default=Plan.more, help="steps of the second course")
    parser.add_argument("--seed", type=int, default=Plan.seed)
    parser.add_argument("--rate", type=float, default=Plan.rate)
    parser.add_argument("--tokens", type=int, default=Plan.tokens)
    parser.add_argument("--checkpoint", type=Path, help="a file to keep the run in, and to take it up from")
    parser.add_argument(
        "--smoke", action="store_true", help="a few steps of a tiny model, to show that the command works"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.smoke:
        plan = Plan(steps=30, more=5, seed=options.seed, tokens=2048, warmup=5, hidden=64, layers=2)
    else:
        plan = Plan(options.steps, options.more, options.seed, options.tokens, options.rate)
    train(plan, options.out, options.checkpoint)


if __name__ == "__main__":
    main()
