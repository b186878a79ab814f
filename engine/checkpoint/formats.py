"""Recognizes model folders that cannot be served, and raises an error that says what they hold and what to do.

Needs neither torch nor transformers, so that the error comes at once.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from antiphon.engine.checkpoint.quantized.support import explain_unread_format, read_settings
from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import read_json_object

FORMATS_BY_SUFFIX = {
    ".gguf": "GGUF weights, the format of llama.cpp",
    ".onnx": "an ONNX model",
    ".nemo": "a NeMo model",
    ".tflite": "a TensorFlow Lite model",
}
"""Descriptions of files that hold a model in another format."""

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

PACKAGES_BY_QUANTIZATION = {
    "aqlm": ("accelerate", "aqlm"),
    "auto-round": ("auto_round",),
    "awq": ("accelerate", "gptqmodel"),
    "bitnet": ("accelerate",),
    "bitsandbytes": ("accelerate", "bitsandbytes"),
    "compressed-tensors": ("compressed_tensors",),
    "fp8": ("accelerate",),
    "gptq": ("optimum", "gptqmodel"),
    "hqq": ("hqq",),
    "mxfp4": ("accelerate",),
    "mxfp8": ("accelerate",),
    "quark": ("quark",),
    "torchao": ("torchao",),
    "vptq": ("accelerate", "vptq"),
}
"""Modules that transformers needs to load weights quantized by a method. A method that is not listed is not checked."""


def check_is_folder(path: Path) -> None:
    """Raises `LoadError` if the path is not a folder."""
    if not path.exists():
        raise LoadError(f"{path}: no such folder; give a folder with config.json and safetensors weights, or a hub id")
    if path.is_file() and path.suffix in FORMATS_BY_SUFFIX:
        raise LoadError(f"{path}: {_describe_format(path)}")
    if not path.is_dir():
        raise LoadError(f"{path} is a file; give the folder that holds config.json and safetensors weights")


def explain_missing_config(path: Path) -> LoadError:
    """Returns the error for a folder without config.json."""
    if (path / "params.json").exists():
        return LoadError(
            f"{path}: params.json without config.json is Mistral's own format; "
            "give the model's files in transformers' format (config.json, model*.safetensors)"
        )
    if (path / "model_index.json").exists():
        return LoadError(f"{path}: holds a diffusers pipeline; choose a text generation model")
    return _explain_other_format(path) or LoadError(
        f"{path}: no config.json; give a model folder in transformers' format"
    )


def explain_missing_weights(path: Path) -> LoadError:
    """Returns the error for a folder with config.json and without the weights that it should hold."""
    error = _explain_other_format(path)
    if error is not None:
        return error
    if any(next(path.glob(pattern), None) for pattern in PICKLE_PATTERNS):
        return LoadError(f"{path}: its weights are pickled, and unpickling runs code; convert them to safetensors")
    variants = sorted(file.name for file in path.glob("model.*.safetensors"))
    if variants:
        return LoadError(f"{path}: no model.safetensors, only the variant {variants[0]}; rename it to serve it")
    return LoadError(f"{path}: no model.safetensors; finish the download or save the model with save_pretrained")


def _explain_other_format(path: Path) -> LoadError | None:
    """Returns the error for a folder that holds an adapter or a model in another format; None for others."""
    if (path / "adapter_config.json").exists():
        return LoadError(
            f"{path} holds a LoRA adapter{_base_model(path)}, not a model; serve its base model with --lora NAME={path}"
        )
    other = next(_files_in_other_formats(path), None)
    return None if other is None else LoadError(f"{path}: {_describe_format(other)}")


def _base_model(path: Path) -> str:
    """Returns " of" and the name of an adapter's base model, or nothing if the adapter does not name it."""
    try:
        name = read_json_object(path / "adapter_config.json").get("base_model_name_or_path")
    except LoadError:
        return ""
    return f" of {name}" if isinstance(name, str) and name else ""


def _files_in_other_formats(path: Path) -> Iterator[Path]:
    return (file for file in sorted(path.iterdir()) if file.suffix in FORMATS_BY_SUFFIX)


def _describe_format(file: Path) -> str:
    if file.suffix == ".gguf":
        return (
            f"{file.name} is {FORMATS_BY_SUFFIX[file.suffix]}; give the path of one such file, or safetensors weights"
        )
    return (
        f"{file.name} is {FORMATS_BY_SUFFIX[file.suffix]}, which is not supported; "
        "give a folder with the model's safetensors weights and config.json"
    )


def check_kind(path: Path, config: dict[str, Any]) -> None:
    """Raises `LoadError` if the configuration is that of a speech, an encoder-decoder or an embedding model."""
    kind = str(config["model_type"])
    if "num_mel_bins" in config:
        raise LoadError(f"{path}: {kind} is a speech model; choose a text generation model")
    if config.get("is_encoder_decoder"):
        raise LoadError(
            f"{path}: {kind} is an encoder-decoder model; choose a decoder-only text generation model, such as Qwen3"
        )
    if (path / "modules.json").exists():
        raise LoadError(f"{path}: modules.json says that {kind} is an embedding model; choose a text generation model")


def check_quantization(path: Path, config: dict[str, Any]) -> None:
    """Raises `LoadError` if the weights are quantized by MLX, or in a way that needs missing packages."""
    settings = read_settings(config) or config.get("quantization")
    if not isinstance(settings, Mapping):
        return
    if settings.get("quant_method") is None:
        raise LoadError(
            f"{path}: the weights are quantized without a quant_method, as MLX does; "
            "choose the weights from which they were converted"
        )
    if explain_unread_format(settings) is not None:
        check_packages(path, settings)


def check_packages(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises `LoadError` if transformers lacks packages to read weights that are quantized in this way."""
    method = str(settings.get("quant_method"))
    missing = [name for name in PACKAGES_BY_QUANTIZATION.get(method, ()) if find_spec(name) is None]
    if missing:
        raise LoadError(
            f"{path}: the weights are quantized with {explain_unread_format(settings) or method}, which needs packages "
            f"that are not installed; pip install {' '.join(name.replace('_', '-') for name in missing)}, "
            "or choose unquantized weights"
        )
