"""Tells which quantized checkpoints are decoded here, judged from their configuration. Needs no torch."""

from collections.abc import Mapping
from typing import Any

DECODED_METHODS = {"awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq"}

GPTQ_BITS = {2, 3, 4, 8}
GPTQ_FORMATS = {"gptq", "gptq_v2"}
AWQ_FORMATS = {"gemm"}
COMPRESSED_FORMATS = {
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "naive-quantized",
    "pack-quantized",
}

DEFAULT_BITS = {"awq": 4, "gptq": 4}


def read_settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns how the weights are quantized, from the configuration of a model or its text part; None if not at all."""
    for part in (config, config.get("text_config")):
        for name in ("quantization_config", "compression_config"):
            settings = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(settings, Mapping):
                return settings
    return None


def explain_unread_format(settings: Mapping[str, Any]) -> str | None:
    """Returns the variant of a method that is not decoded here, as part of a sentence; None if it is decoded."""
    method = settings.get("quant_method")
    if method not in DECODED_METHODS:
        return str(method)
    if method == "gptq":
        return _explain_gptq(settings)
    if method == "awq":
        name = str(settings.get("version") or settings.get("format") or "gemm").lower()
        bits = settings.get("bits", 4)
        return None if name in AWQ_FORMATS and bits == 4 else f"awq in {bits} bits and the format {name}"
    if method == "compressed-tensors":
        return _explain_compressed_tensors(settings)
    return None


def _explain_gptq(settings: Mapping[str, Any]) -> str | None:
    name = "marlin" if settings.get("is_marlin_format") else str(settings.get("checkpoint_format") or "gptq")
    bits = settings.get("bits", 4)
    return None if name in GPTQ_FORMATS and bits in GPTQ_BITS else f"gptq in {bits} bits and the format {name}"


def _explain_compressed_tensors(settings: Mapping[str, Any]) -> str | None:
    groups = [group for group in (settings.get("config_groups") or {}).values() if isinstance(group, Mapping)]
    sparsity = settings.get("sparsity_config") or {}
    names = {settings.get("format"), sparsity.get("format"), *(group.get("format") for group in groups)}
    unread = sorted(str(name) for name in names - COMPRESSED_FORMATS - {None})
    return f"compressed-tensors in the format {unread[0]}" if unread else None


def stored_bits(settings: Mapping[str, Any]) -> int:
    """Returns the bits of a weight. In a checkpoint of several widths, the smallest one."""
    method = settings.get("quant_method")
    if method == "bitsandbytes":
        return 4 if settings.get("load_in_4bit") else 8
    groups = (settings.get("config_groups") or {}).values()
    widths = [(group.get("weights") or {}).get("num_bits") for group in groups if isinstance(group, Mapping)]
    widths.append(settings.get("bits", DEFAULT_BITS.get(str(method))))
    return min((width for width in widths if isinstance(width, int)), default=8)
