"""Soft tokens that a text model reads as words, found without a picture: what the vision tower learns to write.

A text model that repeats a phrase finds the next word by what stands before it: its third layer leaves at each token
which token it is and which one precedes it. These states, given as input embeddings in any order, are copied as the
phrase is. So a picture needs no change of the text model if its soft tokens are the states of its description's tokens.

Each soft token has a role, such as the second token of the colour. Its state depends on one property of the picture, so
that all states fit in a small table, which is then trained through the frozen text model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.pictures.drawing import COLOURS, SHAPES, Scene

UNKNOWN_ANSWER = "I cannot tell."
STATE_LAYER = 3
"""Index of the text layer after which the states are taken."""
STATE_SCALE = 4.0
"""Factor of the states. The layers below add to them, and should change their direction little."""
FIGURES = (*SHAPES[:3], *(f"digit {n}" for n in range(10)))
NAMES = list(COLOURS)
GRID = 4
"""Rows and columns of roles. A wider or higher picture repeats the roles of the nearest cells."""
ROLES = ("figure",) * 6 + ("comma",) + ("colour",) * 4 + ("ground",) * 5
"""The property of the picture that decides the state of each soft token."""
PLACES = (0, 1, 2, 3, 4, 5, 0, 0, 1, 2, 3, 0, 1, 2, 3, 3)
"""Which token of the property's part of the description each soft token is; the last one if there are fewer."""
DIGIT_ROLE = 4
"""Index of the soft token that is the digit: the fifth token of "digit 7"."""
CONTEXTS = (
    ("<|im_start|>user\n", "<|im_end|>"),
    ("<|im_start|>user\nview a.png<|im_end|>\n<|im_start|>user\n<tool_response>\n", "</tool_response>"),
)
"""The text before and after a description in the prompts from which the states are taken."""


@dataclass(frozen=True)
class SoftWords:
    """The table of states, the rows of the vision tokens, and the scale of each number of a state."""

    table: Tensor
    rows: Tensor
    mean: Tensor
    spread: Tensor


def describe_scene(scene: Scene) -> str:
    """Returns the answer to every question about a picture, such as `circle, red/blue` and `digit 7, red/blue`.

    No token but the figure's occurs twice in it, except where both colours share one, so that each word has one
    successor.
    """
    if scene.shape == "other":
        return UNKNOWN_ANSWER
    return f"{name_figure(scene)}, {scene.colour}/{scene.ground}"


def name_figure(scene: Scene) -> str:
    """Returns the name of a known figure."""
    return scene.shape if scene.digit is None else f"digit {scene.digit}"


def index_states(scene: Scene) -> list[int]:
    """Returns the index of each role's state in the table."""
    if scene.shape == "other":
        return [slot.stop - 1 for slot in list_slots()]
    numbers = {
        "figure": FIGURES.index(name_figure(scene)),
        "comma": 0,
        "colour": NAMES.index(scene.colour),
        "ground": NAMES.index(scene.ground),
    }
    return [slot.start + numbers[role] for slot, role in zip(list_slots(), ROLES, strict=True)]


def list_slots() -> list[slice]:
    """Returns the part of the table of each role: a state for each value of its property, then that of `other`."""
    sizes = {"figure": len(FIGURES) + 1, "comma": 2, "colour": len(NAMES) + 1, "ground": len(NAMES) + 1}
    slots, start = [], 0
    for role in ROLES:
        slots.append(slice(start, start + sizes[role]))
        start += sizes[role]
    return slots


def map_cells(height: int, width: int) -> list[int]:
    """Returns the role of each soft token of a picture of `height` by `width` soft tokens, row by row."""
    if min(height, width) < GRID:
        # A role would be missing in every column or row.
        return [number * len(ROLES) // (height * width) for number in range(height * width)]
    return [row * GRID // height * GRID + column * GRID // width for row in range(height) for column in range(width)]


def index_soft_tokens(scenes: list[Scene], height: int, width: int) -> Tensor:
    """Returns the table's index of each soft token, [pictures, tokens]."""
    cells = map_cells(height, width)
    return torch.tensor([[states[cell] for cell in cells] for states in map(index_states, scenes)])


@torch.no_grad()
def build_table(text_model: Any, tokenizer: Tokenizer) -> nn.Parameter:
    """Returns the table of states, [states, width], from descriptions that the text model reads.

    A state is the mean over the descriptions in which its token has this property, and over `CONTEXTS`.
    """
    slots = list_slots()
    sums = torch.zeros(slots[-1].stop, text_model.config.hidden_size)
    counts = torch.zeros(slots[-1].stop, 1)
    for scene in _list_scenes():
        for before, after in CONTEXTS:
            states = read_states(text_model, tokenizer, before, describe_scene(scene), after)
            for index, place in zip(index_states(scene), _find_places(tokenizer, scene), strict=True):
                sums[index] += states[place]
                counts[index] += 1
    return nn.Parameter(STATE_SCALE * sums / counts)


def _list_scenes() -> list[Scene]:
    """Returns scenes that have every figure, every colour and every ground, and a picture of something else."""
    scenes = [Scene("other", NAMES[0], NAMES[1])]
    for number, figure in enumerate(FIGURES):
        for step in range(len(NAMES)):
            colour, ground = NAMES[step], NAMES[(step + 1 + number % (len(NAMES) - 1)) % len(NAMES)]
            digit = int(figure[-1]) if figure.startswith("digit") else None
            scenes.append(Scene(figure if digit is None else "digit", colour, ground, digit))
    return scenes


def read_states(text_model: Any, tokenizer: Tokenizer, before: str, text: str, after: str) -> Tensor:
    """Returns the states of a text's tokens and of the first token after it, [tokens + 1, width]."""
    first, middle, last = (tokenizer.encode(part, add_special_tokens=False).ids for part in (before, text, after))
    taken: list[Tensor] = []
    layer = text_model.model.layers[STATE_LAYER]
    hook = layer.register_forward_hook(lambda _layer, _given, output: taken.append(output))
    text_model.model(input_ids=torch.tensor([first + middle + last[:1]]), use_cache=False)
    hook.remove()
    return taken[0][0, len(first) :]


def _find_places(tokenizer: Tokenizer, scene: Scene) -> list[int]:
    """Returns for each role the position of its token in the description; the end is the position after it."""
    count = len(tokenizer.encode(describe_scene(scene), add_special_tokens=False).ids)
    if scene.shape == "other":
        return [number % (count + 1) for number in range(len(ROLES))]
    parts = [f"{name_figure(scene)},", " ", f"{scene.colour}/", scene.ground]
    lengths = [len(tokenizer.encode(part, add_special_tokens=False).ids) for part in parts]
    # The ground's part has the end as its last token.
    starts, lengths[3] = [0, lengths[0], sum(lengths[:2]), sum(lengths[:3])], lengths[3] + 1
    order = ("figure", "comma", "colour", "ground")
    places = []
    for role, place in zip(ROLES, PLACES, strict=True):
        part = order.index(role)
        places.append(starts[part] + min(place, lengths[part] - 1))
    return places


def save_words(words: SoftWords, file: Path) -> None:
    """Writes the table, the rows and the scale."""
    torch.save(vars(words), file)


def load_words(file: Path) -> SoftWords:
    """Reads what `save_words` wrote."""
    return SoftWords(**torch.load(file, weights_only=True))
