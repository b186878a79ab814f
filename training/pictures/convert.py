"""Gives a text model eyes: writes a small `qwen3_vl` model around the weights of a `qwen3` one.

    python -m training.pictures.convert --from FOLDER --tower FILE --out FOLDER
    python -m training.pictures.convert --from FOLDER --text --out FOLDER

The second command writes the text model of a `qwen3_vl` folder, for `training.train` to continue; its tower is then put
back with the first one. A prompt without pictures gets the same logits from both, since the text part of Qwen3-VL is
Qwen3 where a token's three positions are equal. The vocabulary grows by three rows, which are never generated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from training import tokenizer
from training.pictures.soft_words import SoftWords, load_words
from training.pictures.tower import MERGE, PATCH, PICTURE_SIDE, build_tower_config
from training.train import save_weights

VISION_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""The tokens around a picture's soft tokens, and the soft token. They are the last rows of the vocabulary."""
POSITION_SECTIONS = [6, 5, 5]
"""Number of rotary frequencies, of 16, for time, row and column."""
TEXT_SETTINGS = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
    "max_position_embeddings rms_norm_eps attention_bias attention_dropout pad_token_id eos_token_id"
).split()
"""Settings that `qwen3` and the text part of `qwen3_vl` share."""
MAX_REPETITION_TOKENS = 128
"""Number of last tokens that end an answer if they only repeat a piece. Training has no such answer."""
EMBEDDING_STD = 0.02
"""Standard deviation of new rows of the embedding."""


def build_config(text: Any, vocabulary: int) -> Qwen3VLConfig:
    """Returns the configuration around that of a text model, whose vocabulary the vision tokens extend."""
    kept = text.to_dict()
    start, soft, end = range(vocabulary, vocabulary + len(VISION_TOKENS))
    rope = {**kept["rope_parameters"], "mrope_section": POSITION_SECTIONS, "mrope_interleaved": True}
    text_config = {name: kept[name] for name in TEXT_SETTINGS} | {
        "vocab_size": vocabulary + len(VISION_TOKENS),
        "rope_parameters": rope,
        "tie_word_embeddings": True,
    }
    return Qwen3VLConfig(
        text_config=text_config,
        vision_config=build_tower_config(kept["hidden_size"]).to_dict(),
        image_token_id=soft,
        # There is no token for videos. An id outside the vocabulary is never found in a prompt.
        video_token_id=vocabulary + len(VISION_TOKENS),
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )


def add_tower(text_model: Any, tower_weights: dict[str, torch.Tensor] | None = None, seed: int = 7) -> Any:
    """Returns the `qwen3_vl` model around a text model, in fp32. The tower is random without `tower_weights`."""
    torch.manual_seed(seed)
    vocabulary = text_model.config.vocab_size
    model: Any = Qwen3VLForConditionalGeneration(build_config(text_model.config, vocabulary))
    weights = {
        name.removeprefix("model."): value
        for name, value in text_model.state_dict().items()
        if name != "lm_head.weight"
    }
    new_rows = torch.randn(len(VISION_TOKENS), weights["embed_tokens.weight"].shape[1]) * EMBEDDING_STD
    weights["embed_tokens.weight"] = torch.cat([weights["embed_tokens.weight"], new_rows])
    model.model.language_model.load_state_dict(weights)
    model.tie_weights()
    if tower_weights is not None:
        model.model.visual.load_state_dict(tower_weights)
    return model


def extend_tokenizer(text_tokenizer: Tokenizer) -> Tokenizer:
    """Returns a copy of the tokenizer with the vision tokens after all others."""
    extended = Tokenizer.from_str(text_tokenizer.to_str())
    extended.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in VISION_TOKENS])
    return extended


def save_model(model: Any, text_tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the weights in bf16, the configurations, the tokenizer and the processor's settings."""
    bf16_model: Any = Qwen3VLForConditionalGeneration(model.config)
    bf16_model.to(torch.bfloat16).load_state_dict(model.state_dict())
    bf16_model.generation_config = GenerationConfig.from_dict(
        {
            "do_sample": False,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "max_repetition_tokens": MAX_REPETITION_TOKENS,
            "suppress_tokens": [extend_tokenizer(text_tokenizer).token_to_id(token) for token in VISION_TOKENS],
        }
    )
    bf16_model.save_pretrained(folder)
    tokenizer.save_tokenizer(extend_tokenizer(text_tokenizer), folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(processor_settings(), indent=2) + "\n", encoding="utf-8"
    )


def processor_settings() -> dict[str, Any]:
    """Returns the image processor's settings: a square picture gets 64 by 64 pixels, another up to 6 399."""
    step = PATCH * MERGE
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3VLProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        # One pixel less than the next larger square, so that no square is larger than `PICTURE_SIDE`.
        "size": {"shortest_edge": PICTURE_SIDE**2, "longest_edge": (PICTURE_SIDE + step) ** 2 - 1},
    }


def extract_text_model(model: Any) -> Any:
    """Returns the `qwen3` model that a `qwen3_vl` model was made of, without the rows of the vision tokens."""
    text, rows = model.config.text_config, len(VISION_TOKENS)
    rope = {name: value for name, value in text.rope_parameters.items() if not name.startswith("mrope")}
    kept = {name: getattr(text, name) for name in TEXT_SETTINGS}
    config = Qwen3Config(
        **kept, vocab_size=text.vocab_size - rows, rope_parameters=rope, tie_word_embeddings=True, bos_token_id=None
    )
    text_model: Any = Qwen3ForCausalLM(config)
    weights = dict(model.model.language_model.state_dict())
    weights["embed_tokens.weight"] = weights["embed_tokens.weight"][:-rows]
    text_model.model.load_state_dict(weights)
    text_model.tie_weights()
    return text_model


def strip_tokenizer(tokenizer_with_vision: Tokenizer) -> Tokenizer:
    """Returns a copy of the tokenizer without the vision tokens."""
    state = json.loads(tokenizer_with_vision.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in VISION_TOKENS]
    return Tokenizer.from_str(json.dumps(state))


def read_tower(path: Path, words: SoftWords | None = None) -> dict[str, torch.Tensor]:
    """Returns the weights of the tower in a state file of `train_tower`, or in the folder of a `qwen3_vl` model.

    A tower that learned `words` wrote them in units of their spread, which its last matrix takes over.
    """
    if path.is_dir():
        model: Any = Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
        return dict(model.model.visual.state_dict())
    state = torch.load(path, weights_only=True)["model"]
    weights = {name.removeprefix("tower."): value for name, value in state.items() if name.startswith("tower.")}
    # The probes do not train the deepstack features, which would be noise in the text model's first layers.
    untrained = [name for name in weights if name.startswith("deepstack_merger_list") and "linear_fc2" in name]
    weights |= {name: torch.zeros_like(weights[name]) for name in untrained}
    if words is not None:
        weights["merger.linear_fc2.weight"] = weights["merger.linear_fc2.weight"] * words.spread[:, None]
        weights["merger.linear_fc2.bias"] = weights["merger.linear_fc2.bias"] * words.spread + words.mean
    return weights


def load_text_model(folder: Path) -> tuple[Any, Tokenizer]:
    """Returns the text model of a `qwen3` or `qwen3_vl` folder, in fp32, and its tokenizer without vision tokens."""
    known = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "qwen3":
        text_model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return text_model.eval(), known
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return extract_text_model(model).eval(), strip_tokenizer(known)


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(description="Add a vision tower to the embedded model, or remove it.")
    parser.add_argument("--from", type=Path, dest="source", required=True, help="folder of the model to convert")
    parser.add_argument("--tower", type=Path, help="state file of train_tower, or a folder; random if left out")
    parser.add_argument("--words", type=Path, help="table of train_words that the tower learned")
    parser.add_argument("--text", action="store_true", help="write the text model alone")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text_model, text_tokenizer = load_text_model(options.source)
    if options.text:
        save_weights(text_model, options.out)
        tokenizer.save_tokenizer(text_tokenizer, options.out)
        return
    words = load_words(options.words) if options.words else None
    model = add_tower(text_model, read_tower(options.tower, words) if options.tower else None)
    if words is not None:
        model.model.language_model.embed_tokens.weight.data[-len(VISION_TOKENS) :] = words.rows
    save_model(model, text_tokenizer, options.out)


if __name__ == "__main__":
    main()
