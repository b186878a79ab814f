"""Asks the embedded model the fixed evaluation and prints, for each skill, how many answers are exact.

    python -m antiphon.engine.embedded.evaluate

Greedy, from the saved bf16 weights computed in fp32, by transformers' own `generate`, or with `--served` by this
project's core as it is served (`--quantization int8` among it). Exact means equal bytes: of the repeated phrase, the sum,
the whole call with its name and arguments, the report. Where no tool fits, any text without a call is right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from antiphon.engine.builder import build_core
from antiphon.engine.embedded import MODEL_DIR, chat, generator
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core

BATCH_SIZE = 50
MAX_NEW_TOKENS = 320
MIN_SKILL_SCORES = {"sum": 0.90}


@dataclass(frozen=True)
class EvaluatedPrompt:
    """A prompt, what was expected and what the model wrote; both without the reasoning."""

    skill: str
    prompt: str
    expected: str
    written: str

    @property
    def is_exact(self) -> bool:
        """Whether the answer counts."""
        if self.skill == "no tool":
            return bool(self.written.strip()) and "<tool_call>" not in self.written
        return self.written == self.expected


Model = Any
"""A causal language model; transformers does not annotate what is used of it here."""


def load_model(folder: Path) -> tuple[Model, Tokenizer]:
    """The model in fp32, and its tokenizer."""
    model: Model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def generate_answers(model: Model, tokenizer: Tokenizer, prompts: list[str]) -> list[str]:
    """What the model writes after each prompt, greedily, until it ends its turn."""
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    if isinstance(model, Core):
        return [
            tokenizer.decode(said, skip_special_tokens=False).partition("<|im_end|>")[0]
            for said in _run_core(model, rows)
        ]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    with torch.inference_mode():
        written = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    return [
        tokenizer.decode(row[longest:].tolist(), skip_special_tokens=False).partition("<|im_end|>")[0]
        for row in written
    ]


def _run_core(core: Core, rows: list[list[int]]) -> list[list[int]]:
    greedy = Sampling(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    said: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        core.add(Job(id=str(number), tokens=tuple(row), sampling=greedy))
        said[str(number)] = []
    while core.has_work:
        for name, chunk in core.step():
            said[name] += chunk.tokens
    return list(said.values())


def evaluate_skill(model: Model, tokenizer: Tokenizer, skill: str, count: int) -> Iterator[EvaluatedPrompt]:
    """The first `count` evaluation dialogues of a skill, with the model's answers, batched by like length."""
    wanted = [generator.evaluation_dialogue(skill, number) for number in range(count)]
    asked = [(chat.render_prompt(one.messages[:-1], one.tools), chat.render_answer(one.messages[-1])) for one in wanted]
    asked.sort(key=lambda pair: len(pair[0]))
    for start in range(0, count, BATCH_SIZE):
        batch = asked[start : start + BATCH_SIZE]
        for (prompt, expected), written in zip(
            batch, generate_answers(model, tokenizer, [p for p, _ in batch]), strict=True
        ):
            yield EvaluatedPrompt(skill, prompt, expected, written.rpartition("</think>\n\n")[2])


def evaluate_model(
    folder: Path, count: int, skills: list[str] | None = None, served: EngineOptions | None = None
) -> dict[str, list[EvaluatedPrompt]]:
    """Every skill's prompts and answers; `served`: by the core with these options."""
    model, tokenizer = load_model(folder)
    if served is not None:
        model = build_core(folder, served)
    return {skill: list(evaluate_skill(model, tokenizer, skill, count)) for skill in skills or generator.SKILLS}


def format_table(results: dict[str, list[EvaluatedPrompt]]) -> str:
    """The result, a line a skill."""
    lines = ["| skill | exact | of | % | goal |", "|---|---|---|---|---|"]
    for skill, asked in results.items():
        right, goal = sum(one.is_exact for one in asked), MIN_SKILL_SCORES.get(skill, 0.95)
        lines.append(f"| {skill} | {right} | {len(asked)} | {100 * right / len(asked):.1f} | {100 * goal:.0f} |")
    return "\n".join(lines)


def print_results(results: dict[str, list[EvaluatedPrompt]], misses: int) -> str:
    """The table, then up to that many wrong answers of each skill."""
    wrong = [one for asked in results.values() for one in [one for one in asked if not one.is_exact][:misses]]
    shown = [f"--- {one.skill}\n{one.prompt}\nexpected: {one.expected!r}\nwritten:  {one.written!r}" for one in wrong]
    return "\n\n".join([format_table(results), *shown])


def main() -> None:
    """Read the command line, evaluate, print; exit status 1 when a skill misses its goal."""
    parser = argparse.ArgumentParser(description="Evaluate the embedded model.")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--per-skill", type=int, default=200)
    parser.add_argument("--skill", action="append", choices=list(generator.SKILLS))
    parser.add_argument("--json", action="store_true", help="print counts as JSON instead of a table")
    parser.add_argument("--misses", type=int, default=0, help="show so many wrong answers of each skill")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--served", action="store_true", help="ask the core, as it is served")
    parser.add_argument("--quantization", choices=["int8"], help="the same with int8 layers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ours = EngineOptions(threads=options.threads, quantization=options.quantization)
    served = ours if options.served or options.quantization else None
    results = evaluate_model(options.model, options.per_skill, options.skill, served)
    right = {skill: sum(one.is_exact for one in asked) for skill, asked in results.items()}
    counts = {skill: {"exact": exact, "of": options.per_skill} for skill, exact in right.items()}
    sys.stdout.write((json.dumps(counts) if options.json else print_results(results, options.misses)) + "\n")
    sys.exit(any(exact < MIN_SKILL_SCORES.get(skill, 0.95) * options.per_skill for skill, exact in right.items()))


if __name__ == "__main__":
    main()
