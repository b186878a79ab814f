"""Tiny random embedding and reranking models, saved with the module files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = "the a cat dog sat ran on under mat hat big red fox".split()
VOCABULARY = {token: index for index, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "<eos>", *WORDS))}
SHAPE: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
TEXTS = [
    "the cat sat",
    "a big red fox ran under the hat",
    "dog",
    "the dog ran on the mat " * 4,
    "a cat",
    "red hat on mat",
]
POOLING = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def save_tokenizer(folder: Path, *, decoder: bool = False) -> None:
    """Saves a tokenizer of whole words. As in published repositories, its file asks for truncation and padding."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([token for token in VOCABULARY if token not in WORDS])
    special = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]", "<eos>")]
    single, pair = ("$A <eos>", "$A $B <eos>") if decoder else ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    tokenizer.post_processor = processors.TemplateProcessing(single, pair, special)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_modules(folder: Path, pooling: tuple[str, ...], *further: str, max_seq_length: int | None = None) -> None:
    names = ("Transformer", "Pooling", *further)
    paths = ["" if not index else f"{index}_{name}" for index, name in enumerate(names)]
    types = [f"sentence_transformers.models.{name}" for name in names]
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    write_json(folder / "modules.json", rows)
    flags = {key: mode in pooling for mode, key in POOLING.items()}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": SHAPE["hidden_size"], **flags})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})


def write_dense(folder: Path, size: int, activation: str) -> None:
    torch.manual_seed(3)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"linear.weight": torch.randn(size, SHAPE["hidden_size"]), "linear.bias": torch.randn(size)}
    save_file(weights, folder / "model.safetensors")
    write_json(folder / "config.json", {"activation_function": f"torch.nn.modules.activation.{activation}"})


def save_bert(folder: Path) -> Path:
    torch.manual_seed(7)
    transformers.BertModel(transformers.BertConfig(**SHAPE)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_qwen3(folder: Path) -> Path:
    torch.manual_seed(7)
    shape = {**SHAPE, "num_key_value_heads": 2, "head_dim": 16}
    transformers.Qwen3Model(transformers.Qwen3Config(**shape)).save_pretrained(folder)
    save_tokenizer(folder, decoder=True)
    return folder


def save_cross_encoder(folder: Path, **config: Any) -> Path:
    torch.manual_seed(7)
    settings = transformers.BertConfig(**SHAPE, **{"num_labels": 1, **config})
    transformers.BertForSequenceClassification(settings).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def token_ids(text: str, *, decoder: bool = False) -> list[int]:
    """Returns the ids of a text with its special tokens, without the tokenizer."""
    ids = [VOCABULARY[word] for word in text.split()]
    return [*ids, VOCABULARY["<eos>"]] if decoder else [VOCABULARY["[CLS]"], *ids, VOCABULARY["[SEP]"]]


def hidden_states(folder: Path, ids: list[int]) -> torch.Tensor:
    """Returns the vectors of the tokens of one text, alone in a batch, by transformers' own forward pass."""
    model: Any = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        hidden: torch.Tensor = model.eval()(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return hidden


def pair_score(folder: Path, first: str, second: str) -> float:
    """Returns the logit of a pair, alone in a batch, by transformers' own forward pass."""
    ids, more = token_ids(first), token_ids(second)[1:]
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    types = [0] * len(ids) + [1] * len(more)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([ids + more]), token_type_ids=torch.tensor([types])).logits
    return float(logits)
