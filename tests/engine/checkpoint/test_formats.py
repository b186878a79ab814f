"""Folders that hold something else than a servable model: each is refused in one line that names it and the remedy."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.checkpoint import formats
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.errors import LoadError

QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
WEIGHTS = struct.pack("<Q", 2) + b"{}"
"""A safetensors file without tensors."""


def write_folder(folder: Path, *, config: dict[str, Any] | None = None, **files: bytes) -> Path:
    """Writes config.json and files. In their names, two underscores are a point."""
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(LoadError) as caught:
        inspect_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folder_of_a_text_model_is_accepted(tmp_path: Path) -> None:
    write_folder(tmp_path, config=QWEN3, model__safetensors=WEIGHTS, extra__gguf=b"GGUF")
    assert inspect_checkpoint(tmp_path).config == QWEN3


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        (None, {"model__gguf": b"GGUF"}, ["model.gguf is GGUF weights, the format of llama.cpp", "safetensors"]),
        (QWEN3, {"model__gguf": b"GGUF"}, ["model.gguf is not a GGUF file of version 2 or 3", "cut short"]),
        (None, {"model__onnx": b""}, ["ONNX"]),
        (
            None,
            {
                "adapter_config__json": b'{"base_model_name_or_path": "org/base"}',
                "adapter_model__safetensors": WEIGHTS,
            },
            ["LoRA adapter of org/base", "--lora NAME="],
        ),
        (None, {"adapter_config__json": b"{"}, ["LoRA adapter,", "--lora NAME="]),
        (QWEN3, {"adapter_config__json": b"{}"}, ["LoRA adapter,", "--lora NAME="]),
        (None, {"params__json": b"{}", "consolidated__safetensors": WEIGHTS}, ["Mistral's own format"]),
        (None, {"model_index__json": b"{}"}, ["diffusers"]),
        (QWEN3, {"model__fp16__safetensors": WEIGHTS}, ["only the variant model.fp16.safetensors"]),
        (QWEN3, {"modules__json": b"[]", "model__safetensors": WEIGHTS}, ["embedding model"]),
    ],
)
def test_folder_in_another_format_is_named(
    tmp_path: Path, config: dict[str, Any] | None, files: dict[str, bytes], words: list[str]
) -> None:
    message = refusal(write_folder(tmp_path, config=config, **files))
    assert all(word in message for word in words), message


def test_gguf_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    assert "model.gguf is GGUF weights" in refusal(path)


@pytest.mark.parametrize(
    ("config_class", "architecture", "words"),
    [
        ("T5Config", "T5ForConditionalGeneration", ["t5 is an encoder-decoder", "decoder-only"]),
        ("BartConfig", "BartForConditionalGeneration", ["bart is an encoder-decoder"]),
        ("WhisperConfig", "WhisperForConditionalGeneration", ["whisper is a speech model"]),
    ],
)
def test_model_of_another_kind_is_named(tmp_path: Path, config_class: str, architecture: str, words: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, config_class)(architectures=[architecture])
    config.save_pretrained(tmp_path)
    message = refusal(write_folder(tmp_path, model__safetensors=WEIGHTS))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (
            {"quant_method": "gptq", "bits": 4, "is_marlin_format": True},
            ["with gptq in 4 bits and the format marlin", "pip install optimum gptqmodel"],
        ),
        ({"quant_method": "gptq", "bits": 5}, ["with gptq in 5 bits"]),
        ({"quant_method": "awq", "version": "gemv"}, ["the format gemv", "pip install accelerate gptqmodel"]),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            ["compressed-tensors in the format nvfp4-pack-quantized", "pip install compressed-tensors"],
        ),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            ["the format sparse-24-bitmask"],
        ),
        ({"quant_method": "hqq"}, ["with hqq", "pip install hqq"]),
        ({"group_size": 64, "bits": 4}, ["as MLX does"]),
    ],
)
def test_quantized_weights_that_are_not_read_here_name_the_missing_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: dict[str, Any], words: list[str]
) -> None:
    write_folder(tmp_path, config=QWEN3 | {"quantization_config": quantization}, model__safetensors=WEIGHTS)
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    message = refusal(tmp_path)
    assert all(word in message for word in words), message
    monkeypatch.setattr(formats, "find_spec", lambda name: sys.__spec__)
    if "quant_method" in quantization:
        inspect_checkpoint(tmp_path)


@pytest.mark.parametrize("method", ["awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq"])
@pytest.mark.parametrize("place", ["quantization_config", "text_config"])
def test_weights_that_are_decoded_here_need_no_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, place: str
) -> None:
    settings: dict[str, Any] = {"quant_method": method}
    part = settings if place == "quantization_config" else {"quantization_config": settings}
    write_folder(tmp_path, config=QWEN3 | {place: part}, model__safetensors=WEIGHTS)
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    assert inspect_checkpoint(tmp_path).quantization_method == method
