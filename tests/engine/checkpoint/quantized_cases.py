"""Quantized checkpoints by name: what writes a layer, its settings, and the form in which its numbers are computed."""

from functools import partial
from typing import Any

from tests.engine.checkpoint import quantized_folders as folders

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": True}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
}
FLOAT = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
}
BLOCKS = FLOAT | {"config_groups": {"group_0": {"weights": {"num_bits": 8, "block_structure": [128, 128]}}}}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
LLM_INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
CASES: dict[str, tuple[folders.Quantize, dict[str, Any], str]] = {
    "gptq": (folders.gptq_layer, GPTQ, "int4"),
    "gptq-channel": (partial(folders.gptq_layer, group=-1), GPTQ | {"group_size": -1}, "int4"),
    "gptq-g32": (partial(folders.gptq_layer, group=32), GPTQ | {"group_size": 32}, "int8"),
    "gptq-zeros": (partial(folders.gptq_layer, symmetric=False), GPTQ | {"sym": False}, "int4"),
    "gptq-v2": (partial(folders.gptq_layer, symmetric=False, v2=True), GPTQ | {"checkpoint_format": "gptq_v2"}, "int4"),
    "gptq-zeros-of-0": (
        partial(folders.positive_layer, quantize=partial(folders.gptq_layer, symmetric=False)),
        GPTQ | {"sym": False},
        "int4",
    ),
    "gptq-act-order": (partial(folders.gptq_layer, act_order=True), GPTQ | {"desc_act": True}, "int4"),
    "gptq-3bit": (partial(folders.gptq_layer, bits=3), GPTQ | {"bits": 3}, "int4"),
    "gptq-8bit": (partial(folders.gptq_layer, bits=8, group=-1), GPTQ | {"bits": 8}, "int8"),
    "awq": (folders.awq_layer, AWQ, "int4"),
    "ct-w4a16": (folders.packed_layer, PACKED, "int4"),
    "ct-w4a16-zeros": (partial(folders.packed_layer, symmetric=False), PACKED, "int4"),
    "ct-w4a16-act-order": (partial(folders.packed_layer, act_order=True), PACKED, "int4"),
    "ct-w8a16": (partial(folders.packed_layer, bits=8, group=-1), PACKED, "int8"),
    "ct-w8a8": (folders.int8_layer, INT8, "int8"),
    "ct-w8a8-zeros": (partial(folders.int8_layer, symmetric=False), INT8, "int8"),
    "ct-w8a8-act-order": (partial(folders.int8_layer, group=64, act_order=True), INT8, ""),
    "ct-w8a8-no-order": (partial(folders.int8_layer, index=-1), INT8, "int8"),
    "ct-w8a8-flat": (partial(folders.reshape_scales, quantize=folders.int8_layer, shape=(-1,)), INT8, "int8"),
    "ct-w8a8-one-scale": (folders.one_scale_layer, INT8, "int8"),
    "ct-fp8-tensor": (partial(folders.fp8_layer, block=(1000, 1000), scale_name=".weight_scale"), FLOAT, ""),
    "ct-fp8-scalar": (
        partial(
            folders.reshape_scales,
            quantize=partial(folders.fp8_layer, block=(1000, 1000), scale_name=".weight_scale"),
            shape=(),
        ),
        FLOAT,
        "",
    ),
    "ct-fp8-channel": (partial(folders.fp8_layer, block=(1, 1000), scale_name=".weight_scale"), FLOAT, ""),
    "ct-fp8-block": (partial(folders.fp8_layer, block=(128, 128), scale_name=".weight_scale"), BLOCKS, ""),
    "fp8-block": (partial(folders.fp8_layer, block=(128, 128), scale_name=".weight_scale_inv"), FP8, ""),
    "bnb-nf4": (partial(folders.nf4_layer, nested=False), NF4, ""),
    "bnb-nf4-nested": (partial(folders.nf4_layer, nested=True), NF4, ""),
    "bnb-int8": (folders.scb_layer, LLM_INT8, "int8"),
}
"""For each layout: how a layer is stored, the checkpoint's settings, and the form in which it is computed exactly."""
