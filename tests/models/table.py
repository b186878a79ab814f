"""Writes the table of models: `python -m tests.models.table > docs/reference/models.md`. Progress goes to stderr.

Each row is a tiny model with random weights, made on the spot, that the engine serves in this process. The exit status
is 1 if a row differs from transformers' `generate`.
"""

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch
import transformers

from antiphon.engine.host.hardware import cpu_features
from tests.models.judge import NUM_OUTPUT_TOKENS, PROMPT_LENGTHS_TOKENS, FormResult, RowResult, judge_row
from tests.models.pictures import AS_GENERATE
from tests.models.published import PUBLISHED_KEYS
from tests.models.rows import ModelRow
from tests.models.rows_dense import DENSE_ROWS
from tests.models.rows_hybrid import HYBRID_ROWS
from tests.models.rows_mixture import MIXTURE_ROWS
from tests.models.rows_vision import VISION_ROWS

SECTIONS = (
    ("Dense", DENSE_ROWS),
    ("Mixtures of experts", MIXTURE_ROWS),
    ("With a state per sequence", HYBRID_ROWS),
    ("Vision-language models", VISION_ROWS),
)
ROWS = tuple(row for _, rows in SECTIONS for row in rows)

INTRODUCTION = f"""# Models

`python -m tests.models.table > docs/reference/models.md` writes this page. Each row is a configuration of an architecture of transformers
{transformers.__version__}, as a tiny model with random weights: four layers, {len(PROMPT_LENGTHS_TOKENS)} prompts of {min(PROMPT_LENGTHS_TOKENS)} to {max(PROMPT_LENGTHS_TOKENS)} tokens, windows of 24 tokens.
Its config.json has the keys of published files ({len(PUBLISHED_KEYS)} families), or those that its configuration class declares (the others).

- **output**: the greedy output of {NUM_OUTPUT_TOKENS} tokens equals that of transformers' `generate`, from files in fp32 and in bf16: alone, among eight
  prompts of mixed length, and after a beginning that is in the cache.
- **path**: *packed* runs the tokens of all requests in one pass. *One sequence at a time* is right, but several requests take as long
  as one after the other.
- **prefixes**: whether a request reads the beginning of an earlier one from the cache.
- **int8**, **int4**: cosine similarity of the logits to those in fp32, here on a CPU with {cpu_features()}. Random weights have more outliers in their products than trained ones, and
  random routers choose other experts at the slightest error, so compare rows rather than read the figures as quality. *≠* marks
  a row whose quantized output depends on the batch.
- **experts**: the forms in which the weights of experts are held. Where one is missing, they stay in fp32 in that form.
- **images**: the greedy output with pictures equals that of `generate` from the same pixels, from files in fp32 and in bf16: alone,
  eight prompts with 0 to 3 pictures together, cut every 9 tokens, after prefixes that end before, inside and after a picture, with
  features that were evicted, preempted after some tokens, and with right and wrong drafts. A refused type serves text.
"""


def main() -> None:
    """Judges all rows, or those whose name contains `--only`, and prints the page."""
    parser = argparse.ArgumentParser(description="Writes docs/reference/models.md to stdout.")
    parser.add_argument("--only", default="", help="judge the rows whose name contains this text")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, default 2")
    options = parser.parse_args()
    rows = [row for row in ROWS if options.only in row.name]
    results = judge_rows(rows, options.jobs)
    print(format_page(results), end="")
    wrong = [result for result in results.values() if result.faults]
    for result in wrong:
        print(f"{result.name}: {'; '.join(result.faults)}", file=sys.stderr)
    sys.exit(bool(wrong))


def judge_rows(rows: list[ModelRow], jobs: int) -> dict[str, RowResult]:
    """Judges rows in several processes. Returns the results by name, in the order of `rows`."""
    started_at = time.monotonic()
    results: dict[str, RowResult] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare_process) as pool:
        pending = {pool.submit(_judge, row): row for row in rows}
        for future in as_completed(pending):
            result = results[pending[future].name] = future.result()
            seconds = time.monotonic() - started_at
            note = "; ".join(result.faults) or result.path
            print(f"{seconds:4.0f} s  {len(results):3} of {len(rows)}  {result.name}: {note}", file=sys.stderr)
    return {row.name: results[row.name] for row in rows}


def _prepare_process() -> None:
    """Silences libraries; their warnings are not the engine's."""
    warnings.simplefilter("ignore")
    logging.getLogger("antiphon").setLevel(logging.WARNING)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)


def _judge(row: ModelRow) -> RowResult:
    try:
        return judge_row(row)
    except Exception as failure:  # noqa: BLE001  one row must not end the others
        return RowResult(row.name, faults=[f"transformers: {type(failure).__name__}: {failure}"[:300]])


def format_page(results: dict[str, RowResult]) -> str:
    """Returns the page: one table for each section."""
    parts = [INTRODUCTION, _summarize(results)]
    for title, rows in SECTIONS:
        lines = [format_row(results[row.name]) for row in rows if row.name in results]
        if lines:
            names = ["architecture", "output", "path", "prefixes", "int8", "int4", "experts"]
            names += ["images"] if any(results[row.name].images for row in rows if row.name in results) else []
            header = f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
            parts.append(f"## {title}\n\n{header}" + "".join(lines))
    return "\n".join(parts)


def _summarize(results: dict[str, RowResult]) -> str:
    paths = Counter(result.path or "not started" for result in results.values())
    exact = sum(not result.faults for result in results.values())
    counts = ", ".join(f"{count} {path}" for path, count in paths.most_common())
    seeing = [result.images for result in results.values() if result.images]
    pictures = f"Of {len(seeing)} with a vision tower, {seeing.count(AS_GENERATE)} take pictures {AS_GENERATE}."
    return f"{len(results)} rows, {exact} of them {AS_GENERATE}: {counts}. {pictures}\n"


def format_row(result: RowResult) -> str:
    """Returns the line of a row."""
    experts = [form for form, outcome in result.forms.items() if outcome.packs_experts]
    has_experts = any(outcome.packs_experts is not None for outcome in result.forms.values())
    cells = [
        f"`{result.name.split()[0]}`{result.name.removeprefix(result.name.split()[0])}",
        "; ".join(result.faults) or AS_GENERATE,
        result.path + (f": {result.reason}" if result.reason else ""),
        "reused" if result.reuses_prefixes else "–",
        *(_format_form(result.forms.get(form)) for form in ("int8", "int4")),
        ", ".join(experts) or ("fp32" if has_experts else "–"),
        *([result.images] if result.images else []),
    ]
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |\n"


def _format_form(outcome: FormResult | None) -> str:
    if outcome is None:
        return "–"
    if outcome.similarity is None:
        return outcome.reason or "not packed"
    return f"{outcome.similarity:.3f}" + (" ≠" if outcome.depends_on_batch else "")


if __name__ == "__main__":
    main()
