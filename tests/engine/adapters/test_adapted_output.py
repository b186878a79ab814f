"""Jobs of many adapters in one step: the logits of merged models, and the same tokens alone and among others."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.forward.adapter_weights import BLOCK_ROWS, LoraWeight
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.kernels.lora import describe_group
from antiphon.engine.protocol import Job
from antiphon.engine.scheduler.core import Core
from tests.engine.adapters.adapter_folders import (
    ATTENTION,
    MLP,
    base_model,
    build_adapted_core,
    generate_merged,
    make_adapter,
    merge_adapter,
)
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import generate_tokens, join_tokens, make_job, make_prompts, run_jobs

NUM_ADAPTERS = 8
NUM_TOKENS = 12
TARGETS: dict[str, tuple[str, ...]] = {
    "qwen3": (*ATTENTION, *MLP),
    "llama": (*ATTENTION, *MLP, "lm_head"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "tied": ("q_proj", "lm_head"),
    "mixtral": ATTENTION,
}


@pytest.fixture
def restore_threads() -> Iterator[None]:
    """Restores torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_adapters(folder: Path, family: str, count: int = NUM_ADAPTERS) -> dict[str, Path]:
    """Writes adapters that differ in rank, scale and layers."""
    targets = TARGETS[family]
    return {
        f"a{index}": make_adapter(
            folder / f"a{index}",
            family,
            100 + index,
            targets=targets if index % 3 else targets[: 1 + index % len(targets)],
            rank=2 + index,
            alpha=4.0 + index,
            use_rslora=index % 2 == 1,
        )
        for index in range(count)
    }


@torch.inference_mode()
def step_logits(core: Core, prompts: list[list[int]], names: list[str]) -> Tensor:
    """Returns the logits of the last token of each prompt, all computed in one pass."""
    forward = core.forward
    inputs = [
        SequenceInput(forward.new_cache(len(ids)), ids, 1, adapter=core.adapters.find(name) if core.adapters else None)
        for ids, name in zip(prompts, names, strict=True)
    ]
    return forward.run(inputs)


@torch.inference_mode()
def merged_logits(model: Any, prompt: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([prompt], device=model.device)).logits[0, -1]
    return logits


@pytest.mark.parametrize("family", TARGETS)
def test_eight_adapters_in_one_step_give_the_logits_of_merged_models(family: str, tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, family)
    core = build_adapted_core(family, folders)
    prompts, names = make_prompts(*range(5, 14)), ["", *folders]

    logits = step_logits(core, prompts, names)

    for prompt, name, row in zip(prompts, names, logits, strict=True):
        model = merge_adapter(family, folders[name]) if name else base_model(family)
        expected = merged_logits(model, prompt)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)
        if name:
            assert (expected - merged_logits(base_model(family), prompt)).abs().max() > 0.05


def make_adapter_jobs(prompts: list[list[int]], names: list[str]) -> list[Job]:
    """Returns a job of each prompt and adapter, with the adapter's name in its id."""
    return [
        make_job(prompt, f"j{name}", adapter=name, max_tokens=NUM_TOKENS, ignore_eos=True)
        for prompt, name in zip(prompts, names, strict=True)
    ]


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "llama", "phi3"])
def test_greedy_output_equals_that_of_merged_models(family: str, optimize: bool, tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, family)
    core = build_adapted_core(family, folders, optimize=optimize)
    prompts, names = make_prompts(*range(9, 18)), ["", *folders]
    jobs = make_adapter_jobs(prompts, names)
    together = {name: join_tokens(chunks) for name, chunks in run_jobs(core, *jobs).items()}
    alone = {job.id: generate_tokens(core, job) for job in jobs}

    assert together == alone
    for prompt, name in zip(prompts, names, strict=True):
        model = merge_adapter(family, folders[name]) if name else base_model(family)
        model.generation_config.eos_token_id = None
        assert together[f"j{name}"] == generate_merged(model, prompt, NUM_TOKENS)


@pytest.mark.parametrize(
    "options", [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"deterministic": True}], ids=str
)
@pytest.mark.parametrize("family", ["qwen3", "phi3"])
def test_rows_have_the_same_bits_alone_and_among_others(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, family)
    core = build_adapted_core(family, folders, force_quantization=True, **options)
    plain = build_adapted_core(family, {}, force_quantization=True, **options)
    prompts, names = make_prompts(*range(3, 12)), ["", *folders]

    together = step_logits(core, prompts, names)

    for prompt, name, row in zip(prompts, names, together, strict=True):
        assert torch.equal(row, step_logits(core, [prompt], [name])[0]), name
    assert torch.equal(together[0], step_logits(plain, [prompts[0]], [""])[0])


def test_int8_rows_of_adapters_are_as_close_as_those_of_the_base(tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, "qwen3")
    core = build_adapted_core("qwen3", folders, quantization="int8", force_quantization=True)
    prompts, names = make_prompts(*[12] * 9), ["", *folders]
    logits = step_logits(core, prompts, names)

    similarities = [
        float(torch.cosine_similarity(row, merged_logits(merge_adapter("qwen3", folders[name]), prompt), dim=0))
        for prompt, name, row in zip(prompts[1:], names[1:], logits[1:], strict=True)
    ]
    base = float(torch.cosine_similarity(logits[0], merged_logits(base_model("qwen3"), prompts[0]), dim=0))

    assert min(similarities) > min(base, 0.99) - 0.01


def test_paged_caches_serve_adapters(tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, "qwen3", 3)
    core = build_adapted_core("qwen3", folders, paged_cache=True)
    prompts, names = make_prompts(9, 10, 11, 12), ["", *folders]
    jobs = make_adapter_jobs(prompts, names)
    together = {name: join_tokens(chunks) for name, chunks in run_jobs(core, *jobs).items()}

    for prompt, name in zip(prompts, names, strict=True):
        model = merge_adapter("qwen3", folders[name]) if name else base_model("qwen3")
        model.generation_config.eos_token_id = None
        assert together[f"j{name}"] == generate_merged(model, prompt, NUM_TOKENS)


@pytest.mark.parametrize("is_paged", [True, False])
def test_jobs_of_one_adapter_need_not_be_neighbors(is_paged: bool, tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, "qwen3", 2)
    core = build_adapted_core("qwen3", folders, paged_cache=is_paged)
    prompts, names = make_prompts(*[9] * 6), ["a0", "", "a1", "a0", "a1", "a0"]
    jobs = [
        make_job(prompt, f"j{index}", adapter=name, max_tokens=NUM_TOKENS, ignore_eos=True)
        for index, (prompt, name) in enumerate(zip(prompts, names, strict=True))
    ]

    together = run_jobs(core, *jobs)

    for index, (prompt, name) in enumerate(zip(prompts, names, strict=True)):
        model = merge_adapter("qwen3", folders[name]) if name else base_model("qwen3")
        model.generation_config.eos_token_id = None
        assert join_tokens(together[f"j{index}"]) == generate_merged(model, prompt, NUM_TOKENS)


def test_rows_of_the_base_can_run_in_a_pass_of_their_own(tmp_path: Path) -> None:
    folders = make_adapters(tmp_path, "qwen3", 3)
    core = build_adapted_core("qwen3", folders)
    assert core.adapters is not None
    prompts, names = make_prompts(5, 6, 7, 8, 9), ["a0", "", "a1", "", "a2"]
    expected = step_logits(core, prompts, names)
    core.adapters.layers.rows.one_pass = False
    assert torch.equal(step_logits(core, prompts, names), expected)


SHAPES = [(1, 1, 1), (32, 4, 48), (47, 5, 30), (192, 16, 192), (257, 3, 65), (1023, 20, 130), (1024, 64, 3072)]


@pytest.mark.parametrize("block_rows", [BLOCK_ROWS, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(shape: tuple[int, int, int], block_rows: int) -> None:
    inputs, rank, outputs = shape
    generator = torch.Generator().manual_seed(4)
    a, b, x = (
        torch.randn(size, generator=generator)
        for size in ((rank, inputs), (outputs, rank), (3 * BLOCK_ROWS + 1, inputs))
    )
    weight = LoraWeight(a, b, 0.5, torch.device("cpu"), torch.float32)
    weight._block_rows = min(weight._block_rows, block_rows)
    whole = weight(x)
    torch.testing.assert_close(whole, 0.5 * x @ a.T @ b.T, rtol=1e-4, atol=1e-3)
    for first, end in ((0, 1), (7, 9), (3, 20), (24, 25), (8, 16), (0, 0)):
        assert torch.equal(weight(x[first:end]), whole[first:end])


@pytest.mark.parametrize("shape", [(32, 4, 48), (192, 16, 192), (1024, 37, 3072)], ids=str)
def test_a_row_of_the_kernel_has_the_same_bits_in_any_batch(shape: tuple[int, int, int], restore_threads: None) -> None:
    kernel, (inputs, rank, outputs) = require_kernels().lora, shape
    generator = torch.Generator().manual_seed(4)
    first_a, first_b, x, base = (
        torch.randn(size, generator=generator)
        for size in ((rank, inputs), (outputs, rank), (30, inputs), (30, outputs))
    )
    pairs = [kernel.pack_matrices(factor * first_a, first_b, 0.5) for factor in (1, -2)]

    def multiply(*groups: tuple[int, int, int]) -> Tensor:
        out = base.clone()
        fields = [field for row, count, which in groups for field in describe_group(row, count, pairs[which])]
        kernel.add_products(x, out, array("q", fields))
        return out

    torch.set_num_threads(1)
    whole = multiply((1, 13, 0), (15, 14, 1))
    product = 0.5 * x @ first_a.T @ first_b.T
    torch.testing.assert_close(whole[1:14], (base + product)[1:14], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(whole[15:29], (base - 2 * product)[15:29], rtol=1e-4, atol=2e-3)
    assert all(torch.equal(whole[row], base[row]) for row in (0, 14, 29))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for group in ((1, 1, 0), (7, 2, 0), (11, 3, 0), (15, 14, 1), (20, 5, 1)):
            rows = slice(group[0], group[0] + group[1])
            assert torch.equal(multiply(group)[rows], whole[rows])


@pytest.mark.parametrize("family", ["bloom", "lfm2"])
def test_models_that_run_one_sequence_at_a_time_serve_adapters(family: str, tmp_path: Path) -> None:
    folders = {
        name: make_adapter(tmp_path / name, family, seed, targets="all-linear") for seed, name in enumerate("ab")
    }
    core = build_adapted_core(family, folders)
    (prompt,) = make_prompts(9)
    jobs = [make_job(prompt, f"j{name}", adapter=name, max_tokens=NUM_TOKENS, ignore_eos=True) for name in ("", *"ab")]

    together = {name: join_tokens(chunks) for name, chunks in run_jobs(core, *jobs).items()}

    for name in ("", *"ab"):
        model = merge_adapter(family, folders[name]) if name else base_model(family)
        model.generation_config.eos_token_id = None
        assert together[f"j{name}"] == generate_merged(model, prompt, NUM_TOKENS)
