"""The embedded model: its weights, tokenizer and chat template. `training/` has the program that made them."""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder with the weights, the configuration, the tokenizer and the chat template."""
