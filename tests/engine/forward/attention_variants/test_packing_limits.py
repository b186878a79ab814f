"""A model that cannot be packed says why, in words that name no type of transformers."""

from types import SimpleNamespace

import pytest

from antiphon.engine.forward.attention_variants.packing_limits import (
    OWN_ATTENTION,
    REASONS_BY_KIND,
    exceeds_rope_limit,
    explain_unpackable,
)
from tests.engine.tiny_models import tiny_model
from tests.models.checkpoints import build_model
from tests.models.table import ROWS


@pytest.mark.parametrize("name", ["llama (dynamic rope)", "llama4_text", "gemma3n_text", "minimax_m3_vl_text"])
def test_attention_of_these_models_can_be_packed(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    assert explain_unpackable(build_model(row), set(), None) is None


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("qwen4_exp_text", ["indexed_attention", "linear_attention"]),
        ("deepseek_v32", ["indexed_attention"]),
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


LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 72}


@pytest.mark.parametrize(
    ("config", "context", "limit"),
    [
        ({}, None, None),
        ({}, 100, None),
        ({"rope_parameters": LONGROPE}, None, 72),
        ({"rope_parameters": LONGROPE}, 72, None),
        ({"rope_parameters": LONGROPE}, 73, 72),
        ({"rope_parameters": LONGROPE, "max_position_embeddings": 72}, None, None),
        ({"rope_parameters": LONGROPE, "max_position_embeddings": 72}, 73, None),
        ({"rope_parameters": LONGROPE, "max_position_embeddings": 73}, None, 72),
        ({"rope_parameters": LONGROPE, "n_positions": 512}, None, 72),
    ],
)
def test_limit_counts_where_longer_sequences_are_served(
    config: dict[str, object], context: int | None, limit: int | None
) -> None:
    assert exceeds_rope_limit(SimpleNamespace(**config), context) == limit
