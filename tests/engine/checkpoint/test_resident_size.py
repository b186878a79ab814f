"""The memory of a quantized checkpoint is estimated from its files: as much as the packed model takes."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from torch import Tensor, nn

from antiphon.app.models.memory import estimate_weights
from antiphon.engine.builder import build_core_from_model
from antiphon.engine.checkpoint.files import Checkpoint, inspect_checkpoint
from antiphon.engine.checkpoint.quantized.lazy_weight import LazyWeight
from antiphon.engine.checkpoint.resident_size import ResidentSize, estimate_resident_size
from antiphon.engine.errors import LoadError
from antiphon.engine.load import loader
from antiphon.engine.load.loader import load_model
from antiphon.engine.options import EngineOptions, Quantization
from tests.engine.checkpoint import quantized_folders as folders
from tests.engine.checkpoint.gguf_files import write_gguf_folder
from tests.engine.checkpoint.quantized_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore")

FORMS: list[tuple[str, Quantization | None]] = [
    *((case, None) for case in ("gptq", "gptq-channel", "gptq-g32", "gptq-3bit", "awq", "ct-w4a16", "ct-w4a16-zeros")),
    *((case, None) for case in ("ct-w8a8", "fp8-block", "bnb-nf4", "bnb-nf4-nested", "bnb-int8", "gguf")),
    *[("gptq", "int8"), ("gptq-g32", "int4"), ("bnb-nf4", "int4"), ("gguf", "int4")],
]  # fmt: skip


def write_folder(case: str, folder: Path) -> None:
    if case == "gguf":
        write_gguf_folder(folders.make_model(), folder)
    else:
        quantize, settings, _ = CASES[case]
        if case.startswith("ct-w4"):
            settings = settings | {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}}}
        folders.write_checkpoint(folder, quantize, settings)


def measure_held_bytes(root: Any) -> int:
    """Returns the bytes of all tensors that can be reached from a model through objects of this project and torch."""
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, LazyWeight):
            waiting.append(value.source)
        elif isinstance(value, Tensor):
            address = id(value) if value.is_mkldnn else value.data_ptr()
            sizes[address] = max(sizes.get(address, 0), value.numel() * value.element_size())
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif isinstance(value, nn.Module) or type(value).__module__.startswith("antiphon."):
            state = vars(value) if hasattr(value, "__dict__") else {}
            waiting += [part for name, part in state.items() if name != "_workspace"]  # memory of a step
    return sum(sizes.values())


@pytest.mark.parametrize(("case", "quantization"), FORMS, ids=lambda value: value or "as-stored")
def test_estimate_is_that_of_the_packed_model(case: str, quantization: Quantization | None, tmp_path: Path) -> None:
    write_folder(case, tmp_path)
    options = EngineOptions(quantization=quantization, threads=1, force_quantization=True)
    estimate = estimate_weights(inspect_checkpoint(tmp_path), options)
    model, checkpoint = load_model(tmp_path, device="cpu", to_quantize=quantization is not None)
    form = quantization or "stored"
    build_core_from_model(
        model, checkpoint, EngineOptions(quantization=form, threads=1, force_quantization=True), optimize=True
    )
    held = measure_held_bytes(model)
    assert estimate.least <= held <= estimate.expected <= 1.4 * held, (case, estimate, held)


def test_embedding_that_is_the_output_layer_counts_twice(tmp_path: Path) -> None:
    write_folder("bnb-nf4", tmp_path)
    checkpoint = inspect_checkpoint(tmp_path)
    untied, tied = (
        estimate_resident_size(
            structs.replace(checkpoint, config=checkpoint.config | {"tie_word_embeddings": value}), None
        )
        for value in (False, True)
    )
    assert untied is not None and tied is not None
    assert (tied.packed - untied.packed, tied.mapped, untied.mapped) == (96 * 128, 2 * 96 * 128, 2 * 96 * 128)


def test_experts_are_held_in_int8(tmp_path: Path) -> None:
    quantize, settings, _ = CASES["gptq"]
    folders.write_checkpoint(tmp_path, quantize, settings, "mixtral")
    checkpoint = inspect_checkpoint(tmp_path)
    experts = 2 * 3 * 128 * 192
    assert checkpoint.count_weights(checkpoint.expert_elements)["I32"] == pytest.approx(experts, rel=0.1)
    held = estimate_resident_size(checkpoint, None)
    assert held is not None and held.packed > experts + 0.5 * 49152


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"quant_method": "mxfp4"},
        {"quant_method": "hqq"},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    ],
)
def test_only_forms_that_are_packed_here_are_estimated(settings: dict[str, Any]) -> None:
    checkpoint = Checkpoint(Path(), {"quantization_config": settings} if settings else {}, {}, {"U8": 100})
    assert estimate_resident_size(checkpoint, None) is None


@pytest.mark.parametrize(("case", "to_quantize"), [("bnb-nf4", False), ("bnb-nf4", True), ("gguf", False)])
def test_model_that_fits_once_it_is_packed_is_loaded(
    case: str, to_quantize: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(case, tmp_path)
    held = estimate_resident_size(inspect_checkpoint(tmp_path), "int4" if to_quantize else None)
    assert isinstance(held, ResidentSize)
    monkeypatch.setattr(loader, "free_memory", lambda _: held.packed)
    load_model(tmp_path, device="cpu", to_quantize=to_quantize)
    monkeypatch.setattr(loader, "free_memory", lambda _: held.packed - 1)
    with pytest.raises(LoadError, match=r"GiB for its weights, 0\.0 GiB are free"):
        load_model(tmp_path, device="cpu", to_quantize=to_quantize)


@pytest.mark.parametrize("case", ["gptq", "gguf"])
def test_model_in_fp32_takes_four_bytes_for_each_weight(case: str, tmp_path: Path) -> None:
    write_folder(case, tmp_path)
    options = EngineOptions(dtype="float32", threads=1)
    model, checkpoint = load_model(tmp_path, device="cpu", dtype="float32")
    core = build_core_from_model(model, checkpoint, options, optimize=True)
    assert "int8" not in core.info.description and "int4" not in core.info.description
    estimate, held = estimate_weights(checkpoint, options), measure_held_bytes(model)
    assert 2 * 147_456 < estimate.least <= held <= estimate.expected <= 1.4 * held
