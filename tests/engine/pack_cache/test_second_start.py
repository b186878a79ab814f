"""A second start of a quantized model: nothing is packed or checked again, and the tokens are the same."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint.gguf.stored_matrix import GgufMatrix
from antiphon.engine.options import EngineOptions
from antiphon.engine.pack_cache import opening, session
from antiphon.engine.pack_cache.fingerprint import hash_model
from antiphon.engine.scheduler.core import Core
from tests.engine.checkpoint.gguf_files import write_gguf_folder
from tests.engine.checkpoint.quantized_folders import make_model
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import copy_tiny_model, generate_tokens, make_job

JOB = make_job([5, 9, 13, 17, 21, 25], max_tokens=12)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    copy_tiny_model("qwen3").bfloat16().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def keep_small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the cache keep a tiny model, in a folder of its own, and writes its files before the start ends."""
    require_kernels()
    finish = session.PackSession.finish

    def finish_and_wait(self: session.PackSession, checks: Any) -> None:
        finish(self, checks)
        self.wait()

    monkeypatch.setattr(session.PackSession, "finish", finish_and_wait)
    monkeypatch.setattr(opening, "MIN_KEPT_WEIGHTS", 0)
    monkeypatch.setattr(opening, "find_pack_folder", lambda: tmp_path)


def start(folder: Path, form: Any = "int4", **options: Any) -> Core:
    return build_core(
        folder, EngineOptions(quantization=form, force_quantization=True, threads=1, kv_cache_gib=0.01, **options)
    )


def forbid_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes everything fail that only a first start does."""

    def fail(*_: Any, **__: Any) -> None:
        pytest.fail("the second start packs or checks again", pytrace=False)

    for name in (
        "kernels.pack.WeightPacker.pack_int4",
        "kernels.pack.WeightPacker.pack_int8",
        "optimize.linears.verify_linear",
        "optimize.pack_linears.plan_packing",
        "optimize.validation.ProbeTexts.measure",
        "load.mmap_weights.MmapLinear.forward",
        "optimize.optimize_model.compare_logits",
    ):
        monkeypatch.setattr(f"antiphon.engine.{name}", fail)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_second_start_neither_packs_nor_checks_and_gives_the_same_tokens(
    model_folder: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(model_folder, form)
    expected = generate_tokens(first, JOB)
    forbid_packing(monkeypatch)
    second = start(model_folder, form)
    assert generate_tokens(second, JOB) == expected
    assert second.info == first.info, "the error and the size of the cache are those of the first start"


def test_matrices_of_a_gguf_file_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_gguf_folder(make_model(), folder)
    expected = generate_tokens(start(folder, None), JOB)
    forbid_packing(monkeypatch)
    decoded: list[int] = []
    dequantize = GgufMatrix.dequantize
    monkeypatch.setattr(
        GgufMatrix, "dequantize", lambda matrix: decoded.append(matrix.shape.numel()) or dequantize(matrix)
    )
    assert generate_tokens(start(folder, None), JOB) == expected
    assert decoded == []
    monkeypatch.undo()
    content = bytearray((folder / "model.gguf").read_bytes())
    content[-100] ^= 1
    (folder / "model.gguf").write_bytes(content)
    before = hash_model(folder)
    content[-100] ^= 1
    (folder / "model.gguf").write_bytes(content)
    assert hash_model(folder) != before


def test_other_form_and_switched_off_cache_pack_again(model_folder: Path, tmp_path: Path) -> None:
    start(model_folder, "int8")
    assert len(list(tmp_path.glob("*.packed"))) == 1
    start(model_folder, "int4", pack_cache=False)
    assert len(list(tmp_path.glob("*.packed"))) == 1
    start(model_folder, "int4")
    assert len(list(tmp_path.glob("*.packed"))) == 2


@pytest.mark.parametrize("part", ["first", "middle"])
def test_damaged_file_is_packed_again_and_kept(
    part: str, model_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights that were loaded before the damage was found are written again, too."""
    expected = generate_tokens(start(model_folder), JOB)
    path = next(tmp_path.glob("*.packed"))
    content = bytearray(path.read_bytes())
    offset = 200 if part == "first" else len(content) // 2
    content[offset : offset + 12] = bytes(byte ^ 1 for byte in content[offset : offset + 12])
    path.write_bytes(content)
    assert generate_tokens(start(model_folder), JOB) == expected
    assert "is packed again" in caplog.text
    forbid_packing(monkeypatch)
    assert generate_tokens(start(model_folder), JOB) == expected


def test_other_code_checks_the_kept_weights_again(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate_tokens(start(model_folder), JOB)
    monkeypatch.setattr(opening, "hash_checks", lambda _: "other-code")
    calls: list[str] = []
    verify = "antiphon.engine.optimize.linears.verify_linear"
    monkeypatch.setattr(verify, lambda *_: calls.append("verified"))
    for name in ("pack_int4", "pack_int8"):
        monkeypatch.setattr(f"antiphon.engine.kernels.pack.WeightPacker.{name}", lambda *_: pytest.fail("packed again"))
    assert generate_tokens(start(model_folder), JOB) == expected
    assert calls


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mixtral", {}),
        ("gpt_oss", {}),
        ("gemma2", {}),
        ("bloom", {}),
        ("lfm2", {}),
        ("llama", {"allow_lora_updates": True}),
    ],
)
def test_second_start_of_other_models_gives_the_same_tokens(
    family: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused experts, a model that is loaded as a whole, one that runs sequentially, recurrent layers, and adapters."""
    folder = tmp_path / "model"
    copy_tiny_model(family).bfloat16().save_pretrained(folder)
    first = start(folder, **options)
    expected = generate_tokens(first, JOB)
    packed = list(tmp_path.glob("*.packed"))
    assert len(packed) == 1
    for name in ("optimize.pack_linears.plan_packing", "optimize.experts.pack.pack_stored_experts"):
        monkeypatch.setattr(f"antiphon.engine.{name}", lambda *_: pytest.fail("planned or packed again", pytrace=False))
    second = start(folder, **options)
    assert generate_tokens(second, JOB) == expected
    assert second.info.description == first.info.description
    assert list(tmp_path.glob("*.packed")) == packed
