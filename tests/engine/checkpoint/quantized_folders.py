"""Writes tiny quantized checkpoints by the documented layout of each format, and the model that they stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, PreTrainedModel

CONFIG = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
FP8_MAX = 448.0
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)


class StoredLayer(NamedTuple):
    """Tensors of a quantized layer by suffix, and the weight that they stand for."""

    tensors: dict[str, Tensor]
    weight: Tensor


Quantize = Callable[[Tensor], StoredLayer]


def make_model(kind: str = "llama") -> PreTrainedModel:
    torch.manual_seed(3)
    config: Any = LlamaConfig(**CONFIG) if kind == "llama" else MixtralConfig(**CONFIG, num_local_experts=2)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    return model.eval()  # type: ignore[no-any-return]


def write_checkpoint(
    folder: Path, quantize: Quantize, settings: dict[str, Any], kind: str = "llama"
) -> PreTrainedModel:
    """Writes the checkpoint and returns the model with dequantized weights."""
    model = make_model(kind)
    stored: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj") and parameter.ndim == 3:
                stored |= write_experts(name, parameter, quantize)
            elif name.endswith("_proj.weight"):
                layer = quantize(parameter)
                parameter.copy_(layer.weight)
                stem = name.removesuffix(".weight")
                stored |= {stem + suffix: tensor for suffix, tensor in layer.tensors.items()}
            else:
                stored[name.replace(".mlp.gate.", ".block_sparse_moe.gate.")] = parameter.half()
    save_file(
        {name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    config = model.config.to_dict() | {"quantization_config": settings, "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return model


def write_experts(name: str, parameter: nn.Parameter, quantize: Quantize) -> dict[str, Tensor]:
    """Returns the tensors of each expert as Mixtral's files have them, and sets the fused parameter."""
    stem = name.replace(".mlp.experts.", ".block_sparse_moe.experts.").rpartition(".")[0]
    names = ("w1", "w3") if name.endswith("gate_up_proj") else ("w2",)
    stored: dict[str, Tensor] = {}
    for index, expert in enumerate(parameter.detach()):
        for part, rows in zip(names, expert.chunk(len(names)), strict=True):
            layer = quantize(rows)
            rows.copy_(layer.weight)
            stored |= {f"{stem}.{index}.{part}{suffix}": tensor for suffix, tensor in layer.tensors.items()}
    return stored


def pack_words(numbers: Tensor, bits: int) -> Tensor:
    """Packs unsigned numbers (rows, count) into int32 words (rows, words), the first in the lowest bits."""
    rows, count = numbers.shape
    flags = (numbers.long()[..., None] >> torch.arange(bits)) & 1
    flags = nn.functional.pad(flags.reshape(rows, -1), (0, -(count * bits) % 32)).view(rows, -1, 32)
    words = (flags << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def round_to_levels(weight: Tensor, bits: int, group: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns unsigned levels (outputs, inputs), fp16 scales and zero points (outputs, groups), and the rounded weight."""
    outputs, inputs = weight.shape
    values = weight.detach().reshape(outputs, -1, inputs if group == -1 else group)
    top = 2**bits - 1
    if symmetric:
        scales = (values.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).half()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = values.amin(-1).clamp(max=0), values.amax(-1).clamp(min=0)
        scales = ((high - low) / top).half()
        zeros = (-low / scales.float()).round().clamp(0, top)
    levels = (values / scales.float()[..., None] + zeros.float()[..., None]).round().clamp(0, top)
    rounded = (levels - zeros.float()[..., None]) * scales.float()[..., None]
    return levels.view(outputs, inputs), scales, zeros.float(), rounded.view(outputs, inputs)


def gptq_layer(
    weight: Tensor, bits: int = 4, group: int = 64, *, symmetric: bool = True, act_order: bool = False, v2: bool = False
) -> StoredLayer:
    inputs = weight.shape[1]
    order = (
        torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs)) if act_order else torch.arange(inputs)
    )
    levels, scales, zeros, rounded = round_to_levels(weight[:, order], bits, group, symmetric=symmetric)
    index = torch.empty(inputs, dtype=torch.int32)
    index[order] = (torch.arange(inputs) // (inputs if group == -1 else group)).int()
    back = order.argsort()
    stored_zeros = zeros if v2 else (zeros - 1) % 2**bits
    tensors = {
        ".qweight": pack_words(levels[:, back], bits).T,
        ".qzeros": pack_words(stored_zeros.T, bits),
        ".scales": scales.T,
        ".g_idx": index,
    }
    return StoredLayer(tensors, rounded[:, back])


def awq_layer(weight: Tensor, group: int = 64) -> StoredLayer:
    levels, scales, zeros, rounded = round_to_levels(weight, 4, group, symmetric=False)
    pack = lambda numbers: pack_words(numbers.reshape(len(numbers), -1, 8)[..., AWQ_NIBBLES].flatten(1), 4)  # noqa: E731
    return StoredLayer({".qweight": pack(levels.T), ".qzeros": pack(zeros.T), ".scales": scales.T}, rounded)


def shuffle_inputs(inputs: int, group: int) -> tuple[Tensor, Tensor]:
    """Returns an order of the inputs, and the group of each input if groups are formed in this order."""
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    index = torch.empty(inputs, dtype=torch.int32)
    index[order] = (torch.arange(inputs) // group).int()
    return order, index


def positive_layer(weight: Tensor, quantize: Quantize) -> StoredLayer:
    """A layer whose weights are all positive, so that every zero point is 0."""
    return quantize(weight.detach().abs())


def packed_layer(
    weight: Tensor, bits: int = 4, group: int = 64, *, symmetric: bool = True, act_order: bool = False
) -> StoredLayer:
    """A layer of compressed-tensors in the format `pack-quantized`."""
    if act_order:
        order, index = shuffle_inputs(weight.shape[1], group)
        layer = packed_layer(weight[:, order], bits, group, symmetric=symmetric)
        back = order.argsort()
        levels = unpack_levels(layer.tensors[".weight_packed"], bits, weight.shape[1])
        layer.tensors[".weight_packed"] = pack_words(levels[:, back], bits)
        return StoredLayer(layer.tensors | {".weight_g_idx": index}, layer.weight[:, back])
    levels, scales, zeros, rounded = round_to_levels(weight, bits, group, symmetric=symmetric)
    tensors = {
        ".weight_packed": pack_words(levels, bits),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors[".weight_zero_point"] = pack_words(zeros.T, bits).T
    return StoredLayer(tensors, rounded)


def int8_layer(
    weight: Tensor, group: int = -1, *, symmetric: bool = True, act_order: bool = False, index: int | None = None
) -> StoredLayer:
    """A layer of compressed-tensors in the format `int-quantized`. `index`: the group that the file has for inputs."""
    inputs = weight.shape[1]
    order, groups = shuffle_inputs(inputs, group) if act_order else (torch.arange(inputs), None)
    levels, scales, zeros, rounded = round_to_levels(weight[:, order], 8, group, symmetric=symmetric)
    back = order.argsort()
    tensors = {".weight": (levels[:, back] - 128).to(torch.int8), ".weight_scale": scales}
    if not symmetric:
        tensors[".weight_zero_point"] = (zeros - 128).to(torch.int8)
    if groups is not None or index is not None:
        tensors[".weight_g_idx"] = torch.full((inputs,), index, dtype=torch.int32) if groups is None else groups
    return StoredLayer(tensors, rounded[:, back])


def one_scale_layer(weight: Tensor) -> StoredLayer:
    """A layer of compressed-tensors in int8 with a scale for the whole weight, without dimensions."""
    scale = (weight.detach().abs().amax() / 127).half()
    levels = (weight.detach() / scale.float()).round().clamp(-127, 127)
    return StoredLayer({".weight": levels.to(torch.int8), ".weight_scale": scale}, levels * scale.float())


def reshape_scales(weight: Tensor, quantize: Quantize, shape: tuple[int, ...]) -> StoredLayer:
    """A layer of compressed-tensors whose scales have another shape in the file."""
    layer = quantize(weight)
    return StoredLayer(layer.tensors | {".weight_scale": layer.tensors[".weight_scale"].reshape(shape)}, layer.weight)


def unpack_levels(words: Tensor, bits: int, count: int) -> Tensor:
    """Returns the unsigned numbers in int32 words (rows, words), the first in the lowest bits."""
    flags = (words.long()[..., None] >> torch.arange(32)) & 1
    numbers = flags.reshape(len(words), -1)[:, : count * bits].view(len(words), count, bits)
    return (numbers << torch.arange(bits)).sum(-1)


def fp8_layer(weight: Tensor, block: tuple[int, int], scale_name: str) -> StoredLayer:
    """A layer in FP8 with a scale for each block (outputs, inputs); a last block may be cut short."""
    outputs, inputs = weight.shape
    extents = [min(extent, size) for extent, size in zip(block, weight.shape, strict=True)]
    padded = nn.functional.pad(weight.detach(), (0, -inputs % extents[1], 0, -outputs % extents[0]))
    blocks = padded.view(-1, extents[0], padded.shape[1] // extents[1], extents[1])
    scales = blocks.abs().amax((1, 3), keepdim=True) / FP8_MAX
    values = (blocks / scales).to(torch.float8_e4m3fn)
    rounded = (values.float() * scales).view(padded.shape)[:outputs, :inputs]
    return StoredLayer(
        {".weight": values.view(padded.shape)[:outputs, :inputs], scale_name: scales[:, 0, :, 0]}, rounded
    )


NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ]
)


def nf4_layer(weight: Tensor, *, nested: bool) -> StoredLayer:
    blocks = weight.detach().reshape(-1, 64)
    absmax = blocks.abs().amax(1)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(weight.shape)}
    tensors: dict[str, Tensor] = {".weight.quant_map": NF4.clone()}
    if nested:
        table = torch.linspace(-1, 1, 256)
        offset, size = float(absmax.mean()), 256
        outer = (absmax - offset).abs().amax()[None].expand(-(-len(absmax) // size)).clone()
        indices = ((absmax - offset)[:, None] / outer[0] - table).abs().argmin(1)
        absmax = table[indices] * outer[0] + offset
        state |= {"nested_blocksize": size, "nested_offset": offset, "nested_dtype": "float32"}
        tensors |= {
            ".weight.absmax": indices.to(torch.uint8),
            ".weight.nested_absmax": outer,
            ".weight.nested_quant_map": table,
        }
    else:
        tensors[".weight.absmax"] = absmax
    indices = (blocks[..., None] / absmax[:, None, None] - NF4).abs().argmin(-1)
    pairs = indices.view(-1, 2)
    tensors[".weight"] = (pairs[:, 0] << 4 | pairs[:, 1]).to(torch.uint8)[:, None]
    tensors[".weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return StoredLayer(tensors, (NF4[indices] * absmax[:, None]).view(weight.shape))


def scb_layer(weight: Tensor) -> StoredLayer:
    """A layer of bitsandbytes in int8."""
    largest = weight.detach().abs().amax(1)
    levels = (weight.detach() * (127 / largest[:, None])).round()
    return StoredLayer(
        {".weight": levels.to(torch.int8), ".SCB": largest, ".weight_format": torch.tensor(0, dtype=torch.uint8)},
        levels * (largest[:, None] / 127),
    )
