"""Models with recurrent layers run packed: greedy output equals `generate`, alone, in batches and after reuse."""

import copy
from typing import Any

import pytest
import torch

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.recurrent.cache import RecurrentCache
from antiphon.engine.forward.recurrent.forward import MIXER_BLOCK_TOKENS, RecurrentForward
from antiphon.engine.forward.recurrent.states import stack_rows
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.engine.forward.recurrent.tiny_hybrids import (
    HYBRID_CONFIGS,
    generate_with_hybrid,
    hybrid_model,
    make_hybrid_prompts,
)
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import DEVICE_OPTIONS, generate_tokens, join_tokens, make_job, run_jobs

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_TOKENS = 5
TREATS_GENERATED_APART = {"nemotron_h", "minimax"}
"""Families whose states of generated tokens differ: what was generated is computed again for a next turn."""


def build_hybrid_core(family: str, **options: Any) -> Core:
    return build_core_from_model(copy.deepcopy(hybrid_model(family)), options=EngineOptions(**DEVICE_OPTIONS | options))


def select_hybrid_forward(family: str) -> RecurrentForward:
    forward = select_forward(copy.deepcopy(hybrid_model(family)))
    assert isinstance(forward, RecurrentForward)
    return forward


def check_outputs(core: Core, family: str, prompts: list[list[int]]) -> list[int]:
    """Compares the outputs of these prompts, run together, with `generate`. Returns their cached tokens."""
    chunks = run_jobs(core, *(make_job(prompt, str(n), max_tokens=NUM_TOKENS) for n, prompt in enumerate(prompts)))
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == [
        generate_with_hybrid(family, prompt, NUM_TOKENS) for prompt in prompts
    ]
    return [chunks[str(n)][0].cached_tokens for n in range(len(prompts))]


@pytest.mark.parametrize("family", HYBRID_CONFIGS)
def test_output_equals_generate_alone_in_a_batch_and_after_reuse(family: str) -> None:
    prompts = make_hybrid_prompts(3, 140, 1, 18, 66, 20, 9, 12)
    core = build_hybrid_core(family, max_num_seqs=8, max_batched_tokens=MIXER_BLOCK_TOKENS + 8)
    assert isinstance(core.forward, RecurrentForward)
    alone = generate_tokens(core, make_job(prompts[1], max_tokens=NUM_TOKENS, cache_salt="other"))
    assert alone == generate_with_hybrid(family, prompts[1], NUM_TOKENS)
    assert not any(check_outputs(core, family, prompts))
    next_turns = [prompts[1] + alone + [5, 6, 7], [*prompts[1][:-4], 8, 9], [*prompts[1][:90], 8, 9]]
    computed = 2 * MIXER_BLOCK_TOKENS if family in TREATS_GENERATED_APART else len(prompts[1]) + NUM_TOKENS - 1
    assert check_outputs(core, family, next_turns[:1]) == [computed]
    assert check_outputs(core, family, next_turns[1:]) == [2 * MIXER_BLOCK_TOKENS, MIXER_BLOCK_TOKENS]


def test_prompts_with_a_common_beginning_wait_for_it_and_share_its_snapshot() -> None:
    (text,) = make_hybrid_prompts(3 * MIXER_BLOCK_TOKENS)
    prompts = [text[: 2 * MIXER_BLOCK_TOKENS + 9] + [n + 5] * 6 for n in range(3)]
    core = build_hybrid_core("qwen3_5_text", max_num_seqs=8, max_batched_tokens=MIXER_BLOCK_TOKENS)
    assert check_outputs(core, "qwen3_5_text", prompts) == [0, 2 * MIXER_BLOCK_TOKENS, 2 * MIXER_BLOCK_TOKENS]


@pytest.mark.parametrize("family", ["lfm2", "granitemoehybrid"])
def test_cancelled_and_joining_jobs_do_not_change_the_others(family: str) -> None:
    prompts = make_hybrid_prompts(12, 66, 5, 30)
    core = build_hybrid_core(family, max_num_seqs=4, max_batched_tokens=MIXER_BLOCK_TOKENS)
    tokens: dict[str, list[int]] = {str(n): [] for n in range(len(prompts))}
    core.add(make_job(prompts[0], "0", max_tokens=12))
    core.add(make_job(prompts[1], "1", max_tokens=40, ignore_eos=True))
    steps = 0
    while core.has_work:
        for name, chunk in core.step():
            tokens[name] += chunk.tokens
        steps += 1
        if steps == 4:
            core.add(make_job(prompts[2], "2", max_tokens=9))
        if steps == 7:
            core.cancel("1")
        if steps == 8:
            core.add(make_job(prompts[3], "3", max_tokens=4))
    for name, count in (("0", 12), ("2", 9), ("3", 4)):
        assert tokens[name] == generate_with_hybrid(family, prompts[int(name)], count)


@torch.inference_mode()
def decode(forward: RecurrentForward, prompts: list[list[int]], *, together: bool) -> list[torch.Tensor]:
    """Logits of each prompt's last token and of three tokens after it."""
    caches = [forward.new_cache(0) for _ in prompts]
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    groups = [list(range(len(prompts)))] if together else [[n] for n in range(len(prompts))]
    for group in groups:
        for step in range(4):
            inputs = [SequenceInput(caches[n], prompts[n] if not step else [step + 9], 1, int(step > 0)) for n in group]
            for n, row in zip(group, forward.run(inputs), strict=True):
                rows[n].append(row)
    return [torch.stack(row) for row in rows]


@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1"])
def test_deterministic_rows_do_not_depend_on_the_batch_or_on_how_a_prompt_is_split(family: str) -> None:
    forward = select_hybrid_forward(family)
    forward.make_deterministic(independent_rows=False)
    prompts = make_hybrid_prompts(12, 20, 5)
    alone, together = (decode(forward, prompts, together=together) for together in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    cache = forward.new_cache(0)
    forward.run([SequenceInput(cache, prompts[1][:7], 0)])
    assert torch.equal(forward.run([SequenceInput(cache, prompts[1][7:], 1)])[0], alone[1][0])


def test_decoding_sequences_share_one_call_of_each_mixer() -> None:
    forward = select_hybrid_forward("falcon_h1")
    shapes = []
    mixer: Any = forward._mixers[0]
    mixer.in_proj.register_forward_hook(lambda _, inputs, __: shapes.append(tuple(inputs[0].shape[:2])))
    decode(forward, make_hybrid_prompts(5, 6, 7), together=True)
    assert shapes == [(1, 5), (1, 6), (1, 7), (3, 1), (3, 1), (3, 1)]


@pytest.mark.parametrize("family", ["qwen3_5_text", "falcon_h1", "lfm2"])
def test_int8_rows_do_not_depend_on_the_batch(family: str) -> None:
    require_kernels()
    options = EngineOptions(quantization="int8", force_quantization=True, kv_cache_gib=0.01)
    forward = build_core_from_model(copy.deepcopy(hybrid_model(family)), options=options, optimize=True).forward
    assert isinstance(forward, RecurrentForward)
    prompts = make_hybrid_prompts(12, 70, 5)
    alone, together = (decode(forward, prompts, together=together) for together in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_finished_sequence_keeps_no_memory_of_those_that_ran_with_it() -> None:
    core = build_hybrid_core("granitemoehybrid", max_num_seqs=8)
    check_outputs(core, "granitemoehybrid", make_hybrid_prompts(20, 21, 22, 23))
    caches = [entry.cache for entry in core.cache_manager.prefix_cache.entries]
    assert len(caches) == 4
    for cache in caches:
        assert isinstance(cache, RecurrentCache)
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in cache.states.tensors.values())
        assert cache.states.size == 1


def test_states_and_snapshots_count_as_memory_of_the_cache() -> None:
    core = build_hybrid_core("granitemoehybrid", max_num_seqs=8)
    forward = core.forward
    assert isinstance(forward, RecurrentForward)
    (prompt,) = make_hybrid_prompts(2 * MIXER_BLOCK_TOKENS + 5)
    core.add(make_job(prompt, max_tokens=40, ignore_eos=True))
    core.step()
    (sequence,) = core.scheduler.running
    assert sequence.reserved_tokens == sequence.cache.capacity + forward.state_tokens
    while core.has_work:
        core.step()
    (entry,) = core.cache_manager.prefix_cache.entries
    assert isinstance(entry.cache, RecurrentCache) and entry.cache.snapshot_lengths == [
        MIXER_BLOCK_TOKENS,
        2 * MIXER_BLOCK_TOKENS,
    ]
    state_bytes = entry.cache.states.bytes_per_sequence
    assert forward.state_tokens == 4 * -(-state_bytes // forward.bytes_per_token)
    assert core.cache_manager.prefix_cache.capacity_tokens == entry.cache.capacity + forward.state_tokens * 3 // 4


def test_little_memory_limits_the_sequences_in_progress_and_changes_no_output() -> None:
    family = "falcon_h1"
    core = build_hybrid_core(family, max_num_seqs=8, kv_cache_gib=1000 * 512 / 2**30, max_model_len=256)
    assert core.scheduler.max_cache_tokens < 8 * core.forward.state_tokens
    prompts = make_hybrid_prompts(140, 30, 66, 70)
    for n, prompt in enumerate(prompts):
        core.add(make_job(prompt, str(n), max_tokens=NUM_TOKENS))
    tokens: dict[str, list[int]] = {}
    while core.has_work:
        for name, chunk in core.step():
            tokens.setdefault(name, []).extend(chunk.tokens)
        used = sum(sequence.reserved_tokens for sequence in core.scheduler.running)
        idle = core.cache_manager.prefix_cache.capacity_tokens
        assert len(core.scheduler.running) == 1 or used + idle <= core.scheduler.max_cache_tokens
    assert tokens == {str(n): generate_with_hybrid(family, prompt, NUM_TOKENS) for n, prompt in enumerate(prompts)}


@pytest.mark.parametrize("fault", ["batch", "snapshot", "carry"])
def test_wrong_states_are_found_at_load(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = copy.deepcopy(hybrid_model("qwen3_5_text"))
    if fault == "batch":  # the rows of two sequences are swapped
        monkeypatch.setattr("antiphon.engine.forward.recurrent.cache.stack_rows", lambda rows: stack_rows(rows[::-1]))
    elif fault == "snapshot":  # the states of a copy are those of the source's last token
        monkeypatch.setattr(RecurrentCache, "_copy_states", lambda self, _: self.states.copy_row(self.row))
    else:  # a second part of a prompt begins without a state
        monkeypatch.setattr(
            "antiphon.engine.forward.recurrent.states.StateView.get_recurrent_state",
            lambda self, layer, state_idx=0: (
                None if self._batch.size == 1 else self._batch.tensors["recurrent", layer, 0]
            ),
        )
    assert isinstance(select_forward(model), SequentialForward)
    assert "its logits differ" in caplog.text and "each prompt is read whole" in caplog.text


def test_fallback_gives_the_mixers_back_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(hybrid_model("granitemoehybrid"))
    before = {name: module.chunk_size for name, module in model.named_modules() if hasattr(module, "chunk_size")}
    monkeypatch.setattr(RecurrentCache, "_copy_states", lambda self, _: self.states.copy_row(self.row))
    assert isinstance(select_forward(model), SequentialForward)
    assert all("forward" not in vars(module) for module in model.modules())
    assert before == {
        name: module.chunk_size for name, module in model.named_modules() if hasattr(module, "chunk_size")
    }
