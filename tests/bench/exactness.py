"""What a batch does to a request, on the benchmark's models: `python -m tests.bench.exactness --model tiny`.

Logits of each position, of a prompt and an answer: fed among random others, the prompt in such pieces as a scheduler
may cut it into and the answer token by token or in drafts, and of the same alone, the prompt whole and the answer token
by token; tokens of jobs with a seed at temperature 1, alone and in a crowd; what `--deterministic` costs.
"""

import argparse
import itertools
import random
import time
from typing import Any

import msgspec
import torch

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.hardware import physical_cores
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.model.loader import load_model
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.optimize.pack_linears import Quantization
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core
from tests.bench.figures import NONE, median, table
from tests.bench.models import build

LENGTH = 100
"""Tokens of a text."""
CROWD = 16
"""Jobs at once."""
Piece = tuple[list[int], int]
"""Tokens that follow, and how many of them the model said."""


def forward_of(name: str, quantize: Quantization | None) -> VarlenForward:
    """The model as it is served."""
    forward = core_for(name, quantize, deterministic=False)._forward
    assert isinstance(forward, VarlenForward)
    return forward


def texts_of(count: int, vocabulary: int) -> list[list[int]]:
    """Texts of random tokens."""
    chance = random.Random(5)
    return [[chance.randrange(vocabulary) for _ in range(LENGTH)] for _ in range(count)]


def whole(text: list[int], prompt: int) -> list[Piece]:
    """The prompt in one piece, the answer token by token."""
    return [(text[:prompt], 0), *(([token], 1) for token in text[prompt:])]


def pieces_of(text: list[int], prompt: int, grain: int, chance: random.Random) -> list[Piece]:
    """The same in such pieces as a scheduler may choose."""
    pieces: list[Piece] = []
    fed = 0
    while fed < prompt:
        end = min((fed // grain + chance.choice((1, 1, 7, 40))) * grain, prompt)
        pieces.append((text[fed:end], 0))
        fed = end
    while fed < len(text):
        piece = text[fed : fed + chance.choice((1, 1, 1, 5))]
        pieces.append((piece, len(piece)))
        fed += len(piece)
    return pieces


def alone(forward: VarlenForward, pieces: list[Piece]) -> torch.Tensor:
    """Logits of every position, fed in these pieces."""
    own = forward.new_cache(0)
    return torch.cat([forward.run([SequenceInput(own, piece, len(piece), said)]) for piece, said in pieces])


def crowded(
    forward: VarlenForward, pieces: list[Piece], others: list[list[int]], chance: random.Random
) -> torch.Tensor:
    """The same, each piece beside pieces of some others."""
    own, parts = forward.new_cache(0), []
    for piece, said in pieces:
        beside = [
            other[: chance.choice((1, 1, 1, 30))] for other in chance.sample(others, chance.randint(0, CROWD - 1))
        ]
        work = [SequenceInput(own, piece, len(piece), said)]
        work += [SequenceInput(forward.new_cache(0), part, len(part)) for part in beside]
        chance.shuffle(work)
        place = sum(item.num_logits for item in itertools.takewhile(lambda item: item.cache is not own, work))
        parts.append(forward.run(work)[place : place + len(piece)])
    return torch.cat(parts)


@torch.inference_mode()
def positions(name: str, quantize: Quantization | None, count: int, truth: VarlenForward | None) -> list[str]:
    """A line: how far the crowd moves logits and greedy tokens, and how close they are to fp32's."""
    forward, chance = forward_of(name, quantize), random.Random(7)
    texts = texts_of(count // LENGTH, 90_000)
    agree = total = 0
    worst = typical = near = 0.0
    for number, text in enumerate(texts):
        prompt = chance.randint(1, LENGTH)
        one = alone(forward, whole(text, prompt))
        pieces = pieces_of(text, prompt, forward.prompt_alignment, chance)
        two = crowded(forward, pieces, texts[:number] + texts[number + 1 :], chance)
        apart = (one - two).abs()
        worst, typical = max(worst, float(apart.max())), typical + float(apart.mean())
        agree, total = agree + int((one.argmax(-1) == two.argmax(-1)).sum()), total + len(text)
        if truth is not None and number < 10:
            right = alone(truth, whole(text, prompt))
            near += float(torch.cosine_similarity(one, right, dim=-1).mean()) / min(10, len(texts))
    cells = [quantize or "fp32", str(total), f"{agree / total:.3%}", f"{worst:.2g}", f"{typical / len(texts):.2g}"]
    return [*cells, NONE if truth is None else f"{near:.5f}"]


def core_for(name: str, quantize: Quantization | None, *, deterministic: bool) -> Core:
    """A core of its own on the model."""
    model, folder = load_model(build(name), device="cpu")
    options = EngineOptions(
        quantization=quantize,
        deterministic=deterministic,
        max_num_seqs=CROWD,
        kv_cache_gib=1.0,
        enable_prefix_caching=False,
    )
    return build_core_from_model(model, folder, options, optimize=True)


def spoken(core: Core, jobs: list[Job]) -> tuple[dict[str, list[int]], float]:
    """The tokens of each job, all at once; and the seconds it took."""
    said: dict[str, list[int]] = {job.id: [] for job in jobs}
    for job in jobs:
        core.add(job)
    begun = time.perf_counter()
    while core.has_work:
        for name, chunk in core.step():
            said[name] += chunk.tokens
    return said, time.perf_counter() - begun


def divergence(name: str, quantize: Quantization | None, count: int, length: int) -> list[list[str]]:
    """Two lines: seeded jobs alone against a crowd, and the crowd's time, without and with `deterministic`."""
    texts, chance = texts_of(count, 90_000), random.Random(9)
    jobs = [
        Job(
            id=str(number),
            tokens=tuple(text[: chance.randint(3, LENGTH)]),
            sampling=Sampling(seed=number, max_tokens=length, ignore_eos=True),
        )
        for number, text in enumerate(texts)
    ]
    lines, before = [], 0.0
    for deterministic in (False, True):
        core = core_for(name, quantize, deterministic=deterministic)
        single = {job.id: spoken(core, [job])[0][job.id] for job in jobs}
        chance.shuffle(jobs)
        crowd, _ = spoken(core, jobs)
        again = [msgspec.structs.replace(job, id=f"again {job.id}") for job in jobs]
        took = median([spoken(core, again)[1] for _ in range(3)])
        same = sum(crowd[job.id] == single[job.id] for job in jobs)
        first = [
            next(
                (n for n, pair in enumerate(zip(crowd[j.id], single[j.id], strict=True)) if pair[0] != pair[1]), length
            )
            for j in jobs
        ]
        kind = f"{quantize or 'fp32'}{', deterministic' if deterministic else ''}"
        cost = f"{took / before:.2f}" if before else "1"
        lines.append([kind, f"{same} of {count}", f"{1 - sum(first) / (count * length):.2%}", cost])
        before = before or took
    return lines


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--model", choices=["tiny", "small"], default="tiny")
    words.add_argument("--positions", type=int, default=10_000)
    words.add_argument("--jobs", type=int, default=32)
    words.add_argument("--tokens", type=int, default=64)
    asked: Any = words.parse_args()
    torch.set_num_threads(physical_cores())
    kinds: tuple[Quantization | None, ...] = (None, "int8")
    plain = forward_of(asked.model, None)
    rows = [positions(asked.model, kind, asked.positions, plain if kind else None) for kind in kinds]
    print(
        table(["layers", "positions", "greedy token the same", "largest difference", "mean", "cosine with fp32"], rows)
    )
    lines = [line for kind in kinds for line in divergence(asked.model, kind, asked.jobs, asked.tokens)]
    print(table(["layers", "jobs alone as in a crowd", "tokens after the first other one", "time"], lines))


if __name__ == "__main__":
    main()
