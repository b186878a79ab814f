"""Models with weights of 4 bits: their error, the form of each layer, and the memory of the weights."""

import re
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.kernels.int4_layout import PackedInt4Weight, pack_int4_weight, unpack_int4_weight
from antiphon.engine.kernels.int8_layout import PackedInt8Weight
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer
from antiphon.engine.optimize.linears import CompiledLinear, OneDnnLinear, PackedLinear
from antiphon.engine.optimize.pack_linears import find_linears
from antiphon.engine.optimize.quantization_error import ReferenceLogits, check_similarity, compare_logits
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import BASE_CONFIG, copy_tiny_model, join_tokens, make_job, make_prompts, run_jobs

pytestmark = pytest.mark.filterwarnings("ignore")


def make_wide_model() -> Any:
    """Returns a model whose rows have several groups, so that its error is that of a larger model."""
    torch.manual_seed(3)
    overrides = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "initializer_range": 0.06}
    config = transformers.Qwen3Config(**BASE_CONFIG | overrides)
    return AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]


def build_int4_core(model: Any, **options: Any) -> Core:
    return build_core_from_model(model, options=EngineOptions(quantization="int4", **options), optimize=True)


def list_packed_forms(model: Any) -> dict[str, type]:
    """Returns the form of the weights of each layer that kernels compute, by the name of the layer."""
    forms = {}
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            kernel: Any = module.kernel
            forms[name] = type(kernel.packed) if isinstance(kernel, CompiledLinear) else type(kernel)
    return forms


def test_int4_model_tells_its_error() -> None:
    core = build_int4_core(make_wide_model())
    found = re.search(
        r"int4, (?:KV cache in float16, )?cosine similarity to fp32 logits (0\.\d+), same most likely token (\d+)%",
        core.info.description,
    )
    assert found, core.info.description
    # Measured: 0.942 and 58 %. Random weights have no structure that evens errors out.
    assert 0.92 < float(found[1]) < 0.99 and int(found[2]) >= 45


def test_int4_logits_are_those_of_the_rounded_weights() -> None:
    """Only the rounding of weights changes the logits noticeably; that of activations is as in int8."""
    rounded, model = make_wide_model(), make_wide_model()
    with torch.no_grad():
        for name, layer in find_linears(rounded):
            if name != "lm_head":
                layer.weight.copy_(unpack_int4_weight(pack_int4_weight(layer.weight, 8)))
    expected = reference_logits(select_forward(rounded), rounded)
    core = build_int4_core(model)
    error = compare_logits(reference_logits(core.forward, model), ReferenceLogits.keep(expected))
    assert error.similarity > 0.995 and error.agreement > 0.85, error


def test_output_layer_stays_int8_and_routers_stay_fp32() -> None:
    require_kernels()
    dense, mixture = copy_tiny_model("qwen3"), copy_tiny_model("mixtral")
    for model in (dense, mixture):
        build_int4_core(model, force_quantization=True)
    forms = list_packed_forms(dense)
    assert forms.pop("lm_head") is PackedInt8Weight
    assert set(forms.values()) == {PackedInt4Weight}
    assert list_packed_forms(mixture)["lm_head"] is PackedInt8Weight
    assert not any(
        name.endswith("gate") and form is not OneDnnLinear for name, form in list_packed_forms(mixture).items()
    )


def test_no_second_copy_of_a_weight_remains() -> None:
    if load_kernels() is None:
        pytest.skip("no compiled kernels")
    model = make_wide_model()
    weights = [layer.weight for name, layer in find_linears(model) if name != "lm_head"]
    elements = sum(weight.numel() for weight in weights)
    build_int4_core(model)
    assert not any(parameter.ndim > 1 for name, parameter in model.named_parameters() if "embed" not in name)
    packed = {
        id(module.kernel.packed): module.kernel.packed
        for module in iterate_packed_linears(model)
        if isinstance(module.kernel.packed, PackedInt4Weight)
    }
    size = sum(part.nbytes for matrix in packed.values() for part in matrix[2:])
    assert 4.25 <= 8 * size / elements < 4.6


def iterate_packed_linears(model: Any) -> Any:
    """Yields every packed layer, those of merged groups and of fused decoder layers included."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            yield module
        elif hasattr(module, "merged"):
            yield module.merged.linear


def test_fused_decoder_layers_equal_their_parts() -> None:
    require_kernels()
    model = make_wide_model()
    core = build_int4_core(model)
    assert all(isinstance(layer, FusedDecoderLayer) for layer in model.model.layers)
    fused_logits = reference_logits(core.forward, model)
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = layer.original
    assert torch.equal(fused_logits, reference_logits(core.forward, model))


@pytest.mark.parametrize("compile_", [True, False])
def test_greedy_tokens_are_the_same_alone_and_in_a_batch(compile_: bool) -> None:
    core = build_int4_core(
        make_wide_model(), compile_kernels=compile_, max_num_seqs=4, max_batched_tokens=11, enable_prefix_caching=False
    )
    jobs = [make_job(prompt, str(n), max_tokens=20) for n, prompt in enumerate(make_prompts(3, 30, 1, 9, 17, 44))]
    batched = {name: join_tokens(chunks) for name, chunks in run_jobs(core, *jobs).items()}
    alone = {job.id: join_tokens(run_jobs(core, job)[job.id]) for job in jobs}
    assert batched == alone


def test_model_that_int4_changes_too_much_names_int8_as_the_remedy() -> None:
    with pytest.raises(LoadError, match=r"its int4 logits .* use --quantization int8, or add --force-quantization"):
        check_similarity("int4", 0.5, force=False)


def test_kept_logits_give_the_figures_of_the_logits_themselves() -> None:
    """They are kept in 16 bits, in which large logits overflow and close ones are equal."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((6, 5000), generator=generator) * torch.tensor([1e-3, 1.0, 1e6, 1.0, 1.0, 1.0])[:, None]
    logits[3, 7], logits[3, 4000], logits[4] = 5.0, 5.0001, 0.0
    other = logits + 0.1 * torch.randn(logits.shape, generator=generator) * logits.std(-1, keepdim=True)
    other[3] = logits[3]
    error = compare_logits(other, ReferenceLogits.keep(logits))
    similarity = torch.nn.functional.cosine_similarity(other, logits).mean()
    assert error.similarity == pytest.approx(float(similarity), abs=1e-6)
    assert error.agreement == int((other.argmax(-1) == logits.argmax(-1)).sum()) / len(logits)
    assert compare_logits(logits, ReferenceLogits.keep(logits)).agreement == 1
