"""An output that only repeats a piece ends, if the model's settings say so: those of the embedded model do."""

from array import array
from typing import Any

import pytest

from antiphon.app.models.static_info import read_static_info
from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.sequence import REPETITION_STEP, is_repetition
from tests.engine.tiny_models import build_tiny_core, join_tokens, make_job, run_jobs
from training.pictures.convert import MAX_REPETITION_TOKENS

FAVOURITE = 7
"""Token that a bias makes by far the most likely one."""
BIAS = {"logit_bias": {FAVOURITE: 1e6}}


@pytest.fixture(scope="module")
def core() -> Core:
    return build_core(MODEL_DIR, EngineOptions(threads=1))


def test_embedded_model_has_the_limit(core: Core) -> None:
    expected = read_static_info(inspect_checkpoint(MODEL_DIR), EngineOptions())
    assert expected is not None
    assert core.info.max_repetition_tokens == expected.max_repetition_tokens == MAX_REPETITION_TOKENS


def test_output_that_repeats_a_token_ends(core: Core) -> None:
    chunks = run_jobs(core, make_job([5, 6, 7], **BIAS))["j"]
    assert chunks[-1].finish == "repetition"
    tokens = join_tokens(chunks)
    assert MAX_REPETITION_TOKENS <= len(tokens) < MAX_REPETITION_TOKENS + REPETITION_STEP
    assert set(tokens) == {FAVOURITE}
    assert core.stats().running == 0


@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 1}], ids=["ignore_eos", "min_tokens"])
def test_request_that_sets_how_much_is_generated_gets_it(core: Core, options: dict[str, Any]) -> None:
    chunks = run_jobs(core, make_job([5, 6, 7], max_tokens=3 * MAX_REPETITION_TOKENS, **BIAS, **options))["j"]
    assert (chunks[-1].finish, len(join_tokens(chunks))) == ("length", 3 * MAX_REPETITION_TOKENS)


def test_model_without_the_setting_repeats_itself() -> None:
    chunks = run_jobs(build_tiny_core(), make_job([5, 6, 7], max_tokens=200, **BIAS))["j"]
    assert (chunks[-1].finish, len(join_tokens(chunks))) == ("length", 200)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([3] * 16, True),
        ([3, 4, 5, 6] * 4, True),
        ([4, 3, 3, 3] * 4, True),
        ([*[3, 4, 5] * 5, 3], True),
        ([3, 4, 5, 6, 7] * 3 + [3], False),
        ([*[3] * 15, 4], False),
        ([4, *[3] * 15], False),
        (list(range(16)), False),
    ],
)
def test_repetition_is_a_piece_written_four_times(tokens: list[int], expected: bool) -> None:
    assert is_repetition(array("i", tokens)) is expected
