"""Compiled kernels: what torch computes, in one step; the same bits alone and in a crowd; and torch where they cannot be."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional

from engine import compiler
from engine import kernels as kernels_module
from engine.attention import Pack, Span, attend
from engine.build import Options, core_of
from engine.compiler import CompilationError, library
from engine.kernels import SOURCES, Kernels, kernels
from engine.kv import Contiguous
from tests.engine.tiny import drain, fresh, job_of, prompts, tokens_of

NAN, INF = float("nan"), float("inf")

pytestmark = pytest.mark.filterwarnings("ignore")


Altered = Callable[[str, str], Kernels | None]


class Layer:
    """All of an attention module that is asked for."""

    layer_idx = 0


class Crowd:
    """Sequences with a past, and one new token of each."""

    def __init__(self, lengths: list[int], heads: int, kv_heads: int, dim: int, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.kvs = []
        for length in lengths:
            kv = Contiguous(length + 3)
            if length:
                kv.extend(0, *(torch.randn((1, kv_heads, length, dim), generator=generator) for _ in "kv"))
                kv.commit(length)
            self.kvs.append(kv)
        # As a model's projections leave them: tokens outside, heads inside, keys and values in one wide row.
        self.query = torch.randn((1, len(lengths), heads, dim), generator=generator).transpose(1, 2)
        wide = torch.randn((1, len(lengths), 2 * kv_heads, dim), generator=generator)
        self.key, self.value = (part.transpose(1, 2) for part in wide.split(kv_heads, 2))

    def attend(
        self, which: list[int], with_kernels: Kernels | None, window: int | None = None, **options: Any
    ) -> Tensor:
        """(n, heads, dim); of copies, so that it can be asked again."""
        spans = [Span(self.kvs[n].copy(self.kvs[n].length, 0), [(place, place + 1)]) for place, n in enumerate(which)]
        windows = {} if window is None else {0: window}
        given = (tensor[:, :, which] for tensor in (self.query, self.key, self.value))
        with torch.inference_mode():
            return attend(Layer(), *given, None, pack=Pack(spans, windows, (), with_kernels), **options)[0][0]  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 16), (16, 8, 128), (14, 2, 64), (6, 2, 80), (5, 1, 256)])
def test_attention_of_single_tokens_is_torchs_and_knows_no_neighbours(
    compiled: Kernels, window: int | None, sinks: bool, heads: int, kv_heads: int, dim: int
) -> None:
    crowd = Crowd([0, 1, 5, 63, 64, 65, 200, 3], heads, kv_heads, dim)
    options = {"s_aux": torch.linspace(-2, 2, heads)} if sinks else {}
    everybody = list(range(8))
    together = crowd.attend(everybody, compiled, window, **options)
    assert torch.allclose(together, crowd.attend(everybody, None, window, **options), atol=1e-5)
    assert together.shape == (8, heads, dim)
    for n in everybody:
        assert torch.equal(crowd.attend([n], compiled, window, **options)[0], together[n])
    order = random.Random(1).sample(everybody, 8)
    assert torch.equal(crowd.attend(order, compiled, window, **options), together[order])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(crowd.attend(everybody, compiled, window, **options), together)
    finally:
        torch.set_num_threads(before)


def test_tokens_that_are_said_at_once_are_attended_to_as_if_one_after_the_other(compiled: Kernels) -> None:
    at_once, step_by_step = (Crowd([70], 8, 2, 32).kvs[0] for _ in range(2))
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn((1, heads, 5, 32), generator=generator) for heads in (8, 2, 2))
    with torch.inference_mode():
        cuts = [(0, 2), (2, 3), (3, 4), (4, 5)]  # a block of a prompt, then what was said
        pack = Pack([Span(at_once, cuts)], {}, (), compiled)
        together, _ = attend(Layer(), query, key, value, None, pack=pack)  # type: ignore[arg-type]
        for start, end in cuts:
            pack = Pack([Span(step_by_step, [(0, end - start)])], {}, (), compiled)
            new = (tensor[:, :, start:end] for tensor in (query, key, value))
            alone, _ = attend(Layer(), *new, None, pack=pack)  # type: ignore[arg-type]
            step_by_step.commit(end - start)
            assert torch.equal(alone, together[:, start:end])
    at_once.commit(5)
    for one, two in zip(at_once._layers[0][:2], step_by_step._layers[0][:2], strict=True):
        assert torch.equal(one[:, :, :75], two[:, :, :75])


def test_a_token_is_written_where_it_belongs_and_nowhere_else(compiled: Kernels) -> None:
    crowd = Crowd([6, 9], 4, 2, 16)
    for kv in crowd.kvs:
        for held in kv._layers[0][:2]:
            held[:, :, kv.length :] = 7.0
    before = [[held.clone() for held in kv._layers[0][:2]] for kv in crowd.kvs]
    pack = Pack([Span(kv, [(n, n + 1)]) for n, kv in enumerate(crowd.kvs)], {}, (), compiled)
    with torch.inference_mode():
        attend(Layer(), crowd.query, crowd.key, crowd.value, None, pack=pack)  # type: ignore[arg-type]
    for n, kv in enumerate(crowd.kvs):
        for held, old, new in zip(kv._layers[0][:2], before[n], (crowd.key, crowd.value), strict=True):
            old[:, :, kv.length] = new[:, :, n]
            assert torch.equal(held, old)


def test_a_buffer_that_is_too_small_grows_first(compiled: Kernels) -> None:
    crowd = Crowd([4], 4, 2, 16)
    kv = crowd.kvs[0]
    kv.shrink(4)
    kv.reserve(900)  # promised, and not yet taken
    full = kv._layers[0][0].shape[2]
    with torch.inference_mode():
        for _ in range(full):
            attend(
                Layer(), crowd.query, crowd.key, crowd.value, None, pack=Pack([Span(kv, [(0, 1)])], {}, (), compiled)
            )  # type: ignore[arg-type]
            kv.commit(1)
    assert kv._layers[0][0].shape[2] == 900 and kv.length == full + 4
    assert torch.equal(kv._layers[0][0][:, :, 4 : kv.length], crowd.key.expand(-1, -1, full, -1))


@pytest.mark.parametrize("strange", [NAN, INF, -INF])
def test_what_is_no_number_stays_with_whom_it_concerns(compiled: Kernels, strange: float) -> None:
    crowd = Crowd([70, 70, 70], 4, 2, 16)
    sound = crowd.attend([0, 1, 2], compiled)
    crowd.query[0, 1, 1, 3] = strange  # the second head of the second
    crowd.value[0, 1, 2, 5] = strange  # a value of the third, seen by its last two heads
    result = crowd.attend([0, 1, 2], compiled)
    assert torch.equal(result[0], sound[0]) and torch.equal(result[1, [0, 2, 3]], sound[1, [0, 2, 3]])
    assert result[1, 1].isnan().all() and not result[2, 2:, 5].isfinite().any()
    assert torch.equal(result[2, :2], sound[2, :2])


def test_scores_beyond_what_can_be_raised_to_a_power(compiled: Kernels) -> None:
    crowd = Crowd([200], 4, 2, 16)
    for factor in (1e-20, 1e3, 1e6):
        crowd.query = torch.randn(1, 4, 1, 16, generator=torch.Generator().manual_seed(3)) * factor
        one, two = crowd.attend([0], compiled), crowd.attend([0], None)
        assert torch.allclose(one, two, atol=1e-4, rtol=1e-4), factor


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 12), (65, 1, 16)])
def test_shapes_they_do_not_know_are_left_to_torch(compiled: Kernels, heads: int, kv_heads: int, dim: int) -> None:
    crowd = Crowd([0, 5, 30], heads, kv_heads, dim)
    assert not compiled.attendable(crowd.query, crowd.key, crowd.value, None)
    assert torch.equal(crowd.attend([0, 1, 2], compiled), crowd.attend([0, 1, 2], None))


@pytest.mark.parametrize("size", [16, 64, 80, 1024, 5120])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_torchs_and_know_no_neighbours(compiled: Kernels, size: int, threads: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn((1, 130, size), generator=generator) * torch.logspace(-6, 4, 130)[None, :, None]
    weight = torch.rand(size, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        normed = compiled.norm(rows, weight, 1e-6)
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(normed, functional.rms_norm(rows, (size,), weight, 1e-6), rtol=1e-5, atol=1e-7)
    for first, count in ((0, 1), (60, 2), (97, 33)):
        part = rows[:, first : first + count]
        assert torch.equal(compiled.norm(part, weight, 1e-6), normed[:, first : first + count])


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
    assert torch.allclose(compiled.norm(x, weight, 1e-5), functional.rms_norm(x, (64,), weight, 1e-5), atol=1e-6)


def test_the_norm_of_what_is_no_number_is_none(compiled: Kernels) -> None:
    rows = torch.ones(4, 32)
    rows[0, 17] = NAN
    normed = compiled.norm(rows, torch.ones(32), 1e-6)
    assert normed[0].isnan().all() and normed[1:].isfinite().all()


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "mistral", "gemma2"])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_model_says_the_same_with_and_without_them(family: str, quantize: Any) -> None:
    if kernels() is None:
        pytest.skip("this machine has no C compiler")
    said = []
    for compile_ in (True, False):
        core = core_of(fresh(family), options=Options(compile=compile_, quantize=quantize, slots=3, chunk=8), tune=True)
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
    Kernels(library(*SOURCES))
    (kept,) = elsewhere.iterdir()
    assert kept.name.startswith("kernels-") and kept.suffix == ".so"
    monkeypatch.setattr(compiler, "_compile", None)  # a second time would fail
    Kernels(library(*SOURCES))


def test_another_source_is_another_library(compiled: Kernels, elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "answer.c"
    for answer in (41, 42):
        source.write_text(f"int answer(void) {{ return {answer}; }}")
        assert library(source).answer() == answer
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
    assert compiler.folder() is None
    Kernels(library(*SOURCES))
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
        assert kernels.__wrapped__() is None
    assert caplog.messages == [f"no compiled kernels, which costs speed: {reason}"]
    assert not list(elsewhere.iterdir())


def test_an_error_in_the_source_is_told_by_its_first_line(compiled: Kernels, elsewhere: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int f(void) { return unknown; }")
    with pytest.raises(CompilationError, match=r"error: .*unknown"):
        library(source)


@pytest.fixture
def altered(compiled: Kernels, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Altered:
    """What there is if something else stands in the source."""

    def of_source(right: str, wrong: str) -> Kernels | None:
        found = []
        for source in (*SOURCES, compiler.HEADERS / "vectors.h"):
            code = source.read_text()
            found += [source.name] * (right in code)
            (tmp_path / source.name).write_text(code.replace(right, wrong))
        assert len(found) == 1
        with monkeypatch.context() as patch:
            patch.setattr(kernels_module, "SOURCES", [tmp_path / source.name for source in SOURCES])
            patch.setattr(compiler, "HEADERS", tmp_path)
            return kernels.__wrapped__()

    return of_source


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("LEVELS / high", "LEVELS / (high + 1)", "multiply"),
        ("if (p->gated)", "if (0)", "multiply"),
        ("[row] * m->scale", "[0] * m->scale", "multiply"),
        ("/ t->size + piece->least", "/ t->size + 1", "norm"),
        ("v * share * load", "v * load", "gate"),
        ("out[block] = sum(total) + rest", "out[block] = sum(total)", "weigh"),
        ("- two * load(sines", "+ two * load(sines", "turn"),
        ("load(out + g * value_dim + d) / total[g]", "load(out + g * value_dim + d)", "attend"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(
    altered: Altered, compiled: Kernels, right: str, wrong: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    if name == "multiply" and not compiled.multipliable(torch.ones(1, 1)):
        pytest.skip("there is no such kernel for this CPU")
    assert altered(right, wrong) is None
    assert f"the library computes another {name}" in caplog.text


def test_a_library_that_lacks_one_is_not_used(altered: Altered, caplog: pytest.LogCaptureFixture) -> None:
    assert altered("antiphon_gate", "antiphon_bait") is None
    assert "antiphon_gate" in caplog.text


def test_half_of_a_library_is_made_anew(compiled: Kernels, elsewhere: Path) -> None:
    library(*SOURCES)
    (kept,) = elsewhere.iterdir()
    kept.unlink()  # what is in use is not written to
    kept.write_bytes(b"half of a file")
    Kernels(library(*SOURCES))
    assert kept.read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("size", [16, 48, 3072])
def test_a_gate_is_torchs_and_knows_no_neighbours(compiled: Kernels, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    x = torch.randn((1, 50, 2 * size), generator=generator) * torch.logspace(-3, 3, 50)[None, :, None]
    x[0, 0, :4] = torch.tensor([-1000.0, 1000.0, -0.0, 88.5])
    gated = compiled.gate(x)
    truth = functional.silu(x[..., :size].double()) * x[..., size:].double()
    assert torch.allclose(gated.double(), truth, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled.gate(x[:, 20:21]), gated[:, 20:21])
    x[0, 3, 1] = NAN
    assert compiled.gate(x)[0, 3].isnan().nonzero().flatten().tolist() == [1]


def test_queries_and_keys_are_turned_as_transformers_does_it(compiled: Kernels) -> None:
    from transformers.models.llama.modeling_llama import rotate_half

    generator = torch.Generator().manual_seed(6)
    wide = torch.randn((1, 9, 10, 64), generator=generator)
    cos, sin = (torch.randn((1, 9, 64), generator=generator) for _ in "cs")
    for part in (wide[:, :, :6], wide[:, :, 6:8], wide[:, :, 8:9]):
        x = part.transpose(1, 2)
        turned = compiled.turn(x, cos, sin)
        assert turned.shape == x.shape
        assert torch.allclose(turned, x * cos[:, None] + rotate_half(x) * sin[:, None], atol=1e-5)  # type: ignore[no-untyped-call]
        assert torch.equal(compiled.turn(x[:, :, 4:5], cos[:, 4:5], sin[:, 4:5]), turned[:, :, 4:5])


@pytest.mark.parametrize("size", [1, 7, 128, 131, 20_011])
def test_weights_are_torchs_and_know_no_neighbours(compiled: Kernels, size: int) -> None:
    scores = torch.randn((40, size), generator=torch.Generator().manual_seed(size)) * 8
    scores[3, size // 2 + 1 :] = -INF
    by = torch.linspace(0.2, 5, 40)[:, None]
    sums, largest = compiled.weigh(scores, by)
    assert torch.equal(largest, scores.amax(-1, keepdim=True))
    weights = ((scores.double() - largest) * by).exp()
    truth = torch.stack([part.sum(-1) for part in weights.split(128, -1)], -1)
    assert sums.shape == truth.shape and torch.allclose(sums.double(), truth, rtol=1e-5, atol=1e-30)
    assert torch.equal(compiled.weigh(scores[17:18], by[17:18])[0], sums[17:18])
    for strange in (NAN, INF):
        scores[5, size - 1] = strange
        sums, largest = compiled.weigh(scores, by)
        assert not largest[5].isfinite() and not sums[5].sum().isfinite() and sums[4].isfinite().all()
    scores[6] = -INF
    assert not compiled.weigh(scores, by)[0][6].isfinite().any()
