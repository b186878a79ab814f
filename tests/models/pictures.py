"""Judges the pictures of a model type: greedy output with them is compared with transformers' `generate`."""

import copy
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.vision_families import explain_refusal
from antiphon.engine.options import EngineOptions
from tests.engine.media.picture_families import (
    FAMILIES,
    generate_reference,
    join_output,
    make_picture_job,
    make_prompts,
    run_picture_jobs,
    tiny_picture_model,
)

AS_GENERATE = "as `generate`"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def judge_pictures(model_type: str) -> str:
    """Returns what the engine does with pictures for models of this type, for the table."""
    if (reason := explain_refusal(model_type)) is not None:
        return f"refused: {reason.split(': ', 1)[1]}"
    names = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    wrong = [
        f"{name} in {dtype}: {fault}" for name in names for dtype in DTYPES if (fault := _judge_family(name, dtype))
    ]
    return "; ".join(wrong) or AS_GENERATE


def _judge_family(name: str, dtype: str) -> str:
    """Returns how the output of a family from files in this type differs; empty if it does not."""
    with tempfile.TemporaryDirectory(prefix="antiphon-pictures-") as folder:
        copy.deepcopy(tiny_picture_model(name)).to(DTYPES[dtype]).save_pretrained(folder)  # type: ignore[arg-type]
        reference = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        core = build_core(Path(folder), EngineOptions(pack_cache=False))
        prompts = make_prompts(name)
        expected = [generate_reference(name, prompt, reference) for prompt in prompts]
        jobs = [(make_picture_job(prompt, f"j{index}"), prompt) for index, prompt in enumerate(prompts)]
        together = run_picture_jobs(core, jobs)
        wrong = [index for index in range(len(jobs)) if join_output(together[f"j{index}"]) != expected[index]]
        alone = run_picture_jobs(core, [(make_picture_job(prompts[0], "alone", owner="alone"), prompts[0])])
    if join_output(alone["alone"]) != expected[0]:
        return "differs alone"
    return f"{len(wrong)} of {len(jobs)} prompts differ" if wrong else ""
