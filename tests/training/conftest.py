"""The embedded model's tokenizers, and models of the size of a test."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from antiphon.engine.embedded import MODEL_DIR
from training.pictures.convert import load_text_model
from training.train import TrainingPlan, build_config


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def embedded_text() -> tuple[Any, Tokenizer]:
    """Returns the embedded model without its tower, and the tokenizer without the vision tokens."""
    return load_text_model(MODEL_DIR)


@pytest.fixture(scope="module")
def text_tokenizer(embedded_text: tuple[Any, Tokenizer]) -> Tokenizer:
    return embedded_text[1]


@pytest.fixture(scope="module")
def text_model(text_tokenizer: Tokenizer) -> Any:
    """A random text model, which a module shares."""
    torch.manual_seed(1)
    config = build_config(TrainingPlan(hidden=64, layers=4), text_tokenizer.get_vocab_size())
    return Qwen3ForCausalLM(config).eval()
