"""Adapters of layers within mixers, which are called with some of the rows of a pass."""

from pathlib import Path

import pytest

from antiphon.engine.forward.recurrent.forward import MIXER_BLOCK_TOKENS, RecurrentForward
from tests.engine.adapters.adapter_folders import (
    base_model,
    build_adapted_core,
    generate_merged,
    make_adapter,
    merge_adapter,
)
from tests.engine.tiny_models import generate_tokens, join_tokens, make_job, make_prompts, run_jobs

NUM_TOKENS = 8


@pytest.mark.filterwarnings("ignore")
def test_adapters_of_mixers_equal_merged_models_alone_and_together(tmp_path: Path) -> None:
    targets = ("in_proj", "out_proj", "q_proj", "w1")
    folders = {f"a{n}": make_adapter(tmp_path / f"a{n}", "lfm2", 10 + n, targets=targets, rank=2 + n) for n in range(2)}
    core = build_adapted_core("lfm2", folders, max_num_seqs=8, max_batched_tokens=2 * MIXER_BLOCK_TOKENS)
    assert isinstance(core.forward, RecurrentForward)
    models = {"": base_model("lfm2")} | {name: merge_adapter("lfm2", folder) for name, folder in folders.items()}
    for model in models.values():
        model.generation_config.eos_token_id = None
    options = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    prompts = make_prompts(9, 2 * MIXER_BLOCK_TOKENS + 20, 30)
    jobs = [(f"{name}-{n}", name, prompt) for name in models for n, prompt in enumerate(prompts)]
    expected = {job: generate_merged(models[name], prompt, NUM_TOKENS) for job, name, prompt in jobs}
    for job, name, prompt in jobs:
        assert generate_tokens(core, make_job(prompt, adapter=name, **options)) == expected[job]
    chunks = run_jobs(core, *(make_job(prompt, job, adapter=name, **options) for job, name, prompt in jobs))
    assert {job: join_tokens(chunks[job]) for job in chunks} == expected
