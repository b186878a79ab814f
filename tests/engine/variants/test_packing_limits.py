"""A model that cannot be packed says why, in words that name no type of transformers."""

import pytest

pytest.importorskip("torch")

from antiphon.engine.variants.packing_limits import OWN_ATTENTION, REASONS_BY_KIND, explain_unpackable
from tests.engine.tiny_models import tiny_model
from tests.models.checkpoints import build_model
from tests.models.table import ROWS


@pytest.mark.parametrize("name", ["llama (dynamic rope)", "llama4_text", "gemma3n_text", "deepseek_v32"])
def test_attention_of_these_models_can_be_packed(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    assert explain_unpackable(build_model(row), set(), None) is None


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen4_exp_text", ["indexed_attention", "linear_attention"]),
        ("deepseek_v4", ["compressed_sparse_attention", "heavily_compressed_attention"]),
        ("lfm2", ["conv"]),
    ],
)
def test_type_of_layer_is_told_in_words(name: str, kinds: list[str]) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    reason = explain_unpackable(build_model(row), set(), None)
    assert reason == ", and ".join(dict.fromkeys(REASONS_BY_KIND[kind] for kind in kinds))
    assert not any(kind in (reason or "") for kind in kinds if "_" in kind)


def test_model_with_attention_of_its_own_says_so() -> None:
    assert explain_unpackable(tiny_model("bloom"), set(), None) == OWN_ATTENTION
