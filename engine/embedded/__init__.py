"""The embedded model: weights that live in the repository, and the generator, trainer and evaluation that made them.

Knows torch and transformers only while training or evaluating; importing this package costs nothing but a path.
"""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
