"""The registry of the embedded model, and the mark of tests that need its weights."""

import time
from contextlib import AbstractContextManager
from typing import Any

import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Engine
from antiphon.harmony.detection import detect
from antiphon.harmony.format import ModelFormat
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, serve

needs_weights = pytest.mark.skipif(
    not (MODEL_DIR / "model.safetensors").exists(), reason="the embedded model's weights are not in this tree"
)


def make_registry(engine: Engine, model_format: ModelFormat) -> ModelRegistry:
    return ModelRegistry(
        [
            ServedModel(
                names=("antiphon",), engine=engine, format=model_format, created=int(time.time()), folder=MODEL_DIR
            )
        ]
    )


def serve_embedded(template: str | None = None, **settings: Any) -> AbstractContextManager[RunningServer]:
    """Serves the embedded model, with its own template or another one."""
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    return serve(make_registry(engine, detect.load_format(MODEL_DIR, "hermes", template).format), **settings)


def load_model_format() -> ModelFormat:
    return detect.load_format(MODEL_DIR, "hermes").format


KEEPING_TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
