"""Dialogues with pictures, and the training and evaluation of the model on them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from training import chat
from training.chat import call_message, user_message
from training.pictures import evaluate_pictures
from training.pictures.convert import (
    VISION_TOKENS,
    add_tower,
    extend_tokenizer,
    save_model,
)
from training.pictures.drawing import Scene
from training.pictures.evaluate_pictures import EvaluatedPicture
from training.pictures.picture_dialogues import make_picture_dialogue
from training.pictures.soft_words import (
    build_table,
    describe_scene,
)
from training.pictures.tower import MERGE
from training.pictures.train_pictures import PictureDialogues, PicturePlan, PictureRun
from training.pictures.train_words import train_words

PLACEHOLDER = "".join(VISION_TOKENS)


IMAGE = {"type": "image"}


def render(*messages: dict[str, Any]) -> str:
    return chat.render_prompt(list(messages), [])


def test_pictures_of_users_and_tools_are_outputs_to_report() -> None:
    call = call_message("", ("view_image", {"path": "a.png"}))
    said = {"role": "user", "content": [{"type": "text", "text": "Hi."}, IMAGE, {"type": "image_url", "image_url": {}}]}
    text = render(said, call, {"role": "tool", "content": [IMAGE, {"type": "text", "text": "a.png"}]})
    shown = f"\n<tool_response>\n{PLACEHOLDER}</tool_response>"
    assert text.startswith(f"<|im_start|>user\nHi.{shown * 2}<|im_end|>")
    assert f"<|im_start|>user\n<tool_response>\n{PLACEHOLDER}a.png</tool_response>" in text
    assert render({"role": "user", "content": [IMAGE]}).startswith(f"<|im_start|>user{shown}<|im_end|>")


def test_every_picture_of_a_long_conversation_is_kept() -> None:
    turn = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "x" * 300}]}, chat.answer_message("", "y")]
    assert render(*turn * 12, user_message("Hi.")).count(PLACEHOLDER) == 12
    assert render(*turn * 12, user_message("Hi.")).count("x" * 100) == 4


def test_dialogues_depend_on_the_seed_and_name_what_the_picture_shows() -> None:
    kinds = set()
    for number in range(60):
        example = make_picture_dialogue(f"seed {number}")
        assert example == make_picture_dialogue(f"seed {number}")
        prompt = chat.render_prompt(example.dialogue.messages[:-1], example.dialogue.tools)
        assert prompt.count(PLACEHOLDER) == len(example.scenes)
        if example.dialogue.skill != "after picture":
            assert example.dialogue.messages[-1]["content"] == describe_scene(example.scenes[-1])
        kinds.add(example.dialogue.skill)
    assert kinds == {"picture", "view", "after picture"}


def test_only_the_answer_after_the_last_picture_is_learned(text_tokenizer: Tokenizer) -> None:
    tokenizer = extend_tokenizer(text_tokenizer)
    source = PictureDialogues(tokenizer.to_str(), 1, 2048, surroundings=0.5)
    for (ids, mask), patches, (rows, columns), _ in source.build_chunk(tokenizer, 0)[:4]:
        soft = ids == tokenizer.token_to_id(VISION_TOKENS[1])
        assert int(soft.sum()) == patches.shape[0] * rows * columns // MERGE**2
        assert ids.numel() <= 2048 or len(ids) == 1
        assert not (mask & soft).any() and mask.any(1).all()
        for row in range(len(ids)):
            assert mask[row].nonzero()[0] > soft[row].nonzero()[-1]


def test_training_with_a_frozen_text_model_changes_only_the_tower(
    text_model: Any, text_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model, plan = add_tower(text_model), PicturePlan(steps=2, tokens=512, warmup=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = PictureRun(plan, model, extend_tokenizer(text_tokenizer), "text", tmp_path / "state.pt")
    run.train()
    after, known = model.state_dict(), text_model.config.vocab_size
    table = "model.language_model.embed_tokens.weight"
    assert torch.equal(before[table][:known], after[table][:known])
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert not [name for name in changed if "language_model" in name and name != table]
    assert "model.visual.blocks.0.attn.qkv.weight" in changed
    again = PictureRun(plan, add_tower(text_model), extend_tokenizer(text_tokenizer), "text", tmp_path / "state.pt")
    assert again.step == 2 and torch.equal(again.rows, run.rows)


def test_soft_words_are_trained_through_the_frozen_text_model(text_model: Any, text_tokenizer: Tokenizer) -> None:
    before = {name: value.clone() for name, value in text_model.state_dict().items()}
    words = train_words(PicturePlan(steps=2, tokens=512, warmup=1, rate=0.1), text_model, text_tokenizer)
    assert not torch.equal(words.table, build_table(text_model, text_tokenizer)) and words.rows.shape == (3, 64)
    assert all(torch.equal(value, before[name]) for name, value in text_model.state_dict().items())


@pytest.mark.parametrize(
    ("scene", "answer", "wrong"),
    [
        (Scene("circle", "red", "blue"), "circle, red/blue", set()),
        (Scene("circle", "red", "blue"), "square, red/white", {"shape", "background"}),
        (Scene("digit", "red", "blue", 7), "digit 1, black/blue", {"digit", "colour"}),
        (Scene("other", "red", "blue"), "I cannot tell.", set()),
        (Scene("other", "red", "blue"), "circle, red/blue", {"shape"}),
        (Scene("digit", "red", "blue", 7), "I cannot tell.", {"shape", "digit", "colour", "background"}),
    ],
)
def test_answers_are_scored_by_thing(scene: Scene, answer: str, wrong: set[str]) -> None:
    result = EvaluatedPicture("picture", scene, answer)
    assert {name for name, is_right in result.score_things().items() if not is_right} == wrong
    assert result.is_exact == (not wrong)


def test_evaluation_runs_through_the_processor(text_model: Any, text_tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_model(add_tower(text_model), text_tokenizer, tmp_path)
    results = evaluate_pictures.evaluate_pictures(tmp_path, 4)
    assert len(results) == 4 and evaluate_pictures.count_things(results)["shape"][1] == 4
