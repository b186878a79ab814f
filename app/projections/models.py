"""Entries of OpenAI's model list and of Ollama's tag list for served models."""

from datetime import UTC, datetime
from typing import Any

from antiphon.app.model_registry import ServedModel


def openai_model(name: str, model: ServedModel) -> dict[str, Any]:
    """Returns a model's entry in OpenAI's list."""
    return {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}


def ollama_tag(name: str, model: ServedModel) -> dict[str, Any]:
    """Returns a model's entry in Ollama's list. `name` is the name to request; size and digest have no real values."""
    modified_at = datetime.fromtimestamp(model.created, UTC).isoformat()
    details = {"format": "safetensors", "family": "", "parameter_size": "", "quantization_level": ""}
    return {"name": name, "model": name, "modified_at": modified_at, "size": 0, "digest": "", "details": details}
