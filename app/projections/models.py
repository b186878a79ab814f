"""Entries of OpenAI's, Anthropic's and Ollama's model lists for served models, and Ollama's description of a model."""

from datetime import UTC, datetime
from typing import Any

from antiphon.app.models.status import known_info, shown_load_state
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import NamedModel, ServedModel
from antiphon.app.requests.media.vision import sees_images, shows_images
from antiphon.engine.fallbacks import list_kinds
from antiphon.engine.protocol import Sampling

_OLLAMA_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
}
"""Ollama's names of sampling parameters, and the fields of `Sampling`."""


def openai_model(name: str, model: NamedModel, settings: Settings) -> dict[str, Any]:
    """Returns a model's entry in OpenAI's list, with vLLM's `max_model_len` once the model has been loaded.

    As under vLLM, the `root` of an adapter is its folder, and its `parent` the base model. As under llama.cpp's server,
    `status` tells whether the model is loaded. `input_modalities` tells whether it sees images, once that is known.
    `fallbacks` has the kinds of what the model does more slowly, or not at all, since it was loaded;
    docs/reference/fallbacks.md lists them.
    """
    entry: dict[str, Any] = {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}
    entry["status"] = {"value": shown_load_state(model.engine)}
    if isinstance(model, ServedModel):
        entry |= {"root": model.root or model.names[0], "parent": model.parent}
    info = known_info(model)
    if info is None:
        return entry
    if isinstance(model, ServedModel):
        entry["input_modalities"] = ["text", "image"] if shows_images(model, info, settings) else ["text"]
    if info.fallbacks:
        entry["fallbacks"] = list_kinds(info.fallbacks)
    return {**entry, "max_model_len": info.max_model_len}


def anthropic_model(name: str, model: ServedModel) -> dict[str, Any]:
    """Returns a model's entry in Anthropic's list."""
    context = context_length(model)
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    limits = {} if context is None else {"max_input_tokens": context, "max_tokens": context}
    return {"type": "model", "id": name, "display_name": name, "created_at": created, **limits}


def context_length(model: NamedModel) -> int | None:
    """Returns the number of tokens in the model's context; None until the model has been loaded once."""
    info = known_info(model)
    return None if info is None else info.max_model_len


def ollama_tag(name: str, model: ServedModel) -> dict[str, Any]:
    """Returns a model's entry in Ollama's list. `name` is the name to request; size and digest have no real values."""
    return {"name": name, "model": name, **_ollama_details(model), "size": 0, "digest": ""}


def ollama_model(model: ServedModel, settings: Settings) -> dict[str, Any]:
    """Returns the description of a model for Ollama's clients, which read its context length and capabilities.

    The template is empty: Ollama's templates are in another language. Raises `EngineError` while the model is loading.
    """
    info = model.engine.info
    architecture = info.architecture or "unknown"
    capabilities = {
        "completion": True,
        "vision": sees_images(model, settings),
        "tools": model.format.has_calls,
        "thinking": model.format.has_reasoning,
    }
    return {
        **_ollama_details(model),
        "model_info": {"general.architecture": architecture, f"{architecture}.context_length": info.max_model_len},
        "capabilities": [name for name, is_present in capabilities.items() if is_present],
        "template": "",
        "parameters": _ollama_parameters(info.default_sampling),
    }


def _ollama_details(model: ServedModel) -> dict[str, Any]:
    """Returns what the list and the description of a model have in common."""
    return {
        "modified_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "details": {"format": "safetensors", "family": "", "parameter_size": "", "quantization_level": ""},
    }


def _ollama_parameters(sampling: Sampling) -> str:
    """Returns the model's own sampling parameters, one per line, as a Modelfile has them."""
    neutral = Sampling()
    values = {name: (getattr(sampling, field), getattr(neutral, field)) for name, field in _OLLAMA_PARAMETERS.items()}
    return "\n".join(f"{name} {value}" for name, (value, default) in values.items() if value != default)
