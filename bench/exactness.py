"""Effect of batching on the results of a request, on the benchmark's models: `python -m bench.exactness --model tiny`.

Three measurements:

- Logits at each position of a prompt and its output: alone, with the prompt in one pass and the output token by token,
  against in a batch of random sequences, with the prompt cut as a scheduler may cut it and the output partly as drafts.
- Tokens of jobs with a seed at temperature 1: alone against in a batch.
- Time of the batch with `--deterministic` against without.
"""

import argparse
import itertools
import random
import time
from typing import Any

import msgspec
import torch

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.host.hardware import physical_cores
from antiphon.engine.load.loader import load_model
from antiphon.engine.options import EngineOptions, Quantization
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core
from bench.random_models import create_model
from bench.stats import MISSING, markdown_table, median

SEQUENCE_TOKENS = 100
BATCH_SIZE = 16
VOCAB_SIZE = 90_000
"""Token ids are drawn below this number."""
NUM_REFERENCES = 10
"""Sequences whose logits are compared to those of the fp32 model."""
TIMED_RUNS = 3
Pass = tuple[list[int], int]
"""Token ids of one forward pass, and the number of them that are output tokens."""


def load_forward(model: str, quantization: Quantization | None) -> VarlenForward:
    """Returns the forward pass that the server would use."""
    forward = build_core(model, quantization, deterministic=False).forward
    assert isinstance(forward, VarlenForward)
    return forward


def random_sequences(count: int) -> list[list[int]]:
    """Returns `count` sequences of random token ids, the same in every call."""
    rng = random.Random(5)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(SEQUENCE_TOKENS)] for _ in range(count)]


def plain_passes(ids: list[int], prompt_length: int) -> list[Pass]:
    """Returns the passes of a sequence alone: the whole prompt, then the output token by token."""
    return [(ids[:prompt_length], 0), *(([token], 1) for token in ids[prompt_length:])]


def scheduler_passes(ids: list[int], prompt_length: int, alignment: int, rng: random.Random) -> list[Pass]:
    """Returns passes as a scheduler may choose them: prompt cut at multiples of `alignment`, output partly as drafts."""
    passes: list[Pass] = []
    position = 0
    while position < prompt_length:
        end = min((position // alignment + rng.choice((1, 1, 7, 40))) * alignment, prompt_length)
        passes.append((ids[position:end], 0))
        position = end
    while position < len(ids):
        output = ids[position : position + rng.choice((1, 1, 1, 5))]
        passes.append((output, len(output)))
        position += len(output)
    return passes


def run_alone(forward: VarlenForward, passes: list[Pass]) -> torch.Tensor:
    """Returns the logits of every position, with the sequence alone in each pass."""
    cache = forward.new_cache(0)
    return torch.cat([forward.run([SequenceInput(cache, ids, len(ids), generated)]) for ids, generated in passes])


def run_in_batch(
    forward: VarlenForward, passes: list[Pass], sequences: list[list[int]], rng: random.Random
) -> torch.Tensor:
    """Returns the logits of every position, with beginnings of other sequences in each pass, in random order."""
    cache, logits = forward.new_cache(0), []
    for ids, generated in passes:
        others = rng.sample(sequences, rng.randint(0, min(BATCH_SIZE - 1, len(sequences))))
        prefixes = [sequence[: rng.choice((1, 1, 1, 30))] for sequence in others]
        batch = [SequenceInput(cache, ids, len(ids), generated)]
        batch += [SequenceInput(forward.new_cache(0), prefix, len(prefix)) for prefix in prefixes]
        rng.shuffle(batch)
        start = sum(item.num_logits for item in itertools.takewhile(lambda item: item.cache is not cache, batch))
        logits.append(forward.run(batch)[start : start + len(ids)])
    return torch.cat(logits)


@torch.inference_mode()
def compare_logits(
    model: str, quantization: Quantization | None, positions: int, reference: VarlenForward | None
) -> list[str]:
    """Returns a table row: effect of the batch on logits and greedy tokens, and cosine similarity to `reference`."""
    forward, rng = load_forward(model, quantization), random.Random(7)
    sequences = random_sequences(positions // SEQUENCE_TOKENS)
    num_equal = num_positions = 0
    max_difference = sum_of_means = cosine = 0.0
    for index, ids in enumerate(sequences):
        prompt_length = rng.randint(1, SEQUENCE_TOKENS)
        alone = run_alone(forward, plain_passes(ids, prompt_length))
        passes = scheduler_passes(ids, prompt_length, forward.prompt_alignment, rng)
        batched = run_in_batch(forward, passes, sequences[:index] + sequences[index + 1 :], rng)
        difference = (alone - batched).abs()
        max_difference = max(max_difference, float(difference.max()))
        sum_of_means += float(difference.mean())
        num_equal += int((alone.argmax(-1) == batched.argmax(-1)).sum())
        num_positions += len(ids)
        if reference is not None and index < NUM_REFERENCES:
            expected = run_alone(reference, plain_passes(ids, prompt_length))
            similarity = float(torch.cosine_similarity(alone, expected, dim=-1).mean())
            cosine += similarity / min(NUM_REFERENCES, len(sequences))
    return [
        quantization or "fp32",
        str(num_positions),
        f"{num_equal / num_positions:.3%}",
        f"{max_difference:.2g}",
        f"{sum_of_means / len(sequences):.2g}",
        MISSING if reference is None else f"{cosine:.5f}",
    ]


def build_core(model: str, quantization: Quantization | None, *, deterministic: bool) -> Core:
    """Returns a new engine core with the model."""
    loaded, folder = load_model(create_model(model), device="cpu", to_quantize=quantization is not None)
    options = EngineOptions(
        quantization=quantization,
        force_quantization=True,  # routers with random weights change their choice easily
        deterministic=deterministic,
        max_num_seqs=BATCH_SIZE,
        kv_cache_gib=1.0,
        enable_prefix_caching=False,
    )
    return build_core_from_model(loaded, folder, options, optimize=True)


def run_jobs(core: Core, jobs: list[Job]) -> tuple[dict[str, list[int]], float]:
    """Runs jobs concurrently. Returns the tokens by job id, and the seconds."""
    tokens: dict[str, list[int]] = {job.id: [] for job in jobs}
    for job in jobs:
        core.add(job)
    start = time.perf_counter()
    while core.has_work:
        for job_id, chunk in core.step():
            tokens[job_id] += chunk.tokens
    return tokens, time.perf_counter() - start


def compare_jobs(model: str, quantization: Quantization | None, count: int, max_tokens: int) -> list[list[str]]:
    """Returns two table rows, without and with `deterministic`: jobs alone against a batch, and the batch's time."""
    rng = random.Random(9)
    jobs = [
        Job(
            id=str(index),
            tokens=tuple(ids[: rng.randint(3, SEQUENCE_TOKENS)]),
            sampling=Sampling(seed=index, max_tokens=max_tokens, ignore_eos=True),
        )
        for index, ids in enumerate(random_sequences(count))
    ]
    rows, baseline_s = [], 0.0
    for deterministic in (False, True):
        core = build_core(model, quantization, deterministic=deterministic)
        alone = {job.id: run_jobs(core, [job])[0][job.id] for job in jobs}
        rng.shuffle(jobs)
        batched, _ = run_jobs(core, jobs)
        timed_jobs = [msgspec.structs.replace(job, id=f"again {job.id}") for job in jobs]
        duration_s = median([run_jobs(core, timed_jobs)[1] for _ in range(TIMED_RUNS)])
        num_equal = sum(batched[job.id] == alone[job.id] for job in jobs)
        num_same = sum(_common_prefix_length(batched[job.id], alone[job.id]) for job in jobs)
        rows.append(
            [
                f"{quantization or 'fp32'}{', deterministic' if deterministic else ''}",
                f"{num_equal} of {count}",
                f"{1 - num_same / (count * max_tokens):.2%}",
                f"{duration_s / baseline_s:.2f}" if baseline_s else "1",
            ]
        )
        baseline_s = baseline_s or duration_s
    return rows


def _common_prefix_length(a: list[int], b: list[int]) -> int:
    """Returns the index of the first difference between two lists of equal length, or their length."""
    return next((index for index, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1]), len(a))


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        choices=["tiny", "small", "oss", "osstiny"],
        default="tiny",
        help="model to run, default tiny; oss and osstiny are mixtures of experts",
    )
    parser.add_argument("--forms", default="fp32,int8,int4", help="weights to compare, default fp32,int8,int4")
    parser.add_argument("--positions", type=int, default=10_000, help="positions to compare, default 10000")
    parser.add_argument("--jobs", type=int, default=32, help="jobs with a seed, default 32")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per job, default 64")
    args = parser.parse_args()
    torch.set_num_threads(physical_cores())
    quantizations: list[Any] = [None if form == "fp32" else form for form in args.forms.split(",")]
    reference = load_forward(args.model, None)
    rows = [
        compare_logits(args.model, quantization, args.positions, reference if quantization else None)
        for quantization in quantizations
    ]
    header = ["weights", "positions", "same greedy token", "max difference", "mean difference", "cosine to fp32"]
    print(markdown_table(header, rows))
    rows = [
        row for quantization in quantizations for row in compare_jobs(args.model, quantization, args.jobs, args.tokens)
    ]
    print(markdown_table(["weights", "same tokens alone and batched", "tokens after a difference", "time ratio"], rows))


if __name__ == "__main__":
    main()
