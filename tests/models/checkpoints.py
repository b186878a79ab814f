"""Checkpoints of the rows: random weights from a fixed seed, written as a model's folder is published."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.models.published import keep_published, rewrite_config
from tests.models.rows import BASE_CONFIG, VOCAB_SIZE, ModelRow

NOISE = 0.15
"""Standard deviation of the noise on norms, biases and other vectors, which configurations set to ones and zeros."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_model(row: ModelRow) -> PreTrainedModel:
    """Returns the row's model in fp32, with weights from a fixed seed."""
    torch.manual_seed(row.seed)
    config_class: Any = CONFIG_MAPPING[row.model_type]
    if row.vision is None:
        config = config_class(**make_text_config(row))
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    else:
        text = {name: value for name, value in (BASE_CONFIG | row.config).items() if name not in row.without}
        ids = {name: BASE_CONFIG[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        ids["image_token_id"] = VOCAB_SIZE  # no token of the texts stands for a picture
        config = config_class(text_config=text, vision_config=row.vision, tie_word_embeddings=False, **ids)
        model = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    _shake_vectors(model)
    return model.eval()  # type: ignore[no-any-return]


def make_text_config(row: ModelRow) -> dict[str, Any]:
    """Returns the settings of a text model: those of the base that published files have, and the row's own."""
    base = {name: value for name, value in BASE_CONFIG.items() if name not in row.without}
    scale = {name: BASE_CONFIG[name] for name in ("initializer_range",)}  # larger weights, whatever files say
    return keep_published(row.model_type, base) | scale | row.config


@torch.no_grad()
def _shake_vectors(model: nn.Module) -> None:
    """Adds noise to all vectors, and to matrices that are constant: an error in one of them then changes the output.

    Buffers that are saved, such as the biases by which experts are chosen, are weights, too.
    """
    for tensor in (*model.parameters(), *_saved_buffers(model)):
        if tensor.is_floating_point() and (tensor.ndim == 1 or bool((tensor == tensor.flatten()[0]).all())):
            tensor.add_(NOISE * torch.randn_like(tensor))


def _saved_buffers(model: nn.Module) -> list[Tensor]:
    saved = model.state_dict(keep_vars=True)
    return [saved[name] for name, _ in model.named_buffers() if name in saved]


def save_checkpoint(model: PreTrainedModel, dtype: str, folder: Path, row: ModelRow | None = None) -> None:
    """Writes a model in a type of `DTYPES`. Its generation ends at the token limit only.

    Of a `row`, config.json has the keys that published files of its model type have.
    """
    model.generation_config.eos_token_id = None
    copied: Any = model.to(DTYPES[dtype])
    copied.save_pretrained(folder)
    if row is not None and row.vision is None:
        rewrite_config(folder, row.model_type, frozenset(row.config))
