"""Models for the benchmark, made on the spot from a fixed seed: `python -m tests.bench.models small tiny`.

SMALL has Qwen3-0.6B's shape, TINY four layers of 256; both have random weights and a made-up vocabulary of 151 936
entries. OSS is a tiny gpt-oss, for the scenarios on Antiphon, which brings its vocabulary. Speed does not ask what the weights say. The vocabulary is byte-level BPE over syllables: every word of
:func:`words` is one token, any other text falls back to syllables and bytes, and nearly every id is a readable word.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tests.bench.install import HOME, ROOT

MODELS = HOME / "models"
VOCAB = 151_936
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPACE = "Ġ"
SYLLABLES = tuple(map("".join, product("bcdfghjklmnpqrstvwxyz", "aeiou")))
SEED = 20_260_101

SHAPES: dict[str, dict[str, int]] = {
    "small": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
    },
    "tiny": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 1024,
    },
}


OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 40_960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0},
    "eos_token_id": 200_002,
    "pad_token_id": 199_999,
}


def byte_letters() -> list[str]:
    """How byte-level BPE writes each of the 256 bytes: itself where it can be printed, else a letter from 256 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def merges() -> list[tuple[str, str]]:
    """Every merge in its order, each of which makes one token; with the bytes and added tokens they are `VOCAB`."""
    pairs = [(one, two) for one, two in product(SYLLABLES, SYLLABLES)]
    free = VOCAB - 256 - len(SPECIAL) - len(ADDED) - len(SYLLABLES) - 2 * len(pairs)
    order = {one + two: place for place, (one, two) in enumerate(pairs)}
    # Of three syllables the first two must merge before the last two would.
    candidates = (
        (one + two, last) for (one, two), last in product(pairs, SYLLABLES) if order[one + two] < order[two + last]
    )
    triples = _spread(list(candidates), free // 2)
    spaced = [(SPACE, one + two) for one, two in (*pairs, *triples)]
    return [*((word[0], word[1]) for word in SYLLABLES), *pairs, *triples, *spaced]


def _spread(items: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """`count` of the items, evenly spread."""
    return [items[place * len(items) // count] for place in range(count)]


def words() -> list[str]:
    """Words that are one token each when a space stands before them."""
    return ["".join(pair) for pair in product(SYLLABLES, SYLLABLES)]


def tokenizer() -> dict[str, Any]:
    """The content of tokenizer.json."""
    rules = merges()
    tokens = [*byte_letters(), *(one + two for one, two in rules)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    added = [
        {"id": len(tokens) + place, "content": word, "special": word in SPECIAL}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for place, word in enumerate((*SPECIAL, *ADDED))
    ]
    model: dict[str, Any] = {
        "type": "BPE",
        "vocab": {token: place for place, token in enumerate(tokens)},
        "merges": rules,
    }
    model |= {"ignore_merges": False, "byte_fallback": False, "fuse_unk": False}
    model |= dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    empty = dict.fromkeys(("truncation", "padding", "normalizer"))
    faces = {"pre_tokenizer": level, "post_processor": level, "decoder": level}
    return {"version": "1.0", **empty, "added_tokens": added, **faces, "model": model}


def config(shape: dict[str, int], end: int) -> dict[str, Any]:
    """The content of config.json."""
    return shape | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "max_position_embeddings": 40_960,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "dtype": "bfloat16",
        "bos_token_id": end - 2,
        "eos_token_id": end,
        "pad_token_id": end - 2,
    }


def tensors(shape: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every weight; a vector is a norm."""
    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head, shape["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (VOCAB, hidden)
    for place in range(shape["num_hidden_layers"]):
        for name, size in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            yield f"model.layers.{place}.{name}.weight", size
    yield "model.norm.weight", (hidden,)


def _weights(shape: dict[str, int], file: Path) -> None:
    """Normal with deviation 0.02, so that the next token is close to evenly spread; norms are one."""
    import torch
    from safetensors.torch import save_file

    chance = torch.Generator().manual_seed(SEED)
    made = {}
    for name, size in tensors(shape):
        drawn = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=chance) * 0.02
        made[name] = drawn.to(torch.bfloat16)
    save_file(made, file, metadata={"format": "pt"})


def build(name: str) -> Path:
    """The model's folder, made now if it is not there."""
    folder = MODELS / name
    if folder.exists():
        return folder
    fresh = MODELS / f"{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    if name == "oss":
        _oss(fresh)
    else:
        _qwen(SHAPES[name], fresh)
    return fresh.rename(folder)


def _oss(fresh: Path) -> None:
    """As transformers draws it; the vocabulary needs no file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(SEED)
    told = AutoConfig.for_model(**OSS)
    model: Any = AutoModelForCausalLM.from_config(told, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(fresh)


def _qwen(shape: dict[str, int], fresh: Path) -> None:
    end = VOCAB - len(ADDED) - 1
    tells = {
        "tokenizer.json": tokenizer(),
        "config.json": config(shape, end),
        # Nothing is cut off: every server draws from the whole vocabulary.
        "generation_config.json": {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "eos_token_id": end,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 40_960,
            "eos_token": SPECIAL[2],
            "pad_token": SPECIAL[0],
            "clean_up_tokenization_spaces": False,
        },
    }
    for file, content in tells.items():
        (fresh / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    shutil.copyfile(ROOT / "harmony" / "chatml.jinja", fresh / "chat_template.jinja")
    _weights(shape, fresh / "model.safetensors")


def main() -> None:
    """Make the models that are named."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="+", choices=[*SHAPES, "oss"])
    for name in asked.parse_args().names:
        print(build(name), flush=True)


if __name__ == "__main__":
    main()
