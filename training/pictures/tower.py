"""The vision tower of the embedded model, run on a batch of pictures of one size at once.

transformers packs pictures of all sizes into one row and attends to each picture separately, which takes most of a
training step at this size. The functions here use the same weights and give the same features.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

PATCH, MERGE = 8, 2
"""Side of a patch in pixels, and of a soft token in patches."""
PICTURE_SIDE = 64
"""Side in pixels of a square with the largest number of pixels that a prepared picture may have."""


def build_tower_config(hidden: int) -> Qwen3VLVisionConfig:
    """Returns the tower's configuration. `hidden` is the width of the text model."""
    return Qwen3VLVisionConfig(
        depth=4,
        hidden_size=96,
        intermediate_size=256,
        num_heads=4,
        patch_size=PATCH,
        spatial_merge_size=MERGE,
        temporal_patch_size=2,
        out_hidden_size=hidden,
        num_position_embeddings=(PICTURE_SIDE // PATCH) ** 2,
        deepstack_visual_indexes=[0, 1],
    )


def build_tower(hidden: int) -> Any:
    """Returns a tower whose matrices are initialized with 1/√fan-in."""
    model_class: Any = Qwen3VLVisionModel
    tower = model_class._from_config(build_tower_config(hidden), attn_implementation="sdpa")
    for weight in tower.parameters():
        if weight.ndim > 1:
            fan_in = weight[0].numel() if weight is not tower.pos_embed.weight else 2500
            torch.nn.init.normal_(weight, std=fan_in**-0.5)
    return tower


def cut_patches(pictures: NDArray[np.uint8]) -> Tensor:
    """Returns the patches of pictures [batch, height, width, 3] as the processor does: [batch, patches, values].

    Values are from -1 to 1; a still picture is two equal frames; the patches of a soft token are neighbours.
    """
    batch, height, width, _ = pictures.shape
    rows, columns, block = height // PATCH // MERGE, width // PATCH // MERGE, (MERGE, PATCH)
    cut = torch.from_numpy(pictures).reshape(batch, rows, *block, columns, *block, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    frames = (cut.float() / 127.5 - 1)[:, :, :, :, :, :, None].expand(*cut.shape[:6], 2, *cut.shape[6:])
    return frames.reshape(batch, rows * columns * MERGE * MERGE, -1)


@lru_cache(maxsize=32)
def _find_places(height: int, width: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indices and weights into the learned positions, and the row and column of each patch."""
    # Tensors made in inference mode could not be used in training later.
    with torch.inference_mode(False):
        grid = torch.tensor([[1, height, width]])
        indices, weights = get_vision_interpolation_indices_and_weights(
            grid, num_grid_per_side=side, mode="bilinear", align_corners=True, spatial_merge_size=MERGE, kwargs={}
        )
        return indices, weights, get_vision_position_ids(grid, MERGE, kwargs={})


def encode_pictures(tower: Any, patches: Tensor, height: int, width: int) -> list[Tensor]:
    """Returns the soft tokens and the deepstack features, each [batch, tokens, width of the text model].

    `height` and `width` are those of the pictures in patches.
    """
    batch, count, _ = patches.shape
    indices, weights, places = _find_places(height, width, tower.num_grid_per_side)
    projection = tower.patch_embed.proj
    hidden = torch.nn.functional.linear(patches, projection.weight.flatten(1), projection.bias)
    hidden = hidden + (tower.pos_embed(indices) * weights[:, :, None]).sum(1)
    cosine, sine = (values[:, None] for values in tower.rotary_pos_emb(hidden, places))
    features = []
    for number, block in enumerate(tower.blocks):
        hidden = hidden + _attend(block.attn, block.norm1(hidden), cosine, sine)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in tower.deepstack_visual_indexes:
            merger = tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(number)]
            features.append(merger(hidden).view(batch, count // MERGE**2, -1))
    return [tower.merger(hidden).view(batch, count // MERGE**2, -1), *features]


def _attend(attention: Any, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Returns the attention of every patch to those of its picture. `hidden` is [batch, patches, width]."""
    batch, count, width = hidden.shape
    query, key, value = attention.qkv(hidden).view(batch, count, 3, attention.num_heads, -1).unbind(2)
    query, key = (_rotate(states, cosine, sine).transpose(1, 2) for states in (query, key))
    mixed = scaled_dot_product_attention(query, key, value.transpose(1, 2))
    result: Tensor = attention.proj(mixed.transpose(1, 2).reshape(batch, count, width))
    return result


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return (states * cosine + torch.cat((-second, first), dim=-1) * sine).to(states.dtype)
