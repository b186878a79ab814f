"""Layers that attend to the keys that an indexer selects run all sequences in one pass, as ``generate`` computes them."""

import copy
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from transformers import PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.model.attention import CURRENT_METADATA, AttentionMetadata, SequenceSpan
from antiphon.engine.model.forward import SequentialForward
from antiphon.engine.model.select import select_forward
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.options import EngineOptions
from antiphon.engine.variants.indexers import PackedIndexer, attach_indexers, find_indexers
from tests.engine.tiny_models import generate_tokens, join_tokens, make_job, make_prompts, run_jobs
from tests.models.checkpoints import build_model
from tests.models.table import ROWS

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_OUTPUT_TOKENS = 12


def build_row(name: str) -> PreTrainedModel:
    """Returns the model of a row of the table of models."""
    model = build_model(next(row for row in ROWS if row.name == name))
    model.generation_config.eos_token_id = None
    return model


@torch.inference_mode()
def generate_expected(model: Any, prompt: list[int]) -> list[int]:
    """Returns what ``generate`` appends to a prompt."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    output = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_OUTPUT_TOKENS, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text"])
def test_output_equals_generate_in_any_batch(name: str) -> None:
    model = build_row(name)
    prompts = make_prompts(3, 45, 17, 29)
    expected = [generate_expected(model, prompt) for prompt in prompts]
    core = build_core_from_model(
        copy.deepcopy(model), options=EngineOptions(max_num_seqs=3, max_batched_tokens=16, max_draft_seqs=1)
    )
    assert isinstance(core._forward, VarlenForward)
    options: dict[str, Any] = {"max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True}
    jobs = [make_job(prompt, str(n), owner=str(n), **options) for n, prompt in enumerate(prompts)]
    chunks = run_jobs(core, *jobs)
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected
    assert generate_tokens(core, make_job(prompts[1], "again", owner="1", **options)) == expected[1]


@torch.inference_mode()
@pytest.mark.parametrize("bounds", [[0, 30], [0, 7, 20, 30]])
def test_masks_hold_the_keys_that_the_indexer_selects(bounds: list[int]) -> None:
    model = build_row("deepseek_v32")
    (indexer, *_) = indexers = find_indexers(model)
    generator = torch.Generator().manual_seed(1)
    hidden, residual = (torch.randn((1, 30, size), generator=generator) for size in (64, 32))
    rotary = tuple(torch.randn((1, 30, 16), generator=generator) for _ in "cs")
    causal = torch.ones((30, 30), dtype=torch.bool).tril()
    selected = indexer(hidden, residual, rotary, causal[None], torch.arange(30)[None], None)[0].long()
    expected = torch.zeros((30, 30), dtype=torch.bool).scatter_(-1, selected, value=True) & causal
    attach_indexers(indexers)
    assert isinstance(indexer.forward, PackedIndexer)
    cache = ContiguousKVCache()
    for start, end in pairwise(bounds):
        token = CURRENT_METADATA.set(AttentionMetadata([SequenceSpan(cache, [(0, end - start)])], {}))
        try:
            part: list[Any] = [tensor[:, start:end] for tensor in (hidden, residual)]
            (mask,) = indexer(*part, tuple(table[:, start:end] for table in rotary), None, None, None)
        finally:
            CURRENT_METADATA.reset(token)
        cache.commit(end - start)
        rows = expected[start:end, :end]
        assert torch.equal(rows, causal[start:end, :end]) if mask is None else torch.equal(mask[0], rows)
        assert isinstance(mask, Tensor) or end <= indexer.index_topk


def test_unknown_indexer_is_not_packed(caplog: pytest.LogCaptureFixture) -> None:
    model = build_row("deepseek_v32")
    module: Any = find_indexers(model)[0]
    module.forward = lambda hidden_states: hidden_states
    assert find_indexers(model) == []
    assert isinstance(select_forward(build_row("qwen4_exp_text")), SequentialForward)
    assert "its layers select keys by an index that is not known here" in caplog.text
