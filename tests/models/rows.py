"""A row of the table of models: a configuration of an architecture, small enough to be made on the spot."""

from typing import Any

import msgspec

VOCAB_SIZE, WINDOW_TOKENS = 512, 24

BASE_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class ModelRow(msgspec.Struct, frozen=True):
    """A model type of transformers, a note that tells its rows apart, and what its configuration adds to the base.

    `vision` is the configuration of the tower of a vision-language model.
    """

    model_type: str
    note: str = ""
    config: dict[str, Any] = {}
    vision: dict[str, Any] | None = None
    without: tuple[str, ...] = ()
    """Names of the base configuration that the architecture does not take."""
    seed: int = 7
    """Seed of the weights. With some seeds, two tokens are equally likely somewhere, and rounding decides."""

    pictures: str = ""
    """Name of the family of `picture_families` that stands for the row, if it is not the model type."""

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Name of the row, unique in the table."""
        return f"{self.model_type} ({self.note})" if self.note else self.model_type
