"""Served models in the shapes of OpenAI's model list and of Ollama's tags."""

from datetime import UTC, datetime
from typing import Any

from antiphon.app.model_registry import ServedModel


def openai_model(name: str, model: ServedModel) -> dict[str, Any]:
    """As OpenAI lists a model."""
    return {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}


def ollama_tag(name: str, model: ServedModel) -> dict[str, Any]:
    """As Ollama lists a model. It is named by what is asked for; nothing here has a file size or a digest."""
    changed = datetime.fromtimestamp(model.created, UTC).isoformat()
    details = {"format": "safetensors", "family": "", "parameter_size": "", "quantization_level": ""}
    return {"name": name, "model": name, "modified_at": changed, "size": 0, "digest": "", "details": details}
