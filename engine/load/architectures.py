"""Chooses the class of transformers that loads a checkpoint. Vision-language models are loaded whole."""

from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from antiphon.engine.checkpoint.files import Checkpoint
from antiphon.engine.checkpoint.vision_families import VERIFIED_TYPES
from antiphon.engine.errors import LoadError

MODEL_TYPE_ALIASES = {"kimi_k2": "deepseek_v3"}
"""Model types that transformers has under another name; their repositories only repeat its code."""

AUDIO_TASKS = (
    "SPEECH_SEQ_2_SEQ",
    "CTC",
    "RNNT",
    "TDT",
    "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM",
    "AUDIO_CLASSIFICATION",
)
"""Tasks of transformers' mappings from model types to classes, for models that read or write sound."""


LOAD_OPTIONS: dict[str, Any] = {
    "trust_remote_code": False,
    "local_files_only": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,
}
"""Options of each call of `from_pretrained`: no code and no files from elsewhere, and a report of what is missing."""

CAUSAL_LM_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of classes that generate text."""


def choose_model_class(checkpoint: Checkpoint) -> Any:
    """Returns transformers' automatic class for the checkpoint. Raises `LoadError` if none can serve it."""
    model_class = _find_automatic_class(checkpoint)
    names = checkpoint.config.get("architectures") or []
    if names and not any(str(name).endswith(CAUSAL_LM_SUFFIXES) for name in names):
        raise LoadError(f"{checkpoint.path}: {names[0]} is not a causal language model; choose a text generation model")
    return model_class


def _find_automatic_class(checkpoint: Checkpoint) -> Any:
    """Returns transformers' automatic class for the checkpoint's type. Raises `LoadError` if there is none."""
    model_type = resolve_model_type(checkpoint)
    if model_type in _types_of(*AUDIO_TASKS):
        raise LoadError(f"{checkpoint.path}: {model_type} is a speech model; choose a text generation model")
    if model_type in _types_of("IMAGE_TEXT_TO_TEXT") and _has_pictures(checkpoint):
        return AutoModelForImageTextToText
    if model_type in _types_of("CAUSAL_LM"):
        return AutoModelForCausalLM
    if model_type in _types_of("IMAGE_TEXT_TO_TEXT"):
        return AutoModelForImageTextToText
    if model_type in CONFIG_MAPPING:
        raise LoadError(f"{checkpoint.path}: {model_type} is not a text generation model; choose another model")
    if checkpoint.config.get("auto_map"):
        raise LoadError(
            f"{checkpoint.path}: {model_type} needs code from its repository, which is never run; choose another model"
        )
    raise LoadError(
        f"{checkpoint.path}: transformers {transformers.__version__} does not know {model_type}; update transformers, "
        "or choose another model"
    )


def _has_pictures(checkpoint: Checkpoint) -> bool:
    """Tells whether the checkpoint has a vision tower that is served. Some types also have a class for text alone."""
    names = [str(name) for name in checkpoint.config.get("architectures") or []]
    is_whole = any(name.endswith("ForConditionalGeneration") for name in names)
    return is_whole and "vision_config" in checkpoint.config and resolve_model_type(checkpoint) in VERIFIED_TYPES


def _types_of(*tasks: str) -> set[str]:
    """Returns the model types that transformers has a class for."""
    return {name for task in tasks for name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", ())}


def resolve_model_type(checkpoint: Checkpoint) -> str:
    """Returns the name that transformers has for the checkpoint's model type."""
    model_type = str(checkpoint.config["model_type"])
    return MODEL_TYPE_ALIASES.get(model_type, model_type)


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig | None:
    """Returns the configuration of a model type that transformers has under another name; None for others."""
    model_type = resolve_model_type(checkpoint)
    if model_type == checkpoint.config["model_type"]:
        return None
    config: PreTrainedConfig = CONFIG_MAPPING[model_type].from_dict(checkpoint.config | {"model_type": model_type})
    return config


def load_plain_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Returns the configuration without the settings by which transformers would unpack quantized weights."""
    config = load_config(checkpoint)
    if config is None:
        config = AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False, local_files_only=True)
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for name in ("quantization_config", "compression_config"):
            if hasattr(part, name):
                delattr(part, name)
    return config


def check_quantization_method(checkpoint: Checkpoint) -> None:
    """Raises `LoadError` if the weights are quantized by a method that transformers does not know.

    transformers itself would ignore the method, and load packed weights as if they were the model's.
    """
    method = checkpoint.quantization_method
    if method is not None and method != "bitsandbytes" and method not in AUTO_QUANTIZER_MAPPING:
        raise LoadError(
            f"{checkpoint.path}: transformers does not know the quantization method {method}; "
            "choose unquantized weights"
        )
