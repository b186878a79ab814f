"""The embedded model: weights stored in the repository, with the generator, trainer and evaluation that produced them.

Only training and evaluation import torch and transformers; importing this package only defines a path.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
"""Folder with the weights, the configuration, the tokenizer and the chat template."""
