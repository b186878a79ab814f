"""Greedy output equals that of transformers' own `generate`, token for token, alone and in changing batches."""

from unittest.mock import Mock

import pytest
import torch

from antiphon.engine.errors import LoadError
from antiphon.engine.forward.recurrent.forward import RecurrentForward
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.optimize.select import select_forward
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

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_greedy_output_equals_transformers_generate(family: str) -> None:
    prompts = make_prompts(3, 30, 1, 17, 9)
    expected = [generate_with_transformers(family, prompt, NUM_OUTPUT_TOKENS) for prompt in prompts]
    core = build_tiny_core(family, max_num_seqs=3, max_batched_tokens=8)
    assert [generate_tokens(core, make_job(prompt, max_tokens=NUM_OUTPUT_TOKENS)) for prompt in prompts] == expected
    chunks = run_jobs(
        core, *(make_job(prompt, str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts))
    )
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_greedy_output_is_unchanged_when_jobs_join_and_leave(family: str) -> None:
    prompts = make_prompts(5, 26, 2, 12, 19, 7)
    counts = [30, 6, 18, 25, 3, 12]
    core = build_tiny_core(family, max_num_seqs=4, max_batched_tokens=8)
    tokens: dict[str, list[int]] = {str(n): [] for n in range(len(prompts))}
    waiting = [make_job(prompt, str(n), max_tokens=counts[n]) for n, prompt in enumerate(prompts)]
    steps = 0
    while waiting or core.has_work:
        if waiting and steps % 4 == 0:
            core.add(waiting.pop(0))
        for name, chunk in core.step():
            tokens[name] += chunk.tokens
        steps += 1
    assert [tokens[str(n)] for n in range(len(prompts))] == [
        generate_with_transformers(family, prompt, count) for prompt, count in zip(prompts, counts, strict=True)
    ]


def test_varlen_forward_is_selected_for_the_families_it_supports(caplog: pytest.LogCaptureFixture) -> None:
    forwards = {family: type(select_forward(copy_tiny_model(family))) for family in FAMILY_CONFIGS}
    recurrent = dict.fromkeys(RECURRENT_FAMILIES, RecurrentForward)
    sequential = dict.fromkeys(SEQUENTIAL_FAMILIES, SequentialForward)
    assert forwards == dict.fromkeys(FAMILY_CONFIGS, VarlenForward) | recurrent | sequential
    assert caplog.text.count("runs one sequence at a time") == len(SEQUENTIAL_FAMILIES)


@pytest.mark.parametrize("family", sorted(SEQUENTIAL_FAMILIES))
def test_model_that_keeps_a_sequence_in_its_modules_runs_one_job_at_a_time(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = build_tiny_core(family, max_num_seqs=3)
    keeps_state = family == "recurrent_gemma"
    assert core.stats().max_num_seqs == (1 if keeps_state else 3)
    assert ("serves one request at a time" in caplog.text) == keeps_state


def test_varlen_forward_with_wrong_logits_is_not_selected(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "antiphon.engine.forward.block_attention._attend_fused", lambda query, *_: query.permute(0, 3, 1, 2, 4) * 2
    )
    assert isinstance(select_forward(copy_tiny_model("llama")), SequentialForward)
    assert "its logits differ" in caplog.text


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 8 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError("no memory"),
    ],
)
@pytest.mark.parametrize("place", ["block_attention._attend_fused", "sequential.SequentialForward.run"])
def test_no_slower_pass_is_selected_when_memory_runs_out(
    failure: Exception, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that another program had filled, models ran one sequence at a time from then on."""
    monkeypatch.setattr(f"antiphon.engine.forward.{place}", Mock(side_effect=failure))
    with pytest.raises(
        LoadError, match=r"memory ran out while the model was tested \(.*\); free some memory"
    ) as caught:
        select_forward(copy_tiny_model("llama"))
    assert "capacity" not in str(caught.value) and not caplog.text
