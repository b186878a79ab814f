"""Paged caches in the core, and steps that are recorded and played again: the same tokens as transformers' own.

What a CUDA graph needs of a step is proved here without a GPU: on torch's ``meta`` device nothing can be asked for.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.model.attention import (
    ATTENTION_NAME,
    AttentionMetadata,
    AttentionParams,
    _attend_by_group,
    _attend_fused,
)
from antiphon.engine.model.decode_batch import MAX_TOKENS_READ, MIN_TABLE_COLUMNS
from antiphon.engine.model.select import _sliding_windows, select_forward
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.fake_model import rigged
from tests.engine.model.test_greedy_output import COUNT, NATIVE
from tests.engine.scheduler.test_prefix_cache import alone, ids
from tests.engine.tiny_models import FAMILIES, core_for, drain, fresh, generate, job_of, prompts, run, tokens_of

PAGED = [family for family in FAMILIES if family not in NATIVE]
GIB = 0.002

pytestmark = pytest.mark.filterwarnings("ignore")


class Tape:
    """Records a step as a GPU would, by running it again on the same tensors. ``fault``: what it adds to the result."""

    def __init__(self, fault: float = 0.0) -> None:
        self.fault = fault
        self.recorded = self.played = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        self.recorded += 1
        logits = step().clone()

        def play() -> None:
            self.played += 1
            logits.copy_(step() + self.fault)

        return logits, play


def paged(family: str, tape: Tape | None = None, **options: Any) -> Core:
    core = core_for(family, **{"paged_cache": True, "kv_cache_gib": GIB, "max_draft_seqs": 0} | options)
    if tape is not None:
        forward_of(core).capture_graphs(options.get("max_num_seqs", 4), tape)
    return core


def forward_of(core: Core) -> VarlenForward:
    assert isinstance(core._forward, VarlenForward) and core._forward.is_paged
    return core._forward


def free(core: Core) -> int:
    pages = forward_of(core)._pages
    assert pages is not None
    return pages.num_free


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("family", PAGED)
def test_paged_greedy_equals_generate(family: str, recorded: bool) -> None:
    asked = prompts(3, 30, 1, 17, 9)
    truth = [generate(family, prompt, COUNT) for prompt in asked]
    tape = Tape()
    core = paged(family, tape if recorded else None, max_num_seqs=3, max_batched_tokens=8)
    empty = free(core)
    assert [run(core, job_of(prompt, max_tokens=COUNT)) for prompt in asked] == truth
    together = drain(core, *(job_of(prompt, str(n), max_tokens=COUNT) for n, prompt in enumerate(asked)))
    assert [tokens_of(together[str(n)]) for n in range(len(asked))] == truth
    assert (tape.recorded, tape.played > 50) == ((4, True) if recorded else (0, False)), "1 to 3 rows, and the largest"
    core._cache_manager.prefix_cache.clear()
    assert free(core) == empty


def test_a_cpu_keeps_its_caches_contiguous_unless_it_is_told_otherwise() -> None:
    assert isinstance(select_forward(fresh("llama")).new_cache(0), ContiguousKVCache)
    assert not core_for("llama")._forward.is_paged  # type: ignore[attr-defined]


def test_where_pages_give_other_logits_caches_are_contiguous(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.engine.model.attention._attend_batch", lambda rows, *_: rows * 2)
    forward = select_forward(fresh("llama"), paged=True)
    assert isinstance(forward, VarlenForward) and not forward.is_paged
    assert "has no paged cache: its logits differ" in caplog.text


def test_drafts_and_prompts_go_beside_those_who_say_one_token() -> None:
    asked = prompts(5, 26, 2, 12, 19, 7)
    core = paged("gpt_oss", max_num_seqs=4, max_batched_tokens=8, max_draft_seqs=4)
    chunks = drain(core, *(job_of(prompt, str(n), max_tokens=60) for n, prompt in enumerate(asked)))
    for n, prompt in enumerate(asked):
        assert tokens_of(chunks[str(n)]) == generate("gpt_oss", prompt, 60)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd_if_they_are_deterministic() -> None:
    def said(*others: list[int]) -> list[int]:
        core = paged("qwen3", max_num_seqs=8, max_batched_tokens=8, deterministic=True, pack_linears=False)
        crowd = [job_of(prompt, str(n), temperature=1.0, max_tokens=9 + n) for n, prompt in enumerate(others)]
        chunks = drain(core, *crowd, job_of(prompts(20)[0], temperature=1.0, seed=4, max_tokens=30, ignore_eos=True))
        return tokens_of(chunks["j"])

    assert said() == said(*prompts(3, 30, 1, 17, 9))


def test_a_beginning_is_read_without_a_copy() -> None:
    core = paged("llama", max_num_seqs=2)
    prompt = prompts(60)[0]
    drain(core, job_of(prompt, max_tokens=4, ignore_eos=True))
    before = free(core)
    core.add(job_of([*prompt[:36], 4, 5], "next", max_tokens=60, ignore_eos=True))
    first = [chunk for _, chunk in (*core.step(), *core.step())]
    assert first[0].cached_tokens == 36
    tables = [core._cache_manager.prefix_cache._entries[0].cache.table, core._scheduler.running[0].cache.table]  # type: ignore[attr-defined]
    assert tables[0][:2] == tables[1][:2] and tables[0][2] != tables[1][2]
    assert before - free(core) == len(tables[1]) - 2
    twin = run(core_for("llama"), job_of([*prompt[:36], 4, 5], max_tokens=60, ignore_eos=True))
    assert tokens_of(first) + tokens_of(drain(core)["next"]) == twin


def test_there_is_always_a_page_for_what_the_scheduler_lets_run() -> None:
    core, _ = rigged(max_cache_tokens=704, max_num_seqs=6, max_batched_tokens=64, paged=True)
    jobs = [job_of(ids(60 + 17 * n, n % 5), str(n), max_tokens=20 + 7 * n, ignore_eos=True) for n in range(20)]
    chunks: dict[str, list[Chunk]] = drain(core, *jobs)
    assert all(tokens_of(chunks[job.id]) == alone(job) for job in jobs)
    assert core.stats().failed_jobs == 0 and len(core._cache_manager.prefix_cache) > 1


@pytest.mark.parametrize(("family", "slots", "drafts"), [("llama", 4, 2), ("gpt_oss", 8, 0), ("mistral", 16, 2)])
def test_whoever_comes_and_goes_in_a_full_cache_nobody_fails_and_all_pages_come_back(
    family: str, slots: int, drafts: int
) -> None:
    dice = random.Random(slots)
    core = paged(family, Tape(), max_num_seqs=slots, max_batched_tokens=32, max_draft_seqs=drafts, kv_cache_gib=0.0004)
    core._cache_manager.prefix_cache.clear()
    empty = free(core)
    common = [ids(100, place) for place in range(3)]
    jobs: dict[str, Job] = {}
    chunks: dict[str, list[Chunk]] = {}
    while core.has_work or len(jobs) < 60:
        if len(jobs) < 60 and dice.random() < 0.3:
            prompt = [*dice.choice(common)[: dice.randrange(1, 100)], *ids(dice.randrange(1, 20), dice.randrange(90))]
            job = job_of(prompt, str(len(jobs)), max_tokens=dice.randrange(1, 50), ignore_eos=True)
            jobs[job.id] = job
            core.add(job)
        if jobs and dice.random() < 0.05:
            core.cancel(dice.choice(list(jobs)))
        for name, chunk in core.step() if core.has_work else ():
            chunks.setdefault(name, []).append(chunk)
    ends = [told[-1].finish for told in chunks.values()]
    assert len(ends) == 60 and set(ends) == {"length", "cancelled"}
    plain = core_for(family)
    for name in dice.sample([name for name in chunks if chunks[name][-1].finish == "length"], 8):
        assert tokens_of(chunks[name]) == run(plain, jobs[name])
    core._cache_manager.prefix_cache.clear()
    assert free(core) == empty


def test_the_room_is_whole_pages() -> None:
    """Else a sequence that just fits is rounded up, gives way at once, and is let in again, step after step."""
    per_token = forward_of(paged("llama")).bytes_per_token
    core = paged("llama", kv_cache_gib=700 * per_token / 2**30)
    assert core._scheduler._max_cache_tokens == 700 // PAGE_TOKENS * PAGE_TOKENS
    assert core_for("llama", kv_cache_gib=700 * per_token / 2**30)._scheduler._max_cache_tokens == 700


@pytest.mark.parametrize("window", [None, 30])
def test_heads_that_share_keys_can_be_taken_one_by_one(window: int | None) -> None:
    torch.manual_seed(1)
    query, keys, values = (torch.randn(shape) for shape in [(1, 2, 3, 70, 8), (1, 2, 200, 8), (1, 2, 200, 8)])
    pack = AttentionMetadata([], {})
    mask = pack.additive_mask(70, 200, window, 1, query)
    assert torch.equal(
        _attend_by_group(query, keys, values, mask, 0.3),
        _attend_fused(query, keys, values, AttentionParams(window, 0.3, None, None), pack),
    )


# Recordings.


@pytest.mark.parametrize("tape", [Tape(fault=1.0), lambda step: step() / 0 + [1]])
def test_what_cannot_be_recorded_or_plays_something_else_runs_as_before(
    tape: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked = prompts(3, 30, 9)
    core = paged("llama", tape)
    for _ in range(2):
        chunks = drain(core, *(job_of(prompt, str(n), max_tokens=COUNT) for n, prompt in enumerate(asked)))
        assert [tokens_of(chunks[str(n)]) for n in range(3)] == [generate("llama", prompt, COUNT) for prompt in asked]
    assert caplog.text.count("steps are not recorded as CUDA graphs") == 1


def test_a_batch_that_would_read_too_much_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TOKENS_READ > 4 * MIN_TABLE_COLUMNS * PAGE_TOKENS
    monkeypatch.setattr("antiphon.engine.model.cuda_graphs.MAX_TOKENS_READ", 4 * MIN_TABLE_COLUMNS * PAGE_TOKENS)
    tape = Tape()
    core = paged("llama", tape, max_num_seqs=8)
    asked = prompts(3, 30, 9, 4, 5, 6)
    chunks = drain(core, *(job_of(prompt, str(n), max_tokens=8 + 4 * n) for n, prompt in enumerate(asked)))
    for n, prompt in enumerate(asked):
        assert tokens_of(chunks[str(n)]) == generate("llama", prompt, 8 + 4 * n)
    graphs = forward_of(core)._graphs
    assert graphs is not None and {rows for rows, _ in graphs._graphs} == {1, 2, 3, 4, 8}, "of six there is none"


def test_short_sequences_are_not_filled_up_to_a_long_one() -> None:
    tape = Tape()
    core = paged("llama", tape, kv_cache_gib=0.08)
    graphs = forward_of(core)._graphs
    pages = forward_of(core)._pages
    assert graphs is not None and pages is not None

    def run_of(*lengths: int) -> bool:
        kvs = [PagedKVCache(pages, length) for length in lengths]
        for kv, length in zip(kvs, lengths, strict=True):
            kv.length = length
        return graphs.replay_step([5] * len(kvs), kvs) is not None

    with torch.inference_mode():
        assert run_of(10, 20, 30, 40) and run_of(900, 900, 700, 800)
        assert not run_of(10_000, 20, 30, 40)


class Watch(TorchDispatchMode):
    """Notes every operation that reads or makes a tensor in the host's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.outside: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        self.seen += 1
        if any(tensor.device.type != "meta" for tensor in tensors):
            self.outside.append(str(func))
        return result


@pytest.mark.parametrize("family", PAGED)
def test_a_step_asks_the_device_for_no_number_and_brings_none_from_the_host(family: str) -> None:
    model = fresh(family).to("meta", torch.bfloat16)  # type: ignore[arg-type]
    model.set_attn_implementation(ATTENTION_NAME)
    forward = VarlenForward(model, _sliding_windows(model), PagePool(2, 64))
    ids, positions, table = (torch.empty(shape, dtype=torch.long, device="meta") for shape in [(1, 4), (1, 4), (4, 16)])
    with torch.inference_mode():
        forward._decode_step(ids, positions, table)
        with Watch() as watch:
            logits = forward._decode_step(ids, positions, table)
    assert logits.shape == (4, model.config.get_text_config().vocab_size)
    assert watch.seen > 100 and not watch.outside


# On a GPU.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", PAGED)
def test_on_a_gpu_greedy_equals_generate_and_steps_are_recorded(family: str) -> None:
    asked = prompts(3, 30, 1, 17, 9)
    model = fresh(family).to("cuda")
    core = build_core_from_model(
        model, options=EngineOptions(max_num_seqs=3, max_batched_tokens=8, kv_cache_gib=GIB, max_draft_seqs=0)
    )
    chunks = drain(core, *(job_of(prompt, str(n), max_tokens=COUNT) for n, prompt in enumerate(asked)))
    assert [tokens_of(chunks[str(n)]) for n in range(5)] == [generate(family, prompt, COUNT) for prompt in asked]
    graphs = forward_of(core)._graphs
    experts = family in ("mixtral", "gpt_oss")  # which in fp32 ask the device how many tokens each one gets
    assert graphs is not None and (len(graphs) > 1 or experts)
