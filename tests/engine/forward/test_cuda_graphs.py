"""Paged caches in the core, and decode steps replayed as CUDA graphs: both give the same tokens as transformers.

Most tests need no GPU. That a step is capturable is checked on torch's `meta` device, which holds no data to copy.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.cache.paged import PAGE_TOKENS, PagedKVCache, PagePool
from antiphon.engine.forward.attention import ATTENTION_NAME
from antiphon.engine.forward.block_attention import AttentionParams, MaskCache, _attend_by_group, _attend_fused
from antiphon.engine.forward.decode_batch import MAX_TOKENS_READ, MIN_TABLE_COLUMNS
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.optimize.select import _sliding_windows, select_forward
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from tests.counts import FULL_COUNTS
from tests.engine.fake_model import build_core_with_fake_model, generate_without_reuse, make_tokens
from tests.engine.tiny_models import (
    FAMILY_CONFIGS,
    NUM_OUTPUT_TOKENS,
    RECURRENT_FAMILIES,
    SEQUENTIAL_FAMILIES,
    build_tiny_core,
    copy_tiny_model,
    generate_tokens,
    generate_with_transformers,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
)

PAGED_FAMILIES = [family for family in FAMILY_CONFIGS if family not in SEQUENTIAL_FAMILIES | RECURRENT_FAMILIES]
PAGED_CASES = (
    list(itertools.product(PAGED_FAMILIES, (False, True)))
    if FULL_COUNTS
    else [(family, index % 3 > 0) for index, family in enumerate(PAGED_FAMILIES)]
)
"""Families, each with and without captured steps; with reduced counts, one of the two."""

NUM_RANDOM_JOBS = 60 if FULL_COUNTS else 30
CACHE_GIB = 0.002

pytestmark = pytest.mark.filterwarnings("ignore")


class FakeGraphCapture:
    """Captures a step as a GPU would: each replay runs it again on the same tensors and adds `error` to the logits."""

    def __init__(self, error: float = 0.0) -> None:
        self.error = error
        self.captures = self.replays = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        self.captures += 1
        logits = step().clone()

        def replay() -> None:
            self.replays += 1
            logits.copy_(step() + self.error)

        return logits, replay


def build_paged_core(family: str, capture: FakeGraphCapture | None = None, **options: Any) -> Core:
    core = build_tiny_core(family, **{"paged_cache": True, "kv_cache_gib": CACHE_GIB, "max_draft_seqs": 0} | options)
    if capture is not None:
        get_paged_forward(core).capture_graphs(options.get("max_num_seqs", 4), capture)
    return core


def get_paged_forward(core: Core) -> VarlenForward:
    assert isinstance(core.forward, VarlenForward) and core.forward.is_paged
    return core.forward


def count_free_pages(core: Core) -> int:
    pages = get_paged_forward(core).pages
    assert pages is not None
    return pages.num_free


@pytest.mark.parametrize(("family", "captured"), PAGED_CASES)
def test_paged_greedy_output_equals_transformers_generate(family: str, captured: bool) -> None:
    prompts = make_prompts(3, 30, 1, 17, 9)
    expected = [generate_with_transformers(family, prompt, NUM_OUTPUT_TOKENS) for prompt in prompts]
    capture = FakeGraphCapture()
    core = build_paged_core(family, capture if captured else None, max_num_seqs=3, max_batched_tokens=8)
    num_free = count_free_pages(core)
    assert [generate_tokens(core, make_job(prompt, max_tokens=NUM_OUTPUT_TOKENS)) for prompt in prompts] == expected
    chunks = run_jobs(
        core, *(make_job(prompt, str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts))
    )
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected
    assert (capture.captures, capture.replays > 50) == ((4, True) if captured else (0, False)), (
        "batches of 1 to 3 rows, and the largest"
    )
    core.cache_manager.prefix_cache.evict_to(0)
    assert count_free_pages(core) == num_free


def test_caches_on_a_cpu_are_contiguous_by_default() -> None:
    assert isinstance(select_forward(copy_tiny_model("llama")).new_cache(0), ContiguousKVCache)
    assert not build_tiny_core("llama").forward.is_paged  # type: ignore[attr-defined]


def test_caches_are_contiguous_when_paged_logits_differ(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.engine.forward.attention.attend_batch", lambda rows, *_: rows * 2)
    forward = select_forward(copy_tiny_model("llama"), paged=True)
    assert isinstance(forward, VarlenForward) and not forward.is_paged
    assert "runs without a paged cache: its logits differ" in caplog.text


def test_drafts_and_prompts_run_with_decodes_in_a_paged_batch() -> None:
    prompts = make_prompts(5, 26, 2, 12, 19, 7)
    core = build_paged_core("gpt_oss", max_num_seqs=4, max_batched_tokens=8, max_draft_seqs=4)
    chunks = run_jobs(core, *(make_job(prompt, str(n), max_tokens=60) for n, prompt in enumerate(prompts)))
    for n, prompt in enumerate(prompts):
        assert join_tokens(chunks[str(n)]) == generate_with_transformers("gpt_oss", prompt, 60)


def test_deterministic_seeded_job_is_unchanged_by_the_batch() -> None:
    def generate_among(*others: list[int]) -> list[int]:
        core = build_paged_core("qwen3", max_num_seqs=8, max_batched_tokens=8, deterministic=True, pack_linears=False)
        jobs = [make_job(prompt, str(n), temperature=1.0, max_tokens=9 + n) for n, prompt in enumerate(others)]
        chunks = run_jobs(
            core, *jobs, make_job(make_prompts(20)[0], temperature=1.0, seed=4, max_tokens=30, ignore_eos=True)
        )
        return join_tokens(chunks["j"])

    assert generate_among() == generate_among(*make_prompts(3, 30, 1, 17, 9))


def test_paged_prefix_is_shared_without_a_copy() -> None:
    core = build_paged_core("llama", max_num_seqs=2)
    prompt = make_prompts(60)[0]
    run_jobs(core, make_job(prompt, max_tokens=4, ignore_eos=True))
    before = count_free_pages(core)
    core.add(make_job([*prompt[:36], 4, 5], "next", max_tokens=60, ignore_eos=True))
    first = [chunk for _, chunk in (*core.step(), *core.step())]
    assert first[0].cached_tokens == 36
    tables = [core.cache_manager.prefix_cache.entries[0].cache.table, core.scheduler.running[0].cache.table]  # type: ignore[attr-defined]
    assert tables[0][:2] == tables[1][:2] and tables[0][2] != tables[1][2]
    assert before - count_free_pages(core) == len(tables[1]) - 2
    expected = generate_tokens(build_tiny_core("llama"), make_job([*prompt[:36], 4, 5], max_tokens=60, ignore_eos=True))
    assert join_tokens(first) + join_tokens(run_jobs(core)["next"]) == expected


def test_admitted_sequences_always_get_their_pages() -> None:
    core, _ = build_core_with_fake_model(max_cache_tokens=704, max_num_seqs=6, max_batched_tokens=64, paged=True)
    jobs = [
        make_job(make_tokens(60 + 17 * n, n % 5), str(n), max_tokens=20 + 7 * n, ignore_eos=True) for n in range(20)
    ]
    chunks: dict[str, list[Chunk]] = run_jobs(core, *jobs)
    assert all(join_tokens(chunks[job.id]) == generate_without_reuse(job) for job in jobs)
    assert core.stats().failed_jobs == 0 and len(core.cache_manager.prefix_cache) > 1


@pytest.mark.parametrize(
    ("family", "max_num_seqs", "max_draft_seqs"), [("llama", 4, 2), ("gpt_oss", 8, 0), ("mistral", 16, 2)]
)
def test_random_jobs_in_a_full_paged_cache_return_all_pages(
    family: str, max_num_seqs: int, max_draft_seqs: int
) -> None:
    generator = random.Random(max_num_seqs)
    core = build_paged_core(
        family,
        FakeGraphCapture(),
        max_num_seqs=max_num_seqs,
        max_batched_tokens=32,
        max_draft_seqs=max_draft_seqs,
        kv_cache_gib=0.0004,
    )
    core.cache_manager.prefix_cache.evict_to(0)
    num_free = count_free_pages(core)
    common = [make_tokens(100, start) for start in range(3)]
    jobs: dict[str, Job] = {}
    chunks: dict[str, list[Chunk]] = {}
    while core.has_work or len(jobs) < NUM_RANDOM_JOBS:
        if len(jobs) < NUM_RANDOM_JOBS and generator.random() < 0.3:
            prompt = [
                *generator.choice(common)[: generator.randrange(1, 100)],
                *make_tokens(generator.randrange(1, 20), generator.randrange(90)),
            ]
            job = make_job(prompt, str(len(jobs)), max_tokens=generator.randrange(1, 50), ignore_eos=True)
            jobs[job.id] = job
            core.add(job)
        if jobs and generator.random() < (0.05 if FULL_COUNTS else 0.1):
            core.cancel(generator.choice(list(jobs)))
        for name, chunk in core.step() if core.has_work else ():
            chunks.setdefault(name, []).append(chunk)
    ends = [job_chunks[-1].finish for job_chunks in chunks.values()]
    assert len(ends) == NUM_RANDOM_JOBS and set(ends) == {"length", "cancelled"}
    contiguous_core = build_tiny_core(family)
    for name in generator.sample([name for name in chunks if chunks[name][-1].finish == "length"], 4):
        assert join_tokens(chunks[name]) == generate_tokens(contiguous_core, jobs[name])
    core.cache_manager.prefix_cache.evict_to(0)
    assert count_free_pages(core) == num_free


def test_paged_cache_capacity_is_a_multiple_of_the_page_size() -> None:
    """Otherwise a sequence that just fits would be rounded up, preempted, and admitted again in every step."""
    per_token = get_paged_forward(build_paged_core("llama")).bytes_per_token
    core = build_paged_core("llama", kv_cache_gib=700 * per_token / 2**30)
    assert core.scheduler.max_cache_tokens == 700 // PAGE_TOKENS * PAGE_TOKENS
    assert build_tiny_core("llama", kv_cache_gib=700 * per_token / 2**30).scheduler.max_cache_tokens == 700


@pytest.mark.parametrize("window", [None, 30])
def test_attention_by_group_equals_fused_attention(window: int | None) -> None:
    torch.manual_seed(1)
    query, keys, values = (torch.randn(shape) for shape in [(1, 2, 3, 70, 8), (1, 2, 200, 8), (1, 2, 200, 8)])
    masks = MaskCache()
    mask = masks.get(70, 200, window, 1, query)
    assert torch.equal(
        _attend_by_group(query, keys, values, mask, 0.3),
        _attend_fused(query, keys, values, AttentionParams(window, 0.3, None, None), masks),
    )


# CUDA graphs.


@pytest.mark.parametrize("capture", [FakeGraphCapture(error=1.0), lambda step: step() / 0 + [1]])
def test_steps_run_eagerly_when_capture_fails_or_differs(capture: Any, caplog: pytest.LogCaptureFixture) -> None:
    prompts = make_prompts(3, 30, 9)
    core = build_paged_core("llama", capture)
    for _ in range(2):
        chunks = run_jobs(
            core, *(make_job(prompt, str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts))
        )
        assert [join_tokens(chunks[str(n)]) for n in range(3)] == [
            generate_with_transformers("llama", prompt, NUM_OUTPUT_TOKENS) for prompt in prompts
        ]
    assert caplog.text.count("CUDA graphs are disabled") == 1


def test_steps_of_short_sequences_are_captured_at_the_start() -> None:
    capture = FakeGraphCapture()
    core = build_paged_core("llama", capture, max_num_seqs=6)
    graphs = get_paged_forward(core).graphs
    assert graphs is not None
    at_start = set(graphs.captured)
    assert {rows for rows, columns in at_start if columns == MIN_TABLE_COLUMNS} == {1, 2, 3, 4, 6}
    run_jobs(
        core, *(make_job(prompt, str(n), max_tokens=6 + n) for n, prompt in enumerate(make_prompts(3, 30, 9, 4, 5, 6)))
    )
    assert set(graphs.captured) == at_start and capture.replays > 5


def test_batch_that_exceeds_max_tokens_read_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TOKENS_READ > 4 * MIN_TABLE_COLUMNS * PAGE_TOKENS
    monkeypatch.setattr("antiphon.engine.forward.cuda_graphs.MAX_TOKENS_READ", 4 * MIN_TABLE_COLUMNS * PAGE_TOKENS)
    capture = FakeGraphCapture()
    core = build_paged_core("llama", capture, max_num_seqs=8)
    prompts = make_prompts(3, 30, 9, 4, 5, 6)
    chunks = run_jobs(core, *(make_job(prompt, str(n), max_tokens=8 + 4 * n) for n, prompt in enumerate(prompts)))
    for n, prompt in enumerate(prompts):
        assert join_tokens(chunks[str(n)]) == generate_with_transformers("llama", prompt, 8 + 4 * n)
    graphs = get_paged_forward(core).graphs
    assert graphs is not None and {rows for rows, _ in graphs.captured} == {1, 2, 3, 4, 8}, (
        "a batch of 6 has no graph of its own"
    )


def test_batches_with_much_padding_are_not_replayed() -> None:
    capture = FakeGraphCapture()
    core = build_paged_core("llama", capture, kv_cache_gib=0.08)
    graphs = get_paged_forward(core).graphs
    pages = get_paged_forward(core).pages
    assert graphs is not None and pages is not None

    def can_replay(*lengths: int) -> bool:
        kvs = [PagedKVCache(pages, length) for length in lengths]
        for kv, length in zip(kvs, lengths, strict=True):
            kv.length = length
        return graphs.replay_step([5] * len(kvs), kvs) is not None

    with torch.inference_mode():
        assert can_replay(10, 20, 30, 40) and can_replay(900, 900, 700, 800)
        assert not can_replay(10_000, 20, 30, 40)


class HostOperations(TorchDispatchMode):
    """Lists every operation that reads or creates a tensor in host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operations = 0
        self.host_operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        self.num_operations += 1
        if any(tensor.device.type != "meta" for tensor in tensors):
            self.host_operations.append(str(func))
        return result


@pytest.mark.parametrize("family", PAGED_FAMILIES)
def test_decode_step_copies_nothing_between_device_and_host(family: str) -> None:
    model = copy_tiny_model(family).to("meta", torch.bfloat16)  # type: ignore[arg-type]
    model.set_attn_implementation(ATTENTION_NAME)
    forward = VarlenForward(model, _sliding_windows(model), PagePool(2, 64))
    ids, positions, table = (torch.empty(shape, dtype=torch.long, device="meta") for shape in [(1, 4), (1, 4), (4, 16)])
    with torch.inference_mode():
        forward._decode_step(ids, positions, table)
        with HostOperations() as operations:
            logits = forward._decode_step(ids, positions, table)
    assert logits.shape == (4, model.config.get_text_config().vocab_size)
    assert operations.num_operations > 100 and not operations.host_operations


# On a GPU.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", PAGED_FAMILIES)
def test_gpu_greedy_output_equals_generate_with_cuda_graphs(family: str) -> None:
    prompts = make_prompts(3, 30, 1, 17, 9)
    model = copy_tiny_model(family).to("cuda")
    core = build_core_from_model(
        model, options=EngineOptions(max_num_seqs=3, max_batched_tokens=8, kv_cache_gib=CACHE_GIB, max_draft_seqs=0)
    )
    chunks = run_jobs(
        core, *(make_job(prompt, str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts))
    )
    assert [join_tokens(chunks[str(n)]) for n in range(5)] == [
        generate_with_transformers(family, prompt, NUM_OUTPUT_TOKENS) for prompt in prompts
    ]
    graphs = get_paged_forward(core).graphs
    experts = family in ("mixtral", "gpt_oss")  # in fp32, experts copy their token counts to the host
    assert graphs is not None and (len(graphs) > 1 or experts)
