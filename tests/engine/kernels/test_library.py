"""Compiled kernels: what torch computes, in one step; the same bits alone and in a crowd; and torch where they cannot be."""

import ctypes
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.kernels import compiler
from antiphon.engine.kernels import library as compiled_module
from antiphon.engine.kernels.bindings import (
    SPAN_FIELDS,
    AttentionArgs,
    DecoderLayerArgs,
    Kernels,
    LinearArgs,
    RowArgs,
)
from antiphon.engine.kernels.compiler import INCLUDE_DIR, CompilationError, load_library
from antiphon.engine.kernels.library import SOURCES, load_kernels, verify_kernels
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import drain, fresh, job_of, prompts, tokens_of

NAN, INF = float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore")


Altered = Callable[[str, str], Kernels | None]


@pytest.mark.parametrize("size", [16, 64, 80, 1024, 5120])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_torchs_and_know_no_neighbours(compiled: Kernels, size: int, threads: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn((1, 130, size), generator=generator) * torch.logspace(-6, 4, 130)[None, :, None]
    weight = torch.rand(size, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        normed = compiled.rms_norm(rows, weight, 1e-6)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(normed, functional.rms_norm(rows, (size,), weight, 1e-6), rtol=1e-5, atol=1e-7)
    for first, count in ((0, 1), (60, 2), (97, 33)):
        part = rows[:, first : first + count]
        assert torch.equal(compiled.rms_norm(part, weight, 1e-6), normed[:, first : first + count])


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
def test_rows_may_lie_anyhow(compiled: Kernels, view: Any) -> None:
    x = view(torch.randn(7 * 6 * 64, generator=torch.Generator().manual_seed(4)))
    weight = torch.linspace(0.5, 2, 64)
    assert torch.allclose(compiled.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (64,), weight, 1e-5), atol=1e-6)


def test_the_norm_of_what_is_no_number_is_none(compiled: Kernels) -> None:
    rows = torch.ones(4, 32)
    rows[0, 17] = NAN
    normed = compiled.rms_norm(rows, torch.ones(32), 1e-6)
    assert normed[0].isnan().all() and normed[1:].isfinite().all()


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "mistral", "gemma2"])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_model_says_the_same_with_and_without_them(family: str, quantize: Any) -> None:
    if load_kernels() is None:
        pytest.skip("this machine has no C compiler")
    said = []
    for compile_ in (True, False):
        core = build_core_from_model(
            fresh(family),
            options=EngineOptions(
                compile_kernels=compile_, quantization=quantize, max_num_seqs=3, max_batched_tokens=8
            ),
            optimize=True,
        )
        jobs = [job_of(prompt, str(n), max_tokens=20) for n, prompt in enumerate(prompts(3, 30, 1, 9))]
        said.append({name: tokens_of(chunks) for name, chunks in drain(core, *jobs).items()})
    agreeing = sum(one == two for one, two in zip(said[0].values(), said[1].values(), strict=True))
    # A last bit may move an activation to the next of its few levels.
    assert agreeing == 4 if quantize is None else agreeing >= 2


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "antiphon"


def test_what_was_compiled_is_kept_and_taken_again(
    compiled: Kernels, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_kernels(load_library(*SOURCES))
    (kept,) = elsewhere.iterdir()
    assert kept.name.startswith("kernels-") and kept.suffix == ".so"
    monkeypatch.setattr(compiler, "_run_compiler", None)  # a second time would fail
    verify_kernels(load_library(*SOURCES))


def test_another_source_is_another_library(compiled: Kernels, elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    for answer in (41, 42):
        source.write_text(f"int answer(void) {{ return {answer}; }}")
        assert load_library(source).answer() == answer
    assert len(list(elsewhere.iterdir())) == 2


@pytest.mark.parametrize("trouble", ["a file", "others may write", "no home"])
def test_where_nothing_can_be_kept_it_is_compiled_for_now(
    compiled: Kernels, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if trouble == "a file":
        (tmp_path / "antiphon").write_text("no folder")
    elif trouble == "others may write":
        (tmp_path / "antiphon").mkdir()
        (tmp_path / "antiphon").chmod(0o777)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert compiler.cache_folder() is None
    verify_kernels(load_library(*SOURCES))
    assert trouble == "a file" or not list(tmp_path.glob("antiphon/*"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no-such-compiler -x", "no C compiler was found (no-such-compiler -x)"), ("false", "false: it failed")],
)
def test_without_a_compiler_there_are_none_and_it_is_said(
    name: str, reason: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", name)
    with caplog.at_level(logging.WARNING):
        assert load_kernels.__wrapped__() is None
    assert caplog.messages == [f"no compiled kernels, which costs speed: {reason}"]
    assert not list(elsewhere.iterdir())


def test_an_error_in_the_source_is_told_by_its_first_line(compiled: Kernels, elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return unknown; }")
    with pytest.raises(CompilationError, match=r"error: .*unknown"):
        load_library(source)


@pytest.fixture
def altered(compiled: Kernels, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Altered:
    """What there is if something else stands in the source."""

    def of_source(right: str, wrong: str) -> Kernels | None:
        found = []
        for source in (*SOURCES, *compiler.INCLUDE_DIR.glob("*.h")):
            code = source.read_text()
            found += [source.name] * (right in code)
            (tmp_path / source.name).write_text(code.replace(right, wrong))
        assert len(found) == 1
        with monkeypatch.context() as patch:
            patch.setattr(compiled_module, "SOURCES", [tmp_path / source.name for source in SOURCES])
            patch.setattr(compiler, "INCLUDE_DIR", tmp_path)
            return load_kernels.__wrapped__()

    return of_source


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("LEVELS / row_max", "LEVELS / (row_max + 1)", "int8_linear"),
        ("if (args->silu_mul)", "if (0)", "int8_linear"),
        ("[row] * params->scale", "[0] * params->scale", "int8_linear"),
        ("/ args->size + loop->eps", "/ args->size + 1", "rms_norm"),
        ("v * sigmoid * load", "v * load", "silu_mul"),
        ("out[b] = reduce_sum(total) + rest", "out[b] = reduce_sum(total)", "block_softmax"),
        ("- b * load(sines", "+ b * load(sines", "rope"),
        ("load(rows[r].out + d) / total", "load(rows[r].out + d)", "attend"),
        ("if (item->span->count == 1) append_kv", "if (0) append_kv", "attend"),
        ("if (longest > 1) parallel_for", "if (0) parallel_for", "attend"),
        ("end < TILE_KEYS) apply_mask", "end < 0) apply_mask", "attend"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(
    altered: Altered, compiled: Kernels, right: str, wrong: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "int8_linear" and not compiled.supports_int8_linear(torch.ones(1, 1)):
        pytest.skip("there is no such kernel for this CPU")
    assert altered(right, wrong) is None
    assert f"the library computes another {name}" in caplog.text


@pytest.mark.parametrize(
    ("source", "struct", "args"),
    [
        ("kernels.h", "row_args", RowArgs),
        ("kernels.h", "linear_args", LinearArgs),
        ("kernels.h", "attention_args", AttentionArgs),
        ("decoder_layer.c", "decoder_layer_args", DecoderLayerArgs),
    ],
)
def test_the_bindings_declare_the_fields_of_the_c_structures(
    source: str, struct: str, args: type[ctypes.Structure]
) -> None:
    assert [name for name, _ in args._fields_] == _parse_fields(source, struct)


def test_a_span_has_as_many_fields_as_the_bindings_say() -> None:
    assert len(_parse_fields("kernels.h", "span")) == SPAN_FIELDS


def _parse_fields(source: str, struct: str) -> list[str]:
    """The field names of a C structure of int64_t and of ``struct int8_weight``, in order."""
    code = re.sub(r"/\*.*?\*/", "", (INCLUDE_DIR / source).read_text(), flags=re.DOTALL)
    (body,) = re.findall(rf"struct {struct} \{{(.*?)\}};", code, re.DOTALL)
    fields: list[str] = []
    for kind, names in re.findall(r"(int64_t|struct int8_weight) ([^;]*);", body):
        for name in (name.strip() for name in names.split(",")):
            parts = ("weights", "scales", "zeros", "bias")
            fields += [name] if kind == "int64_t" else [f"{name}_{part}" for part in parts]
    return fields


def test_a_library_that_lacks_one_is_not_used(altered: Altered, caplog: pytest.LogCaptureFixture) -> None:
    assert altered("antiphon_silu_mul", "antiphon_bait") is None
    assert "antiphon_silu_mul" in caplog.text


def test_half_of_a_library_is_made_anew(compiled: Kernels, elsewhere: Path) -> None:
    load_library(*SOURCES)
    (kept,) = elsewhere.iterdir()
    kept.unlink()  # what is in use is not written to
    kept.write_bytes(b"half of a file")
    verify_kernels(load_library(*SOURCES))
    assert kept.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("size", [16, 48, 3072])
def test_a_gate_is_torchs_and_knows_no_neighbours(compiled: Kernels, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn((1, 50, 2 * size), generator=generator) * torch.logspace(-3, 3, 50)[None, :, None]
    x[0, 0, :4] = torch.tensor([-1000.0, 1000.0, -0.0, 88.5])
    gated = compiled.silu_mul(x)
    truth = functional.silu(x[..., :size].double()) * x[..., size:].double()
    assert torch.allclose(gated.double(), truth, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled.silu_mul(x[:, 20:21]), gated[:, 20:21])
    x[0, 3, 1] = NAN
    assert compiled.silu_mul(x)[0, 3].isnan().nonzero().flatten().tolist() == [1]


def test_queries_and_keys_are_turned_as_transformers_does_it(compiled: Kernels) -> None:
    from transformers.models.llama.modeling_llama import rotate_half

    generator = torch.Generator().manual_seed(6)
    wide = torch.randn((1, 9, 10, 64), generator=generator)
    cos, sin = (torch.randn((1, 9, 64), generator=generator) for _ in "cs")
    for part in (wide[:, :, :6], wide[:, :, 6:8], wide[:, :, 8:9]):
        x = part.transpose(1, 2)
        turned = compiled.apply_rotary(x, cos, sin)
        assert turned.shape == x.shape
        assert torch.allclose(turned, x * cos[:, None] + rotate_half(x) * sin[:, None], atol=1e-5)  # type: ignore[no-untyped-call]
        assert torch.equal(compiled.apply_rotary(x[:, :, 4:5], cos[:, 4:5], sin[:, 4:5]), turned[:, :, 4:5])


@pytest.mark.parametrize("size", [1, 7, 128, 131, 20_011])
def test_weights_are_torchs_and_know_no_neighbours(compiled: Kernels, size: int) -> None:
    scores = torch.randn((40, size), generator=torch.Generator().manual_seed(size)) * 8
    scores[3, size // 2 + 1 :] = -INF
    by = torch.linspace(0.2, 5, 40)[:, None]
    sums, largest = compiled.block_softmax_sums(scores, by)
    assert torch.equal(largest, scores.amax(-1, keepdim=True))
    weights = ((scores.double() - largest) * by).exp()
    truth = torch.stack([part.sum(-1) for part in weights.split(128, -1)], -1)
    assert sums.shape == truth.shape and torch.allclose(sums.double(), truth, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled.block_softmax_sums(scores[17:18], by[17:18])[0], sums[17:18])
    for strange in (NAN, INF):
        scores[5, size - 1] = strange
        sums, largest = compiled.block_softmax_sums(scores, by)
        assert not largest[5].isfinite() and not sums[5].sum().isfinite() and sums[4].isfinite().all()
    scores[6] = -INF
    assert not compiled.block_softmax_sums(scores, by)[0][6].isfinite().any()
