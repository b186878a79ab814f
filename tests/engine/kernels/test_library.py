"""The compiled kernels: results equal to torch's, bit-identical in any batch, compilation, cache and fallback."""

import ctypes
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.kernels import compiler
from antiphon.engine.kernels import library as compiled_module
from antiphon.engine.kernels.bindings import (
    SPAN_FIELDS,
    AttentionArgs,
    DecoderLayerArgs,
    Kernels,
    RowArgs,
)
from antiphon.engine.kernels.compiler import INCLUDE_DIR
from antiphon.engine.kernels.expert_layer import ExpertLayerArgs, ExpertMatrixArgs
from antiphon.engine.kernels.library import SOURCES, load_kernels
from antiphon.engine.kernels.lora import GROUP_FIELDS, LoraArgs
from antiphon.engine.kernels.quantized_linear import LinearArgs
from antiphon.engine.kernels.row_major_linear import RowMajorArgs
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.options import EngineOptions
from tests.counts import FULL_COUNTS
from tests.engine.kernel_builds import require_kernels, speed_up_compiler
from tests.engine.tiny_models import copy_tiny_model, join_tokens, make_job, make_prompts, run_jobs

NAN, INF = float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore")


BuildAlteredKernels = Callable[[str, str], Kernels | None]


@pytest.mark.parametrize("size", [16, 64, 80, 1024, 5120])
@pytest.mark.parametrize("threads", [1, 2])
def test_rms_norm_equals_torch_and_is_batch_invariant(compiled_kernels: Kernels, size: int, threads: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn((1, 130, size), generator=generator) * torch.logspace(-6, 4, 130)[None, :, None]
    weight = torch.rand(size, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        normed = compiled_kernels.rms_norm(rows, weight, 1e-6)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(normed, functional.rms_norm(rows, (size,), weight, 1e-6), rtol=1e-5, atol=1e-7)
    for first, count in ((0, 1), (60, 2), (97, 33)):
        part = rows[:, first : first + count]
        assert torch.equal(compiled_kernels.rms_norm(part, weight, 1e-6), normed[:, first : first + count])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(1, 7, 6, 64)[:, :, 1:4],
        lambda x: x.view(1, 7, 6, 64).transpose(1, 2),
        lambda x: x.view(7, 6, 64)[::2],
        lambda x: x.view(7, 384)[:, ::6],
        lambda x: x.view(7, 3, 2, 64)[1:6, :, 1],
        lambda x: x.view(7, 6, 64)[3, 2],
        lambda x: x.view(42, 64)[:0],
        lambda x: x.view(7, 1, 6, 64)[:, :, :3],
    ],
)
def test_strided_views_are_supported(compiled_kernels: Kernels, view: Any) -> None:
    x = view(torch.randn(7 * 6 * 64, generator=torch.Generator().manual_seed(4)))
    weight = torch.linspace(0.5, 2, 64)
    assert torch.allclose(
        compiled_kernels.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (64,), weight, 1e-5), atol=1e-6
    )


def test_rms_norm_of_a_nan_row_is_nan(compiled_kernels: Kernels) -> None:
    rows = torch.ones(4, 32)
    rows[0, 17] = NAN
    normed = compiled_kernels.rms_norm(rows, torch.ones(32), 1e-6)
    assert normed[0].isnan().all() and normed[1:].isfinite().all()


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "mistral", "gemma2"])
def test_model_output_is_the_same_with_and_without_kernels(family: str) -> None:
    require_kernels()
    outputs = []
    for compile_ in (True, False):
        core = build_core_from_model(
            copy_tiny_model(family),
            options=EngineOptions(compile_kernels=compile_, max_num_seqs=3, max_batched_tokens=8),
            optimize=True,
        )
        jobs = [make_job(prompt, str(n), max_tokens=20) for n, prompt in enumerate(make_prompts(3, 30, 1, 9))]
        outputs.append({name: join_tokens(chunks) for name, chunks in run_jobs(core, *jobs).items()})
    assert len(outputs[0]) == 4 and outputs[0] == outputs[1]


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "mistral", "gemma2"])
def test_int8_logits_are_close_with_and_without_kernels(family: str) -> None:
    """Both round to int8, at other points: they differ less from each other than from the logits without rounding."""
    require_kernels()
    logits = []
    for options in ({"compile_kernels": True}, {"compile_kernels": False}, {"quantization": None}):
        model = copy_tiny_model(family)
        core = build_core_from_model(model, options=EngineOptions(**{"quantization": "int8"} | options), optimize=True)
        logits.append(reference_logits(core.forward, model))
    compiled_error, torch_error = ((part - logits[2]).norm() / logits[2].norm() for part in logits[:2])
    levels = 127 if torch.cpu._is_vnni_supported() else 63  # those of fbgemm; the kernels have 127 on every CPU
    assert 0 < compiled_error < 0.06 and 0.8 * levels / 127 < compiled_error / torch_error < 1.25
    difference = (logits[0] - logits[1]).norm() / logits[2].norm()
    assert difference < (0.03 if levels == 127 else 1.1 * torch_error)


@pytest.fixture
def empty_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty kernel cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speed_up_compiler(monkeypatch)
    return tmp_path / "antiphon"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-such-compiler -x", "no C compiler found (tried no-such-compiler -x)"),
        ("false", "false: compilation failed"),
    ],
)
def test_missing_or_failing_compiler_is_logged(
    name: str, reason: str, empty_cache_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", name)
    with caplog.at_level(logging.WARNING):
        assert load_kernels_anew(monkeypatch) is None
    assert caplog.messages == [f"compiled CPU kernels are unavailable, using slower torch operations: {reason}"]
    assert not list(empty_cache_folder.iterdir())


@pytest.fixture
def build_altered_kernels(
    compiled_kernels: Kernels, empty_cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BuildAlteredKernels:
    """Compiles the sources with a replaced part. Returns None if the library was rejected."""

    def build(original: str, replacement: str) -> Kernels | None:
        matches = []
        for source in (*SOURCES, *compiler.INCLUDE_DIR.glob("*.h")):
            code = source.read_text()
            matches += [source.name] * (original in code)
            (tmp_path / source.name).write_text(code.replace(original, replacement))
        assert len(matches) == 1
        with monkeypatch.context() as patch:
            patch.setattr(compiled_module, "SOURCES", [tmp_path / source.name for source in SOURCES])
            patch.setattr(compiler, "INCLUDE_DIR", tmp_path)
            return load_kernels_anew(patch)

    return build


def load_kernels_anew(monkeypatch: pytest.MonkeyPatch) -> Kernels | None:
    """Returns what `load_kernels` returns in a new process."""
    with monkeypatch.context() as patch:
        patch.setattr(compiled_module, "_load_once", compiled_module._load_once.__wrapped__)
        return load_kernels()


WRONG_CODE = (
    ("= levels / row_max", "= levels / (row_max + 1)", "int8_linear"),
    ("args->out_stride + k] = results[r]", "args->out_stride + k] = results[0]", "row_major_linear"),
    ("if (args->silu_mul) silu_mul_row(x, x, size)", "if (0) silu_mul_row(x, x, size)", "int8_linear"),
    ("[row] * params->scale", "[0] * params->scale", "int8_linear"),
    ("sums[s * TILE_ROWS] = -WEIGHT_ZERO", "sums[s * TILE_ROWS] = -(WEIGHT_ZERO - 1)", "int4_linear"),
    ("/ args->size + loop->eps", "/ args->size + 1", "rms_norm"),
    ("v * sigmoid * load", "v * load", "silu_mul"),
    ("out[b] = reduce_sum(total) + rest", "out[b] = reduce_sum(total)", "block_softmax"),
    ("-(b * load(sines", "(b * load(sines", "rope"),
    ("load(rows[r].out + d) / total", "load(rows[r].out + d)", "attend"),
    ("if (item->span->count == 1) append_kv", "if (0) append_kv", "attend"),
    ("if (longest > 1) parallel_for", "if (0) parallel_for", "attend"),
    ("end < TILE_KEYS) apply_mask", "end < 0) apply_mask", "attend"),
    ("fma_lanes(odd[b], second", "fma_lanes(even[b], second", "half_linear"),
)
"""Code of a kernel, wrong code in its place, and the kernel whose check must find it."""

# Each compiles a part of the library, so the short run takes one of three.
TESTED_CODE = WRONG_CODE if FULL_COUNTS else WRONG_CODE[1::3]


@pytest.mark.parametrize(("original", "replacement", "name"), TESTED_CODE)
def test_library_with_wrong_results_is_rejected(
    build_altered_kernels: BuildAlteredKernels,
    compiled_kernels: Kernels,
    original: str,
    replacement: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if name == "int8_linear":
        require_kernels()
    assert build_altered_kernels(original, replacement) is None
    assert f"results differ from torch's: {name}" in caplog.text


def test_refused_library_fails_the_tests_instead_of_skipping_them(
    compiled_kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute_wrong_norm(*_: object) -> Tensor:
        return torch.zeros(3, 5, 64)

    monkeypatch.setattr(Kernels, "rms_norm", compute_wrong_norm)
    with pytest.raises(pytest.fail.Exception, match=r"refused: .*: rms_norm$"):
        require_kernels()


def test_failing_compiler_fails_the_tests_instead_of_skipping_them(
    compiled_kernels: Kernels, empty_cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(pytest.fail.Exception, match="refused: false: compilation failed"):
        require_kernels()


@pytest.mark.parametrize(
    ("source", "struct", "args"),
    [
        ("kernels.h", "row_args", RowArgs),
        ("kernels.h", "linear_args", LinearArgs),
        ("kernels.h", "attention_args", AttentionArgs),
        ("decoder_layer.c", "decoder_layer_args", DecoderLayerArgs),
        ("lora.c", "lora_args", LoraArgs),
        ("row_major_gemm.c", "row_major_args", RowMajorArgs),
        ("expert_layer.c", "expert_matrix", ExpertMatrixArgs),
        ("expert_layer.c", "expert_layer_args", ExpertLayerArgs),
    ],
)
def test_bindings_declare_the_fields_of_the_c_structures(
    source: str, struct: str, args: type[ctypes.Structure]
) -> None:
    assert _list_fields(args) == _parse_fields(source, struct)


def test_numbers_of_table_fields_match_the_bindings() -> None:
    assert len(_parse_fields("kernels.h", "span")) == SPAN_FIELDS
    assert len(_parse_fields("lora.c", "lora_group")) == GROUP_FIELDS


def _list_fields(args: type[ctypes.Structure]) -> list[str]:
    fields: list[str] = []
    for name, kind in args._fields_:
        fields += [name] if kind is ctypes.c_int64 else [f"{name}_{field}" for field in _list_fields(kind)]
    return fields


def _parse_fields(source: str, struct: str) -> list[str]:
    """The field names of a C structure of int64_t and of other structures of the file, in order."""
    code = re.sub(r"/\*.*?\*/", "", (INCLUDE_DIR / source).read_text(), flags=re.DOTALL)
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", code, re.DOTALL)
    fields: list[str] = []
    for part, names in re.findall(r"(?:int64_t|struct (\w+)) ([^;]*);", body):
        for name in (name.strip() for name in names.split(",")):
            fields += [f"{name}_{field}" for field in _parse_fields(source, part)] if part else [name]
    return fields


def test_library_without_a_required_function_is_rejected(
    build_altered_kernels: BuildAlteredKernels, caplog: pytest.LogCaptureFixture
) -> None:
    assert build_altered_kernels("antiphon_silu_mul", "antiphon_bait") is None
    assert "antiphon_silu_mul" in caplog.text


@pytest.mark.parametrize("size", [16, 48, 3072])
def test_silu_mul_equals_torch_and_is_batch_invariant(compiled_kernels: Kernels, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn((1, 50, 2 * size), generator=generator) * torch.logspace(-3, 3, 50)[None, :, None]
    x[0, 0, :4] = torch.tensor([-1000.0, 1000.0, -0.0, 88.5])
    gated = compiled_kernels.silu_mul(x)
    expected = functional.silu(x[..., :size].double()) * x[..., size:].double()
    assert torch.allclose(gated.double(), expected, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled_kernels.silu_mul(x[:, 20:21]), gated[:, 20:21])
    x[0, 3, 1] = NAN
    assert compiled_kernels.silu_mul(x)[0, 3].isnan().nonzero().flatten().tolist() == [1]


def test_rotary_embedding_equals_that_of_transformers(compiled_kernels: Kernels) -> None:
    from transformers.models.llama.modeling_llama import rotate_half

    generator = torch.Generator().manual_seed(6)
    wide = torch.randn((1, 9, 10, 64), generator=generator)
    cos, sin = (torch.randn((1, 9, 64), generator=generator) for _ in "cs")
    for part in (wide[:, :, :6], wide[:, :, 6:8], wide[:, :, 8:9]):
        x = part.transpose(1, 2)
        rotated = compiled_kernels.apply_rotary(x, cos, sin)
        assert rotated.shape == x.shape
        assert torch.allclose(rotated, x * cos[:, None] + rotate_half(x) * sin[:, None], atol=1e-5)  # type: ignore[no-untyped-call]
        assert torch.equal(compiled_kernels.apply_rotary(x[:, :, 4:5], cos[:, 4:5], sin[:, 4:5]), rotated[:, :, 4:5])


@pytest.mark.parametrize("size", [1, 7, 128, 131, 20_011])
def test_block_softmax_equals_torch_and_is_batch_invariant(compiled_kernels: Kernels, size: int) -> None:
    scores = torch.randn((40, size), generator=torch.Generator().manual_seed(size)) * 8
    scores[3, size // 2 + 1 :] = -INF
    scales = torch.linspace(0.2, 5, 40)[:, None]
    sums, largest = compiled_kernels.block_softmax_sums(scores, scales)
    assert torch.equal(largest, scores.amax(-1, keepdim=True))
    weights = ((scores.double() - largest) * scales).exp()
    expected = torch.stack([part.sum(-1) for part in weights.split(128, -1)], -1)
    assert sums.shape == expected.shape and torch.allclose(sums.double(), expected, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled_kernels.block_softmax_sums(scores[17:18], scales[17:18])[0], sums[17:18])
    for value in (NAN, INF):
        scores[5, size - 1] = value
        sums, largest = compiled_kernels.block_softmax_sums(scores, scales)
        assert not largest[5].isfinite() and not sums[5].sum().isfinite() and sums[4].isfinite().all()
    scores[6] = -INF
    assert not compiled_kernels.block_softmax_sums(scores, scales)[0][6].isfinite().any()
