"""Runs the fixed evaluation of pictures and prints how often each thing in a picture is named correctly.

    python -m training.pictures.evaluate_pictures

The pictures come from seeds that training never uses, have 48 to 400 pixels a side, and are prepared by the processor
of transformers, as the server does. Decoding is greedy, from the saved bf16 weights, computed in fp32.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from antiphon.engine.embedded import MODEL_DIR
from training import chat
from training.pictures.drawing import Picture, Scene, draw_picture
from training.pictures.picture_dialogues import PictureDialogue, make_picture_dialogue
from training.pictures.soft_words import describe_scene, name_figure
from training.pictures.tower import MERGE

BATCH_SIZE = 25
MAX_NEW_TOKENS = 48
MIN_SCORES = {"colour": 0.95, "background": 0.95, "shape": 0.95, "digit": 0.85}
"""Share of pictures of which each thing must be named correctly."""
SIDES, MAX_ASPECT = (48, 400), 1.8
"""Least and greatest side of a picture in pixels, and the greatest ratio of its sides."""


@dataclass(frozen=True)
class EvaluatedPicture:
    """The scene of a dialogue's last picture, the kind of dialogue, and the generated answer without reasoning."""

    skill: str
    scene: Scene
    answer: str

    @property
    def is_exact(self) -> bool:
        """True if every thing is named correctly."""
        return self.answer == describe_scene(self.scene)

    def score_things(self) -> dict[str, bool]:
        """Tells for each thing that the picture has whether the answer names it."""
        if self.scene.shape == "other":
            return {"shape": self.is_exact}
        figure, _, colours = self.answer.partition(", ")
        colour, _, ground = colours.partition("/")
        scores = {"colour": colour == self.scene.colour, "background": ground == self.scene.ground}
        if self.scene.digit is not None:
            return {**scores, "shape": figure.startswith("digit "), "digit": figure == name_figure(self.scene)}
        return {**scores, "shape": figure == self.scene.shape}


LoadedModel = tuple[Any, Tokenizer, Any]
"""The model, its tokenizer and its image processor."""


def load_model(folder: Path) -> LoadedModel:
    """Returns the model in fp32, its tokenizer and its image processor."""
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    processor: Any = Qwen2VLImageProcessorPil
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json")), processor.from_pretrained(folder)


def draw_sizes(random: np.random.Generator) -> tuple[int, int]:
    """Returns the height and width of a picture: a square in half of the cases."""
    side = int(random.integers(*SIDES))
    if random.random() < 0.5:
        return side, side
    other = max(SIDES[0], round(side / random.uniform(1, MAX_ASPECT)))
    return (side, other) if random.random() < 0.5 else (other, side)


def draw_pictures(number: int, example: PictureDialogue) -> list[Picture]:
    """Returns the pictures of a dialogue, in order."""
    random = np.random.default_rng([2026, number])
    return [draw_picture(random, scene, *draw_sizes(random)) for scene in example.scenes]


def generate_answers(loaded: LoadedModel, batch: list[tuple[PictureDialogue, list[Picture]]]) -> list[str]:
    """Returns the greedy answer to each dialogue."""
    model, tokenizer, processor = loaded
    soft = model.config.image_token_id
    pictures = [Image.fromarray(picture) for _, drawn in batch for picture in drawn]
    prepared = processor(pictures, return_tensors="pt")
    counts = iter((prepared["image_grid_thw"].prod(-1) // MERGE**2).tolist())
    rows = []
    for example, _ in batch:
        dialogue = example.dialogue
        text = chat.render_prompt(dialogue.messages[:-1], dialogue.tools, dialogue.thinking)
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        rows.append([token for one in encoded for token in ([one] * next(counts) if one == soft else [one])])
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    model.model.rope_deltas = None
    with torch.inference_mode():
        written = model.generate(
            input_ids=ids,
            attention_mask=mask,
            mm_token_type_ids=(ids == soft).int(),
            pixel_values=prepared["pixel_values"],
            image_grid_thw=prepared["image_grid_thw"],
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
        )
    answers = [tokenizer.decode(row[longest:].tolist(), skip_special_tokens=False) for row in written]
    return [answer.partition("<|im_end|>")[0].rpartition("</think>\n\n")[2] for answer in answers]


def evaluate_pictures(folder: Path, count: int, surroundings: float = 0.5) -> list[EvaluatedPicture]:
    """Returns the answers to the first `count` evaluation dialogues."""
    loaded = load_model(folder)
    examples = [
        make_picture_dialogue(f"evaluation pictures {number}", surroundings, evaluation=True) for number in range(count)
    ]
    drawn = [(example, draw_pictures(number, example)) for number, example in enumerate(examples)]
    drawn.sort(key=lambda pair: len(str(pair[0].dialogue)))
    results = []
    for start in range(0, count, BATCH_SIZE):
        batch = drawn[start : start + BATCH_SIZE]
        for (example, _), answer in zip(batch, generate_answers(loaded, batch), strict=True):
            results.append(EvaluatedPicture(example.dialogue.skill, example.scenes[-1], answer))
    return results


def count_things(results: list[EvaluatedPicture]) -> dict[str, tuple[int, int]]:
    """Returns for each thing how often it was named correctly, and of how many pictures that have it."""
    scores = [answer.score_things() for answer in results]
    counts = {name: [row[name] for row in scores if name in row] for name in MIN_SCORES}
    counts["exact"] = [answer.is_exact for answer in results]
    counts["unknown"] = [answer.is_exact for answer in results if answer.scene.shape == "other"]
    return {name: (sum(rows), len(rows)) for name, rows in counts.items()}


def main() -> None:
    """Evaluates as the command line asks and prints the result. The exit status is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Evaluate how the embedded model describes pictures.")
    parser.add_argument("--model", type=Path, default=MODEL_DIR)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--misses", type=int, default=0, help="wrong answers to print, default 0")
    parser.add_argument("--surroundings", type=float, default=0.5, help="share with tools or system texts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print counts as JSON instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = evaluate_pictures(options.model, options.count, options.surroundings)
    counts = count_things(results)
    lines = [f"| {name} | {right} | {of} | {100 * right / max(of, 1):.1f} |" for name, (right, of) in counts.items()]
    wrong = [f"{a.skill}: {describe_scene(a.scene)!r}, written {a.answer!r}" for a in results if not a.is_exact]
    lines += wrong[: options.misses]
    sys.stdout.write((json.dumps(counts) if options.json else "\n".join(lines)) + "\n")
    sys.exit(any(counts[name][0] < score * counts[name][1] for name, score in MIN_SCORES.items()))


if __name__ == "__main__":
    main()
