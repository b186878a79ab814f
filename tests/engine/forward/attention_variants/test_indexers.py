"""Layers that attend to the keys that an indexer selects compute what `generate` does, alone and among others."""

import copy
from typing import Any

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.attention_variants.indexers import find_indexers
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import generate_tokens, join_tokens, make_job, make_prompts, run_jobs
from tests.models.checkpoints import build_model
from tests.models.table import ROWS

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_OUTPUT_TOKENS = 12


def build_row(name: str, changes: dict[str, Any] | None = None) -> PreTrainedModel:
    """Returns the model of a row of the table of models, with changes of its configuration."""
    row = next(row for row in ROWS if row.name == name)
    model = build_model(msgspec.structs.replace(row, config=row.config | (changes or {})))
    model.generation_config.eos_token_id = None
    return model


@torch.inference_mode()
def generate_expected(model: Any, prompt: list[int]) -> list[int]:
    """Returns what `generate` appends to a prompt."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    output = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_OUTPUT_TOKENS, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


FOUR_HEADS = {"index_n_heads": 4, "index_head_dim": 32, "index_topk": 12}
"""Of few heads, many scores are 0, so that the order of equal scores decides which keys are selected."""


@pytest.mark.parametrize(
    ("name", "changes", "forward"),
    [
        ("minimax_m3_vl_text", {}, VarlenForward),
        ("deepseek_v32", {}, SequentialForward),
        ("deepseek_v32", FOUR_HEADS, SequentialForward),
        ("glm_moe_dsa", FOUR_HEADS, SequentialForward),
    ],
)
def test_output_equals_generate_in_any_batch(name: str, changes: dict[str, Any], forward: type) -> None:
    model = build_row(name, changes)
    prompts = make_prompts(3, 45, 17, 29)
    expected = [generate_expected(model, prompt) for prompt in prompts]
    core = build_core_from_model(
        copy.deepcopy(model), options=EngineOptions(max_num_seqs=3, max_batched_tokens=16, max_draft_seqs=1)
    )
    assert isinstance(core.forward, forward)
    options: dict[str, Any] = {"max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True}
    jobs = [make_job(prompt, str(n), owner=str(n), **options) for n, prompt in enumerate(prompts)]
    chunks = run_jobs(core, *jobs)
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected
    assert generate_tokens(core, make_job(prompts[1], "again", owner="1", **options)) == expected[1]


def test_unknown_indexer_is_not_packed(caplog: pytest.LogCaptureFixture) -> None:
    model = build_row("minimax_m3_vl_text")
    module: Any = find_indexers(model)[0]
    module.forward = lambda hidden_states: hidden_states
    assert find_indexers(model) == []
    assert isinstance(select_forward(build_row("qwen4_exp_text")), SequentialForward)
    assert "its layers select single keys by an index" in caplog.text
