"""Experts that transformers stores and applies in other ways than most: held in their files, packed, right in any batch."""

import copy
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

from antiphon.engine.builder import build_core
from antiphon.engine.forward.experts.grouped import PackedGroupedLinear, make_activations_exact
from antiphon.engine.forward.experts.matrix import ExpertMatrix
from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.experts.grouped import StoredGroupedLinear
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.load.experts.tensor_files import ExpertTensors
from antiphon.engine.load.loader import load_model
from antiphon.engine.optimize.experts.pack import (
    STORED_LINEAR_TYPES,
    describe_experts,
    pack_experts,
    pack_mixture,
    pack_stored_experts,
    wrap_all_experts,
)
from antiphon.engine.options import EngineOptions, Quantization
from tests.engine.kernel_builds import require_kernels
from tests.engine.mixtures import choose_routes, make_rows
from tests.models.checkpoints import build_model, save_checkpoint
from tests.models.rows import VOCAB_SIZE
from tests.models.rows_mixture import MIXTURE_ROWS

pytestmark = pytest.mark.filterwarnings("ignore")

BLOCK_NAMES = {
    "llama4_text": "model.layers.1.feed_forward",
    "longcat_flash": "model.layers.1.mlp",
    "jetmoe": "model.layers.1.mlp",
}
"""A block with experts, by the name of the row in the table of models."""

IDS = torch.tensor([[(5 + 17 * n) % VOCAB_SIZE for n in range(20)]])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return require_kernels()


@pytest.fixture(scope="module", params=BLOCK_NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> PreTrainedModel:
    return build_model(next(row for row in MIXTURE_ROWS if row.name == name))


@pytest.fixture(scope="module")
def folder(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bf16")
    save_checkpoint(copy.deepcopy(model), "bf16", path)
    return path


def find_cubes(model: nn.Module) -> list[str]:
    """Returns the names of the matrices of all experts that are parameters."""
    return [name for name, parameter in model.named_parameters() if parameter.ndim == 3]


def is_in_file(weights: Tensor | ExpertTensors) -> bool:
    """Tells whether all parts of a matrix of experts are in a mapped file."""
    parts = weights._parts if isinstance(weights, ExpertTensors) else []
    mapped = [weight for part in parts for weight in (part if isinstance(part, list) else [part])]
    return bool(mapped) and all(weight._is_in_file for weight in mapped)


def run_block(block: nn.Module, x: Tensor) -> Tensor:
    result = block(x)
    rows: Tensor = result[0] if isinstance(result, tuple) else result
    return rows.view(x.shape)


@torch.inference_mode()
def test_experts_compute_the_same_as_transformers_until_they_are_packed(model: PreTrainedModel) -> None:
    held = copy.deepcopy(model)
    assert find_cubes(held) and wrap_all_experts(held) == {} and not find_cubes(held)
    assert relative_error(held(IDS).logits, model(IDS).logits) < 1e-5


@torch.inference_mode()
def test_experts_in_the_files_give_the_logits_of_the_whole_model(folder: Path) -> None:
    loaded, _ = load_model(folder, device="cpu", to_quantize=True)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert not find_cubes(loaded)
    stored = [module for module in loaded.modules() if isinstance(module, StoredExperts)]
    held = [weights for module in stored for weights in module.weights.values()]
    held += [module._weights for module in loaded.modules() if isinstance(module, StoredGroupedLinear)]
    assert held and all(is_in_file(weights) for weights in held)
    assert relative_error(loaded(IDS).logits, reference(IDS).logits) < 1e-4


@torch.inference_mode()
def test_a_checkpoint_of_longcat_need_not_hold_weights_of_identities(tmp_path: Path) -> None:
    """The published one does not. transformers writes weights that it never reads."""
    model = build_model(next(row for row in MIXTURE_ROWS if row.name == "longcat_flash"))
    save_checkpoint(copy.deepcopy(model), "bf16", tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not re.search(r"experts\.[89]\.", name)}
    assert len(kept) == len(tensors) - 2 * 2 * 2  # layers, identities, gate and up
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, _ = load_model(tmp_path, device="cpu", to_quantize=True)
    assert not find_cubes(loaded)
    assert relative_error(loaded(IDS).logits, reference(IDS).logits) < 1e-4


@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_a_block_with_packed_experts_computes_its_weights_in_any_batch(
    name: str, model: PreTrainedModel, compiled: bool, kernels: Kernels
) -> None:
    packed = copy.deepcopy(model)
    pack_mixture(packed, "int8", kernels if compiled else None)
    assert not find_cubes(packed) and describe_experts(packed) == "experts in int8"
    block, original = packed.get_submodule(BLOCK_NAMES[name]), model.get_submodule(BLOCK_NAMES[name])
    x = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(3))
    result = run_block(block, x)
    assert relative_error(result, run_block(original, x)) < 0.03
    for first, end in ((0, 1), (3, 5), (9, 32)):
        assert torch.allclose(run_block(block, x[:, first:end]), result[:, first:end], atol=1e-5)


EXPERTS_CONFIG = SimpleNamespace(
    num_local_experts=4,
    n_routed_experts=4,
    hidden_size=64,
    moe_hidden_size=64,
    moe_latent_size=None,
    moe_intermediate_size=96,
    hidden_act="silu",
    mlp_hidden_act="relu2",
    post_norm_eps=1e-5,
    _experts_implementation="eager",
)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Step3p7Experts(EXPERTS_CONFIG),
        lambda: Step3p7Experts(EXPERTS_CONFIG, 0.5),
        lambda: MuseSparkExperts(EXPERTS_CONFIG),
        lambda: NemotronHExperts(EXPERTS_CONFIG),
    ],
    ids=["usual activation", "activation with a limit", "norm of the results", "no gate"],
)
@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_experts_compute_their_own_activation_and_norm(
    build: Callable[[], nn.Module], compiled: bool, kernels: Kernels
) -> None:
    block, original = nn.Module(), build()
    for number, parameter in enumerate(original.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(number)).mul_(0.2)
    block.experts = copy.deepcopy(original)
    assert pack_experts(block, "int8", kernels if compiled else None) == 1
    x, routes = make_rows(40), choose_routes(40, 4)
    result = block.experts(x, *routes)
    assert relative_error(result, original(x, *routes)) < 0.03
    for first, end in ((0, 1), (7, 9), (20, 37)):
        assert torch.equal(block.experts(x[first:end], *(part[first:end] for part in routes)), result[first:end])


@torch.inference_mode()
def test_experts_from_their_stored_tensors_have_the_same_bits(
    name: str, model: PreTrainedModel, kernels: Kernels
) -> None:
    held = copy.deepcopy(model)
    wrap_all_experts(held)
    stored = next(module for module in held.modules() if isinstance(module, STORED_LINEAR_TYPES))
    packed = pack_stored_experts(stored, "int8", kernels)
    if isinstance(stored, StoredGroupedLinear):
        restored: Any = PackedGroupedLinear.restore(packed.flatten(), kernels)
        arguments: Any = (make_rows(9), [2, 0, 3, 4, *[0] * 4])
    else:
        restored = PackedExperts.restore(stored.module, stored.layout, packed.flatten(), kernels)
        arguments = (make_rows(9), *choose_routes(9, 10 if name == "longcat_flash" else 8))
    assert torch.equal(restored(*arguments), packed(*arguments))


@torch.inference_mode()
def test_packing_frees_the_weights_of_each_layer_before_the_next(
    model: PreTrainedModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, alive = copy.deepcopy(model), []
    wrap_all_experts(packed)
    stored = weakref.WeakSet(module for module in packed.modules() if isinstance(module, STORED_LINEAR_TYPES))
    for kind in (PackedExperts, PackedGroupedLinear):
        monkeypatch.setattr(kind, "verify", lambda _: alive.append(len(stored)))
    count = len(stored)
    pack_experts(packed, "int8", kernels)
    assert alive == list(range(count, 0, -1)) and not stored


@torch.inference_mode()
def test_the_activation_between_packed_layers_gives_the_same_bits_in_any_batch(kernels: Kernels) -> None:
    block: Any = nn.Module()
    matrix = ExpertMatrix.pack(2, lambda _: kernels.pack_int8_weight(torch.ones(8, 8)), None)
    block.input_linear, block.activation = PackedGroupedLinear(matrix, kernels), nn.SiLU()
    make_activations_exact(block)
    x = torch.randn(70, 33, generator=torch.Generator().manual_seed(1))
    result = block.activation(x)
    assert torch.allclose(result, nn.functional.silu(x), atol=1e-6)
    for row in range(70):
        assert torch.equal(block.activation(x[row : row + 1]), result[row : row + 1])


@pytest.mark.parametrize(("quantization", "form"), [("int8", "int8"), ("int4", "int4"), (None, "bfloat16")])
@torch.inference_mode()
def test_a_sequence_has_the_same_logits_alone_and_among_others(
    folder: Path, quantization: Quantization | None, form: str, kernels: Kernels
) -> None:
    del kernels
    options = EngineOptions(
        quantization=quantization, force_quantization=True, max_model_len=128, kv_cache_gib=0.01, pack_cache=False
    )
    core = build_core(folder, options)
    assert f"experts in {form}" in core.info.description
    forward = core.forward
    parameters = forward.model.named_parameters()  # type: ignore[attr-defined]
    assert [name for name, parameter in parameters if parameter.ndim > 1 and "embed" not in name] == []
    sequences = [[(7 * n + k * k) % VOCAB_SIZE for n in range(3 + 6 * k)] for k in range(6)]

    def run(*batch: list[int]) -> Tensor:
        return forward.run([SequenceInput(forward.new_cache(len(ids)), ids, len(ids)) for ids in batch])

    together = run(*sequences).split([len(ids) for ids in sequences])
    for ids, logits in zip(sequences, together, strict=True):
        assert torch.equal(run(ids), logits)


@pytest.mark.parametrize(
    ("name", "part"),
    [("llama4_text", "feed_forward"), ("longcat_flash", "mlp.experts"), ("jetmoe", "mlp.input_linear")],
)
def test_modules_that_compute_something_else_stay_as_they_are(
    name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(next(row for row in MIXTURE_ROWS if row.name == name))
    kind = type(model.get_submodule(f"model.layers.1.{part}"))
    original: Any = kind.forward

    def forward(self: nn.Module, *args: Any) -> Any:
        result = original(self, *args)
        return (result[0] * 1.01, *result[1:]) if isinstance(result, tuple) else result * 1.01

    monkeypatch.setattr(kind, "forward", forward)
    cubes = find_cubes(model)
    failures = wrap_all_experts(model)
    assert failures and all("differ by 0.0099" in reason for reason in failures.values())
    assert find_cubes(model) == cubes
