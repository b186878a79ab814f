"""Positions of the tokens of a prompt with pictures, in models that count time, height and width."""

from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from antiphon.engine.protocol import Job


class PromptPositions(NamedTuple):
    """The positions (3, n) of the n tokens of a prompt, and what is added to the place of each token after it."""

    prompt: np.ndarray
    offset: int

    def slice(self, start: int, end: int) -> np.ndarray:
        """Returns the positions (3, end - start) from `start` on, some of which may be after the prompt."""
        count = self.prompt.shape[1]
        later = np.arange(max(start, count), max(end, count)) + self.offset
        return np.concatenate([self.prompt[:, start:end], np.tile(later, (3, 1))], 1)


def counts_in_grids(model: PreTrainedModel) -> bool:
    """Tells whether the model has positions in time, height and width."""
    return hasattr(model.base_model, "get_rope_index")


@torch.inference_mode()
def find_positions(model: PreTrainedModel, job: Job, is_soft: np.ndarray) -> PromptPositions:
    """Computes the positions of a prompt. `is_soft` (n,) tells which tokens are rows of pictures.

    Raises `ValueError` if the grids of the pictures do not fit their tokens.
    """
    body: Any = model.base_model
    device = model.device
    if any(len(span.grid) != 3 for span in job.media):
        raise ValueError("a picture has no grid")
    positions, offsets = body.get_rope_index(
        torch.tensor([job.tokens], device=device),
        mm_token_type_ids=torch.from_numpy(is_soft.astype(np.int64))[None].to(device),
        image_grid_thw=torch.tensor([span.grid for span in job.media], device=device),
    )
    if positions.shape[-1] != len(job.tokens):
        raise ValueError("the grids of the pictures do not fit their tokens")
    return PromptPositions(positions[-3:, 0].cpu().numpy().astype(np.int64), int(offsets.flatten()[0]))
