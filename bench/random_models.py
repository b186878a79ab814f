"""Models with random weights for the benchmark: `python -m bench.random_models small tiny`.

`small` has the shape of Qwen3-0.6B, `tiny` four layers of width 256. Both are created from a fixed seed, with a made-up
vocabulary of 151 936 entries. `oss` is a tiny gpt-oss for scenarios on Antiphon, which has that vocabulary built in;
`oss20b` has the shapes of gpt-oss-20b, in MXFP4, and `oss20b-N` only N of its layers.
Random weights suffice, since speed does not depend on their values. The vocabulary is byte-level BPE over syllables:
each word of `single_token_words` is one token, other text falls back to syllables and bytes, and nearly every id
is a readable word.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from bench.gpt_oss_model import OSS_SHAPES, build_gpt_oss_config, find_oss_shape, write_checkpoint
from bench.install import BENCH_DIR, ROOT

MODELS_DIR = BENCH_DIR / "models"
VOCAB_SIZE = 151_936
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SPACE = "Ġ"
"""Form of a space in byte-level BPE."""
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

GPT_OSS_CONFIG: dict[str, Any] = {
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


def byte_characters() -> list[str]:
    """Returns byte-level BPE's character for each of the 256 bytes: itself if printable, else a code point from 256."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def build_merges(vocab_size: int = VOCAB_SIZE) -> list[tuple[str, str]]:
    """Returns all merges in order. Each makes one token; with bytes and added tokens they are `vocab_size` tokens."""
    pairs = [(first, second) for first, second in product(SYLLABLES, SYLLABLES)]
    free_ids = vocab_size - 256 - len(SPECIAL_TOKENS) - len(ADDED_TOKENS) - len(SYLLABLES) - 2 * len(pairs)
    rank = {first + second: index for index, (first, second) in enumerate(pairs)}
    # In a word of three syllables, the first two must merge before the last two would.
    candidates = (
        (first + second, third)
        for (first, second), third in product(pairs, SYLLABLES)
        if rank[first + second] < rank[second + third]
    )
    triples = _sample_evenly(list(candidates), free_ids // 2)
    with_space = [(SPACE, left + right) for left, right in (*pairs, *triples)]
    return [*((syllable[0], syllable[1]) for syllable in SYLLABLES), *pairs, *triples, *with_space]


def _sample_evenly(items: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Returns `count` of the items, evenly spaced."""
    return [items[index * len(items) // count] for index in range(count)]


def single_token_words() -> list[str]:
    """Returns words that are one token each after a space."""
    return ["".join(pair) for pair in product(SYLLABLES, SYLLABLES)]


def build_tokenizer(vocab_size: int = VOCAB_SIZE) -> dict[str, Any]:
    """Returns the content of tokenizer.json."""
    merges = build_merges(vocab_size)
    tokens = [*byte_characters(), *(left + right for left, right in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    added_tokens = [
        {"id": len(tokens) + index, "content": token, "special": token in SPECIAL_TOKENS}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for index, token in enumerate((*SPECIAL_TOKENS, *ADDED_TOKENS))
    ]
    model: dict[str, Any] = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": merges,
    }
    model |= {"ignore_merges": False, "byte_fallback": False, "fuse_unk": False}
    model |= dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    unused = dict.fromkeys(("truncation", "padding", "normalizer"))
    stages = {"pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level}
    return {"version": "1.0", **unused, "added_tokens": added_tokens, **stages, "model": model}


def build_config(shape: dict[str, int], eos_token_id: int) -> dict[str, Any]:
    """Returns the content of config.json."""
    return shape | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 40_960,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "dtype": "bfloat16",
        "bos_token_id": eos_token_id - 2,
        "eos_token_id": eos_token_id,
        "pad_token_id": eos_token_id - 2,
    }


def weight_shapes(shape: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of every weight. A vector is the weight of a norm."""
    hidden, intermediate, head_dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * head_dim, shape["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (VOCAB_SIZE, hidden)
    for layer in range(shape["num_hidden_layers"]):
        for name, size in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.q_norm": (head_dim,),
            "self_attn.k_norm": (head_dim,),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (intermediate, hidden),
            "mlp.up_proj": (intermediate, hidden),
            "mlp.down_proj": (hidden, intermediate),
        }.items():
            yield f"model.layers.{layer}.{name}.weight", size
    yield "model.norm.weight", (hidden,)


def _write_weights(shape: dict[str, int], file: Path) -> None:
    """Writes random weights: norms are 1, all others normal with standard deviation 0.02.

    With so small a deviation the next token is close to uniformly distributed.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(SEED)
    tensors = {}
    for name, size in weight_shapes(shape):
        values = torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * 0.02
        tensors[name] = values.to(torch.bfloat16)
    save_file(tensors, file, metadata={"format": "pt"})


def create_model(name: str) -> Path:
    """Returns the model's folder. Creates it if it does not exist."""
    folder = MODELS_DIR / name
    if folder.exists():
        return folder
    unfinished = MODELS_DIR / f"{name}.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if name == "oss":
        _write_gpt_oss(unfinished)
    elif oss_shape := find_oss_shape(name):
        write_mxfp4_model(unfinished, oss_shape)
    else:
        _write_qwen(SHAPES[name], unfinished)
    return unfinished.rename(folder)


def parse_model_name(name: str) -> str:
    """Returns the name of a model. Raises `argparse.ArgumentTypeError` for any other."""
    if name in SHAPES or name == "oss" or find_oss_shape(name):
        return name
    raise argparse.ArgumentTypeError(f"use one of {', '.join([*SHAPES, *OSS_SHAPES])}, oss, or oss20b-LAYERS")


def write_mxfp4_model(folder: Path, shape: dict[str, Any]) -> None:
    """Writes a gpt-oss whose experts are in MXFP4, with a made-up vocabulary."""
    eos_token_id = shape["vocab_size"] - len(ADDED_TOKENS) - 1
    config = build_gpt_oss_config(shape, eos_token_id)
    _write_texts(folder, build_tokenizer(shape["vocab_size"]), config, eos_token_id)
    write_checkpoint(folder / "model.safetensors", config, SEED)


def _write_gpt_oss(folder: Path) -> None:
    """Writes a gpt-oss with transformers' own random initialization. Its vocabulary needs no file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(SEED)
    config = AutoConfig.for_model(**GPT_OSS_CONFIG)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)


def _write_qwen(shape: dict[str, int], folder: Path) -> None:
    eos_token_id = VOCAB_SIZE - len(ADDED_TOKENS) - 1
    _write_texts(folder, build_tokenizer(), build_config(shape, eos_token_id), eos_token_id)
    _write_weights(shape, folder / "model.safetensors")


def _write_texts(folder: Path, tokenizer: dict[str, Any], config: dict[str, Any], eos_token_id: int) -> None:
    """Writes all files but the weights."""
    contents = {
        "tokenizer.json": tokenizer,
        "config.json": config,
        # Without top-k and top-p every server samples from the whole vocabulary.
        "generation_config.json": {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "eos_token_id": eos_token_id,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 40_960,
            "eos_token": SPECIAL_TOKENS[2],
            "pad_token": SPECIAL_TOKENS[0],
            "clean_up_tokenization_spaces": False,
        },
    }
    for file, content in contents.items():
        (folder / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    shutil.copyfile(ROOT / "harmony" / "prompt" / "chatml.jinja", folder / "chat_template.jinja")


def main() -> None:
    """Creates the models named on the command line and prints their folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", type=parse_model_name, help="models to create")
    for name in parser.parse_args().names:
        print(create_model(name), flush=True)


if __name__ == "__main__":
    main()
