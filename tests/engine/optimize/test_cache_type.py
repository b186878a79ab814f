"""The type of the KV cache: why it is not fp16 is told."""

from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import BASE_CONFIG, copy_tiny_model

ODD_HEAD_DIM = 30


def build_odd_model() -> PreTrainedModel:
    """Returns a tiny model whose heads have a size that no kernel computes."""
    torch.manual_seed(7)
    config = LlamaConfig(**BASE_CONFIG | {"head_dim": ODD_HEAD_DIM})  # type: ignore[arg-type]
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval())


def refuse(model: PreTrainedModel, **options: Any) -> str:
    with pytest.raises(LoadError) as refused:
        build_core_from_model(
            model, options=EngineOptions(kv_cache_dtype="float16", kv_cache_gib=0.01, **options), optimize=True
        )
    return refused.value.message


def test_refusal_names_the_size_of_the_heads() -> None:
    require_kernels()
    message = refuse(build_odd_model())
    assert f"a float16 KV cache is not supported here: heads of {ODD_HEAD_DIM} elements" in message
    assert "leave --kv-cache-dtype out" in message and "missing" not in message


def test_refusal_names_other_reasons() -> None:
    assert "compiled kernels are missing" in refuse(copy_tiny_model("llama"), compile_kernels=False)
    assert "the caches are paged" in refuse(copy_tiny_model("llama"), paged_cache=True)
    assert "one sequence at a time" in refuse(copy_tiny_model("bloom"))


def test_default_that_stays_fp32_is_told(caplog: pytest.LogCaptureFixture) -> None:
    require_kernels()
    options = EngineOptions(quantization="int8", force_quantization=True, kv_cache_gib=0.01)
    build_core_from_model(build_odd_model(), options=options, optimize=True)
    lines = [message for message in caplog.messages if "KV cache" in message]
    assert len(lines) == 1 and "stays float32" in lines[0] and f"heads of {ODD_HEAD_DIM}" in lines[0]
    caplog.clear()
    core = build_core_from_model(copy_tiny_model("llama"), options=options, optimize=True)
    assert "KV cache in float16" in core.info.description and "KV cache" not in caplog.text
