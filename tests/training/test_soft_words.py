"""The conversion of a text model to one with a vision tower, and the states that it reads as words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from training import chat, generator
from training.pictures.convert import (
    VISION_TOKENS,
    add_tower,
    extend_tokenizer,
    extract_text_model,
    load_text_model,
    processor_settings,
    read_tower,
    save_model,
)
from training.pictures.drawing import Scene
from training.pictures.soft_words import (
    ROLES,
    STATE_SCALE,
    build_table,
    index_soft_tokens,
    map_cells,
    read_states,
)
from training.pictures.tower import PATCH, cut_patches

PLACEHOLDER = "".join(VISION_TOKENS)


def test_text_prompts_get_the_same_logits_with_a_tower(text_model: Any, text_tokenizer: Tokenizer) -> None:
    model, tokenizer = add_tower(text_model).eval(), extend_tokenizer(text_tokenizer)
    for skill in ("greet", "call", "report"):
        dialogue = generator.evaluation_dialogue(skill, 0)
        prompt = chat.render_prompt(dialogue.messages[:-1], dialogue.tools)
        ids = text_tokenizer.encode(prompt, add_special_tokens=False).ids
        assert tokenizer.encode(prompt, add_special_tokens=False).ids == ids
        with torch.inference_mode():
            before, after = (some(input_ids=torch.tensor([ids])).logits for some in (text_model, model))
        # Three columns more may make torch multiply in other blocks, which changes last bits.
        torch.testing.assert_close(after[..., : before.shape[-1]], before, rtol=0, atol=1e-5)


def test_converted_model_loads_and_never_generates_vision_tokens(
    text_model: Any, text_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    save_model(add_tower(text_model), text_tokenizer, tmp_path)
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [tokenizer.token_to_id(token) for token in VISION_TOKENS]
    config = model.config
    assert ids == [config.vision_start_token_id, config.image_token_id, config.vision_end_token_id]
    assert tokenizer.get_vocab_size() == config.text_config.vocab_size == ids[-1] + 1
    assert model.generation_config.suppress_tokens == ids
    assert tokenizer.encode(PLACEHOLDER, add_special_tokens=False).ids == ids


@pytest.mark.parametrize(
    ("size", "grid"),
    [((64, 64), (8, 8)), ((20, 20), (8, 8)), ((300, 300), (8, 8)), ((768, 1024), (8, 10)), ((1080, 1920), (6, 12))],
)
def test_processor_makes_the_patches_that_training_cuts(size: tuple[int, int], grid: tuple[int, int]) -> None:
    settings = processor_settings()
    del settings["image_processor_type"], settings["processor_class"]
    processor: Any = Qwen2VLImageProcessorPil(**settings)
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    prepared = processor([picture], return_tensors="np")
    assert prepared["image_grid_thw"].tolist() == [[1, *grid]]
    if (grid[0] * PATCH, grid[1] * PATCH) == size:
        assert np.array_equal(prepared["pixel_values"], cut_patches(picture[None])[0].numpy())


def test_removing_the_tower_gives_the_text_model_back(
    text_model: Any, text_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text_back = extract_text_model(add_tower(text_model))
    assert text_back.config.to_diff_dict() == text_model.config.to_diff_dict()
    weights = text_back.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in text_model.state_dict().items())
    model = add_tower(text_model)
    save_model(model, text_tokenizer, tmp_path)
    loaded, tokenizer = load_text_model(tmp_path)
    assert loaded.config.vocab_size == tokenizer.get_vocab_size() == text_tokenizer.get_vocab_size()
    assert set(read_tower(tmp_path)) == set(model.model.visual.state_dict())


@pytest.mark.parametrize("size", [(4, 4), (4, 5), (6, 4), (3, 6), (6, 3), (2, 9), (2, 8)])
def test_every_role_has_a_soft_token(size: tuple[int, int]) -> None:
    cells = map_cells(*size)
    assert len(cells) == size[0] * size[1] and set(cells) == set(range(len(ROLES)))


def test_states_of_words_are_repeated_in_any_order(embedded_text: tuple[Any, Tokenizer]) -> None:
    text_model, tokenizer = embedded_text
    text, (before, after) = "digit 7, red/blue", ("<|im_start|>user\nrepeat: ", "<|im_end|>")
    states = STATE_SCALE * read_states(text_model, tokenizer, before, text, after).detach()
    states = states[torch.randperm(len(states), generator=torch.Generator().manual_seed(1))]
    first, last, answer = (
        tokenizer.encode(part, add_special_tokens=False).ids
        for part in (before, "<|im_end|>\n<|im_start|>assistant\n<think>\nRepeat it.\n</think>\n\n", text)
    )
    embed = text_model.model.embed_tokens
    embedded = torch.cat([embed(torch.tensor(first)), states, embed(torch.tensor(last + answer))])[None]
    with torch.inference_mode():
        logits = text_model(inputs_embeds=embedded.detach()).logits[0]
    assert logits[-len(answer) - 1 : -1].argmax(-1).tolist() == answer


def test_table_has_one_state_for_each_role_and_value(embedded_text: tuple[Any, Tokenizer]) -> None:
    table = build_table(*embedded_text)
    assert torch.isfinite(table).all()
    red, blue, unknown = (
        Scene("circle", "red", "white"),
        Scene("circle", "blue", "white"),
        Scene("other", "red", "white"),
    )
    indices = index_soft_tokens([red, blue, unknown], 4, 4)
    same = [role for role, (a, b) in zip(ROLES, indices[:2].T.tolist(), strict=True) if a == b]
    assert set(same) == {"figure", "comma", "ground"} and int(indices.max()) == len(table) - 1
    assert not set(indices[2].tolist()) & set(indices[:2].flatten().tolist())
