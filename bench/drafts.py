"""Speed of a draft model at known acceptance: `python -m bench.drafts`.

The model has the shape `small` in int8, its draft model the shape `tiny`, both with random weights, in this process. The
draft model computes its passes; then its choice is replaced by the token that the model generates at this place, for a
given part of the places, and by another one elsewhere. Runs without drafts and with them alternate on the same core.
Printed are the medians of tokens per second and of the ratios over rounds. N-grams are off.

With `--cpu-time`, seconds of CPU time count instead of elapsed ones, for a machine that other processes use; it needs
one thread.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from antiphon.engine.builder import build_core
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.drafts.draft_model import DraftModel
from antiphon.engine.scheduler.drafts.drafting import ModelDrafts
from bench.random_models import VOCAB_SIZE, create_model
from bench.stats import format_number, markdown_table, median

PROMPT_TOKENS = 64
FAVORED = 1e9
"""Logit of the token that is drafted."""


class KnownAcceptance:
    """A draft model's forward pass whose most likely token is `tokens[place]` for a part of the places."""

    def __init__(self, forward: Any, tokens: list[int], percent: int) -> None:
        self._forward, self._tokens, self._percent = forward, tokens, percent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forward, name)

    def run(self, inputs: list[SequenceInput]) -> Tensor:
        """Runs the pass and changes the last row of each sequence."""
        logits: Tensor = self._forward.run(inputs)
        row = 0
        for item in inputs:
            row += item.num_logits
            place = item.cache.length
            if item.num_logits and place < len(self._tokens):
                is_right = random.Random(place * 7919).randrange(100) < self._percent
                logits[row - 1, (self._tokens[place] + (not is_right)) % VOCAB_SIZE] = FAVORED
        return logits


def run_streams(core: Core, count: int, max_tokens: int, clock: Callable[[], float]) -> tuple[list[int], float]:
    """Returns the tokens of `count` equal streams, and tokens per second from the first to the last token."""
    prompt = tuple(random.Random(5).choices(range(1000, 100_000), k=PROMPT_TOKENS))
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for number in range(count):
        core.add(Job(id=str(number), tokens=prompt, sampling=sampling))
    outputs: dict[str, list[int]] = {str(number): [] for number in range(count)}
    started_at, early = clock(), 0
    while core.has_work:
        for name, chunk in core.step():
            outputs[name] += chunk.tokens
        if not all(outputs.values()):  # prompts are still computed
            started_at, early = clock(), sum(map(len, outputs.values()))
    seconds = clock() - started_at
    first = outputs["0"]
    assert all(tokens == first for tokens in outputs.values()), "the streams differ"
    return first, (count * max_tokens - early) / seconds


def measure(core: Core, model: DraftModel, percent: int, streams: int, options: argparse.Namespace) -> list[str]:
    """Returns a row of the table. Checks that drafts change no token."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    drafting, forward = core.drafting, model.forward
    core.clock = clock
    assert core._prefill_budget is not None
    drafting.model = None
    wanted, _ = run_streams(core, streams, options.tokens, clock)
    prompt = random.Random(5).choices(range(1000, 100_000), k=PROMPT_TOKENS)
    model.forward = KnownAcceptance(forward, prompt + wanted, percent)
    model_drafts = ModelDrafts(model, core._prefill_budget, clock)
    rates: list[tuple[float, float]] = []
    drafting.num_drafted = drafting.num_accepted = 0
    for _ in range(options.rounds):
        drafting.model = None
        _, plain = run_streams(core, streams, options.tokens, clock)
        drafting.model = model_drafts
        tokens, drafted = run_streams(core, streams, options.tokens, clock)
        assert tokens == wanted, "a draft changed a token"
        rates.append((plain, drafted))
    model.forward = forward
    ratios = [drafted / plain for plain, drafted in rates]
    numbers = [median([plain for plain, _ in rates]), median([drafted for _, drafted in rates]), median(ratios)]
    share = drafting.num_accepted / max(drafting.num_drafted, 1)
    row = [str(streams), f"{percent} %", *map(format_number, numbers), f"{min(ratios):.2f} to {max(ratios):.2f}"]
    print(" | ".join(row), f"| accepted {share:.2f} of {drafting.num_drafted}", flush=True)
    return row


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small")
    parser.add_argument("--draft-model", default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each stream")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--acceptance", type=int, nargs="+", default=[0, 50, 90], help="percentages")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait for each other take CPU time")
    engine_options = EngineOptions(
        quantization="int8",
        force_quantization=True,
        draft_model=str(create_model(options.draft_model)),
        max_draft_seqs=0,
        kv_cache_gib=1.0,
        threads=options.threads,
        enable_prefix_caching=False,
    )
    core = build_core(create_model(options.model), engine_options)
    assert core.drafting.model_drafts is not None
    model = core.drafting.model_drafts.model
    print(f"{core.info.description}; load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads", flush=True)
    rows = [
        measure(core, model, percent, streams, options) for streams in options.streams for percent in options.acceptance
    ]
    print(f"load at the end: {os.getloadavg()[0]:.1f}")
    header = ["streams", "acceptance", "tokens/s without", "with drafts", "ratio", "range of ratios"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
