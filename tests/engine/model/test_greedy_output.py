"""Greedy output equals transformers' own generate, token for token: alone, and in a batch that changes all the time."""

import pytest

pytest.importorskip("torch")

from antiphon.engine.model.forward import SequentialForward
from antiphon.engine.model.select import select_forward
from antiphon.engine.model.varlen import VarlenForward
from tests.engine.tiny_models import FAMILIES, core_for, drain, fresh, generate, job_of, prompts, run, tokens_of

COUNT = 24
NATIVE = {"bloom", "mamba", "lfm2"}

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(family: str) -> None:
    asked = prompts(3, 30, 1, 17, 9)
    truth = [generate(family, prompt, COUNT) for prompt in asked]
    core = core_for(family, max_num_seqs=3, max_batched_tokens=8)
    assert [run(core, job_of(prompt, max_tokens=COUNT)) for prompt in asked] == truth
    together = drain(core, *(job_of(prompt, str(n), max_tokens=COUNT) for n, prompt in enumerate(asked)))
    assert [tokens_of(together[str(n)]) for n in range(len(asked))] == truth


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_requests_join_and_leave_between_steps(family: str) -> None:
    asked = prompts(5, 26, 2, 12, 19, 7)
    counts = [30, 6, 18, 25, 3, 12]
    core = core_for(family, max_num_seqs=4, max_batched_tokens=8)
    said: dict[str, list[int]] = {str(n): [] for n in range(len(asked))}
    waiting = [job_of(prompt, str(n), max_tokens=counts[n]) for n, prompt in enumerate(asked)]
    steps = 0
    while waiting or core.has_work:
        if waiting and steps % 4 == 0:
            core.add(waiting.pop(0))
        for name, chunk in core.step():
            said[name] += chunk.tokens
        steps += 1
    assert [said[str(n)] for n in range(len(asked))] == [
        generate(family, prompt, count) for prompt, count in zip(asked, counts, strict=True)
    ]


def test_the_packed_pass_is_taken_exactly_where_it_is_right(caplog: pytest.LogCaptureFixture) -> None:
    chosen = {family: type(select_forward(fresh(family))) for family in FAMILIES}
    assert chosen == {family: SequentialForward if family in NATIVE else VarlenForward for family in FAMILIES}
    assert caplog.text.count("runs one sequence at a time") == len(NATIVE)


def test_a_packed_pass_that_gives_other_logits_is_not_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "antiphon.engine.model.attention._attend_fused", lambda query, *_: query.permute(0, 3, 1, 2, 4) * 2
    )
    assert isinstance(select_forward(fresh("llama")), SequentialForward)
    assert "its logits differ" in caplog.text
