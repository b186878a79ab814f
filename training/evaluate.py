"""Runs the fixed evaluation of the embedded model and prints the number of exact answers per skill.

    python -m training.evaluate

Decoding is greedy, from the saved bf16 weights, computed in fp32. By default transformers' own `generate` decodes; with
`--served` or `--quantization` the engine's core does, as the server runs it. An answer is exact if its bytes equal
the expected ones: the repeated phrase, the sum, the whole call with its name and arguments, the report. Where no tool
fits, any text without a call is correct.
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
from transformers import AutoModelForCausalLM, Qwen3VLForConditionalGeneration

from antiphon.engine.builder import build_core
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Job, Sampling
from antiphon.engine.scheduler.core import Core
from training import chat, generator
from training.skills.codex_tools import MAX_TITLE_CHARS

BATCH_SIZE = 50
"""Prompts per call of transformers' `generate`."""
MAX_NEW_TOKENS = 320
MIN_SKILL_SCORES = {"sum": 0.90}
"""Share of exact answers that a skill must reach, by skill; 0.95 for skills without an entry."""


@dataclass(frozen=True)
class EvaluatedPrompt:
    """A prompt, the expected answer and the generated one. Both answers are without reasoning."""

    skill: str
    prompt: str
    expected: str
    generated: str

    @property
    def is_exact(self) -> bool:
        """True if the answer is correct: exact; `no tool`: any text without a call; `title`: as the schema cuts it."""
        if self.skill == "title":
            return _cut_title(self.generated) == _cut_title(self.expected)
        if self.skill == "no tool":
            return bool(self.generated.strip()) and "<tool_call>" not in self.generated
        return self.generated == self.expected


def _cut_title(answer: str) -> str:
    """Returns the title in an answer as Codex gets it; the answer itself if it is not JSON with a title."""
    try:
        return str(json.loads(answer)["title"])[:MAX_TITLE_CHARS]
    except (ValueError, KeyError, TypeError):
        return answer


Model = Any
"""A transformers causal language model, or a `Core`. Any, since transformers does not annotate the parts used here."""


def load_model(folder: Path) -> tuple[Model, Tokenizer]:
    """Loads the model in fp32, and its tokenizer."""
    has_tower = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "qwen3_vl"
    model_class: Any = Qwen3VLForConditionalGeneration if has_tower else AutoModelForCausalLM
    model: Model = model_class.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def generate_answers(model: Model, tokenizer: Tokenizer, prompts: list[str]) -> list[str]:
    """Returns the greedy continuation of each prompt, up to the end of the turn."""
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
    if isinstance(model, Core):
        return [
            tokenizer.decode(output, skip_special_tokens=False).partition("<|im_end|>")[0]
            for output in _run_core(model, rows)
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
    outputs: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        core.add(Job(id=str(index), tokens=tuple(row), sampling=greedy))
        outputs[str(index)] = []
    while core.has_work:
        for job_id, chunk in core.step():
            outputs[job_id] += chunk.tokens
    return list(outputs.values())


def evaluate_skill(model: Model, tokenizer: Tokenizer, skill: str, count: int) -> Iterator[EvaluatedPrompt]:
    """Yields the answers to the first `count` evaluation dialogues of a skill, in batches of similar prompt length."""
    dialogues = [generator.evaluation_dialogue(skill, number) for number in range(count)]
    prompts = [
        (chat.render_prompt(dialogue.messages[:-1], dialogue.tools), chat.render_answer(dialogue.messages[-1]))
        for dialogue in dialogues
    ]
    prompts.sort(key=lambda pair: len(pair[0]))
    for start in range(0, count, BATCH_SIZE):
        batch = prompts[start : start + BATCH_SIZE]
        for (prompt, expected), written in zip(
            batch, generate_answers(model, tokenizer, [p for p, _ in batch]), strict=True
        ):
            yield EvaluatedPrompt(skill, prompt, expected, written.rpartition("</think>\n\n")[2])


def evaluate_model(
    folder: Path, count: int, skills: list[str] | None = None, served: EngineOptions | None = None
) -> dict[str, list[EvaluatedPrompt]]:
    """Evaluates every skill, or `skills`. With `served`, the engine's core generates, built with these options."""
    model, tokenizer = load_model(folder)
    if served is not None:
        model = build_core(folder, served)
    return {skill: list(evaluate_skill(model, tokenizer, skill, count)) for skill in skills or generator.SKILLS}


def format_table(results: dict[str, list[EvaluatedPrompt]]) -> str:
    """Formats the result as a Markdown table with one row per skill."""
    lines = ["| skill | exact | of | % | goal |", "|---|---|---|---|---|"]
    for skill, answers in results.items():
        correct, min_score = sum(answer.is_exact for answer in answers), MIN_SKILL_SCORES.get(skill, 0.95)
        lines.append(
            f"| {skill} | {correct} | {len(answers)} | {100 * correct / len(answers):.1f} | {100 * min_score:.0f} |"
        )
    return "\n".join(lines)


def print_results(results: dict[str, list[EvaluatedPrompt]], misses: int) -> str:
    """Returns the table, followed by up to `misses` wrong answers per skill."""
    wrong = [
        answer
        for answers in results.values()
        for answer in [answer for answer in answers if not answer.is_exact][:misses]
    ]
    examples = [
        f"--- {answer.skill}\n{answer.prompt}\nexpected: {answer.expected!r}\nwritten:  {answer.generated!r}"
        for answer in wrong
    ]
    return "\n\n".join([format_table(results), *examples])


def main() -> None:
    """Evaluates as the command line asks and prints the result. The exit status is 1 if a skill misses its goal."""
    parser = argparse.ArgumentParser(description="Evaluate the embedded model.")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--per-skill", type=int, default=200)
    parser.add_argument("--skill", action="append", choices=list(generator.SKILLS))
    parser.add_argument("--json", action="store_true", help="print counts as JSON instead of a table")
    parser.add_argument("--misses", type=int, default=0, help="wrong answers to print per skill, default 0")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--served", action="store_true", help="generate with the engine's core, as the server does")
    parser.add_argument("--quantization", choices=["int8", "int4"], help="quantize linear layers; implies --served")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    engine_options = EngineOptions(threads=options.threads, quantization=options.quantization)
    served = engine_options if options.served or options.quantization else None
    results = evaluate_model(options.model, options.per_skill, options.skill, served)
    exact_counts = {skill: sum(answer.is_exact for answer in answers) for skill, answers in results.items()}
    counts = {skill: {"exact": exact, "of": options.per_skill} for skill, exact in exact_counts.items()}
    sys.stdout.write((json.dumps(counts) if options.json else print_results(results, options.misses)) + "\n")
    sys.exit(
        any(exact < MIN_SKILL_SCORES.get(skill, 0.95) * options.per_skill for skill, exact in exact_counts.items())
    )


if __name__ == "__main__":
    main()
